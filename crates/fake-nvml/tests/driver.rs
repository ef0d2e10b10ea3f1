//! Our own NVML and Tegra drivers on the fake library, through the real `dlopen`. The library reads its settings from the environment,
//! which belongs to a whole process; so every scenario runs in a child: this same program, asked for one ignored test.

// Test code: a failed step should stop right there.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpu::fake::{FakeDriver, PROFILES, Personality, Settings};
use gpu::nvml::NvmlDriver;
use gpu::platform::{MemoryReserve, detect};
use gpu::{
    Device, DeviceKind, Driver, DriverChoice, DriverKind, GpuError, HealthEvent, HealthEventKind, MemoryKind,
    MigInstance, OpenOptions, Roots,
};

const SEED: &str = "driver-test";

/// Runs `child` with these GPUs; what it needs is in its environment. Returns what it printed on stderr.
fn scenario(child: &str, gpus: &str, variables: &[(&str, &str)]) -> String {
    let stage = tempfile::tempdir().unwrap();
    let library = fake_nvml::install(stage.path()).unwrap();
    std::fs::write(stage.path().join("control.yaml"), "").unwrap();
    let mut command = this_program();
    command
        .args(["--exact", child, "--ignored", "--nocapture", "--test-threads", "1"])
        .env("KAI_NVML_LIBRARY", library)
        .env("KAI_FAKE_GPUS", gpus)
        .env("KAI_FAKE_SEED", SEED)
        .env("KAI_FAKE_CONTROL", stage.path().join("control.yaml"))
        .env("STAGE", stage.path())
        .env_remove("NVIDIA_VISIBLE_DEVICES")
        .env_remove("KAI_FAKE_VISIBLE_DEVICES")
        .env_remove("NODE_NAME");
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{child} with {gpus}:\n{out}\n{err}"
    );
    for (_, measured) in out.lines().filter_map(|line| line.split_once("measured: ")) {
        println!("measured: {measured}");
    }
    err
}

/// This program again, under the emulator that runs it, if any: cargo names that in the environment.
fn this_program() -> Command {
    let program = std::env::current_exe().unwrap();
    let architecture = std::env::consts::ARCH.to_uppercase();
    let runner = std::env::var(format!("CARGO_TARGET_{architecture}_UNKNOWN_LINUX_GNU_RUNNER")).unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(emulator) = words.next() else {
        return Command::new(program);
    };
    let mut command = Command::new(emulator);
    command.args(words).arg(program);
    command
}

fn stage() -> PathBuf {
    PathBuf::from(std::env::var_os("STAGE").unwrap())
}

/// Replaces the control file. Returns when it began to.
fn write_control(text: &str) -> Instant {
    let begun = Instant::now();
    let path = stage().join("control.yaml");
    std::fs::write(path.with_extension("new"), text).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
    begun
}

/// Replaces the control file and waits until the library must have read it.
fn say(text: &str) {
    write_control(text);
    std::thread::sleep(Duration::from_millis(50));
}

fn gpus() -> String {
    std::env::var("KAI_FAKE_GPUS").unwrap()
}

/// A machine of its own: nothing of the one the test runs on, except what the test puts there.
fn bare_machine() -> Roots {
    let root = stage().join("root");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    std::fs::write(
        root.join("proc/meminfo"),
        "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
    )
    .unwrap();
    Roots::under(&root)
}

