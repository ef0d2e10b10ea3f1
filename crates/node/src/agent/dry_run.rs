//! Prints the labels, device lists and injection that the agent would produce. Uses the agent's own decisions and changes nothing.

use kai_api::keys::GPU_ENFORCEMENT;
use kai_gpu::Driver;

use super::args::{Args, Settings};
use super::state::{Input, Snapshot, State};
use crate::Error;
use crate::allocator::inject::Mode;
use crate::allocator::offer::Offer;
use crate::driver_files::prepare::InjectionPlan;
use crate::driver_files::{driver_volume, store};
use crate::enforcement::facts::{Circumstances, Decider};
use crate::enforcement::tier::decide;
use crate::health;
use crate::plugin_config::{ConfigStatus, load};

/// Describes what the agent would do on this machine.
pub fn dry_run(args: &Args) -> Result<String, Error> {
    let settings = args.settings()?;
    let opened = kai_gpu::open(super::open_options(args, &settings)?)?;
    let mut text = String::new();
    let detection = &opened.detection;
    line(
        &mut text,
        &format!(
            "platform: {} (driver {})",
            detection.platform.kind,
            opened.driver.kind()
        ),
    );
    for evidence in &detection.evidence {
        line(&mut text, &format!("  {}: {}", evidence.saw, evidence.means));
    }
    let inventory = opened.driver.devices()?;
    for note in &inventory.notes {
        line(&mut text, &format!("  note: {note}"));
    }
    let probe = |uuid: &str| health::probe(&*opened.driver, uuid).map_err(|error| error.to_string());
    let devices = inventory.devices.iter();
    let answers = devices
        .map(|device| (device.uuid.clone(), probe(&device.uuid)))
        .collect();
    let plan = super::injector(&settings).plan(&inventory, None);
    let mut state = State::new(settings.policy.clone(), settings.rules.clone(), None);
    if let Some(source) = &settings.config {
        // Without a cluster the label is unknown: the default applies.
        state.apply(Input::Config(load(source, None, &settings.policy)));
    }
    state.apply(Input::Listed(Box::new(inventory)));
    state.apply(Input::Probed(answers));
    let snapshot = state.snapshot();
    add_config(&mut text, &snapshot);
    add_labels(&mut text, &settings, &snapshot);
    add_devices(&mut text, &snapshot, &plan);
    add_enforcement(&mut text, &settings, &*opened.driver, &snapshot, &plan);
    add_injection(&mut text, &settings, &plan);
    Ok(text)
}

fn line(text: &mut String, words: &str) {
    text.push_str(words);
    text.push('\n');
}

fn add_config(text: &mut String, snapshot: &Snapshot) {
    let in_effect = &snapshot.policy_summary;
    match &snapshot.config {
        ConfigStatus::FlagsOnly | ConfigStatus::Pending => {}
        ConfigStatus::Applied(applied) => {
            line(text, &format!("\nconfiguration by {}:\n  {in_effect}", applied.source));
            for warning in &applied.warnings {
                line(text, &format!("  warning: {warning}"));
            }
        }
        ConfigStatus::Rejected { problem } => {
            line(
                text,
                &format!("\nconfiguration:\n  problem: {problem}\n  kept: {in_effect}"),
            );
        }
    }
}

fn add_labels(text: &mut String, settings: &Settings, snapshot: &Snapshot) {
    line(text, &format!("\nlabels for node {}:", settings.node));
    let labels = snapshot.labels.clone().unwrap_or_default();
    if labels.is_empty() {
        line(text, "  none");
    }
    for (key, value) in labels {
        line(text, &format!("  {key}={value}"));
    }
}

fn add_devices(text: &mut String, snapshot: &Snapshot, plan: &InjectionPlan) {
    line(text, "\ndevices for the kubelet:");
    if snapshot.offers.is_empty() {
        line(text, "  none");
    }
    for (name, offer) in &snapshot.offers {
        line(text, &format!("  {name}: {}", offer.devices().len()));
        let listed = match &**offer {
            Offer::Gpus(_) => offer.devices(),
            Offer::ShareDevices(_) => &[],
        };
        for device in listed {
            let node = device.topology.as_ref().and_then(|topology| topology.nodes.first());
            let numa = node.map(|node| format!(" numa={}", node.id)).unwrap_or_default();
            line(text, &format!("    {} {}{numa}", device.id, device.health));
        }
    }
    for note in snapshot.notes.iter().chain(&plan.warnings) {
        line(text, &format!("  note: {note}"));
    }
    if !plan.files.missing.is_empty() {
        let missing = plan.files.missing.len();
        line(
            text,
            &format!("  note: {missing} entries of Tegra's lists are not on this board"),
        );
    }
}

/// The tier, as the node can have it. Nothing is copied to the host, so whether the hook's program runs there is not known.
fn add_enforcement(
    text: &mut String,
    settings: &Settings,
    driver: &dyn Driver,
    snapshot: &Snapshot,
    plan: &InjectionPlan,
) {
    if snapshot.inventory.devices.is_empty() {
        return;
    }
    let decider = Decider::new(settings.enforcement.clone());
    let facts = decider.facts(
        driver,
        &snapshot.inventory,
        plan.spec.as_ref(),
        Circumstances::default(),
    );
    let decided = decide(&facts);
    line(text, "\nGPU shares:");
    line(text, &format!("  label {GPU_ENFORCEMENT}={}", decided.tier.name()));
    line(text, &format!("  {}", decided.headline()));
    for reason in &decided.why_not_higher {
        line(text, &format!("  not a higher tier: {reason}"));
    }
    for warning in &decided.warnings {
        line(text, &format!("  warning: {warning}"));
    }
}

fn add_injection(text: &mut String, settings: &Settings, plan: &InjectionPlan) {
    line(text, "\ninjection:");
    match (settings.mode, &plan.spec) {
        (_, None) => line(text, "  none"),
        (Mode::Cdi, Some(spec)) => {
            line(
                text,
                &format!("  {}/kai.scheduler-gpu.json:", settings.cdi_dir.display()),
            );
            line(text, &store::render(spec));
        }
        (Mode::Mounts, Some(spec)) => {
            for part in driver_volume::parts(&plan.files) {
                line(text, &format!("  volume: {} from {}", part.to, part.from));
            }
            line(text, &store::render(spec));
        }
        (Mode::Envvar, Some(_)) => line(
            text,
            "  NVIDIA_VISIBLE_DEVICES=<the devices>, for NVIDIA's container runtime",
        ),
    }
}
