//! Finding places: which nodes can take a pod, which is best, which devices on it, and whole gangs at once.

mod devices;
mod domains;
mod fit;
mod gang;
mod index;
mod neighbours;
mod pod;
mod ports;

pub(crate) use devices::{Devices, choose_devices};
pub(crate) use domains::{DomainTree, Domains};
pub(crate) use fit::{fits, static_check};
pub(crate) use gang::{Failure, Mode, NodeSet, Scope};
pub(crate) use index::ShapeIndexes;
pub(crate) use neighbours::Neighbours;
