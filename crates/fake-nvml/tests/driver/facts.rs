//! The facts that our driver reports, also if the library refuses a query or lacks a function.

use std::time::Duration;

use kai_gpu::fake::{DriverBehavior, PROFILES};
use kai_gpu::{Driver, DriverKind, MemoryKind, OpenOptions};

use crate::stage::{bare_driver, bare_machine, driver, expected, say, scenario, stage};

#[test]
fn every_datacenter_gpu_is_described_as_the_fake_driver_does() {
    let child = "facts::child_sees_what_the_fake_driver_sees";
    for profile in PROFILES
        .iter()
        .filter(|profile| profile.behavior == DriverBehavior::Datacenter)
    {
        scenario(child, &format!("{}:5", profile.id), &[]);
    }
    scenario(child, "a100-80/3g.40gb/2g.20gb/1g.10gb*2,h200/7g.141gb,t4,l40s:2", &[]);
    scenario(child, "h100:2/1g.10gb+me/1g.20gb", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_sees_what_the_fake_driver_sees() {
    let (ours, fake) = (bare_driver(), expected());
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
    scenario("facts::child_loses_single_facts", "a100-40:2/1g.5gb", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_loses_single_facts() {
    let ours = bare_driver();
    let whole = ours.devices().unwrap().devices;
    let queries = [
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
    for query in queries {
        say(&format!("gpus: {{0: {{notSupported: [{query}]}}}}"));
        let inventory = ours.devices().unwrap();
        let [first, second] = inventory.devices.as_slice() else {
            panic!("{query}: {:?}", inventory.devices)
        };
        assert_eq!((&first.uuid, &first.name), (&whole[0].uuid, &whole[0].name), "{query}");
        assert_eq!(second.memory_mib, whole[1].memory_mib, "{query}");
        let lost = |fact: bool| if fact { "kept" } else { "lost" };
        assert_eq!(lost(first.minor.is_some()), lost(query != "minor"), "{query}");
        assert_eq!(lost(first.pci_bus_id.is_some()), lost(query != "pci"), "{query}");
        assert_eq!(lost(first.memory_mib.is_some()), lost(query != "memory"), "{query}");
        assert_eq!(lost(first.mig_mode.is_some()), lost(query != "mig"), "{query}");
        assert_eq!(
            first.memory_kind,
            MemoryKind::Dedicated,
            "an unreadable card is not as big as the machine"
        );
        ours.probe(&first.uuid).unwrap();
        let samples = ours.samples().unwrap();
        assert!(
            samples.iter().all(|sample| sample.unreachable.is_none()),
            "{query}: {samples:?}"
        );
        if ["minor", "pci", "memory", "mig"].contains(&query) {
            assert!(
                inventory.notes.iter().any(|note| note.contains("does not tell")),
                "{:?}",
                inventory.notes
            );
        }
    }
    let everything = format!("gpus: {{'*': {{notSupported: [{}]}}}}", queries.join(", "));
    say(&everything);
    assert_eq!(ours.devices().unwrap().devices.len(), 2);
}

#[test]
fn a_library_that_lacks_a_function_costs_one_fact() {
    scenario("facts::child_has_old_libraries", "a100-40:2/1g.5gb", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_has_old_libraries() {
    let library = std::fs::read(std::env::var_os("KAI_NVML_LIBRARY").unwrap()).unwrap();
    for name in OPTIONAL {
        let path = stage().join(format!("without-{name}.so"));
        std::fs::write(&path, without(&library, name)).unwrap();
        let ours = driver(OpenOptions {
            roots: bare_machine(),
            nvml_library: Some(path.clone()),
            ..OpenOptions::default()
        });
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

/// The functions that our driver calls, except those for starting, counting and finding devices, without which nothing works.
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
