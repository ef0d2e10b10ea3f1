//! Made-up GPUs: a table of hardware profiles, settings that pick from it, a control file that changes the picture while it runs,
//! and a [`Driver`](crate::Driver) on top. The `fake-nvml` library is built on the same [`Machine`], so both tell the same story.
//! Nothing here touches hardware, and [`FakeDriver::start`] refuses to run beside a real driver.

mod control;
mod driver;
mod machine;
mod mig;
mod profile;
mod settings;

pub use control::{Control, ControlEvent, GpuControl, GpuState, LibraryFault, Process, ProcessKind};
pub use driver::{FakeDriver, refuse_beside_real};
pub use machine::{FakeGpu, FakeMig, Machine, Picture};
pub use mig::{MigProfile, MigShape};
pub use profile::{PROFILES, Personality, Profile, Question, profile, profile_names};
pub use settings::{GpuSettings, Settings};
