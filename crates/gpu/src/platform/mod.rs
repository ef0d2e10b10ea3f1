//! Detects the platform of this machine, with the evidence. Reads files only: it loads no library and opens no device, so it works in an
//! unprivileged pod and on a recorded tree, and a broken NVML can't make a Jetson look like a server.

mod evidence;
mod kernel;
mod memory;
mod pci;
mod release;

pub use evidence::{Detection, Evidence};
pub use kernel::KernelGpu;
pub use memory::{MachineMemory, MemoryReserve};
pub use release::{Release, jetpack_of};

use crate::{PciGpu, Platform, PlatformKind, Roots, TegraFacts, TegraStack};
use evidence::Collector;

/// Detects the platform from the machine's files. Tegra's own files come first, then the PCI bus, then WSL: a Tegra machine may have PCI
/// GPUs too, but only Tegra machines have Tegra's files.
pub fn detect(roots: &Roots) -> Detection {
    let mut seen = Collector::default();
    let release = detect_release(roots, &mut seen);
    let family = detect_family(roots, &mut seen);
    let soc = detect_soc(roots, &mut seen);
    let pci_gpus = pci::nvidia_gpus(roots);
    for gpu in &pci_gpus {
        let driver = gpu.driver.as_deref().unwrap_or("no driver");
        let means = match gpu.driver.as_deref() {
            _ if is_integrated(gpu, soc.as_deref()) => "the integrated GPU of the SoC, which shows itself on PCI",
            Some("nvidia") => "a discrete GPU under NVIDIA's driver",
            Some("vfio-pci") => "a GPU given to a virtual machine: not usable here",
            Some("nouveau") => "a GPU under nouveau: CUDA needs NVIDIA's own driver",
            Some(_) | None => "a GPU without NVIDIA's driver: CUDA will not work on it",
        };
        seen.add(
            format!("PCI {} is NVIDIA {:#06x} ({driver})", gpu.address, gpu.device_id),
            means,
        );
    }
    if pci_gpus.is_empty() {
        seen.add("no NVIDIA display or 3D controller on the PCI bus", "no discrete GPU");
    }
    let driver_version = driver_version(roots);
    if let Some(version) = &driver_version {
        seen.add(
            format!("/proc/driver/nvidia/version says {version}"),
            "NVIDIA's kernel module is loaded",
        );
    }
    let kernel_gpus = kernel::kernel_gpus(roots);
    for gpu in &kernel_gpus {
        let model = gpu.model.as_deref().unwrap_or("a GPU");
        let uuid = gpu.uuid.as_deref().unwrap_or("no UUID");
        seen.add(
            format!("/proc/driver/nvidia/gpus/{} is {model} ({uuid})", gpu.address),
            "the kernel module runs this GPU",
        );
    }
    let has_dxg = roots.dev.join("dxg").exists();
    if has_dxg {
        seen.add("/dev/dxg exists", "Windows Subsystem for Linux");
    }

    let is_tegra = release.is_some() || family || soc.is_some();
    let kind = match (is_tegra, has_dxg, !pci_gpus.is_empty() || driver_version.is_some()) {
        (true, _, _) => PlatformKind::Tegra,
        (false, true, _) => PlatformKind::Wsl,
        (false, false, true) => PlatformKind::Nvml,
        (false, false, false) => PlatformKind::None,
    };
    let tegra = is_tegra.then(|| tegra_facts(roots, release, soc, &mut seen));
    let platform = Platform {
        kind,
        machine: machine_name(roots),
        tegra,
        pci_gpus,
    };
    seen.conclude(platform, driver_version, kernel_gpus)
}

/// Thor's integrated GPU appears as a PCI device at a fixed address.
fn is_integrated(gpu: &PciGpu, soc: Option<&str>) -> bool {
    soc == Some("tegra264") && gpu.address == "0000:01:00.0"
}

/// The GPUs on PCI that are cards, not part of the SoC.
pub(crate) fn discrete_gpus(platform: &Platform) -> impl Iterator<Item = &PciGpu> {
    let soc = platform.tegra.as_ref().and_then(|tegra| tegra.soc.clone());
    platform
        .pci_gpus
        .iter()
        .filter(move |gpu| !is_integrated(gpu, soc.as_deref()))
}

