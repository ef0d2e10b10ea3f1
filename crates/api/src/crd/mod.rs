//! The kinds that an installation brings along, whole: what they are (schema, columns, validation) and the types from
//! which bodies are written. To read many objects fast and small, use the slim types beside this module.

mod pod_group;
mod queue;
mod schema;

use std::collections::BTreeMap;

pub use pod_group::*;
pub use queue::*;

use crate::QuantityText;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, QuantityText>;
