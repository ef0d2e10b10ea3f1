//! Judges what was seen. Pure: the same facts give the same report. Every verdict but ok carries what to do.

use gpu::{Inventory, MemoryKind, PlatformKind};

use super::look::{ClusterView, Facts};
use super::report::Report;
use super::toml;
use crate::volume::spec;

/// More missing entries of Tegra's lists than this share (in percent) mean that the lists are for another L4T.
const MISSING_PERCENT_MAX: usize = 50;

/// The whole report.
pub fn judge(facts: &Facts) -> Report {
    let mut report = Report::default();
    platform(facts, &mut report);
    devices(facts, &mut report);
    driver_files(facts, &mut report);
    runtime(facts, &mut report);
    cdi(facts, &mut report);
    toolkit(facts, &mut report);
    images(facts, &mut report);
    kubelet(facts, &mut report);
    labels(facts, &mut report);
    report
}

fn kind(facts: &Facts) -> PlatformKind {
    facts
        .detection
        .as_ref()
        .map_or(PlatformKind::None, |detection| detection.platform.kind)
}

fn inventory(facts: &Facts) -> Option<&Inventory> {
    facts.inventory.as_ref().and_then(|listed| listed.as_ref().ok())
}

fn platform(facts: &Facts, report: &mut Report) {
    let Some(detection) = &facts.detection else { return };
    let machine = detection
        .platform
        .machine
        .as_deref()
        .unwrap_or("machine without a name");
    report.ok("platform", format!("{} ({machine})", detection.platform.kind));
    for evidence in &detection.evidence {
        report.ok("  because", format!("{}: {}", evidence.saw, evidence.means));
    }
    if let Some(tegra) = &detection.platform.tegra {
        let l4t = tegra.l4t_version.as_deref().unwrap_or("unknown");
        let jetpack = tegra.jetpack.as_deref().unwrap_or("unknown");
        report.ok("jetpack", format!("L4T {l4t}, JetPack {jetpack}"));
        if tegra.soc.is_none() {
            report.warning(
                "device tree",
                "the device tree is not readable here, so the SoC is not known",
                "mount the host's /sys/firmware/devicetree/base and name it with --device-tree",
            );
        }
    }
}

fn devices(facts: &Facts, report: &mut Report) {
    match &facts.inventory {
        None => {}
        Some(Err((error, remedy))) => {
            // On a Jetson the missing library is normal up to JetPack 5, and the agent does without it.
            report.problem("driver", error.clone(), remedy.clone());
        }
        Some(Ok(inventory)) => {
            match (&inventory.nvml_library, kind(facts)) {
                (Some(library), _) => {
                    let version = inventory.nvml_version.as_deref().unwrap_or("unknown version");
                    report.ok("nvml", format!("{library} ({version})"));
                }
                (None, PlatformKind::Tegra) => {
                    report.ok(
                        "nvml",
                        "not used: on this Jetson the GPU is read from the device tree and sysfs",
                    );
                }
                (None, _) => {}
            }
            for note in &inventory.notes {
                report.ok("note", note.clone());
            }
            if inventory.devices.is_empty() {
                report.problem(
                    "devices",
                    "no NVIDIA GPU was found on this machine",
                    "if there is one: install its driver and check lspci -d 10de: on the host; if there is none, this node needs no agent",
                );
            }
            for device in &inventory.devices {
                let memory = device
                    .memory_mib
                    .map_or("memory unknown".to_owned(), |mib| format!("{mib} MiB"));
                let unified = if device.memory_kind == MemoryKind::Unified {
                    ", shared with the CPU"
                } else {
                    ""
                };
                report.ok(
                    &format!("GPU {}", device.index),
                    format!("{} {} ({memory}{unified})", device.name, device.uuid),
                );
                if device.memory_mib.is_none() {
                    report.problem(
                        &format!("GPU {}", device.index),
                        "its memory is not known, so nvidia.com/gpu.memory will be missing and requests by gpu-memory never fit",
                        "mount the host's /proc/meminfo for unified memory, or update the driver (R510 or newer)",
                    );
                }
            }
        }
    }
}

fn driver_files(facts: &Facts, report: &mut Report) {
    if matches!(kind(facts), PlatformKind::None | PlatformKind::Fake) {
        return;
    }
    let (libraries, binaries) = (facts.files.libraries.len(), facts.files.binaries.len());
    let cuda = facts
        .files
        .libraries
        .iter()
        .any(|library| library.names.iter().any(|name| name.starts_with("libcuda.so")));
    if cuda {
        let version = facts.files.version.as_deref().unwrap_or("unknown");
        report.ok(
            "driver files",
            format!("{libraries} libraries and {binaries} programs of {version}"),
        );
    }
    for warning in &facts.files.warnings {
        let (saw, fix) = warning
            .split_once(": ")
            .unwrap_or((warning, "look at the host's driver installation"));
        if !cuda && warning.starts_with("libcuda") {
            report.problem("driver files", saw, fix);
        } else {
            report.warning("driver files", saw, fix);
        }
    }
}

