//! [`Driver`] over the fake [`Machine`]: answers like a real driver, without hardware. [`FakeDriver::start`] refuses to start beside a real
//! driver; tests and simulated nodes use [`FakeDriver::new`].

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Control, FakeGpu, GpuState, LibraryFault, Machine, MemoryLimitCalls, ProcessKind, QueryGroup, Settings};
use crate::memory_limits::{get_attempt, set_attempt};
use crate::platform::detect;
use crate::processes::each_process_once;
use crate::roots::Roots;
use crate::{
    CgroupMemory, Driver, DriverKind, GpuComputeMode, GpuError, GpuProcess, GpuProcessKind, GpuProcesses, HealthEvent,
    HealthEventKind, Inventory, MemoryLimitError, MemoryLimitSupport, MemoryLimits, MigInstance, PlatformKind,
    ProcessList, Sample,
};

/// How often a waiting thread polls the control file.
const POLL: Duration = Duration::from_millis(50);

const SET_CALL: &str = "nvmlDeviceSetMemoryLimits_v1";
const GET_CALL: &str = "nvmlDeviceGetMemoryLimits_v1";
const MIB: u64 = 1 << 20;

/// Fake GPUs behind the [`Driver`] trait.
#[derive(Debug)]
pub struct FakeDriver {
    machine: Machine,
    /// What the last `wait_events` saw. A lock, because `wait_events` takes `&self`; only one thread should wait.
    cursor: Mutex<EventCursor>,
    changed: Condvar,
}

#[derive(Debug)]
struct EventCursor {
    events_seen: usize,
    states: Vec<GpuState>,
    library: Option<LibraryFault>,
}

impl FakeDriver {
    /// Creates the driver on any machine. For tests and simulated nodes, whose kubelet has no real GPUs. A control file has to exist and to
    /// be valid; a later change that can't be read is logged, and the last valid state stays.
    pub fn new(settings: &Settings) -> Result<Self, GpuError> {
        let machine = Machine::new(settings)?;
        machine.read_control_file()?;
        let cursor = cursor_at(&machine, &machine.control());
        Ok(Self {
            machine,
            cursor: Mutex::new(cursor),
            changed: Condvar::new(),
        })
    }

    /// Creates the driver for an agent on a real node. Fails beside a real driver, since pods would get GPUs that do not exist.
    pub fn start(settings: &Settings, roots: &Roots) -> Result<Self, GpuError> {
        refuse_beside_real(roots)?;
        Self::new(settings)
    }

    /// The fake machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Sets faults and loads from code, and wakes a thread that waits for events.
    pub fn change(&self, change: impl FnOnce(&mut Control)) {
        self.machine.change(change);
        let _cursor = self.cursor.lock();
        self.changed.notify_all();
    }

    /// Sets one GPU's state.
    pub fn set_state(&self, gpu: &str, state: GpuState) {
        self.change(|control| control.gpus.entry(gpu.to_owned()).or_default().state = Some(state));
    }

    /// Raises a critical error on one GPU.
    pub fn raise_xid(&self, gpu: &str, xid: u64) {
        self.change(|control| control.events.push(super::ControlEvent::xid(gpu, xid)));
    }

    fn working_control(&self, attempt: &str) -> Result<Arc<Control>, GpuError> {
        let control = self.machine.control();
        match control.library {
            None => Ok(control),
            Some(fault) => Err(library_error(fault, attempt)),
        }
    }

    /// A GPU that answers, with the present control value. `id` is a UUID or alias of a GPU, or the UUID of a MIG device.
    fn answering(&self, id: &str, attempt: String) -> Result<(&FakeGpu, Arc<Control>), GpuError> {
        let control = self.working_control(&attempt)?;
        let owner = self.machine.inventory().device(id);
        let gpu = owner.and_then(|device| self.machine.gpus().get(device.index as usize));
        let missing = || GpuError::DeviceNotFound { id: id.to_owned() };
        let gpu = gpu.ok_or_else(missing)?;
        match gpu.status(&control).state {
            GpuState::Healthy => Ok((gpu, control)),
            GpuState::Lost => Err(GpuError::GpuLost { attempt }),
            GpuState::ResetRequired => Err(GpuError::ResetRequired { attempt }),
            GpuState::Removed => Err(missing()),
        }
    }