fn detect_release(roots: &Roots, seen: &mut Collector) -> Option<Release> {
    let path = roots.in_host("/etc/nv_tegra_release");
    if !path.is_file() {
        return None;
    }
    let release = Release::parse(&std::fs::read_to_string(&path).unwrap_or_default());
    match &release.version {
        Some(version) => seen.add(format!("/etc/nv_tegra_release says L4T {version}"), "a Tegra system"),
        None => seen.add(
            "/etc/nv_tegra_release exists, without a version",
            "a Tegra system of unknown release",
        ),
    }
    Some(release)
}

fn detect_family(roots: &Roots, seen: &mut Collector) -> bool {
    let Some(family) = read_trimmed(&roots.sys.join("devices/soc0/family")) else {
        return false;
    };
    let is_tegra = family.to_ascii_lowercase().starts_with("tegra");
    let means = if is_tegra { "a Tegra SoC" } else { "some other SoC" };
    seen.add(format!("/sys/devices/soc0/family is {family:?}"), means);
    is_tegra
}

/// The SoC (`tegra234`) from the device tree's NUL-separated list of compatible machines.
fn detect_soc(roots: &Roots, seen: &mut Collector) -> Option<String> {
    let bytes = std::fs::read(roots.device_tree.join("compatible")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let soc = text
        .split('\0')
        .find_map(|name| name.strip_prefix("nvidia,").filter(|soc| soc.starts_with("tegra")))?;
    seen.add(
        format!("the device tree is compatible with nvidia,{soc}"),
        soc_name(soc),
    );
    Some(soc.to_owned())
}

fn soc_name(soc: &str) -> &'static str {
    match soc {
        "tegra264" => "a Thor SoC",
        "tegra234" => "an Orin SoC",
        "tegra194" => "a Xavier SoC",
        "tegra186" => "a TX2 SoC",
        "tegra210" => "a Nano or TX1 SoC",
        _ => "a Tegra SoC",
    }
}

fn tegra_facts(roots: &Roots, release: Option<Release>, soc: Option<String>, seen: &mut Collector) -> TegraFacts {
    let release = release.unwrap_or_default();
    let has = |path: &str| roots.host.join(path).exists();
    let nvgpu = roots.dev.join("nvgpu").exists()
        || roots.dev.join("nvhost-gpu").exists()
        || roots.sys.join("class/devfreq/17000000.gpu").exists();
    let open_rm = roots.sys.join("class/devfreq/gpu-gpc-0").exists();
    let stack = match (open_rm, nvgpu, soc.as_deref()) {
        (true, _, _) => {
            seen.add(
                "/sys/class/devfreq/gpu-gpc-0 exists",
                "the integrated GPU is run by nvidia.ko (open modules)",
            );
            Some(TegraStack::OpenRm)
        }
        (false, true, _) => {
            seen.add(
                "nvgpu device nodes or sysfs entries exist",
                "the integrated GPU is run by nvgpu",
            );
            Some(TegraStack::Nvgpu)
        }
        (false, false, Some("tegra264")) => Some(TegraStack::OpenRm),
        (false, false, Some(_)) => Some(TegraStack::Nvgpu),
        (false, false, None) => None,
    };
    // Older releases do not name the directory; the first existing one is in use.
    let usual = ["usr/lib/aarch64-linux-gnu/nvidia", "usr/lib/aarch64-linux-gnu/tegra"];
    let library_dir = release
        .library_dir
        .or_else(|| usual.iter().find(|dir| has(dir)).map(|dir| format!("/{dir}")));
    let jetpack = release.version.as_deref().and_then(jetpack_of).map(str::to_owned);
    TegraFacts {
        soc,
        l4t_version: release.version,
        jetpack,
        stack,
        library_dir,
    }
}

/// The machine's name from DMI, or from the device tree on Jetsons, which often have no DMI.
fn machine_name(roots: &Roots) -> Option<String> {
    let dmi = read_trimmed(&roots.sys.join("class/dmi/id/product_name"));
    dmi.or_else(|| read_trimmed(&roots.device_tree.join("model")))
}

/// The kernel module's version: the first word of its banner that looks like a version.
pub(crate) fn driver_version(roots: &Roots) -> Option<String> {
    let text = std::fs::read_to_string(roots.proc.join("driver/nvidia/version")).ok()?;
    let is_version = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        (2..=3).contains(&parts.len())
            && parts
                .iter()
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines()
        .next()?
        .split_whitespace()
        .find(is_version)
        .map(str::to_owned)
}

/// A small text file without its line end and NULs; `None` if it is missing or empty.
pub(crate) fn read_trimmed(path: &std::path::Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    (!text.is_empty()).then(|| text.to_owned())
}
