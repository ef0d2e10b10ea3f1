//! The fake machine: devices made from settings, and the present control value. The fake driver translates it to our model, the fake
//! library to NVML's C structs.

use std::sync::Arc;

use parking_lot::Mutex;

use super::control::ControlFile;
use super::record::Record;
use super::settings::GPUS_PER_MACHINE_MAX;
use super::{
    Control, GpuControl, GpuState, MigProfile, Process, Profile, QueryGroup, Settings, mig, profile, profile_names,
};
use crate::{
    CudaVersion, Device, DeviceKind, GpuError, Inventory, MigDevice, MigMode, PciPath, Peer, Platform, PlatformKind,
    Sample, aliases_of, stable_uuid,
};

/// A machine with fake GPUs.
#[derive(Debug)]
pub struct Machine {
    gpus: Vec<FakeGpu>,
    inventory: Inventory,
    record: Record,
    /// A lock, because driver calls come from any thread and each may find a changed control file.
    live: Mutex<Live>,
}

#[derive(Debug)]
struct Live {
    control: Arc<Control>,
    file: Option<ControlFile>,
}

/// One fake GPU: the facts that never change.
#[derive(Debug, Clone)]
pub struct FakeGpu {
    /// Its hardware profile.
    pub profile: &'static Profile,
    /// Its facts as our model has them.
    pub device: Device,
    /// Total memory, also if the driver does not report it.
    pub memory_mib: u64,
    /// Its partitions, in the order of `device.mig_devices`.
    pub mig: Vec<FakeMig>,
    /// Board serial number.
    pub serial: String,
}

/// One fake MIG partition.
#[derive(Debug, Clone)]
pub struct FakeMig {
    /// Its profile.
    pub profile: MigProfile,
    /// Its facts as our model has them.
    pub device: MigDevice,
}

/// The present status of one GPU: the control value, with idle values for absent fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuStatus {
    /// Whether it answers.
    pub state: GpuState,
    /// Busy share.
    pub utilization_percent: u32,
    /// Memory in use, at most the total.
    pub memory_used_mib: u64,
    /// Temperature.
    pub temperature_celsius: u32,
    /// Power draw.
    pub power_milliwatts: u32,
    /// The control value itself, for processes and refused queries.
    pub control: GpuControl,
}

impl Machine {
    /// Builds the machine, or returns what is wrong with the settings.
    pub fn new(settings: &Settings) -> Result<Self, GpuError> {
        let gpus = build_gpus(settings)?;
        let inventory = build_inventory(settings, &gpus)?;
        settings
            .control
            .check_gpus("the settings", |name| has_gpu(&gpus, name))?;
        let file = settings.control_file.as_deref().map(ControlFile::new);
        let live = Mutex::new(Live {
            control: Arc::new(settings.control.clone()),
            file,
        });
        let record = Record::new(settings.record_dir.clone());
        Ok(Self {
            gpus,
            inventory,
            record,
            live,
        })
    }

    /// All GPUs, including removed ones.
    pub fn gpus(&self) -> &[FakeGpu] {
        &self.gpus
    }

    /// Facts about the machine with all its GPUs.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The limits and modes that were set.
    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// The present control value.
    pub fn control(&self) -> Arc<Control> {
        let mut live = self.live.lock();
        let file = live.file.as_mut();
        if let Some(control) = file.and_then(|file| file.poll(|name| has_gpu(&self.gpus, name))) {
            live.control = Arc::new(control);
        }
        Arc::clone(&live.control)
    }

    /// Reads the control file, if there is one; an error if it is missing or can't be used.
    pub(crate) fn read_control_file(&self) -> Result<(), GpuError> {
        let mut live = self.live.lock();
        if let Some(file) = &mut live.file {
            live.control = Arc::new(file.read(|name| has_gpu(&self.gpus, name))?);
        }
        Ok(())
    }

    /// Changes the control value from code. The next change of a control file overrides it.
    pub fn change(&self, change: impl FnOnce(&mut Control)) {
        let mut live = self.live.lock();
        change(Arc::make_mut(&mut live.control));
    }

    /// Whether a control file is watched.
    pub fn has_control_file(&self) -> bool {
        self.live.lock().file.is_some()
    }
}

/// Whether one of the GPUs has this index or UUID.
fn has_gpu(gpus: &[FakeGpu], name: &str) -> bool {
    let named = |gpu: &FakeGpu| gpu.device.uuid == name || gpu.device.index.to_string() == name;
    gpus.iter().any(named)
}

