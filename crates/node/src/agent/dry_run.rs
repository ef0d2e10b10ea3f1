//! Prints the labels, device lists and injection that the agent would produce. Uses the agent's own decisions and changes nothing.

use super::args::Args;
use super::state::{Input, State};
use crate::Error;
use crate::allocator::inject::Mode;
use crate::allocator::offer::Offer;
use crate::driver_files::{driver_volume, store};
use crate::health;

/// Describes what the agent would do on this machine.
pub fn dry_run(args: &Args) -> Result<String, Error> {
    let settings = args.settings()?;
    let opened = kai_gpu::open(super::open_options(args, &settings)?)?;
    let mut text = String::new();
    let mut line = |words: &str| {
        text.push_str(words);
        text.push('\n');
    };
    line(&format!(
        "platform: {} (driver {})",
        opened.detection.platform.kind,
        opened.driver.kind()
    ));
    for evidence in &opened.detection.evidence {
        line(&format!("  {}: {}", evidence.saw, evidence.means));
    }
    let inventory = opened.driver.devices()?;
    for note in &inventory.notes {
        line(&format!("  note: {note}"));
    }
    let ask = |uuid: &str| health::probe(&*opened.driver, uuid).map_err(|error| error.to_string());
    let devices = inventory.devices.iter();
    let answers = devices.map(|device| (device.uuid.clone(), ask(&device.uuid))).collect();
    let prepared = super::injector(&settings).plan(&inventory);
    let mut state = State::new(
        settings.policy.clone(),
        settings.shared_policy,
        settings.rules.clone(),
        None,
    );
    state.apply(Input::Listed(Box::new(inventory)));
    state.apply(Input::Probed(answers));
    let snapshot = state.snapshot();

    line(&format!("\nlabels for node {}:", settings.node));
    let labels = snapshot.labels.unwrap_or_default();
    if labels.is_empty() {
        line("  none");
    }
    for (key, value) in labels {
        line(&format!("  {key}={value}"));
    }
    line("\ndevices for the kubelet:");
    if snapshot.offers.is_empty() {
        line("  none");
    }
    for (name, offer) in &snapshot.offers {
        line(&format!("  {name}: {}", offer.devices().len()));
        let single = match &**offer {
            Offer::Gpus(_) => offer.devices(),
            Offer::ShareDevices(_) => &[],
        };
        for device in single {
            let node = device.topology.as_ref().and_then(|topology| topology.nodes.first());
            let numa = node.map(|node| format!(" numa={}", node.id)).unwrap_or_default();
            line(&format!("    {} {}{numa}", device.id, device.health));
        }
    }
    for note in snapshot.notes.iter().chain(&prepared.warnings) {
        line(&format!("  note: {note}"));
    }
    if !prepared.files.missing.is_empty() {
        line(&format!(
            "  note: {} entries of Tegra's lists are not on this board",
            prepared.files.missing.len()
        ));
    }
    line("\ninjection:");
    match (settings.mode, prepared.spec) {
        (_, None) => line("  none"),
        (Mode::Cdi, Some(spec)) => {
            line(&format!("  {}/kai.scheduler-gpu.json:", settings.cdi_dir.display()));
            line(&store::render(&spec));
        }
        (Mode::Mounts, Some(spec)) => {
            for part in driver_volume::parts(&prepared.files) {
                line(&format!("  volume: {} from {}", part.to, part.from));
            }
            line(&store::render(&spec));
        }
        (Mode::Envvar, Some(_)) => line("  NVIDIA_VISIBLE_DEVICES=<the devices>, for NVIDIA's container runtime"),
    }
    Ok(text)
}
