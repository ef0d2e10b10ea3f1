//! The custom resources in full: schema, printer columns, validation, and the types for writing objects. To read many objects with little
//! memory, use the slim types of this crate.

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
