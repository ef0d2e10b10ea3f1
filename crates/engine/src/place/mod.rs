//! Finding places: which nodes can take a pod, which is best, which devices on it, and whole gangs at once.

mod devices;
mod domains;
mod fit;
mod gang;
mod host_ports;
mod inter_pod;
mod pod;
mod shape_index;

pub(crate) use devices::{DeviceChoice, choose_devices};
pub(crate) use domains::{DomainTree, Domains};
pub(crate) use fit::{fits, static_check};
pub(crate) use gang::{NodeSet, PlacementFailure, PlacementMode, Scope};
pub(crate) use inter_pod::InterPodRules;
pub(crate) use shape_index::ShapeIndexes;