fn runtime(facts: &Facts, report: &mut Report) {
    let Some((path, text)) = &facts.containerd else {
        let saw = "no config of containerd was found (also none of k3s or RKE2)";
        report.warning(
            "container runtime",
            saw,
            "run the doctor on the node, or with the host's / mounted and --host-root",
        );
        return;
    };
    let bundled = facts.k3s.as_deref();
    let version = match (bundled, &facts.runtime_version) {
        (Some(name), _) => format!("containerd of {name}"),
        (None, Some(version)) => format!("containerd {version}"),
        (None, None) => "containerd".to_owned(),
    };
    report.ok("container runtime", format!("{version}, {path}"));
    cdi_enabled(facts, path, text, report);
    let has_runtime = toml::has_table(text, "runtimes.nvidia");
    match (&facts.nvidia_runtime, has_runtime) {
        (None, true) => report.problem(
            "nvidia runtime",
            format!("{path} names the runtime nvidia, but nvidia-container-runtime is not installed"),
            "install nvidia-container-toolkit on the host, or remove the runtime from the config",
        ),
        (Some(found), false) if bundled.is_some() => report.warning(
            "runtime class",
            format!("{found} is installed, but {} was started before it and does not know it: RuntimeClass nvidia will not work", bundled.unwrap_or_default()),
            format!("systemctl restart {}", bundled.unwrap_or_default()),
        ),
        (Some(found), false) => report.warning(
            "runtime class",
            format!("{found} is installed, but containerd does not know it: RuntimeClass nvidia will not work (the agent does not need it)"),
            "nvidia-ctk runtime configure --runtime=containerd && systemctl restart containerd",
        ),
        (Some(found), true) => report.ok("nvidia runtime", format!("{found}, as runtime nvidia")),
        (None, false) => report.ok("nvidia runtime", "not installed; the agent's CDI injection does not need it"),
    }
}

/// CDI is on by default from containerd 2.0 (config version 3), off before.
fn cdi_enabled(facts: &Facts, path: &str, text: &str, report: &mut Report) {
    let said = toml::value(text, "io.containerd.grpc.v1.cri", "enable_cdi")
        .or_else(|| toml::value(text, "io.containerd.cri.v1.runtime", "enable_cdi"));
    let newest = toml::value(text, "", "version").as_deref() == Some("3");
    let restart = facts.k3s.as_deref().unwrap_or("containerd");
    let table = if newest {
        "plugins.'io.containerd.cri.v1.runtime'"
    } else {
        "plugins.\"io.containerd.grpc.v1.cri\""
    };
    let fix = format!(
        "add enable_cdi = true to [{table}] in the config of {restart}, then: systemctl restart {restart}; or use --mode mounts"
    );
    match said.as_deref() {
        Some("true") => report.ok("cdi", format!("enabled in {path}")),
        Some(_) => report.problem(
            "cdi",
            format!("switched off in {path}: containers would start without their GPU"),
            fix,
        ),
        None if newest => report.ok("cdi", "on by default in this version of containerd"),
        None => report.problem(
            "cdi",
            "off by default in containerd before 2.0: containers would start without their GPU",
            fix,
        ),
    }
}

fn cdi(facts: &Facts, report: &mut Report) {
    let ours = facts.specs.iter().find(|file| file.kind.as_deref() == Some(spec::KIND));
    let has_gpus = inventory(facts).is_some_and(|inventory| !inventory.devices.is_empty());
    match ours {
        Some(file) if !file.problems.is_empty() => {
            report.problem(
                "cdi spec",
                format!("{}: {}", file.path, file.problems.join("; ")),
                "restart the node agent: it writes the file anew",
            );
        }
        Some(file) if !file.dangling.is_empty() => report.problem(
            "cdi spec",
            format!(
                "{} mounts files that are gone, first {}: containers with a GPU will not start",
                file.path, file.dangling[0]
            ),
            "the driver was changed: restart the node agent, which writes the file anew",
        ),
        Some(file) => report.ok("cdi spec", file.path.clone()),
        None if has_gpus => report.warning(
            "cdi spec",
            "the node agent has not written its CDI spec on this host",
            "kubectl -n kai-scheduler get pods -l app=kai-node-agent -o wide",
        ),
        None => {}
    }
    for file in facts
        .specs
        .iter()
        .filter(|file| file.kind.as_deref() == Some("nvidia.com/gpu"))
    {
        report.ok(
            "other cdi spec",
            format!("{} (nvidia.com/gpu), not in conflict with ours", file.path),
        );
    }
}

