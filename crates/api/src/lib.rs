//! Kubernetes objects as kai reads them, and their translation into the engine's types.
//!
//! Each kind has one file with a slim type (only the fields that kai reads; others are ignored) and a function `read` that returns the
//! engine's type. An invalid field becomes a [`Problem`] that names object, field and remedy, never a panic, and is never dropped
//! silently. This crate has no Kubernetes client and does no I/O.

mod access_modes;
mod backoff;
mod bind_request;
mod cluster_policy;
mod config;
mod config_map;
pub mod crd;
mod csi_node;
mod csi_storage;
mod decimal;
mod duration;
mod error;
mod gpu_enforcement;
mod gpu_memory;
mod gpu_request;
mod gpu_share_annotations;
mod gpu_sharing_mode;
pub mod keys;
mod metadata;
mod namespace;
mod node;
mod node_sharing;
mod object;
mod object_key;
mod object_reference;
mod persistent_volume;
mod persistent_volume_claim;
mod pod;
mod pod_group;
mod priority_class;
mod priority_policy;
mod quantity;
mod queue;
mod resources;
mod runtime_class;
mod scheduling_shard;
mod share_container;
mod shared_text;
mod storage_class;
mod text;
mod time;
mod topology;
mod workload_name;
mod workload_values;

pub use access_modes::{AccessModes, VolumeMode};
pub use backoff::Backoff;
pub use bind_request::{BindPhase, BindRequest, GpuGroupsError, SelectedVolume};
pub use cluster_policy::gpu_operator_uses_cdi;
pub use config::Config;
pub use config_map::ConfigMap;
pub use csi_node::CsiNode;
pub use csi_storage::{CsiDriver, CsiStorageCapacity, StorageCapacity};
pub use duration::parse_duration;
pub use error::{Error, Problem};
pub use gpu_enforcement::{ComputeMode, EVENT_LIMIT_NOT_ENFORCED, Enforcement, EnforcementTier, GpuLimits};
pub use gpu_memory::{gpu_memory_mib, normalise_gpu_memory_mib};
pub use gpu_request::{GpuRequestKinds, RawGpuRequest, gpu_request};
pub use gpu_share_annotations::{GpuMemoryLimit, GpuShareAnnotations, GpuShareTerms, quantity_of_mib};
pub use gpu_sharing_mode::{GpuSharingMode, UnknownGpuSharingMode};
pub use kai_engine::model::{SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX};
pub use metadata::{Metadata, OwnerReference};
pub use namespace::Namespace;
pub use node::{Condition as NodeCondition, Node};
pub use object::{Object, Resource, Scope};
pub use object_key::ObjectKey;
pub use object_reference::ObjectReference;
pub use persistent_volume::PersistentVolume;
pub use persistent_volume_claim::{PersistentVolumeClaim, VolumeRequest};
pub use pod::{ConditionStatus, Pod, PodCondition, PodIdentity, ReservationPods, VolumeClaim};
pub use pod_group::PodGroup;
pub use priority_class::{PriorityClass, PriorityClasses};
pub use priority_policy::{PriorityCeiling, PriorityClaim, QueueCeiling};
pub use quantity::{Quantity, QuantityText};
pub use queue::{Namespaces, Queue, quotas_above_parent};
pub use runtime_class::RuntimeClass;
pub use scheduling_shard::SchedulingShard;
pub use share_container::{ContainerRef, ShareContainerError, share_container};
pub use storage_class::{StorageClass, VolumeBinding};
pub use text::{Text, TextMap};
pub use time::{format_time, parse_time};
pub use topology::Topology;
pub use workload_values::ignored_values;

/// A value read from an object, with the object's problems that do not exclude it from scheduling.
#[derive(Clone, Debug, PartialEq)]
pub struct Read<T> {
    /// The value.
    pub value: T,
    /// Problems to report to the user.
    pub problems: Vec<Problem>,
}
