//! The library's state in one process: the count of initialisations, the fake machine and its visible GPUs. Handles of clients are numbers
//! that are checked on every call, never pointers.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use kai_gpu::fake::{Control, FakeGpu, FakeMig, GpuState, GpuStatus, LibraryFault, Machine, QueryGroup};
use parking_lot::Mutex;

use crate::code::*;
use crate::environment::{Environment, Visible};

/// A device handle in C: opaque, with the size of a pointer.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(usize);

const DEVICES: usize = 0x1000_0000;
const GPU_STRIDE: usize = 0x1000;
const MIG_STRIDE: usize = 0x10;

impl Handle {
    pub(crate) fn of(gpu: usize, mig: Option<usize>) -> Self {
        Self(DEVICES + gpu * GPU_STRIDE + mig.map_or(0, |mig| (mig + 1) * MIG_STRIDE))
    }

    pub(crate) fn as_pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }
}

/// The fake machine, with the GPUs that this process may see.
#[derive(Debug)]
pub(crate) struct VisibleMachine {
    pub(crate) machine: Machine,
    visible: Vec<VisibleGpu>,
    /// GPUs that were lost or removed since the library was opened. A lock, because clients call from any thread.
    lost: Mutex<BTreeMap<usize, GpuState>>,
}

#[derive(Debug)]
struct VisibleGpu {
    gpu: usize,
    /// Its visible partitions.
    mig: Vec<usize>,
}

#[derive(Debug, Default)]
struct State {
    initialised: u32,
    visible_machine: Option<Arc<VisibleMachine>>,
}

/// NVML has one state per process, so this is a global. A lock, because clients call from any thread.
static STATE: Mutex<State> = Mutex::new(State {
    initialised: 0,
    visible_machine: None,
});