fn tree(name: &str) -> Roots {
    Roots::under(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/fixtures").join(name))
}

fn driver(roots: Roots) -> NvmlDriver {
    let options = OpenOptions {
        roots,
        memory_reserve: MemoryReserve::Mib(0),
        ..OpenOptions::default()
    };
    let detection = detect(&options.roots);
    NvmlDriver::new(options, detection)
}

fn expected() -> FakeDriver {
    FakeDriver::new(&gpus().parse::<Settings>().unwrap().seeded(SEED)).unwrap()
}

/// Events until `enough`, at most fifteen seconds.
fn wait_for(driver: &dyn Driver, enough: impl Fn(&[HealthEvent]) -> bool) -> Vec<HealthEvent> {
    let begun = Instant::now();
    let mut events = Vec::new();
    while begun.elapsed() < Duration::from_secs(15) {
        events.extend(driver.wait_events(Duration::from_millis(100)).unwrap());
        if enough(&events) {
            return events;
        }
    }
    panic!("only {events:?}");
}

#[test]
fn every_datacenter_gpu_is_described_as_the_fake_driver_does() {
    for profile in PROFILES
        .iter()
        .filter(|profile| profile.personality == Personality::Datacenter)
    {
        scenario(
            "child_sees_what_the_fake_driver_sees",
            &format!("{}:5", profile.id),
            &[],
        );
    }
    scenario(
        "child_sees_what_the_fake_driver_sees",
        "a100-80/3g.40gb/2g.20gb/1g.10gb*2,h200/7g.141gb,t4,l40s:2",
        &[],
    );
    scenario("child_sees_what_the_fake_driver_sees", "h100:2/1g.10gb+me/1g.20gb", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_sees_what_the_fake_driver_sees() {
    let (ours, fake) = (driver(bare_machine()), expected());
    let (told, wanted) = (ours.devices().unwrap(), fake.devices().unwrap());
    assert_eq!(told.devices, wanted.devices);
    assert_eq!(told.driver_version, wanted.driver_version);
    assert_eq!(told.cuda_version, wanted.cuda_version);
    assert_eq!(told.nvml_version, wanted.nvml_version);
    assert_eq!(ours.kind(), DriverKind::Nvml);
    say("gpus: {'*': {utilizationPercent: 50, memoryUsedMib: 1000}}");
    fake.change(|control| {
        let all = control.gpus.entry("*".into()).or_default();
        (all.utilization_percent, all.memory_used_mib) = (Some(50), Some(1000));
    });
    assert_eq!(ours.samples().unwrap(), fake.samples().unwrap());
    for device in &told.devices {
        ours.probe(&device.uuid).unwrap();
        for mig in &device.mig_devices {
            ours.probe(&mig.uuid).unwrap();
        }
    }
}

#[test]
fn a_refusal_costs_one_fact_never_the_device() {
    scenario("child_loses_single_facts", "a100-40:2/1g.5gb", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_loses_single_facts() {
    let ours = driver(bare_machine());
    let whole = ours.devices().unwrap().devices;
    let questions = [
        "minor",
        "pci",
        "memory",
        "utilization",
        "codec",
        "temperature",
        "power",
        "processes",
        "mig",
        "events",
        "topology",
    ];
    for question in questions {
        say(&format!("gpus: {{0: {{notSupported: [{question}]}}}}"));
        let inventory = ours.devices().unwrap();
        let [first, second] = inventory.devices.as_slice() else {
            panic!("{question}: {:?}", inventory.devices)
        };
        assert_eq!(
            (&first.uuid, &first.name),
            (&whole[0].uuid, &whole[0].name),
            "{question}"
        );
        assert_eq!(second.memory_mib, whole[1].memory_mib, "{question}");
        let lost = |fact: bool| if fact { "kept" } else { "lost" };
        assert_eq!(lost(first.minor.is_some()), lost(question != "minor"), "{question}");
        assert_eq!(lost(first.pci_bus_id.is_some()), lost(question != "pci"), "{question}");
        assert_eq!(
            lost(first.memory_mib.is_some()),
            lost(question != "memory"),
            "{question}"
        );
        assert_eq!(lost(first.mig_mode.is_some()), lost(question != "mig"), "{question}");
        assert_eq!(
            first.memory_kind,
            MemoryKind::Dedicated,
            "an unreadable card is not as big as the machine"
        );
        ours.probe(&first.uuid).unwrap();
        let samples = ours.samples().unwrap();
        assert!(
            samples.iter().all(|sample| sample.unreachable.is_none()),
            "{question}: {samples:?}"
        );
        if ["minor", "pci", "memory", "mig"].contains(&question) {
            assert!(
                inventory.notes.iter().any(|note| note.contains("does not tell")),
                "{:?}",
                inventory.notes
            );
        }
    }
    let everything = format!("gpus: {{'*': {{notSupported: [{}]}}}}", questions.join(", "));
    say(&everything);
    assert_eq!(ours.devices().unwrap().devices.len(), 2);
}

#[test]
fn a_gpu_fails_recovers_and_runs_hot() {
    scenario("child_watches_health", "h100:3", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_watches_health() {
    let ours = driver(bare_machine());
    let devices = ours.devices().unwrap().devices;
    let uuid = devices[1].uuid.clone();
    assert_eq!(ours.wait_events(Duration::from_millis(700)).unwrap(), []);

    let begun = write_control("events: [{gpu: 1, xid: 79}]");
    let events = wait_for(&ours, |events| !events.is_empty());
    let took = begun.elapsed();
    println!("measured: an Xid reached our driver after {took:?}");
    assert_eq!(
        events,
        [HealthEvent {
            uuid: Some(uuid.clone()),
            mig: None,
            kind: HealthEventKind::Xid(79)
        }]
    );

    say(
        "events: [{gpu: 1, xid: 79}, {gpu: 1, xid: 94, gpuInstanceId: 7, computeInstanceId: 0}, {gpu: 0, doubleBitEcc: true}]",
    );
    let events = wait_for(&ours, |events| events.len() >= 2);
    assert_eq!(
        events[0].mig,
        Some(MigInstance {
            gpu_instance_id: 7,
            compute_instance_id: 0
        })
    );
    assert_eq!(events[1].kind, HealthEventKind::DoubleBitEcc);

    for (state, words) in [("lost", "GPU is lost"), ("reset-required", "GPU requires reset")] {
        let begun = write_control(&format!("gpus: {{1: {{state: {state}}}}}"));
        let events = wait_for(&ours, |events| !events.is_empty());
        let took = begun.elapsed();
        println!("measured: {state} was noticed after {took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(events.len(), 1, "{events:?}");
        let HealthEventKind::Lost { reason } = &events[0].kind else {
            panic!("{events:?}")
        };
        assert!(reason.contains(words), "{reason}");
        let error = ours.probe(&uuid).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        let now = ours.devices().unwrap();
        assert_eq!(now.devices.len(), 3, "a silent GPU keeps its place");
        assert_eq!(now.devices[1].uuid, uuid);
        assert!(ours.samples().unwrap()[1].unreachable.as_ref().unwrap().contains(words));
        assert!(ours.samples().unwrap()[2].unreachable.is_none());

        let begun = write_control("");
        let events = wait_for(&ours, |events| !events.is_empty());
        let took = begun.elapsed();
        println!("measured: its return was noticed after {took:?}");
        assert_eq!(
            events[0],
            HealthEvent {
                uuid: Some(uuid.clone()),
                mig: None,
                kind: HealthEventKind::Recovered
            }
        );
        ours.probe(&uuid).unwrap();
    }

    say("gpus: {2: {temperatureCelsius: 95}}");
    assert_eq!(ours.samples().unwrap()[2].temperature_celsius, Some(95));
}

#[test]
fn a_gpu_that_is_gone_changes_the_inventory() {
    scenario("child_counts_anew", "t4:3", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_counts_anew() {
    let ours = driver(bare_machine());
    assert_eq!(ours.devices().unwrap().devices.len(), 3);
    assert!(ours.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    say("gpus: {2: {state: removed}}");
    let changed = |events: &[HealthEvent]| {
        events
            .iter()
            .any(|event| event.kind == HealthEventKind::InventoryChanged)
    };
    let events = wait_for(&ours, changed);
    assert!(
        events
            .iter()
            .any(|event| matches!(event.kind, HealthEventKind::Lost { .. })),
        "{events:?}"
    );
    assert_eq!(ours.devices().unwrap().devices.len(), 2);
}

/// On hardware NVML calls a GPU lost, or leaves it out, until it is opened anew. A driver that never does would never see it again.
#[test]
fn a_gpu_that_returns_is_seen_by_opening_the_library_anew() {
    scenario("child_opens_anew", "t4:3", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_opens_anew() {
    let options = OpenOptions {
        roots: bare_machine(),
        reopen_after: Duration::from_millis(800),
        ..OpenOptions::default()
    };
    let detection = detect(&options.roots);
    let ours = NvmlDriver::new(options, detection);
    let before = ours.devices().unwrap().devices;
    assert!(ours.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    for state in ["lost", "removed"] {
        say(&format!("{{untilOpenedAnew: true, gpus: {{0: {{state: {state}}}}}}}"));
        let of = |uuid: &str, wanted: fn(&HealthEventKind) -> bool| {
            let uuid = uuid.to_owned();
            move |events: &[HealthEvent]| {
                events
                    .iter()
                    .any(|event| event.uuid.as_ref() == Some(&uuid) && wanted(&event.kind))
            }
        };
        let gone = &before[0].uuid;
        wait_for(&ours, of(gone, |kind| matches!(kind, HealthEventKind::Lost { .. })));
        assert!(ours.probe(gone).is_err());
        say("untilOpenedAnew: true");
        wait_for(&ours, of(gone, |kind| *kind == HealthEventKind::Recovered));
        assert!(ours.probe(gone).is_ok());
        assert_eq!(ours.devices().unwrap().devices, before, "after {state}");
    }
}

#[test]
fn the_driver_goes_is_upgraded_and_returns() {
    scenario("child_outlives_the_driver", "t4:2", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_outlives_the_driver() {
    let ours = driver(bare_machine());
    let before = ours.devices().unwrap();
    assert!(ours.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    for (fault, words) in [
        ("driver-not-loaded", "Driver Not Loaded"),
        ("version-mismatch", "Driver/library version mismatch"),
    ] {
        say(&format!("library: {fault}"));
        let events = wait_for(&ours, |events| !events.is_empty());
        assert_eq!(events[0].uuid, None);
        let HealthEventKind::Lost { reason } = &events[0].kind else {
            panic!("{events:?}")
        };
        assert!(reason.contains(words), "{reason}");
        let error = ours.devices().unwrap_err();
        assert!(error.is_driver_gone() && error.to_string().contains(words), "{error}");
        assert!(ours.samples().is_err());
        say("");
        let events = wait_for(&ours, |events| {
            events.iter().any(|e| e.kind == HealthEventKind::InventoryChanged)
        });
        assert_eq!(events[0].kind, HealthEventKind::Recovered);
        assert_eq!(ours.devices().unwrap().devices, before.devices);
    }
    say("library: no-permission");
    let error = ours.devices().unwrap_err();
    assert!(error.to_string().contains("NO_PERMISSION"), "{error}");
}

#[test]
fn coherent_memory_is_the_machines() {
    scenario("child_is_a_dgx_spark", "gb10", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_is_a_dgx_spark() {
    let opened = gpu::open(OpenOptions {
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
    let stderr = scenario("child_is_an_orin", "orin-agx", &[]);
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
    let opened = gpu::open(OpenOptions {
        roots: tree("jetpack6-orin-agx"),
        ..OpenOptions::default()
    })
    .unwrap();
    assert_eq!(opened.driver.kind(), DriverKind::Tegra);
    let inventory = opened.driver.devices().unwrap();
    let device: &Device = &inventory.devices[0];
    assert!(
        !device.uuid.starts_with("GPU-"),
        "NVML's own bare UUID: {}",
        device.uuid
    );
    assert_eq!(device.uuid, expected().devices().unwrap().devices[0].uuid);
    assert_eq!(
        (device.memory_kind, device.memory_mib),
        (MemoryKind::Unified, Some(56_551))
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
    // A dying NVML takes nothing away.
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

/// Ids outlive a restart: what was made up before NVML worked, and what NVML told before it was gone.
#[test]
fn an_orin_keeps_the_name_it_was_served_under() {
    scenario("child_is_an_orin_with_a_past", "orin-agx", &[]);
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
        gpu::tegra::TegraDriver::new(options, detection)
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
    // NVML speaks of the GPU by its own name; we do not.
    let driver = start(Some(&made_up), true);
    assert_eq!(name(&driver), made_up);
    assert!(driver.wait_events(Duration::from_millis(600)).unwrap().is_empty());
    say("gpus: {0: {state: lost}}");
    let events = wait_for(&driver, |events| !events.is_empty());
    assert_eq!(events[0].uuid.as_ref(), Some(&made_up), "{events:?}");
    assert!(matches!(driver.probe(&made_up), Err(gpu::GpuError::GpuLost { .. })));
}

#[test]
fn thor_with_a_real_nvml() {
    scenario("child_is_a_thor", "thor", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_is_a_thor() {
    let opened = gpu::open(OpenOptions {
        roots: tree("jetpack7-thor"),
        ..OpenOptions::default()
    })
    .unwrap();
    let inventory = opened.driver.devices().unwrap();
    let [device] = inventory.devices.as_slice() else {
        panic!("{:?}", inventory.devices)
    };
    assert_eq!(
        (device.kind, device.memory_kind),
        (DeviceKind::Integrated, MemoryKind::Unified)
    );
    assert_eq!(device.memory_mib, Some(117_555));
    assert_eq!(device.compute_capability.unwrap().family(), "blackwell");
    assert_eq!(device.minor, Some(0));
    say("gpus: {0: {utilizationPercent: 61}}");
    let sample = &opened.driver.samples().unwrap()[0];
    assert_eq!(
        (sample.utilization_percent, sample.temperature_celsius),
        (Some(61), Some(38)),
        "NVML's load, sysfs's heat"
    );
    // A lost integrated GPU is believed; a lost NVML is not held against it.
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
    scenario("child_is_an_igx", "orin-agx,rtx-6000-ada", &[]);
    // A driver that lists the card only: the integrated GPU comes from files.
    scenario("child_is_an_igx_that_lists_only_its_card", "rtx-6000-ada", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_is_an_igx() {
    let opened = gpu::open(OpenOptions {
        roots: tree("igx-orin-dgpu"),
        ..OpenOptions::default()
    })
    .unwrap();
    let devices = opened.driver.devices().unwrap().devices;
    let kinds: Vec<_> = devices
        .iter()
        .map(|device| (device.kind, device.memory_kind, device.memory_mib))
        .collect();
    assert_eq!(
        kinds,
        [
            (DeviceKind::Integrated, MemoryKind::Unified, Some(56_551)),
            (DeviceKind::Discrete, MemoryKind::Dedicated, Some(49_140)),
        ]
    );
}

#[test]
#[ignore = "run by its parent"]
fn child_is_an_igx_that_lists_only_its_card() {
    let opened = gpu::open(OpenOptions {
        roots: tree("igx-orin-dgpu"),
        ..OpenOptions::default()
    })
    .unwrap();
    let devices = opened.driver.devices().unwrap().devices;
    let kinds: Vec<_> = devices.iter().map(|device| (device.index, device.kind)).collect();
    assert_eq!(kinds, [(0, DeviceKind::Discrete), (1, DeviceKind::Integrated)]);
}

#[test]
fn the_library_is_found_by_the_linker_and_wrong_ones_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    fake_nvml::install(dir.path()).unwrap();
    let path = dir.path().to_str().unwrap();
    scenario(
        "child_finds_it_by_the_linker",
        "t4",
        &[("LD_LIBRARY_PATH", path), ("KAI_NVML_LIBRARY", "/nonexistent/nvml.so")],
    );
    scenario("child_meets_wrong_libraries", "t4", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_finds_it_by_the_linker() {
    let inventory = driver(bare_machine()).devices().unwrap();
    assert_eq!(inventory.nvml_library.as_deref(), Some("libnvidia-ml.so.1"));
    assert!(
        inventory.notes.iter().any(|note| note.contains("/nonexistent/nvml.so")),
        "{:?}",
        inventory.notes
    );
    // No file shows a GPU here, but NVML answers: it is believed, with that as the reason.
    let opened = gpu::open(OpenOptions {
        roots: bare_machine(),
        ..OpenOptions::default()
    })
    .unwrap();
    assert_eq!(opened.driver.kind(), DriverKind::Nvml);
    assert!(
        opened.detection.explain().contains("lists 1 GPU"),
        "{}",
        opened.detection.explain()
    );
}

#[test]
#[ignore = "run by its parent"]
fn child_meets_wrong_libraries() {
    let open = |library: &Path| {
        let roots = bare_machine();
        let detection = detect(&roots);
        let options = OpenOptions {
            roots,
            nvml_library: Some(library.to_owned()),
            driver: DriverChoice::Nvml,
            ..OpenOptions::default()
        };
        NvmlDriver::new(options, detection).devices().map(drop)
    };
    // The first three on a machine where nothing else is found.
    let missing = open(Path::new("/nonexistent/libnvidia-ml.so.1")).unwrap_err();
    assert!(matches!(missing, GpuError::LibraryNotFound { .. }), "{missing}");
    assert!(
        missing
            .to_string()
            .contains("/nonexistent/libnvidia-ml.so.1 (no such file)"),
        "{missing}"
    );
    let text = stage().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    let wrong = open(&text).unwrap_err();
    assert!(
        wrong.to_string().contains("ERROR_LIBRARY_NOT_FOUND") && wrong.to_string().contains("text.so"),
        "{wrong}"
    );
    // A library, but not NVML.
    let stranger = open(Path::new("libm.so.6"));
    if let Err(error) = stranger {
        let words = error.to_string();
        assert!(
            words.contains("nvmlInit_v2") || words.contains("ERROR_LIBRARY_NOT_FOUND"),
            "{words}"
        );
    }
    // The right one, named by its directory.
    assert!(open(&stage()).is_ok());
}

#[test]
fn asking_is_cheap() {
    scenario("child_measures", "h100:8", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_measures() {
    let ours = driver(bare_machine());
    let begun = Instant::now();
    ours.devices().unwrap();
    println!(
        "measured: opening NVML and describing 8 GPUs took {:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    for _ in 0..100 {
        ours.devices().unwrap();
    }
    println!("measured: describing 8 GPUs again took {:?}", begun.elapsed() / 100);
    let begun = Instant::now();
    for _ in 0..100 {
        ours.samples().unwrap();
    }
    println!("measured: measuring 8 GPUs took {:?}", begun.elapsed() / 100);
    ours.wait_events(Duration::ZERO).unwrap();
    let before = cpu_ticks();
    ours.wait_events(Duration::from_secs(4)).unwrap();
    println!(
        "measured: watching 8 GPUs for 4 s took {} ms of CPU",
        (cpu_ticks() - before) * 10
    );
}

#[test]
fn null_and_garbage_never_crash_a_client() {
    scenario("child_calls_everything_with_nothing", "a100-40/1g.5gb,t4", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_calls_everything_with_nothing() {
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;
    let path = std::env::var_os("KAI_NVML_LIBRARY").unwrap();
    // SAFETY: our own library; loading it runs no initialiser.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    // SAFETY: all arguments are integers; the library must treat null and unknown handles as errors, which is what is tested.
    let call =
        |name: &str, first: usize| unsafe { library.get::<Call>(name.as_bytes()).unwrap()(first, 0, 0, 0, 0, 0) };
    let names: Vec<&str> = include_str!("../symbols.txt").lines().collect();
    let starts = |name: &str| name.starts_with("nvmlInit") || name == "nvmlShutdown" || name == "nvmlErrorString";
    for name in names.iter().filter(|name| !starts(name)) {
        assert_ne!(call(name, 0), 0, "{name} before the start");
    }
    assert_eq!(call("nvmlInit_v2", 0), 0);
    let takes_handle = |name: &str| {
        let takes_pointer = [
            "nvmlSystem",
            "nvmlDeviceGetCount",
            "nvmlDeviceGetHandleBy",
            "nvmlEventSetCreate",
        ];
        !takes_pointer.iter().any(|prefix| name.starts_with(prefix))
    };
    // Null, garbage handles, and the handle of the first GPU with nowhere to put the answer.
    for first in [0, 1, usize::MAX, 0x1000_0008, 0x1000_0000] {
        for name in names
            .iter()
            .filter(|name| !starts(name) && (first == 0 || takes_handle(name)))
        {
            let code = call(name, first);
            let without_answer = ["nvmlDeviceGetMPSComputeRunningProcesses_v3"];
            assert!(
                code != 0 || without_answer.contains(name),
                "{name}({first:#x}) succeeded without an argument"
            );
        }
    }
    assert_eq!(call("nvmlShutdown", 0), 0);
}

/// CPU time of this process in hundredths of a second.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum()
}

/// What our driver calls besides starting, counting and finding devices, which nothing works without.
const OPTIONAL: [&str; 31] = [
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetBoardId",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
];

#[test]
fn a_library_that_lacks_a_function_costs_one_fact() {
    scenario("child_has_old_libraries", "a100-40:2/1g.5gb", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_has_old_libraries() {
    let library = std::fs::read(std::env::var_os("KAI_NVML_LIBRARY").unwrap()).unwrap();
    for name in OPTIONAL {
        let path = stage().join(format!("without-{name}.so"));
        std::fs::write(&path, without(&library, name)).unwrap();
        let roots = bare_machine();
        let detection = detect(&roots);
        let nvml_library = Some(path.clone());
        let ours = NvmlDriver::new(
            OpenOptions {
                roots,
                nvml_library,
                ..OpenOptions::default()
            },
            detection,
        );
        let inventory = ours.devices().unwrap_or_else(|error| panic!("without {name}: {error}"));
        assert_eq!(
            inventory.nvml_library.as_deref(),
            path.to_str(),
            "{:?}",
            inventory.notes
        );
        assert_eq!(inventory.devices.len(), 2, "without {name}");
        let memory_known = inventory.devices[0].memory_mib == Some(40_960);
        assert!(memory_known, "without {name}: the other memory call must serve");
        assert_eq!(ours.samples().unwrap().len(), 2, "without {name}");
        ours.probe(&inventory.devices[1].uuid)
            .unwrap_or_else(|error| panic!("without {name}: {error}"));
        if name.contains("Event") {
            assert_eq!(
                ours.wait_events(Duration::from_millis(50)).unwrap(),
                [],
                "without {name}"
            );
        }
    }
}

/// The library with one exported name misspelt, so that looking it up fails as in an older driver. Linkers put the table of exported
/// names near the beginning; what follows are debug symbols.
fn without(library: &[u8], name: &str) -> Vec<u8> {
    let wanted: Vec<u8> = [&[0], name.as_bytes(), &[0]].concat();
    let table = &library[..library.len().min(1 << 18)];
    let place = table.windows(wanted.len()).position(|part| part == wanted);
    let place = place.unwrap_or_else(|| panic!("{name} is not in the library"));
    let mut changed = library.to_vec();
    changed[place + wanted.len() - 2] = b'#';
    changed
}
