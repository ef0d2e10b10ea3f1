//! Golden tests on every recorded machine below `fixtures/`: platform, evidence, devices and measurements. The golden files are in
//! `tests/snapshots`; a difference changes what operators and the scheduler see.

// Test code: a failed step should stop right there.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use kai_gpu::platform::{MemoryReserve, detect};
use kai_gpu::tegra::TegraDriver;
use kai_gpu::{Device, Driver, GpuError, HealthEventKind, OpenOptions, PlatformKind, Roots};

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// On a recorded tree NVML is not used: the library of this machine would describe the wrong machine.
fn options(root: &Path) -> OpenOptions {
    OpenOptions {
        roots: Roots::under(root),
        tegra_nvml: false,
        nvml_library: None,
        ..OpenOptions::default()
    }
}

fn tegra(root: &Path) -> TegraDriver {
    let options = options(root);
    let detection = detect(&options.roots);
    TegraDriver::new(options, detection)
}

/// A copy that a test may change.
fn copy(name: &str) -> tempfile::TempDir {
    fn copy_into(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                copy_into(&entry.path(), &target);
            } else if kind.is_symlink() {
                std::os::unix::fs::symlink(std::fs::read_link(entry.path()).unwrap(), target).unwrap();
            } else {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    copy_into(&tree(name), dir.path());
    dir
}

#[test]
fn every_tree_is_recognised_for_a_reason() {
    for entry in std::fs::read_dir(tree(""))
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.path().is_dir())
    {
        let name = entry.file_name().into_string().unwrap();
        let detection = detect(&Roots::under(&entry.path()));
        let platform = serde_json::to_string_pretty(&detection.platform).unwrap();
        let text = format!("{}\n\n{platform}", detection.explain());
        insta::assert_snapshot!(format!("detect-{name}"), text);
    }
}

#[test]
fn every_tegra_tree_gives_its_integrated_gpu_without_nvml() {
    for name in [
        "jetpack5-orin-nano",
        "jetpack6-orin-agx",
        "jetpack7-orin-nx",
        "jetpack7-thor",
        "igx-orin-dgpu",
        "tegra-in-pod",
    ] {
        let driver = tegra(&tree(name));
        let inventory = driver.devices().unwrap();
        let samples = driver.samples().unwrap();
        let text = format!(
            "{}\n\nsamples: {}\n\nnotes:\n{}",
            serde_json::to_string_pretty(&inventory.devices).unwrap(),
            serde_json::to_string_pretty(&samples).unwrap(),
            inventory.notes.join("\n")
        );
        insta::assert_snapshot!(format!("devices-{name}"), text);
        let [device] = inventory.devices.as_slice() else {
            panic!("{name}: one integrated GPU")
        };
        assert!(
            device.memory_mib.is_some_and(|mib| mib > 1024),
            "{name}: memory is never missing on Tegra"
        );
        assert!(driver.probe(&device.uuid).is_ok(), "{name}");
    }
}

#[test]
fn the_identity_survives_a_restart_and_differs_between_machines() {
    let uuid = |name: &str| tegra(&tree(name)).devices().unwrap().devices[0].uuid.clone();
    assert_eq!(uuid("jetpack5-orin-nano"), uuid("jetpack5-orin-nano"));
    assert_ne!(uuid("jetpack5-orin-nano"), uuid("jetpack6-orin-agx"));
}

#[test]
fn the_reserve_is_taken_from_the_memory() {
    let memory = |reserve: MemoryReserve| {
        let options = OpenOptions {
            memory_reserve: reserve,
            ..options(&tree("jetpack5-orin-nano"))
        };
        let detection = detect(&options.roots);
        TegraDriver::new(options, detection).devices().unwrap().devices[0].memory_mib
    };
    assert_eq!(memory(MemoryReserve::Mib(0)), Some(7619));
    assert_eq!(memory(MemoryReserve::Mib(1000)), Some(6619));
    assert_eq!(memory(MemoryReserve::Auto), Some(6858));
}

#[test]
fn an_integrated_gpu_is_lost_and_returns_with_its_nodes() {
    let dir = copy("jetpack6-orin-agx");
    let driver = tegra(dir.path());
    let uuid = driver.devices().unwrap().devices[0].uuid.clone();
    assert_eq!(driver.wait_events(Duration::ZERO).unwrap(), []);

    let away = dir.path().join("away");
    std::fs::create_dir(&away).unwrap();
    let nodes = ["nvgpu", "nvhost-ctrl-gpu", "nvhost-gpu"];
    for node in nodes {
        std::fs::rename(dir.path().join("dev").join(node), away.join(node)).unwrap();
    }
    let events = driver.wait_events(Duration::from_secs(5)).unwrap();
    assert!(matches!(&events[0].kind, HealthEventKind::Lost { .. }), "{events:?}");
    assert_eq!(events[0].uuid.as_deref(), Some(uuid.as_str()));
    assert!(matches!(driver.probe(&uuid), Err(GpuError::DriverNotLoaded { .. })));
    assert!(driver.samples().unwrap()[0].unreachable.is_some());

    for node in nodes {
        std::fs::rename(away.join(node), dir.path().join("dev").join(node)).unwrap();
    }
    let events = driver.wait_events(Duration::from_secs(5)).unwrap();
    assert_eq!(events[0].kind, HealthEventKind::Recovered);
    assert!(driver.probe(&uuid).is_ok());
}

#[test]
fn open_picks_by_platform_and_a_machine_without_gpus_is_no_error() {
    for (name, kind) in [
        ("jetpack5-orin-nano", "tegra"),
        ("jetpack7-thor", "tegra"),
        ("x86-server", "nvml"),
        ("gb10-dgx-spark", "nvml"),
    ] {
        let opened = kai_gpu::open(options(&tree(name))).unwrap();
        assert_eq!(opened.driver.kind().to_string(), kind, "{name}");
    }
    let opened = kai_gpu::open(options(&tree("no-gpu"))).unwrap();
    assert_eq!(opened.detection.platform.kind, PlatformKind::None);
    if opened.driver.kind() == kai_gpu::DriverKind::None {
        let devices: Vec<Device> = opened.driver.devices().unwrap().devices;
        assert!(devices.is_empty());
    }
}

#[test]
fn a_server_without_its_library_says_where_it_looked() {
    // The placeholder in the tree is no ELF file: it is found, tried and refused.
    let opened = kai_gpu::open(options(&tree("x86-server"))).unwrap();
    if let Err(error) = opened.driver.devices() {
        let text = error.to_string();
        assert!(
            text.contains("ERROR_LIBRARY_NOT_FOUND") || text.contains("Driver Not Loaded"),
            "{text}"
        );
        assert!(!error.remedy().is_empty());
    }
}

#[test]
fn the_fake_driver_refuses_every_machine_with_a_real_one() {
    for name in [
        "jetpack5-orin-nano",
        "jetpack7-thor",
        "gb10-dgx-spark",
        "x86-server",
        "tegra-in-pod",
        "igx-orin-dgpu",
    ] {
        let driver = "fake:t4".parse().unwrap();
        let error = kai_gpu::open(OpenOptions {
            driver,
            ..options(&tree(name))
        })
        .unwrap_err();
        assert!(matches!(error, GpuError::FakeBesideReal { .. }), "{name}: {error}");
    }
    let driver = "fake:t4:2".parse().unwrap();
    let opened = kai_gpu::open(OpenOptions {
        driver,
        ..options(&tree("no-gpu"))
    })
    .unwrap();
    assert_eq!(opened.driver.devices().unwrap().devices.len(), 2);
}
