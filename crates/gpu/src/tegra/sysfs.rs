//! Measurements of the integrated GPU from sysfs: load, temperature, power. Each may be missing on a board; then it is `None`.

use std::path::PathBuf;

use crate::Roots;
use crate::platform::read_trimmed;

/// Utilization. `nvgpu` counts in thousandths.
pub(super) fn utilization_percent(roots: &Roots) -> Option<u32> {
    let places = [
        "devices/platform/17000000.gpu/load",
        "devices/platform/bus@0/17000000.gpu/load",
        "devices/platform/17000000.ga10b/load",
        "devices/gpu.0/load",
    ];
    let text = places.iter().find_map(|place| read_trimmed(&roots.sys.join(place)))?;
    text.parse::<u32>().ok().map(|thousandths| thousandths.min(1000) / 10)
}

/// The thermal zone named after the GPU: `gpu-thermal` (new kernels) or `GPU-therm` (old ones). In thousandths of a degree.
pub(super) fn temperature_celsius(roots: &Roots) -> Option<i32> {
    let zone = entries(roots, "class/thermal").into_iter().find(|zone| {
        let kind = read_trimmed(&zone.join("type")).unwrap_or_default();
        kind.to_ascii_lowercase().starts_with("gpu")
    })?;
    read_trimmed(&zone.join("temp"))?
        .parse::<i32>()
        .ok()
        .map(|thousandths| thousandths / 1000)
}

/// Power of the rail that feeds the GPU: volts times amperes of the board's INA3221. Boards share this rail with the CPU or the rest of the
/// SoC; other tools show this number too.
pub(super) fn power_milliwatts(roots: &Roots) -> Option<u64> {
    for monitor in entries(roots, "class/hwmon") {
        for channel in 1..=8 {
            let label = read_trimmed(&monitor.join(format!("in{channel}_label"))).unwrap_or_default();
            if !label.contains("GPU") {
                continue;
            }
            let number = |name: String| read_trimmed(&monitor.join(name))?.parse::<u64>().ok();
            let millivolts = number(format!("in{channel}_input"));
            let milliamperes = number(format!("curr{channel}_input"));
            if let (Some(millivolts), Some(milliamperes)) = (millivolts, milliamperes) {
                return Some(millivolts * milliamperes / 1000);
            }
        }
    }
    None
}

/// Directory entries, sorted.
fn entries(roots: &Roots, dir: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(roots.sys.join(dir)) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