impl FakeGpu {
    /// Its status under this control value.
    pub fn status(&self, control: &Control) -> GpuStatus {
        let control = control.gpu(self.device.index, &self.device.uuid);
        let utilization_percent = control.utilization_percent.unwrap_or(0).min(100);
        let process_mib: u64 = control
            .processes
            .iter()
            .flatten()
            .map(|process| process.memory_mib)
            .sum();
        // Temperature and power follow the load, so that setting a utilization alone gives plausible values.
        let profile = self.profile;
        let watts = profile.idle_watts + (profile.limit_watts - profile.idle_watts) * utilization_percent / 100;
        GpuStatus {
            state: control.state.unwrap_or_default(),
            utilization_percent,
            memory_used_mib: control.memory_used_mib.unwrap_or(process_mib).min(self.memory_mib),
            temperature_celsius: control
                .temperature_celsius
                .unwrap_or(profile.idle_celsius + utilization_percent * 45 / 100),
            power_milliwatts: control.power_watts.unwrap_or(watts) * 1000,
            control,
        }
    }

    /// The partition a process runs in, as a position in `mig`; `None` on an unpartitioned GPU.
    pub fn partition_of(&self, process: &Process) -> Option<usize> {
        let named = |mig: &FakeMig| Some(mig.device.gpu_instance_id) == process.gpu_instance_id;
        self.mig.iter().position(named).or((!self.mig.is_empty()).then_some(0))
    }

    /// Memory in use in one partition: that of its processes, or its proportion of a value given for the whole GPU.
    pub fn partition_used_mib(&self, partition: usize, status: &GpuStatus) -> u64 {
        let Some(mig) = self.mig.get(partition) else { return 0 };
        let processes = status.control.processes.iter().flatten();
        let here = processes.filter(|process| self.partition_of(process) == Some(partition));
        let used_mib = match status.control.memory_used_mib {
            Some(_) => status.memory_used_mib * mig.profile.memory_mib / self.memory_mib.max(1),
            None => here.map(|process| process.memory_mib).sum(),
        };
        used_mib.min(mig.profile.memory_mib)
    }

    /// Whether this query succeeds now.
    pub fn supports(&self, query: QueryGroup, status: &GpuStatus) -> bool {
        let refused = status
            .control
            .not_supported
            .as_ref()
            .is_some_and(|refused| refused.contains(&query));
        self.profile.supports(query) && !refused
    }

    /// Measurements in our model. With unified memory our own drivers read the machine's RAM, so memory is known.
    pub fn sample(&self, control: &Control) -> Sample {
        let status = self.status(control);
        let uuid = self.device.uuid.clone();
        let index = self.device.index;
        let unreachable = match status.state {
            GpuState::Healthy => None,
            GpuState::Lost | GpuState::Removed => Some("GPU is lost (ERROR_GPU_IS_LOST)".to_owned()),
            GpuState::ResetRequired => Some("GPU requires reset (ERROR_RESET_REQUIRED)".to_owned()),
        };
        if unreachable.is_some() {
            return Sample {
                index,
                uuid,
                unreachable,
                ..Sample::default()
            };
        }
        let refused = status.control.not_supported.clone().unwrap_or_default();
        let supported = |query: QueryGroup| !refused.contains(&query);
        Sample {
            index,
            uuid,
            utilization_percent: supported(QueryGroup::Utilization).then_some(status.utilization_percent),
            memory_utilization_percent: supported(QueryGroup::Utilization).then_some(status.utilization_percent / 2),
            memory_used_mib: supported(QueryGroup::Memory).then_some(status.memory_used_mib),
            memory_free_mib: supported(QueryGroup::Memory).then_some(self.memory_mib - status.memory_used_mib),
            temperature_celsius: supported(QueryGroup::Temperature).then_some(status.temperature_celsius as i32),
            power_milliwatts: supported(QueryGroup::Power).then_some(u64::from(status.power_milliwatts)),
            unreachable: None,
        }
    }
}

fn build_gpus(settings: &Settings) -> Result<Vec<FakeGpu>, GpuError> {
    let origin = "the gpus list";
    let refuse = |detail: String| GpuError::FakeSettings {
        origin: origin.to_owned(),
        detail,
    };
    let mut gpus: Vec<FakeGpu> = Vec::new();
    for group in &settings.gpus {
        let Some(profile) = profile(&group.profile) else {
            return Err(refuse(format!(
                "no profile {:?}; the profiles are: {}",
                group.profile,
                profile_names()
            )));
        };
        let partitions = match &group.mig {
            Some(_) if profile.mig.is_empty() => return Err(refuse(format!("{} knows no MIG", profile.id))),
            Some(layout) => Some(mig::place(profile.mig, layout, origin)?),
            None => None,
        };
        for _ in 0..group.count {
            let index = gpus.len() as u32;
            if index >= GPUS_PER_MACHINE_MAX {
                return Err(refuse(format!("more than {GPUS_PER_MACHINE_MAX} GPUs")));
            }
            let memory_mib = group.memory_mib.unwrap_or(profile.memory_mib);
            let name = group.name.clone().unwrap_or_else(|| profile.name.to_owned());
            let mut gpu = build_gpu(settings, profile, index, name, memory_mib);
            if let Some(partitions) = &partitions {
                gpu.device.mig_mode = Some(MigMode::Enabled);
                gpu.mig = build_mig(&settings.seed, index, partitions);
                gpu.device.mig_devices = gpu.mig.iter().map(|mig| mig.device.clone()).collect();
            }
            gpus.push(gpu);
        }
    }
    connect(&mut gpus);
    Ok(gpus)
}

