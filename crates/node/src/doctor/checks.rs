//! Turns facts into findings. Pure: the same facts give the same report. Every warning and problem has a fix.

use kai_gpu::{Inventory, MemoryKind, PlatformKind};

use super::facts::{ClusterView, Facts, RUNTIME_CLASS, RuntimeClass, TOOLKIT_CONFIG};
use super::report::Report;
use super::{shares, toml};
use crate::allocator::inject::Mode;
use crate::driver_files::spec;

/// If more than this percentage of the entries of Tegra's lists is missing, the lists are for another L4T.
const MISSING_PERCENT_MAX: usize = 50;

/// The first containerd that supports CDI, if it is enabled.
const CDI_SINCE: (u32, u32) = (1, 7);
/// The first containerd that enables CDI by default.
const CDI_BY_DEFAULT_SINCE: (u32, u32) = (2, 0);

/// Restarts the agent, which writes its CDI spec at every start.
const RESTART_AGENT: &str = "kubectl -n kai-scheduler rollout restart daemonset/kai-node-agent";

/// Runs all checks.
pub fn run_checks(facts: &Facts) -> Report {
    let mut report = Report::default();
    platform(facts, &mut report);
    devices(facts, &mut report);
    driver_files(facts, &mut report);
    malformed(facts, &mut report);
    runtime(facts, &mut report);
    cdi(facts, &mut report);
    toolkit(facts, &mut report);
    images(facts, &mut report);
    kubelet(facts, &mut report);
    labels(facts, &mut report);
    shares::check(facts, &mut report);
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
        // The driver may well be in order: only this pod can't reach it.
        Some(Err((error, _))) if facts.hidden_device_nodes => report.warning(
            "driver",
            format!("{error}: the host has /dev/nvidiactl, but this pod has not, so the GPUs were not checked"),
            "run the doctor where it sees the GPUs: kai doctor NODE --privileged, or --runtime-class nvidia if NVIDIA's runtime is installed",
        ),
        Some(Err((error, remedy))) => {
            // A missing NVML on a Jetson is no error here: the Tegra driver does not need it.
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
                let subject = format!("GPU {}", device.index);
                let shown = format!("{} {} ({memory}{unified})", device.name, device.uuid);
                match facts.unresponsive.iter().find(|silent| silent.uuid == device.uuid) {
                    None => report.ok(&subject, shown),
                    Some(silent) => {
                        report.problem(&subject, format!("{shown}: {}", silent.error), silent.remedy.clone())
                    }
                }
                if device.memory_mib.is_none() {
                    report.problem(
                        &subject,
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

fn malformed(facts: &Facts, report: &mut Report) {
    for (path, error) in &facts.malformed {
        let fix = if path == TOOLKIT_CONFIG {
            format!("correct {path}, or write it anew: nvidia-ctk config > {path}")
        } else {
            let service = facts.k3s.as_deref().unwrap_or("containerd");
            format!("correct {path}, then: systemctl restart {service}")
        };
        report.problem("config file", format!("{path} is not valid TOML: {error}"), fix);
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
    let version = facts.runtime_version.as_deref().unwrap_or("of unknown version");
    let whose = bundled.map(|name| format!(" of {name}")).unwrap_or_default();
    report.ok("container runtime", format!("containerd {version}{whose}, {path}"));
    templates(facts, report);
    if facts.malformed.iter().any(|(malformed, _)| malformed == path) {
        // `malformed` reports it; the checks below would take every setting for absent.
        return;
    }
    if needs_cdi(facts) {
        cdi_enabled(facts, path, text, report);
    }
    let has_runtime = has_runtime(facts, RUNTIME_CLASS);
    runtime_class(facts, report);
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

/// Whether the node agent injects by CDI, as far as that is known.
fn needs_cdi(facts: &Facts) -> bool {
    facts.mode.is_none_or(|mode| mode == Mode::Cdi)
}

/// Whether containerd's config, or a file it imports, has a runtime of this name.
fn has_runtime(facts: &Facts, name: &str) -> bool {
    let config = facts.containerd.iter().chain(&facts.containerd_imports);
    config
        .into_iter()
        .any(|(_, text)| toml::has_table(text, &["runtimes", name]))
}

/// k3s uses one template and ignores the other; edits of the ignored one have no effect.
fn templates(facts: &Facts, report: &mut Report) {
    let Some((used, ignored)) = facts.templates.split_first() else {
        return;
    };
    let name = facts.k3s.as_deref().unwrap_or_default();
    report.ok(
        "  template",
        format!("{used}: {name} makes its config from it at every start"),
    );
    for path in ignored {
        report.warning(
            "  template",
            format!("{path} is ignored, because {used} is there"),
            format!("move what is needed into {used}, then: rm {path} && systemctl restart {name}"),
        );
    }
}

/// Compares the RuntimeClass that pods name in `runtimeClassName` with the runtimes of this node's containerd.
fn runtime_class(facts: &Facts, report: &mut Report) {
    let ClusterView::Node { runtime_class, .. } = &facts.cluster else {
        return;
    };
    let known = has_runtime(facts, RUNTIME_CLASS);
    match runtime_class {
        RuntimeClass::Handler(handler) if has_runtime(facts, handler) => {
            report.ok("runtime class", format!("{RUNTIME_CLASS}, handler {handler}"));
        }
        RuntimeClass::Handler(handler) => report.warning(
            "runtime class",
            format!("the cluster has RuntimeClass {RUNTIME_CLASS}, but this node's containerd has no runtime {handler}: pods that name the class will not start here"),
            "install nvidia-container-toolkit and restart the runtime, or leave runtimeClassName out of the pods: the agent does not need it",
        ),
        RuntimeClass::Missing if known => report.warning(
            "runtime class",
            format!("containerd has a runtime {RUNTIME_CLASS}, but the cluster has no RuntimeClass of that name: pods that name it are refused"),
            format!(
                "echo '{{\"apiVersion\":\"node.k8s.io/v1\",\"kind\":\"RuntimeClass\",\"metadata\":{{\"name\":\"{RUNTIME_CLASS}\"}},\"handler\":\"{RUNTIME_CLASS}\"}}' | kubectl apply -f -"
            ),
        ),
        RuntimeClass::Missing => report.ok("runtime class", "none, and none is needed"),
        RuntimeClass::Unknown(error) => report.warning(
            "runtime class",
            error.clone(),
            format!("kubectl get runtimeclass {RUNTIME_CLASS}"),
        ),
    }
}

/// containerd enables CDI by default from 2.0, supports it from 1.7, and does not know it before. If the version is unknown, the config's
/// format decides: format 3 exists since 2.0.
fn cdi_enabled(facts: &Facts, path: &str, text: &str, report: &mut Report) {
    let mut config = facts
        .containerd_imports
        .iter()
        .rev()
        .map(|(path, text)| (path.as_str(), text.as_str()));
    let said = config.by_ref().chain([(path, text)]).find_map(|(path, text)| {
        let value = toml::value(text, &["io.containerd.grpc.v1.cri"], "enable_cdi")
            .or_else(|| toml::value(text, &["io.containerd.cri.v1.runtime"], "enable_cdi"))?;
        Some((path, value))
    });
    let newest_format = toml::value(text, &[], "version").as_deref() == Some("3");
    let version = facts.runtime_version.as_deref().and_then(major_and_minor);
    if version.is_some_and(|version| version < CDI_SINCE) {
        report.problem(
            "cdi",
            "containerd before 1.7 knows no CDI: containers would start without their GPU",
            "install containerd 1.7 or later, or run the node agent with --mode mounts",
        );
        return;
    }
    let by_default = version.map_or(newest_format, |version| version >= CDI_BY_DEFAULT_SINCE);
    let path = said.as_ref().map_or(path, |(path, _)| path);
    let said = said.as_ref().map(|(_, value)| value.clone());
    let fix = cdi_fix(facts, path, text, said.is_some(), newest_format);
    match said.as_deref() {
        Some("true") => report.ok("cdi", format!("enabled in {path}")),
        Some(_) => report.problem(
            "cdi",
            format!("switched off in {path}: containers would start without their GPU"),
            fix,
        ),
        None if by_default => report.ok("cdi", "on by default in this version of containerd"),
        None => report.problem(
            "cdi",
            "off by default in containerd before 2.0: containers would start without their GPU",
            fix,
        ),
    }
}

/// `1.7.24~ds1-6` is (1, 7).
fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version
        .split(|sign: char| !sign.is_ascii_digit())
        .map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The command that enables CDI. k3s and RKE2 generate their config from a template at every start, so the template has to change; without
/// a template, a copy of the generated config is a valid one.
fn cdi_fix(facts: &Facts, path: &str, text: &str, said: bool, newest_format: bool) -> String {
    let restart = facts.k3s.as_deref().unwrap_or("containerd");
    let (table, template) = if newest_format {
        ("io.containerd.cri.v1.runtime", "config-v3.toml.tmpl")
    } else {
        ("io.containerd.grpc.v1.cri", "config.toml.tmpl")
    };
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let generated = facts.k3s.is_some() && path.ends_with("/config.toml");
    let change = if said {
        "s/enable_cdi = false/enable_cdi = true/".to_owned()
    } else {
        format!("/^\\[plugins..{table}.\\]/a enable_cdi = true")
    };
    let edit = match facts.templates.first() {
        Some(template) if generated => format!("sed -i '{change}' {template}"),
        None if generated => format!("sed '{change}' {path} > {directory}/{template}"),
        Some(_) | None if said || toml::has_table(text, &[table]) => format!("sed -i '{change}' {path}"),
        Some(_) | None => format!("printf '[plugins.\"{table}\"]\\nenable_cdi = true\\n' >> {path}"),
    };
    format!("{edit} && systemctl restart {restart}; or run the node agent with --mode mounts")
}

fn cdi(facts: &Facts, report: &mut Report) {
    let ours = facts.specs.iter().find(|file| file.kind.as_deref() == Some(spec::KIND));
    let has_gpus = inventory(facts).is_some_and(|inventory| !inventory.devices.is_empty());
    match ours {
        Some(file) if !file.problems.is_empty() => {
            report.problem(
                "cdi spec",
                format!("{}: {}", file.path, file.problems.join("; ")),
                RESTART_AGENT,
            );
        }
        Some(file) if !file.dangling.is_empty() => report.problem(
            "cdi spec",
            format!(
                "{} mounts files that are gone, first {}: containers with a GPU will not start",
                file.path, file.dangling[0]
            ),
            format!("the driver was changed: {RESTART_AGENT}"),
        ),
        Some(file) => report.ok("cdi spec", file.path.clone()),
        None if has_gpus && needs_cdi(facts) => report.warning(
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
        let path = TOOLKIT_CONFIG;
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
            (true, "csv") if facts.lists.is_empty() => report.problem(
                "toolkit mode",
                format!("{path} says mode csv, but there are no lists: nothing would be mounted"),
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
        ClusterView::NoSuchNode(name) => report.warning(
            "labels",
            format!("the cluster has no node {name}, so its labels were not looked at"),
            "kubectl get nodes lists the names; give this machine's with --node-name, or join it to the cluster",
        ),
        ClusterView::Node { labels, .. } => {
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