    /// A GPU whose memory limits can be asked for.
    fn limited(&self, gpu: &str, attempt: &str) -> Result<(&FakeGpu, Arc<Control>), MemoryLimitError> {
        self.answering(gpu, attempt.to_owned()).map_err(|error| match error {
            GpuError::DeviceNotFound { .. } => MemoryLimitError::NoGpu {
                attempt: attempt.to_owned(),
            },
            source => MemoryLimitError::Driver {
                attempt: attempt.to_owned(),
                source,
            },
        })
    }

    fn due_events(&self, cursor: &mut EventCursor) -> Vec<HealthEvent> {
        let control = self.machine.control();
        let mut now = cursor_at(&self.machine, &control);
        let mut events = Vec::new();
        let machine_wide = |kind| HealthEvent {
            uuid: None,
            mig: None,
            kind,
        };
        match (cursor.library, now.library) {
            (None, Some(fault)) => {
                let reason = library_error(fault, "asking the driver").to_string();
                events.push(machine_wide(HealthEventKind::Lost { reason }));
            }
            (Some(_), None) => events.push(machine_wide(HealthEventKind::Recovered)),
            (_, _) => {}
        }
        for (gpu, (was, is)) in self.machine.gpus().iter().zip(cursor.states.iter().zip(&now.states)) {
            let reason = gpu.sample(&control).unreachable;
            let kind = match (was, is, reason) {
                (was, is, _) if was == is => continue,
                (_, _, Some(reason)) => HealthEventKind::Lost { reason },
                (_, _, None) => HealthEventKind::Recovered,
            };
            events.push(HealthEvent {
                uuid: Some(gpu.device.uuid.clone()),
                mig: None,
                kind,
            });
        }
        let removed = |cursor: &EventCursor| {
            cursor
                .states
                .iter()
                .filter(|state| **state == GpuState::Removed)
                .count()
        };
        if removed(cursor) != removed(&now) {
            events.push(machine_wide(HealthEventKind::InventoryChanged));
        }
        // A shorter list was rewritten, so all of its events are new.
        let seen = if control.events.len() < cursor.events_seen {
            0
        } else {
            cursor.events_seen
        };
        for event in &control.events[seen..] {
            events.extend(self.health_events(event));
        }
        now.events_seen = control.events.len();
        *cursor = now;
        events
    }

    fn health_events(&self, event: &super::ControlEvent) -> Vec<HealthEvent> {
        let kind = match (event.xid, event.double_bit_ecc) {
            (Some(xid), _) => HealthEventKind::Xid(xid),
            (None, true) => HealthEventKind::DoubleBitEcc,
            (None, false) => return Vec::new(),
        };
        let mig = event.gpu_instance_id.map(|gpu_instance_id| MigInstance {
            gpu_instance_id,
            compute_instance_id: event.compute_instance_id.unwrap_or(0),
        });
        let named = |gpu: &&FakeGpu| {
            event.gpu == "*" || event.gpu == gpu.device.uuid || event.gpu == gpu.device.index.to_string()
        };
        let concerned = self.machine.gpus().iter().filter(named);
        concerned
            .map(|gpu| HealthEvent {
                uuid: Some(gpu.device.uuid.clone()),
                mig,
                kind: kind.clone(),
            })
            .collect()
    }
}

impl Driver for FakeDriver {
    fn kind(&self) -> DriverKind {
        DriverKind::Fake
    }

    fn devices(&self) -> Result<Inventory, GpuError> {
        let control = self.working_control("listing the GPUs")?;
        let mut inventory = self.machine.inventory().clone();
        inventory
            .devices
            .retain(|device| control.gpu(device.index, &device.uuid).state != Some(GpuState::Removed));
        Ok(inventory)
    }

