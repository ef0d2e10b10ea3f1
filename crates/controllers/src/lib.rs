//! The cluster controllers: the pod grouper creates pod groups for pods, the status controllers write the status of pod groups and
//! queues, admission mutates and validates submitted objects, the installation step applies CustomResourceDefinitions and the objects of an
//! installation, and the operator runs all roles as a Config says. Architecture invariant: nothing here decides where a pod runs.

pub mod admission;
mod args;
mod defaults;
mod error;
pub mod grouper;
pub mod installation;
mod merge_patch;
pub mod operator;
mod reconciles;
mod run;
pub mod scale_adjuster;
pub mod status;

pub use args::{Args, Settings};
pub use defaults::{default_queues, priority_classes};
pub use error::Error;
pub use run::run;
