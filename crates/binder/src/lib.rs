//! The binder: it carries out bind requests. For pods that share GPUs it holds a GPU per group by a reservation pod, tells the pod
//! which GPU it got, and keeps reservations in order afterwards. It never chooses a node or a group, and never ends a workload.
//!
//! What to do next is decided by plain functions over what was read (`step`, `books`, `care`, `intent`); `bind` and `sync`
//! read, ask them, and write. Absence in a watch is never proof of anything here: what is destroyed or promised rests on fresh reads.

mod admit;
mod args;
mod bind;
mod books;
mod care;
mod config_maps;
mod devices;
mod error;
mod group;
mod intent;
mod locks;
mod metrics;
mod notices;
mod placeholders;
mod reads;
mod reservation_pod;
mod reservations;
mod rollback;
mod run;
mod settings;
mod sharing;
mod step;
mod sync;
mod waits;
mod watch;

pub use args::Args;
pub use error::Error;
pub use group::{GroupKey, reservation_name};
pub use run::run;
pub use settings::{Choice, ReservationMode, Settings, TegraMode};
