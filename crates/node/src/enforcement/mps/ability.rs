//! Whether this node can have a multi-process server that holds containers. Everything that makes it no fence is a reason against it.

use std::path::Path;

use kai_gpu::{Device, DeviceKind, Driver, Inventory, MigMode};

use super::plan::MpsPlan;

/// Where drivers install the control program.
const PROGRAMS: [&str; 2] = [
    "usr/bin/nvidia-cuda-mps-control",
    "usr/local/bin/nvidia-cuda-mps-control",
];
/// The first GPUs (Volta) whose clients have address spaces of their own.
const FIRST_CAPABILITY: u32 = 7;
/// The first driver whose daemon has namespaces. The limits of older ones are variables of the container, and its programs can unset them.
const FIRST_DRIVER_WITH_NAMESPACES: u32 = 615;

/// Whether this node can have the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ability {
    /// It can, with this plan.
    Able(MpsPlan),
    /// It can't, for this reason.
    Unable(String),
    /// The driver does not say. A server that runs may be as good as before.
    Unknown(String),
}

impl Ability {
    /// The plan; the error says why there is none.
    pub fn plan(self) -> Result<MpsPlan, String> {
        match self {
            Ability::Able(plan) => Ok(plan),
            Ability::Unable(reason) | Ability::Unknown(reason) => Err(reason),
        }
    }
}

/// What decides about the server.
#[derive(Debug, Clone)]
pub struct MpsFacts<'a> {
    /// The node's GPUs, and whether each has compute modes.
    pub gpus: Vec<(&'a Device, bool)>,
    /// Version of the kernel driver.
    pub driver_version: Option<&'a str>,
    /// The control program, as the host names it; `None` if the host has none.
    pub program: Option<String>,
}

/// The plan, or why the server can't hold containers.
pub fn decide(facts: &MpsFacts) -> Result<MpsPlan, String> {
    if facts.gpus.is_empty() {
        return Err("the node has no GPU".to_owned());
    }
    for (device, has_modes) in &facts.gpus {
        let index = device.index;
        if device.kind == DeviceKind::Integrated {
            return Err(format!(
                "GPU {index} is integrated; there the server can't keep other processes away from the GPU, and serves one user only"
            ));
        }
        if device.mig_mode == Some(MigMode::Enabled) {
            return Err(format!(
                "GPU {index} is divided by MIG, whose partitions hold by themselves; switch MIG off with nvidia-smi -mig 0"
            ));
        }
        if device
            .compute_capability
            .is_none_or(|capability| capability.major < FIRST_CAPABILITY)
        {
            return Err(format!(
                "GPU {index} ({}) is older than Volta: its clients would share one address space",
                device.name
            ));
        }
        if !has_modes {
            return Err(format!(
                "GPU {index} has no compute mode EXCLUSIVE_PROCESS, so a process could use it beside the server"
            ));
        }
    }
    let Some(program) = facts.program.clone() else {
        return Err(format!(
            "the host has no /{}; install the driver's compute utilities (Ubuntu: nvidia-compute-utils)",
            PROGRAMS[0]
        ));
    };
    let major = facts
        .driver_version
        .and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < FIRST_DRIVER_WITH_NAMESPACES) {
        return Err(format!(
            "the multi-process server of driver {} leaves its limits to the programs that it limits; install driver \
             {FIRST_DRIVER_WITH_NAMESPACES} or newer",
            facts.driver_version.unwrap_or("of an unknown version")
        ));
    }
    Ok(MpsPlan {
        program,
        gpus: facts.gpus.iter().map(|(device, _)| device.uuid.clone()).collect(),
    })
}

/// Whether this node can have the server. Blocks as long as the driver does.
pub fn ability(driver: &dyn Driver, inventory: &Inventory, host_root: &Path) -> Ability {
    let mut gpus = Vec::with_capacity(inventory.devices.len());
    for device in &inventory.devices {
        match driver.compute_mode(&device.uuid) {
            Ok(mode) => gpus.push((device, mode.is_some())),
            Err(error) => return Ability::Unknown(error.with_remedy()),
        }
    }
    let program = PROGRAMS.into_iter().find(|path| host_root.join(path).is_file());
    let decided = decide(&MpsFacts {
        gpus,
        driver_version: inventory.driver_version.as_deref(),
        program: program.map(|path| format!("/{path}")),
    });
    match decided {
        Ok(plan) => Ability::Able(plan),
        Err(reason) => Ability::Unable(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kai_gpu::fake::{FakeDriver, Settings};

    /// A node with these fake GPUs and this driver.
    fn node(gpus: &str, version: &str, has_program: bool) -> Result<MpsPlan, String> {
        let mut settings: Settings = gpus.parse().unwrap();
        settings.driver_version = Some(version.to_owned());
        let driver = FakeDriver::new(&settings).unwrap();
        let root = tempfile::tempdir().unwrap();
        if has_program {
            std::fs::create_dir_all(root.path().join("usr/bin")).unwrap();
            std::fs::write(root.path().join(PROGRAMS[0]), "").unwrap();
        }
        ability(&driver, &driver.devices().unwrap(), root.path()).plan()
    }

    #[test]
    fn a_driver_without_namespaces_is_refused() {
        for version in ["615.71.09", "620.1"] {
            let plan = node("h100:2", version, true).unwrap();
            assert_eq!(
                (plan.program.as_str(), plan.gpus.len()),
                ("/usr/bin/nvidia-cuda-mps-control", 2)
            );
        }
        for version in ["570.133.20", "unknown"] {
            let refusal = node("h100:2", version, true).unwrap_err();
            assert!(refusal.contains(version) && refusal.contains("driver 615"), "{refusal}");
        }
    }

    #[test]
    fn a_node_where_it_is_no_fence_is_refused_with_the_reason() {
        for (gpus, has_program, words) in [
            ("orin-agx", true, "is integrated"),
            ("thor", true, "is integrated"),
            ("a100-40:2/1g.5gb", true, "nvidia-smi -mig 0"),
            ("h100", false, "install the driver's compute utilities"),
        ] {
            let refusal = node(gpus, "615.1", has_program).unwrap_err();
            assert!(refusal.contains(words), "{gpus}: {refusal}");
        }
    }

    #[test]
    fn old_gpus_and_gpus_without_modes_are_refused() {
        let driver = FakeDriver::new(&Settings::of("t4", 1)).unwrap();
        let mut device = driver.devices().unwrap().devices.remove(0);
        let decide_for = |device: &Device, has_modes| {
            decide(&MpsFacts {
                gpus: vec![(device, has_modes)],
                driver_version: Some("615.1"),
                program: Some("/p".to_owned()),
            })
        };
        assert!(decide_for(&device, true).is_ok());
        assert!(decide_for(&device, false).unwrap_err().contains("EXCLUSIVE_PROCESS"));
        device.compute_capability = Some(kai_gpu::ComputeCapability { major: 6, minor: 1 });
        assert!(decide_for(&device, true).unwrap_err().contains("older than Volta"));
        let nothing = MpsFacts {
            gpus: Vec::new(),
            driver_version: None,
            program: None,
        };
        assert_eq!(decide(&nothing).unwrap_err(), "the node has no GPU");
    }
}