fn build_gpu(settings: &Settings, profile: &'static Profile, index: u32, name: String, memory_mib: u64) -> FakeGpu {
    let bare = stable_uuid(&["fake", &settings.seed, "gpu", &index.to_string()]);
    let integrated = matches!(
        profile.behavior,
        super::DriverBehavior::Nvgpu | super::DriverBehavior::Thor
    );
    let uuid = match profile.behavior {
        super::DriverBehavior::Nvgpu => bare,
        super::DriverBehavior::Datacenter | super::DriverBehavior::Gb10 | super::DriverBehavior::Thor => {
            format!("GPU-{bare}")
        }
    };
    let mut aliases = aliases_of(index, &uuid);
    if integrated {
        aliases.push("tegra".to_owned());
    }
    // Two sockets with four GPUs each, so that fake machines with five GPUs or more have two NUMA nodes.
    let numa_node = if integrated { None } else { Some(index / 4 % 2) };
    let bus = if matches!(profile.behavior, super::DriverBehavior::Datacenter) {
        0x07 + 8 * (index % 16)
    } else {
        1
    };
    let domain = profile.pci_domain + index / 16;
    let device = Device {
        index,
        aliases,
        kind: if integrated {
            DeviceKind::Integrated
        } else {
            DeviceKind::Discrete
        },
        minor: profile.supports(QueryGroup::Minor).then_some(index),
        name,
        memory_mib: Some(memory_mib),
        memory_kind: profile.memory_kind(),
        compute_capability: Some(profile.compute_capability),
        pci_bus_id: profile
            .supports(QueryGroup::Pci)
            .then(|| format!("{domain:08X}:{bus:02X}:00.0")),
        numa_node,
        board_id: profile.supports(QueryGroup::Pci).then_some(domain << 16 | bus << 8),
        peers: Vec::new(),
        mig_mode: profile.supports(QueryGroup::Mig).then_some(MigMode::Disabled),
        mig_devices: Vec::new(),
        uuid,
    };
    let digits: u64 = device
        .uuid
        .bytes()
        .fold(7, |sum, byte| (sum * 31 + u64::from(byte)) % 10_000_000_000);
    FakeGpu {
        profile,
        device,
        memory_mib,
        mig: Vec::new(),
        serial: format!("165{digits:010}"),
    }
}

fn build_mig(seed: &str, index: u32, partitions: &[(MigProfile, crate::Placement)]) -> Vec<FakeMig> {
    let mut mig: Vec<FakeMig> = Vec::with_capacity(partitions.len());
    for (position, (profile, placement)) in partitions.iter().enumerate() {
        // Drivers number instances from a base per size: the whole GPU 0, halves from 1, quarters from 3, single slices from 7.
        let base = match profile.shape.slices() {
            7 => 0,
            3 | 4 => 1,
            2 => 3,
            _ => 7,
        };
        let used = |id: u32| mig.iter().any(|other| other.device.gpu_instance_id == id);
        let gpu_instance_id = (base..).find(|&id| !used(id)).unwrap_or(base);
        let place = format!("{}+{}", placement.start, placement.size);
        let uuid = format!(
            "MIG-{}",
            stable_uuid(&["fake", seed, "mig", &index.to_string(), profile.name, &place])
        );
        let device = MigDevice {
            index: position as u32,
            uuid,
            profile: profile.name.to_owned(),
            gpu_instance_id,
            compute_instance_id: 0,
            placement: Some(*placement),
            memory_mib: Some(profile.memory_mib),
            attributes: Some(profile.attributes()),
        };
        mig.push(FakeMig {
            profile: *profile,
            device,
        });
    }
    mig
}

