//! Fake GPUs: a table of hardware profiles, settings that choose from it, a control file that changes their state at run time, and a
//! [`Driver`](crate::Driver) on top. The `fake-nvml` library uses the same [`Machine`], so both give the same answers. No hardware is used,
//! and [`FakeDriver::start`] refuses to run beside a real driver.

mod cgroup;
mod control;
mod driver;
mod limits;
mod machine;
mod mig;
mod profile;
mod record;
mod settings;

pub use cgroup::{CgroupRoots, cgroup_of};
pub use control::{
    Control, ControlEvent, GpuControl, GpuState, LibraryFault, MemoryLimitCalls, MemoryLimitFaults, MemoryLimitLookup,
    Process, ProcessKind,
};
pub use driver::{FakeDriver, refuse_beside_real};
pub use limits::LimitRecord;
pub use machine::{FakeGpu, FakeMig, GpuStatus, Machine};
pub use mig::{MigProfile, MigShape};
pub use profile::{DriverBehavior, PROFILES, Profile, QueryGroup, profile, profile_names};
pub use settings::{GpuSettings, Settings};