    fn samples(&self) -> Result<Vec<Sample>, GpuError> {
        let control = self.working_control("measuring the GPUs")?;
        let present = |gpu: &&FakeGpu| gpu.status(&control).state != GpuState::Removed;
        Ok(self
            .machine
            .gpus()
            .iter()
            .filter(present)
            .map(|gpu| gpu.sample(&control))
            .collect())
    }

    fn probe(&self, uuid: &str) -> Result<(), GpuError> {
        self.answering(uuid, format!("asking GPU {uuid} whether it answers"))
            .map(drop)
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<HealthEvent>, GpuError> {
        let deadline = Instant::now() + timeout;
        let slice = if self.machine.has_control_file() { POLL } else { timeout };
        let mut cursor = self.cursor.lock();
        loop {
            let events = self.due_events(&mut cursor);
            let left = deadline.saturating_duration_since(Instant::now());
            if !events.is_empty() || left.is_zero() {
                return Ok(events);
            }
            self.changed.wait_for(&mut cursor, left.min(slice));
        }
    }

    fn memory_limit_support(&self) -> MemoryLimitSupport {
        let missing = |calls: &str| MemoryLimitSupport::Missing {
            reason: format!("the fake driver lacks {calls}"),
        };
        let control = match self.working_control("looking for the calls for memory limits") {
            Ok(control) => control,
            Err(error) => {
                return MemoryLimitSupport::Unknown {
                    reason: error.to_string(),
                };
            }
        };
        match self.machine.memory_limit_calls(&control) {
            MemoryLimitCalls::Both => MemoryLimitSupport::Offered,
            MemoryLimitCalls::SetOnly => missing(GET_CALL),
            MemoryLimitCalls::GetOnly => missing(SET_CALL),
            MemoryLimitCalls::None => missing(&format!("{SET_CALL} and {GET_CALL}")),
        }
    }

    fn counts_by_controller(&self) -> bool {
        self.machine.control().memory_limits_need_controller
    }

    fn memory_limits(&self, gpu: &str, cgroup: &Path) -> Result<CgroupMemory, MemoryLimitError> {
        let attempt = get_attempt(gpu, cgroup);
        let (gpu, control) = self.limited(gpu, &attempt)?;
        let answer = self.machine.memory_limits(gpu, &control, cgroup);
        answer.map_err(|code| MemoryLimitError::Refused { attempt, code })
    }

    fn set_memory_limits(&self, gpu: &str, cgroup: &Path, limits: MemoryLimits) -> Result<(), MemoryLimitError> {
        let attempt = set_attempt(gpu, cgroup, limits);
        let (gpu, control) = self.limited(gpu, &attempt)?;
        let answer = self.machine.set_memory_limits(gpu, &control, cgroup, limits);
        answer.map_err(|code| MemoryLimitError::Refused { attempt, code })
    }

    fn processes(&self) -> Result<Vec<GpuProcesses>, GpuError> {
        let control = self.working_control("listing the processes on the GPUs")?;
        let present = |gpu: &&FakeGpu| gpu.status(&control).state != GpuState::Removed;
        Ok(self
            .machine
            .gpus()
            .iter()
            .filter(present)
            .map(|gpu| processes_on(gpu, &control))
            .collect())
    }

    fn persistence_mode(&self, gpu: &str) -> Result<Option<bool>, GpuError> {
        let (gpu, control) = self.answering(gpu, format!("reading the persistence mode of GPU {gpu}"))?;
        Ok(Some(gpu.status(&control).control.persistence_mode.unwrap_or(true)))
    }

    fn compute_mode(&self, gpu: &str) -> Result<Option<GpuComputeMode>, GpuError> {
        let (gpu, control) = self.answering(gpu, format!("reading the compute mode of GPU {gpu}"))?;
        let supported = gpu.supports(QueryGroup::ComputeMode, &gpu.status(&control));
        Ok(supported.then(|| self.machine.compute_mode(gpu)))
    }

    fn set_compute_mode(&self, gpu: &str, mode: GpuComputeMode) -> Result<(), GpuError> {
        let attempt = format!("setting the compute mode of GPU {gpu} to {mode}");
        let (gpu, control) = self.answering(gpu, attempt.clone())?;
        if !gpu.supports(QueryGroup::ComputeMode, &gpu.status(&control)) {
            return Err(GpuError::NotSupported { attempt });
        }
        let set = self.machine.set_compute_mode(gpu, mode);
        set.map_err(|code| GpuError::Nvml {
            attempt,
            words: code.to_string(),
        })
    }
}

/// The processes of the control value on one GPU.
fn processes_on(gpu: &FakeGpu, control: &Control) -> GpuProcesses {
    let status = gpu.status(control);
    let process = |process: &super::Process| GpuProcess {
        pid: process.pid,
        used_bytes: (!process.memory_unavailable).then_some(process.memory_mib * MIB),
        kind: match process.kind {
            ProcessKind::Compute => GpuProcessKind::Compute,
            ProcessKind::MpsClient => GpuProcessKind::MpsClient,
            ProcessKind::Graphics => GpuProcessKind::Graphics,
        },
        mig: gpu.partition_of(process).map(|partition| {
            let mig = &gpu.mig[partition].device;
            MigInstance {
                gpu_instance_id: mig.gpu_instance_id,
                compute_instance_id: mig.compute_instance_id,
            }
        }),
    };
    GpuProcesses {
        uuid: gpu.device.uuid.clone(),
        processes: match (gpu.supports(QueryGroup::Processes, &status), status.state) {
            (false, _) => ProcessList::NotOffered,
            (true, GpuState::Healthy) => ProcessList::Listed(each_process_once(
                status.control.processes.iter().flatten().map(process),
            )),
            (true, GpuState::Lost | GpuState::ResetRequired | GpuState::Removed) => ProcessList::Unanswered,
        },
    }
}

/// Fails if this machine has a real NVIDIA driver or an integrated NVIDIA GPU.
pub fn refuse_beside_real(roots: &Roots) -> Result<(), GpuError> {
    let signs = [
        roots.proc.join("driver/nvidia/version"),
        roots.dev.join("nvidiactl"),
        roots.dev.join("nvmap"),
        roots.dev.join("nvgpu"),
        roots.dev.join("dxg"),
    ];
    let refuse = |evidence: String| Err(GpuError::FakeBesideReal { evidence });
    if let Some(path) = signs.iter().find(|path| path.exists()) {
        return refuse(format!("{} exists", path.display()));
    }
    // In an unprivileged pod the device nodes may be hidden, while sysfs still shows the hardware.
    let detection = detect(roots);
    let platform = &detection.platform;
    if platform.kind == PlatformKind::Tegra {
        return refuse("this is a Tegra system".to_owned());
    }
    match platform
        .pci_gpus
        .iter()
        .find(|gpu| gpu.driver.as_deref() == Some("nvidia"))
    {
        Some(gpu) => refuse(format!("PCI {} is run by the nvidia module", gpu.address)),
        None => Ok(()),
    }
}

fn cursor_at(machine: &Machine, control: &Control) -> EventCursor {
    let states = machine.gpus().iter().map(|gpu| gpu.status(control).state).collect();
    EventCursor {
        events_seen: control.events.len(),
        states,
        library: control.library,
    }
}

fn library_error(fault: LibraryFault, attempt: &str) -> GpuError {
    let attempt = attempt.to_owned();
    match fault {
        LibraryFault::DriverNotLoaded => GpuError::DriverNotLoaded { attempt },
        LibraryFault::NoPermission => GpuError::NoPermission { attempt },
        LibraryFault::VersionMismatch => GpuError::VersionMismatch { attempt },
        LibraryFault::Unknown => GpuError::Nvml {
            attempt,
            words: "Unknown Error (ERROR_UNKNOWN)".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set_and_verify;

    fn driver(text: &str) -> FakeDriver {
        FakeDriver::new(&text.parse::<Settings>().unwrap().seeded("test")).unwrap()
    }

    fn kinds(driver: &FakeDriver) -> Vec<HealthEventKind> {
        let events = driver.wait_events(Duration::ZERO).unwrap();
        events.into_iter().map(|event| event.kind).collect()
    }

    #[test]
    fn a_gpu_fails_and_returns() {
        let driver = driver("h100:2");
        let uuid = driver.devices().unwrap().devices[1].uuid.clone();
        assert!(driver.probe(&uuid).is_ok());
        driver.set_state("1", GpuState::Lost);
        assert!(matches!(driver.probe(&uuid), Err(GpuError::GpuLost { .. })));
        assert_eq!(driver.devices().unwrap().devices.len(), 2, "a lost GPU keeps its place");
        assert!(driver.samples().unwrap()[1].unreachable.is_some());
        let events = driver.wait_events(Duration::ZERO).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].uuid.as_deref(), Some(uuid.as_str()));
        assert!(matches!(&events[0].kind, HealthEventKind::Lost { .. }));
        driver.set_state("1", GpuState::Healthy);
        assert_eq!(kinds(&driver), [HealthEventKind::Recovered]);
        assert_eq!(kinds(&driver), []);
    }

    #[test]
    fn events_are_delivered_once_and_at_once() {
        let driver = Arc::new(driver("t4:3"));
        let waiting = Arc::clone(&driver);
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            (waiting.wait_events(Duration::from_secs(20)).unwrap(), begun.elapsed())
        });
        std::thread::sleep(Duration::from_millis(30));
        driver.raise_xid("*", 79);
        let (events, waited) = thread.join().unwrap();
        assert_eq!(events.len(), 3);
        assert!(waited < Duration::from_secs(10), "{waited:?}");
        assert_eq!(kinds(&driver), []);
    }

    #[test]
    fn a_gpu_is_taken_out_and_put_back() {
        let driver = driver("t4:2");
        driver.set_state("0", GpuState::Removed);
        assert_eq!(driver.devices().unwrap().devices.len(), 1);
        assert!(matches!(
            kinds(&driver).as_slice(),
            [HealthEventKind::Lost { .. }, HealthEventKind::InventoryChanged]
        ));
        driver.set_state("0", GpuState::Healthy);
        assert_eq!(
            kinds(&driver),
            [HealthEventKind::Recovered, HealthEventKind::InventoryChanged]
        );
    }

    #[test]
    fn the_whole_driver_goes_and_returns() {
        let driver = driver("t4");
        driver.change(|control| control.library = Some(LibraryFault::DriverNotLoaded));
        assert!(driver.devices().unwrap_err().is_driver_gone());
        assert!(matches!(kinds(&driver).as_slice(), [HealthEventKind::Lost { .. }]));
        driver.change(|control| control.library = None);
        assert_eq!(kinds(&driver), [HealthEventKind::Recovered]);
    }

    #[test]
    fn the_control_file_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.yaml");
        let settings = Settings {
            control_file: Some(path.clone()),
            ..Settings::of("t4", 1)
        };
        assert!(FakeDriver::new(&settings).is_err(), "there is no file");
        std::fs::write(&path, "").unwrap();
        let driver = FakeDriver::new(&settings).unwrap();
        std::fs::write(&path, "events: [{gpu: 0, xid: 48}]").unwrap();
        let events = driver.wait_events(Duration::from_secs(10)).unwrap();
        assert_eq!(events[0].kind, HealthEventKind::Xid(48));
    }

    #[test]
    fn limits_are_set_and_verified_through_the_trait() {
        let limited = |control: &str| {
            let mut settings = "a100-40".parse::<Settings>().unwrap().controlled(control).unwrap();
            settings.driver_version = Some("615.71.09".to_owned());
            FakeDriver::new(&settings).unwrap()
        };
        let dir = tempfile::tempdir().unwrap();
        let set = |driver: &FakeDriver, gpu: &str| set_and_verify(driver, gpu, dir.path(), MemoryLimits::hard(5 * MIB));
        let working = limited("{}");
        let gpu = working.devices().unwrap().devices[0].uuid.clone();
        assert_eq!(working.memory_limit_support(), MemoryLimitSupport::Offered);
        assert_eq!(set(&working, &gpu).unwrap().limits, MemoryLimits::hard(5 * MIB));
        assert!(matches!(set(&working, "GPU-x"), Err(MemoryLimitError::NoGpu { .. })));
        let wrong = limited("{gpus: {0: {memoryLimits: {readBackHardMib: 7}}}}");
        let error = set(&wrong, &gpu).unwrap_err();
        assert!(matches!(error, MemoryLimitError::NotKept { .. }), "{error}");
        assert!(error.to_string().contains("then reported 7340032 bytes"), "{error}");
        working.set_state("0", GpuState::Lost);
        assert_eq!(set(&working, &gpu).unwrap_err().code().constant(), "GPU_IS_LOST");
        working.change(|control| control.library = Some(LibraryFault::DriverNotLoaded));
        let MemoryLimitSupport::Unknown { reason } = working.memory_limit_support() else {
            panic!("an absent driver does not say")
        };
        assert!(reason.contains("Driver Not Loaded"), "{reason}");
        let old = driver("a100-40");
        let MemoryLimitSupport::Missing { reason } = old.memory_limit_support() else {
            panic!("driver 570 has no limits")
        };
        assert!(reason.contains("nvmlDeviceSetMemoryLimits_v1 and"), "{reason}");
    }

    #[test]
    fn processes_and_modes_are_told() {
        let driver = driver("h100:2,orin-agx");
        let control = "{gpus: {0: {persistenceMode: false, processes: [{pid: 7, memoryMib: 5}, {pid: 7, memoryMib: 5, kind: graphics}, \
                       {pid: 8, memoryUnavailable: true, kind: mps-client}]}}}";
        let control = Settings::of("h100", 1).controlled(control).unwrap().control;
        driver.change(|old| *old = control);
        let told = driver.processes().unwrap();
        let listed = told[0].processes.known();
        let facts: Vec<_> = listed
            .iter()
            .map(|process| (process.pid, process.used_bytes, process.kind))
            .collect();
        assert_eq!(
            facts,
            [
                (7, Some(5 * MIB), GpuProcessKind::Compute),
                (8, None, GpuProcessKind::MpsClient)
            ]
        );
        assert_eq!(told[1].processes, ProcessList::Listed(vec![]));
        assert_eq!(
            told[2].processes,
            ProcessList::NotOffered,
            "nvgpu does not list processes"
        );
        driver.set_state("1", GpuState::Lost);
        let now = driver.processes().unwrap();
        assert_eq!(
            (now[0].processes == told[0].processes, &now[1].processes),
            (true, &ProcessList::Unanswered)
        );
        driver.set_state("1", GpuState::Healthy);
        let uuid = |index: usize| told[index].uuid.as_str();
        assert_eq!(driver.persistence_mode(uuid(0)).unwrap(), Some(false));
        assert_eq!(driver.persistence_mode(uuid(1)).unwrap(), Some(true));
        driver
            .set_compute_mode(uuid(0), GpuComputeMode::ExclusiveProcess)
            .unwrap();
        assert_eq!(
            driver.compute_mode(uuid(0)).unwrap(),
            Some(GpuComputeMode::ExclusiveProcess)
        );
        assert_eq!(driver.compute_mode(uuid(1)).unwrap(), Some(GpuComputeMode::Default));
        assert_eq!(driver.compute_mode(uuid(2)).unwrap(), None);
        assert!(driver.set_compute_mode(uuid(2), GpuComputeMode::Default).is_err());
    }

    #[test]
    fn it_refuses_to_start_beside_a_real_driver() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        assert!(FakeDriver::start(&Settings::of("t4", 1), &roots).is_ok());
        std::fs::create_dir_all(dir.path().join("proc/driver/nvidia")).unwrap();
        std::fs::write(dir.path().join("proc/driver/nvidia/version"), "NVRM version").unwrap();
        let error = FakeDriver::start(&Settings::of("t4", 1), &roots).unwrap_err();
        assert!(error.to_string().contains("real NVIDIA driver"), "{error}");
    }
}
