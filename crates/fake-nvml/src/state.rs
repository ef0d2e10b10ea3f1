//! The library's state in one process: how often it was initialised, the fake machine, what of it may be seen. Handles given to clients
//! are numbers that are checked on every call, never pointers to anything.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kai_gpu::fake::{Control, FakeGpu, FakeMig, GpuState, LibraryFault, Machine, Picture, Question};

use crate::code::*;
use crate::environment::{Environment, Visible};

/// A device handle as C sees it: the size of a pointer, opaque.
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

/// The fake machine as this process sees it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) machine: Machine,
    visible: Vec<VisibleGpu>,
    /// GPUs that fell silent since the library was opened. A lock, because clients call from any thread.
    silent: Mutex<BTreeMap<usize, GpuState>>,
}

#[derive(Debug)]
struct VisibleGpu {
    gpu: usize,
    /// Which of its partitions.
    mig: Vec<usize>,
}

#[derive(Debug, Default)]
struct State {
    initialised: u32,
    world: Option<Arc<World>>,
}

/// NVML is one per process by design, so this is the one global. A lock, because clients call from any thread.
static STATE: Mutex<State> = Mutex::new(State {
    initialised: 0,
    world: None,
});

/// Counts one initialisation; the first one reads the environment.
pub(crate) fn initialise() -> Answer {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if state.initialised == 0 {
        state.world = Some(Arc::new(World::from_environment()?));
    }
    let world = state.world.clone().ok_or(UNKNOWN)?;
    let control = world.machine.control();
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
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.initialised = state.initialised.checked_sub(1).ok_or(UNINITIALIZED)?;
    if state.initialised == 0 {
        state.world = None;
        crate::event::forget_all();
    }
    Ok(())
}

/// The world and the control value of this moment, if the library works.
pub(crate) fn world() -> Answer<Now> {
    let state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if state.initialised == 0 {
        return Err(UNINITIALIZED);
    }
    let world = state.world.clone().ok_or(UNINITIALIZED)?;
    drop(state);
    let control = world.machine.control();
    check_library(&control)?;
    let control = world.with_silent(control);
    Ok(Now { world, control })
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

impl World {
    /// What clients see of `control` if a silent GPU stays silent until they open the library anew.
    fn with_silent(&self, control: Arc<Control>) -> Arc<Control> {
        if !control.until_opened_anew {
            return control;
        }
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, gpu) in self.machine.gpus().iter().enumerate() {
            let state = gpu.picture(&control).state;
            if matches!(state, GpuState::Lost | GpuState::Removed) {
                silent.entry(number).or_insert(state);
            }
        }
        let mut seen = Control::clone(&control);
        for (number, state) in silent.iter() {
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
                silent: Mutex::default(),
            }),
            Ok((None, _)) => Err(DRIVER_NOT_LOADED),
            Err(error) => {
                // A code alone would leave a person with a typing mistake in the dark.
                let _ = writeln!(std::io::stderr(), "fake-nvml: {}", error.with_remedy());
                Err(DRIVER_NOT_LOADED)
            }
        }
    }
}

fn visible_gpus(machine: &Machine, visible: &Visible, nodes: &Path) -> Vec<VisibleGpu> {
    // Without the node that every GPU needs nobody injected any: this is no container of ours.
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

/// One moment of the world: every call looks once, so that it does not contradict itself.
#[derive(Debug)]
pub(crate) struct Now {
    pub(crate) world: Arc<World>,
    pub(crate) control: Arc<Control>,
}

impl Now {
    /// Visible GPUs that are there, in order: NVML's enumeration.
    pub(crate) fn present(&self) -> Vec<usize> {
        let there = |gpu: usize| self.gpu(gpu).picture(&self.control).state != GpuState::Removed;
        self.world
            .visible
            .iter()
            .map(|visible| visible.gpu)
            .filter(|&gpu| there(gpu))
            .collect()
    }

    pub(crate) fn gpu(&self, gpu: usize) -> &FakeGpu {
        &self.world.machine.gpus()[gpu]
    }

    /// The visible partitions of a GPU.
    pub(crate) fn partitions(&self, gpu: usize) -> &[usize] {
        let visible = self.world.visible.iter().find(|visible| visible.gpu == gpu);
        visible.map_or(&[], |visible| &visible.mig)
    }

    /// A handle for a GPU, or the error that asking for one gives: a lost GPU has none.
    pub(crate) fn handle(&self, gpu: usize, mig: Option<usize>) -> Answer<Handle> {
        check_state(self.gpu(gpu).picture(&self.control).state)?;
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

/// A device in one call.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) now: Now,
    pub(crate) gpu: usize,
    pub(crate) mig: Option<usize>,
    pub(crate) picture: Picture,
}

impl Asked {
    pub(crate) fn fake(&self) -> &FakeGpu {
        self.now.gpu(self.gpu)
    }

    pub(crate) fn partition(&self) -> Option<&FakeMig> {
        self.mig.map(|mig| &self.fake().mig[mig])
    }

    /// Refuses what this hardware or the control file refuses.
    pub(crate) fn need(&self, question: Question) -> Answer {
        if self.fake().answers(question, &self.picture) {
            Ok(())
        } else {
            Err(NOT_SUPPORTED)
        }
    }

    /// Refuses questions that make no sense for a partition.
    pub(crate) fn whole(&self) -> Answer {
        if self.mig.is_some() { Err(NOT_SUPPORTED) } else { Ok(()) }
    }
}

/// Any known device, also a lost one: for facts that NVML keeps in memory.
pub(crate) fn remembered(handle: Handle) -> Answer<Asked> {
    let now = world()?;
    let offset = handle.0.checked_sub(DEVICES).ok_or(INVALID_ARGUMENT)?;
    let gpu = offset / GPU_STRIDE;
    let mig = match offset % GPU_STRIDE {
        0 => None,
        rest if rest % MIG_STRIDE == 0 => Some(rest / MIG_STRIDE - 1),
        _ => return Err(INVALID_ARGUMENT),
    };
    let known = now.world.visible.iter().any(|visible| visible.gpu == gpu);
    if !known || mig.is_some_and(|mig| mig >= now.gpu(gpu).mig.len()) {
        return Err(INVALID_ARGUMENT);
    }
    let picture = now.gpu(gpu).picture(&now.control);
    Ok(Asked { now, gpu, mig, picture })
}

/// A device that answers now.
pub(crate) fn device(handle: Handle) -> Answer<Asked> {
    let asked = remembered(handle)?;
    match asked.picture.state {
        GpuState::Healthy => Ok(asked),
        GpuState::Lost | GpuState::Removed => Err(GPU_IS_LOST),
        GpuState::ResetRequired => Err(RESET_REQUIRED),
    }
}

/// A device that answers now and this question in particular.
pub(crate) fn device_for(handle: Handle, question: Question) -> Answer<Asked> {
    let asked = device(handle)?;
    asked.need(question)?;
    Ok(asked)
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