/// Counts one initialisation; the first one reads the environment.
pub(crate) fn initialise() -> Answer {
    let mut state = STATE.lock();
    if state.initialised == 0 {
        state.visible_machine = Some(Arc::new(VisibleMachine::from_environment()?));
    }
    let visible_machine = state.visible_machine.clone().ok_or(UNKNOWN)?;
    let control = visible_machine.machine.control();
    if state.initialised == 0 {
        for line in &control.noise {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
    check_library(&control)?;
    state.initialised += 1;
    Ok(())
}

pub(crate) fn shut_down() -> Answer {
    let mut state = STATE.lock();
    state.initialised = state.initialised.checked_sub(1).ok_or(UNINITIALIZED)?;
    if state.initialised == 0 {
        state.visible_machine = None;
        crate::event::free_all_sets();
    }
    Ok(())
}

/// The machine and its present control value, if the library works.
pub(crate) fn snapshot() -> Answer<MachineSnapshot> {
    let state = STATE.lock();
    if state.initialised == 0 {
        return Err(UNINITIALIZED);
    }
    let visible_machine = state.visible_machine.clone().ok_or(UNINITIALIZED)?;
    drop(state);
    let control = visible_machine.machine.control();
    check_library(&control)?;
    let control = visible_machine.with_lost_gpus(control);
    Ok(MachineSnapshot {
        visible_machine,
        control,
    })
}

fn check_library(control: &Control) -> Answer {
    match control.library {
        None => Ok(()),
        Some(LibraryFault::DriverNotLoaded) => Err(DRIVER_NOT_LOADED),
        Some(LibraryFault::NoPermission) => Err(NO_PERMISSION),
        Some(LibraryFault::VersionMismatch) => Err(LIB_RM_VERSION_MISMATCH),
        Some(LibraryFault::Unknown) => Err(UNKNOWN),
    }
}

impl VisibleMachine {
    /// The control value that clients see: with `until_opened_anew`, a lost GPU stays lost until they reopen the library.
    fn with_lost_gpus(&self, control: Arc<Control>) -> Arc<Control> {
        if !control.until_opened_anew {
            return control;
        }
        let mut lost = self.lost.lock();
        for (number, gpu) in self.machine.gpus().iter().enumerate() {
            let state = gpu.status(&control).state;
            if matches!(state, GpuState::Lost | GpuState::Removed) {
                lost.entry(number).or_insert(state);
            }
        }
        let mut seen = Control::clone(&control);
        for (number, state) in lost.iter() {
            let uuid = self.machine.gpus()[*number].device.uuid.clone();
            seen.gpus.entry(uuid).or_default().state = Some(*state);
        }
        Arc::new(seen)
    }

    fn from_environment() -> Answer<Self> {
        let built = Environment::read().and_then(|environment| {
            let machine = environment.settings.as_ref().map(Machine::new).transpose()?;
            Ok((machine, environment.visible))
        });
        match built {
            Ok((Some(machine), visible)) => Ok(Self {
                visible: visible_gpus(&machine, &visible, Path::new("/dev")),
                machine,
                lost: Mutex::default(),
            }),
            Ok((None, _)) => Err(DRIVER_NOT_LOADED),
            Err(error) => {
                // The return code alone would not name a mistake in the settings.
                let _ = writeln!(std::io::stderr(), "fake-nvml: {}", error.with_remedy());
                Err(DRIVER_NOT_LOADED)
            }
        }
    }
}

fn visible_gpus(machine: &Machine, visible: &Visible, nodes: &Path) -> Vec<VisibleGpu> {
    // Without the node that every GPU needs, no GPU was injected: this is no container with GPUs of ours.
    let by_node = *visible == Visible::ByNode && nodes.join("nvidiactl").exists();
    let mut result = Vec::new();
    for (number, gpu) in machine.gpus().iter().enumerate() {
        let named = |ids: &[String], name: &str| ids.iter().any(|id| id == name);
        let all: Vec<usize> = (0..gpu.mig.len()).collect();
        let mig = match visible {
            Visible::All | Visible::ByNode => {
                let node = format!("nvidia{}", gpu.device.minor.unwrap_or(gpu.device.index));
                Some(all).filter(|_| !by_node || nodes.join(node).exists())
            }
            Visible::Only(ids) => {
                let device = &gpu.device;
                let whole = named(ids, &device.uuid) || device.aliases.iter().any(|alias| named(ids, alias));
                let some: Vec<usize> = all
                    .iter()
                    .copied()
                    .filter(|&mig| named(ids, &gpu.mig[mig].device.uuid))
                    .collect();
                if whole {
                    Some(all)
                } else {
                    Some(some).filter(|some| !some.is_empty())
                }
            }
        };
        result.extend(mig.map(|mig| VisibleGpu { gpu: number, mig }));
    }
    result
}

/// The machine's state at one moment. Every call takes one snapshot, so that its answer is consistent.
#[derive(Debug)]
pub(crate) struct MachineSnapshot {
    pub(crate) visible_machine: Arc<VisibleMachine>,
    pub(crate) control: Arc<Control>,
}

impl MachineSnapshot {
    /// Visible GPUs that are not removed, in NVML's order.
    pub(crate) fn present(&self) -> Vec<usize> {
        let there = |gpu: usize| self.gpu(gpu).status(&self.control).state != GpuState::Removed;
        self.visible_machine
            .visible
            .iter()
            .map(|visible| visible.gpu)
            .filter(|&gpu| there(gpu))
            .collect()
    }

    pub(crate) fn gpu(&self, gpu: usize) -> &FakeGpu {
        &self.visible_machine.machine.gpus()[gpu]
    }

    /// The visible partitions of a GPU.
    pub(crate) fn partitions(&self, gpu: usize) -> &[usize] {
        let visible = self.visible_machine.visible.iter().find(|visible| visible.gpu == gpu);
        visible.map_or(&[], |visible| &visible.mig)
    }

    /// A handle of a GPU; a lost GPU gives an error.
    pub(crate) fn handle(&self, gpu: usize, mig: Option<usize>) -> Answer<Handle> {
        check_state(self.gpu(gpu).status(&self.control).state)?;
        Ok(Handle::of(gpu, mig))
    }
}

fn check_state(state: GpuState) -> Answer {
    match state {
        GpuState::Healthy | GpuState::ResetRequired => Ok(()),
        GpuState::Lost => Err(GPU_IS_LOST),
        GpuState::Removed => Err(NOT_FOUND),
    }
}

/// The device that a call queries.
#[derive(Debug)]
pub(crate) struct QueriedDevice {
    pub(crate) snapshot: MachineSnapshot,
    pub(crate) gpu: usize,
    pub(crate) mig: Option<usize>,
    pub(crate) status: GpuStatus,
}

impl QueriedDevice {
    pub(crate) fn fake(&self) -> &FakeGpu {
        self.snapshot.gpu(self.gpu)
    }

    pub(crate) fn partition(&self) -> Option<&FakeMig> {
        self.mig.map(|mig| &self.fake().mig[mig])
    }

    /// Fails if this hardware or the control file refuses the query.
    pub(crate) fn need(&self, query: QueryGroup) -> Answer {
        if self.fake().supports(query, &self.status) {
            Ok(())
        } else {
            Err(NOT_SUPPORTED)
        }
    }

    /// Fails for a partition.
    pub(crate) fn whole(&self) -> Answer {
        if self.mig.is_some() { Err(NOT_SUPPORTED) } else { Ok(()) }
    }
}

/// Any visible device, also a lost one: for facts that NVML keeps in memory.
pub(crate) fn known_device(handle: Handle) -> Answer<QueriedDevice> {
    let snapshot = snapshot()?;
    let offset = handle.0.checked_sub(DEVICES).ok_or(INVALID_ARGUMENT)?;
    let gpu = offset / GPU_STRIDE;
    let mig = match offset % GPU_STRIDE {
        0 => None,
        rest if rest % MIG_STRIDE == 0 => Some(rest / MIG_STRIDE - 1),
        _ => return Err(INVALID_ARGUMENT),
    };
    let known = snapshot
        .visible_machine
        .visible
        .iter()
        .any(|visible| visible.gpu == gpu);
    if !known || mig.is_some_and(|mig| mig >= snapshot.gpu(gpu).mig.len()) {
        return Err(INVALID_ARGUMENT);
    }
    let status = snapshot.gpu(gpu).status(&snapshot.control);
    Ok(QueriedDevice {
        snapshot,
        gpu,
        mig,
        status,
    })
}

/// A device that answers.
pub(crate) fn device(handle: Handle) -> Answer<QueriedDevice> {
    let queried = known_device(handle)?;
    match queried.status.state {
        GpuState::Healthy => Ok(queried),
        GpuState::Lost | GpuState::Removed => Err(GPU_IS_LOST),
        GpuState::ResetRequired => Err(RESET_REQUIRED),
    }
}

/// A device that answers and supports this query.
pub(crate) fn device_for(handle: Handle, query: QueryGroup) -> Answer<QueriedDevice> {
    let queried = device(handle)?;
    queried.need(query)?;
    Ok(queried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_container_the_injected_nodes_are_what_is_seen() {
        let settings = "a100-40:3".parse::<kai_gpu::fake::Settings>().unwrap().seeded("n");
        let machine = Machine::new(&settings).unwrap();
        let nodes = tempfile::tempdir().unwrap();
        let seen = |visible: &Visible| -> Vec<usize> {
            let found = visible_gpus(&machine, visible, nodes.path());
            found.iter().map(|visible| visible.gpu).collect()
        };
        assert_eq!(seen(&Visible::ByNode), [0, 1, 2], "nobody injected anything");
        for name in ["nvidiactl", "nvidia1"] {
            std::fs::write(nodes.path().join(name), "").unwrap();
        }
        assert_eq!(seen(&Visible::ByNode), [1]);
        assert_eq!(seen(&Visible::All), [0, 1, 2]);
    }
}