fn toolkit(facts: &Facts, report: &mut Report) {
    let tegra = kind(facts) == PlatformKind::Tegra;
    if let Some(mode) = &facts.toolkit_mode {
        let path = "/etc/nvidia-container-runtime/config.toml";
        match (tegra, mode.as_str()) {
            (true, "legacy") => report.problem(
                "toolkit mode",
                format!("{path} says mode {mode}, which does not mount a Jetson's driver files"),
                "nvidia-ctk config --in-place --set nvidia-container-runtime.mode=csv",
            ),
            (true, "auto") if facts.lists.is_empty() => report.problem(
                "toolkit mode",
                "mode auto mounts a Jetson's driver files by lists, but there are none",
                "apt-get install --reinstall nvidia-container-toolkit nvidia-l4t-init, or let the node agent inject by CDI",
            ),
            (false, "csv") => report.problem(
                "toolkit mode",
                format!("{path} says mode csv, which mounts nothing on a machine that is no Jetson"),
                "nvidia-ctk config --in-place --set nvidia-container-runtime.mode=auto",
            ),
            (_, _) => report.ok("toolkit mode", mode.clone()),
        }
    }
    if !tegra {
        return;
    }
    if facts.lists.is_empty() {
        report.warning(
            "tegra lists",
            "there are no lists of driver files; the agent takes the library directory and the usual device nodes",
            "apt-get install nvidia-container-toolkit (its lists name the exact set)",
        );
        return;
    }
    let total: usize = facts.lists.iter().map(|(_, count)| count).sum();
    let missing = facts.files.missing.len();
    let names: Vec<&str> = facts.lists.iter().map(|(name, _)| name.as_str()).collect();
    let saw = format!(
        "{} with {total} entries, {missing} of them not on this board",
        names.join(", ")
    );
    if missing * 100 > total * MISSING_PERCENT_MAX {
        report.warning(
            "tegra lists",
            format!("{saw}, first {}", facts.files.missing[0]),
            "the lists are for another L4T: reinstall nvidia-l4t-init",
        );
    } else {
        report.ok("tegra lists", saw);
        for path in &facts.files.missing {
            report.ok("  missing", path.clone());
        }
    }
}

fn images(facts: &Facts, report: &mut Report) {
    for (image, found) in &facts.images {
        let import = if facts.k3s.is_some() {
            "k3s ctr images import <archive>.tar"
        } else {
            "ctr -n k8s.io images import <archive>.tar"
        };
        match found {
            Some(true) => report.ok("image", format!("{image} is on the node")),
            Some(false) => report.problem(
                "image",
                format!("{image} is not imported into the runtime of this node: pods with imagePullPolicy Never or IfNotPresent wait or fail (ErrImageNeverPull, ImagePullBackOff)"),
                format!("docker save {image} -o image.tar && {}", import.replace("<archive>", "image")),
            ),
            None => report.warning("image", format!("{image}: the runtime's store can't be read here"), format!("run as root on the node; {import}")),
        }
    }
}

fn kubelet(facts: &Facts, report: &mut Report) {
    for (path, exists) in &facts.kubelet_sockets {
        if *exists {
            report.ok("kubelet", path.clone());
        } else if facts.in_container {
            report.warning(
                "kubelet",
                format!("{path} is not visible here"),
                "mount the directory from the host; only the node agent needs it",
            );
        } else {
            report.warning(
                "kubelet",
                format!("{path} is missing: the kubelet does not run here, or has another root directory"),
                "systemctl status kubelet k3s k3s-agent",
            );
        }
    }
}

fn labels(facts: &Facts, report: &mut Report) {
    match &facts.cluster {
        ClusterView::NotAsked => report.ok("labels", "not looked at: no kubeconfig"),
        ClusterView::Unreachable(error) => {
            report.warning(
                "labels",
                error.clone(),
                "give a kubeconfig that works from here with --kubeconfig",
            );
        }
        ClusterView::Labels(labels) => {
            let has_gpus = inventory(facts).is_some_and(|inventory| !inventory.devices.is_empty());
            for key in ["nvidia.com/gpu.count", "nvidia.com/gpu.memory"] {
                match labels.get(key) {
                    Some(value) => report.ok("labels", format!("{key}={value}")),
                    None if has_gpus => report.problem(
                        "labels",
                        format!("the node has no label {key}: the scheduler can't place requests by GPU memory or fraction here"),
                        "run the node agent on this node: kubectl -n kai-scheduler rollout status daemonset/kai-node-agent",
                    ),
                    None => {}
                }
            }
        }
    }
}
