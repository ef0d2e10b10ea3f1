//! Placement: which nodes accept a pod, which of them has the highest score, which GPUs of it a sharing pod gets, and how
//! the pods of a gang are placed together.

mod devices;
mod domains;
pub(crate) mod frag;
mod gang;
mod host_ports;
mod inter_pod;
mod node_check;
mod pod;
pub(crate) mod score;
pub(crate) mod shape_index;
mod topology;
mod volumes;
mod weights;

pub(crate) use devices::{DeviceChoice, choose_devices};
pub(crate) use domains::{DomainTree, Domains};
pub(crate) use gang::{NodeSet, PlacementFailure, PlacementMode, Scope};
pub(crate) use inter_pod::InterPodRules;
pub(crate) use node_check::static_check;
pub(crate) use score::NodeScoring;
pub(crate) use shape_index::ShapeIndexes;
pub(crate) use volumes::{VolumePools, VolumeRules};