/// Connects the GPUs: NVSwitch connects GPUs of one profile; on PCI, two neighbours share a switch and four share a socket.
fn connect(gpus: &mut [FakeGpu]) {
    let links: Vec<(&'static str, u32)> = gpus.iter().map(|gpu| (gpu.profile.id, gpu.profile.nvlinks)).collect();
    for gpu in gpus.iter_mut() {
        let index = gpu.device.index;
        let others = (0..links.len() as u32).filter(|&other| other != index);
        gpu.device.peers = others
            .map(|other| {
                let (id, nvlinks) = links[other as usize];
                let path = match (index / 2 == other / 2, index / 4 == other / 4, index / 8 == other / 8) {
                    (true, _, _) => PciPath::SingleSwitch,
                    (_, true, _) => PciPath::SameNode,
                    (_, _, _) => PciPath::System,
                };
                Peer {
                    index: other,
                    nvlinks: if id == gpu.profile.id { nvlinks } else { 0 },
                    path: Some(path),
                }
            })
            .collect();
    }
}

fn build_inventory(settings: &Settings, gpus: &[FakeGpu]) -> Result<Inventory, GpuError> {
    let first = gpus.first().map(|gpu| gpu.profile);
    let cuda_version = match &settings.cuda_version {
        Some(text) => Some(parse_cuda(text)?),
        None => first.map(|profile| profile.cuda_version),
    };
    let driver_version = settings
        .driver_version
        .clone()
        .or(first.map(|profile| profile.driver_version.to_owned()));
    let nvml_version = match (&driver_version, cuda_version) {
        (Some(driver), Some(cuda)) => Some(format!("{}.{driver}", cuda.major)),
        (_, _) => None,
    };
    Ok(Inventory {
        platform: Platform {
            kind: PlatformKind::Fake,
            machine: settings
                .machine
                .clone()
                .or(first.map(|profile| profile.machine.to_owned())),
            tegra: None,
            pci_gpus: Vec::new(),
        },
        driver_version,
        cuda_version,
        nvml_version,
        nvml_library: None,
        devices: gpus.iter().map(|gpu| gpu.device.clone()).collect(),
        notes: vec!["these GPUs are made up by the fake driver; nothing runs on them".to_owned()],
    })
}

fn parse_cuda(text: &str) -> Result<CudaVersion, GpuError> {
    let parsed = text
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    match parsed {
        Some((major, minor)) => Ok(CudaVersion { major, minor }),
        None => Err(GpuError::FakeSettings {
            origin: "cudaVersion".to_owned(),
            detail: format!("{text:?} is no version like 12.6"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::PROFILES;

    #[test]
    fn every_profile_makes_a_machine() {
        for profile in PROFILES {
            let machine = Machine::new(&Settings::of(profile.id, 2).seeded("n")).unwrap();
            let [first, second] = machine.gpus() else {
                panic!("two GPUs")
            };
            assert_ne!(first.device.uuid, second.device.uuid);
            assert_ne!(first.serial, second.serial);
            assert_eq!(first.device.memory_mib, Some(profile.memory_mib));
        }
    }

    #[test]
    fn identities_depend_on_the_seed_only() {
        let uuids = |profile: &str, seed: &str| -> Vec<String> {
            let machine = Machine::new(&Settings::of(profile, 3).seeded(seed)).unwrap();
            machine.gpus().iter().map(|gpu| gpu.device.uuid.clone()).collect()
        };
        assert_eq!(uuids("t4", "a"), uuids("h100", "a"));
        assert_ne!(uuids("t4", "a"), uuids("t4", "b"));
    }

    #[test]
    fn partitions_have_distinct_ids() {
        let settings: Settings = "a100-40:2/3g.20gb/2g.10gb/1g.5gb*2".parse().unwrap();
        let machine = Machine::new(&settings).unwrap();
        let gpu = &machine.gpus()[1];
        assert_eq!(gpu.device.mig_mode, Some(MigMode::Enabled));
        let ids: Vec<u32> = gpu.mig.iter().map(|mig| mig.device.gpu_instance_id).collect();
        assert_eq!(ids, [1, 3, 7, 8]);
        let mut uuids: Vec<&str> = machine
            .gpus()
            .iter()
            .flat_map(|gpu| &gpu.mig)
            .map(|m| m.device.uuid.as_str())
            .collect();
        uuids.sort_unstable();
        uuids.dedup();
        assert_eq!(uuids.len(), 8);
    }

    #[test]
    fn wrong_settings_are_refused() {
        for (text, words) in [
            ("h1000", "the profiles are: t4"),
            ("t4/1g.5gb", "knows no MIG"),
            ("t4:65", "more than 64"),
        ] {
            let error = Machine::new(&text.parse().unwrap()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn load_shows_in_every_number() {
        let machine = Machine::new(&Settings::of("h100", 1)).unwrap();
        let idle = machine.gpus()[0].sample(&machine.control());
        machine.change(|control| {
            control.gpus.entry("0".into()).or_default().utilization_percent = Some(100);
        });
        let busy = machine.gpus()[0].sample(&machine.control());
        assert_eq!(busy.power_milliwatts, Some(700_000));
        assert!(busy.temperature_celsius > idle.temperature_celsius);
    }
}
