//! Machines whose GPU is part of the board: DGX Spark, Orin, Thor, IGX.

use std::time::Duration;

use kai_gpu::platform::{MemoryReserve, detect};
use kai_gpu::tegra::TegraDriver;
use kai_gpu::{DeviceKind, Driver, DriverKind, GpuError, MemoryKind, OpenOptions};

use crate::stage::{expected, opened_on, say, scenario, tree, wait_for};

#[test]
fn coherent_memory_is_the_machines() {
    scenario("boards::child_is_a_dgx_spark", "gb10", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_is_a_dgx_spark() {
    let opened = kai_gpu::open(OpenOptions {
        roots: tree("gb10-dgx-spark"),
        memory_reserve: MemoryReserve::Mib(0),
        ..OpenOptions::default()
    })
    .unwrap();
    assert_eq!(opened.driver.kind(), DriverKind::Nvml);
    let inventory = opened.driver.devices().unwrap();
    let device = &inventory.devices[0];
    assert_eq!(
        (device.memory_kind, device.memory_mib),
        (MemoryKind::Unified, Some(124_610))
    );
    assert_eq!(device.kind, DeviceKind::Discrete);
    assert_eq!(device.sysfs_bus_id().as_deref(), Some("000f:01:00.0"));
    assert_eq!(device.numa_node, Some(0), "from sysfs");
    let sample = &opened.driver.samples().unwrap()[0];
    assert_eq!(sample.memory_free_mib, Some(115_234));
}

#[test]
fn orin_with_a_poor_nvml() {
    let stderr = scenario("boards::child_is_an_orin", "orin-agx", &[]);
    assert!(
        !stderr.contains("NvRmMemInitNvmap"),
        "the library's noise must not reach an operator:\n{stderr}"
    );
}

#[test]
#[ignore = "run by its parent"]
fn child_is_an_orin() {
    say(
        "noise: ['NvRmMemInitNvmap failed with Permission denied', 'NvRmMemInitNvmap failed with Permission denied', 'NvRmMemMgrInit failed']",
    );
    let opened = opened_on("jetpack6-orin-agx");
    assert_eq!(opened.driver.kind(), DriverKind::Tegra);
    let inventory = opened.driver.devices().unwrap();
    let device = &inventory.devices[0];
    assert!(
        !device.uuid.starts_with("GPU-"),
        "NVML's own bare UUID: {}",
        device.uuid
    );
    assert_eq!(device.uuid, expected().devices().unwrap().devices[0].uuid);
    assert_eq!(
        (device.memory_kind, device.memory_mib),
        (MemoryKind::Unified, Some(60_786))
    );
    assert_eq!((device.minor, &device.pci_bus_id), (None, &None));
    assert_eq!(inventory.cuda_version.unwrap().to_string(), "12.6");
    let noise: Vec<&String> = inventory.notes.iter().filter(|note| note.contains("NvRm")).collect();
    assert_eq!(noise.len(), 2, "each line once: {:?}", inventory.notes);
    let sample = &opened.driver.samples().unwrap()[0];
    assert_eq!(
        (sample.temperature_celsius, sample.power_milliwatts),
        (Some(44), Some(2850)),
        "from sysfs"
    );
    // When NVML fails, the integrated GPU stays.
    say("library: driver-not-loaded");
    let inventory = opened.driver.devices().unwrap();
    assert_eq!(inventory.devices[0].uuid, device.uuid, "the identity does not flap");
    assert!(
        inventory.notes.iter().any(|note| note.contains("Driver Not Loaded")),
        "{:?}",
        inventory.notes
    );
    assert!(opened.driver.probe(&device.uuid).is_ok());
    assert!(
        opened
            .driver
            .wait_events(Duration::from_millis(1500))
            .unwrap()
            .is_empty()
    );
}

/// UUIDs survive a restart: one derived before NVML worked, and one that NVML reported before it was gone.
#[test]
fn an_orin_keeps_the_name_it_was_served_under() {
    scenario("boards::child_is_an_orin_with_a_past", "orin-agx", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_is_an_orin_with_a_past() {
    let start = |integrated_uuid: Option<&String>, tegra_nvml: bool| {
        let options = OpenOptions {
            roots: tree("jetpack6-orin-agx"),
            integrated_uuid: integrated_uuid.cloned(),
            tegra_nvml,
            ..OpenOptions::default()
        };
        let detection = detect(&options.roots);
        TegraDriver::new(options, detection)
    };
    let name = |driver: &dyn Driver| driver.devices().unwrap().devices[0].uuid.clone();
    let made_up = name(&start(None, false));
    let told = name(&start(None, true));
    assert_ne!(made_up, told);
    for (before, other) in [(&made_up, &told), (&told, &made_up)] {
        for nvml in [false, true] {
            let driver = start(Some(before), nvml);
            let device = driver.devices().unwrap().devices.remove(0);
            assert_eq!(&device.uuid, before);
            let differs = (other == &told) == nvml;
            assert_eq!(device.aliases.contains(other), differs, "{:?}", device.aliases);
            assert!(driver.probe(before).is_ok());
            assert_eq!(&driver.samples().unwrap()[0].uuid, before);
        }
    }
    // NVML's events have its own UUID; our driver reports the first one.
    let driver = start(Some(&made_up), true);
    assert_eq!(name(&driver), made_up);
    assert!(driver.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    say("gpus: {0: {state: lost}}");
    let events = wait_for(&driver, |events| !events.is_empty());
    assert_eq!(events[0].uuid.as_ref(), Some(&made_up), "{events:?}");
    assert!(matches!(driver.probe(&made_up), Err(GpuError::GpuLost { .. })));
}

#[test]
fn thor_with_a_real_nvml() {
    scenario("boards::child_is_a_thor", "thor", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_is_a_thor() {
    let opened = opened_on("jetpack7-thor");
    let inventory = opened.driver.devices().unwrap();
    let [device] = inventory.devices.as_slice() else {
        panic!("{:?}", inventory.devices)
    };
    assert_eq!(
        (device.kind, device.memory_kind),
        (DeviceKind::Integrated, MemoryKind::Unified)
    );
    assert_eq!(device.memory_mib, Some(123_699));
    assert_eq!(device.compute_capability.unwrap().family(), "blackwell");
    assert_eq!(device.minor, Some(0));
    say("gpus: {0: {utilizationPercent: 61}}");
    let sample = &opened.driver.samples().unwrap()[0];
    assert_eq!(
        (sample.utilization_percent, sample.temperature_celsius),
        (Some(61), Some(38)),
        "NVML's load, sysfs's heat"
    );
    // A lost integrated GPU is reported; a lost NVML does not make it lost.
    say("gpus: {0: {state: lost}}");
    assert!(matches!(
        opened.driver.probe(&device.uuid),
        Err(GpuError::GpuLost { .. })
    ));
    assert!(opened.driver.samples().unwrap()[0].unreachable.is_some());
    say("");
    opened.driver.probe(&device.uuid).unwrap();
}

#[test]
fn igx_offers_both_gpus() {
    scenario("boards::child_is_an_igx", "orin-agx,rtx-6000-ada", &[]);
    // A driver that lists the card only: the integrated GPU comes from files.
    scenario("boards::child_is_an_igx_that_lists_only_its_card", "rtx-6000-ada", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_is_an_igx() {
    let opened = opened_on("igx-orin-dgpu");
    let devices = opened.driver.devices().unwrap().devices;
    let kinds: Vec<_> = devices
        .iter()
        .map(|device| (device.kind, device.memory_kind, device.memory_mib))
        .collect();
    assert_eq!(
        kinds,
        [
            (DeviceKind::Integrated, MemoryKind::Unified, Some(60_786)),
            (DeviceKind::Discrete, MemoryKind::Dedicated, Some(49_140)),
        ]
    );
}

#[test]
#[ignore = "run by its parent"]
fn child_is_an_igx_that_lists_only_its_card() {
    let opened = opened_on("igx-orin-dgpu");
    let devices = opened.driver.devices().unwrap().devices;
    let kinds: Vec<_> = devices.iter().map(|device| (device.index, device.kind)).collect();
    assert_eq!(kinds, [(0, DeviceKind::Discrete), (1, DeviceKind::Integrated)]);
}
