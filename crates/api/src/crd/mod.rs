//! The kinds that an installation brings along, whole: what they are (schema, columns, validation) and the types from
//! which bodies are written. To read many objects fast and small, use the slim types beside this module.

mod bind_request;
pub mod config;
mod definitions;
mod pod_group;
mod queue;
mod scheduling_shard;
mod schema;
mod topology;

use std::collections::BTreeMap;

pub use bind_request::*;
pub use config::{Config, ConfigSpec, ConfigStatus};
pub use definitions::{Manifest, crds, manifests};
pub use pod_group::*;
pub use queue::*;
pub use scheduling_shard::*;
pub use topology::*;

use crate::QuantityText;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, QuantityText>;
