//! Why a pod or gang may not start, wherever there is room, as data. Most refusals are found outside the engine: the reader of Kubernetes
//! objects finds invalid fields, the mirror finds missing volumes and failed bindings.

use crate::model::{GangKey, Millis};
use crate::reasons::{InvalidValue, Problem};

/// Why a pod or gang may not start; see [`PodSpec::refused`](crate::model::PodSpec) and [`GangSpec::refused`](crate::model::GangSpec).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A field of the pod is invalid.
    InvalidField {
        /// Path of the field.
        field: String,
        /// What is wrong with its value.
        error: InvalidValue,
    },
    /// The pod has this many pod affinity terms, more than [`AFFINITY_TERMS_MAX`](crate::model::AFFINITY_TERMS_MAX).
    AffinityTermsExceeded(usize),
    /// A volume claim of the pod does not exist.
    VolumeClaimMissing {
        /// The claim.
        claim: String,
    },
    /// Kubernetes has not yet created the claim of an ephemeral volume of the pod.
    EphemeralClaimMissing {
        /// The claim.
        claim: String,
    },
    /// The claim of an ephemeral volume of the pod belongs to something else.
    EphemeralClaimForeign {
        /// The claim.
        claim: String,
    },
    /// A volume claim of the pod is being deleted.
    VolumeClaimDeleted {
        /// The claim.
        claim: String,
    },
    /// A volume claim of the pod lost its volume.
    VolumeClaimLost {
        /// The claim.
        claim: String,
        /// The volume that it was bound to.
        volume: String,
    },
    /// A volume claim of the pod is not bound, and does not wait for a pod.
    VolumeClaimUnbound {
        /// The claim.
        claim: String,
    },
    /// A volume claim of the pod is not bound, and its storage class does not exist.
    StorageClassMissing {
        /// The claim.
        claim: String,
        /// The storage class.
        class: String,
    },
    /// The pod has more volume claims without a volume than this.
    UnboundClaimsExceeded {
        /// The bound.
        max: usize,
    },
    /// The waiting claims of the pod's namespace ask for more different volumes than this.
    VolumeRequestsExceeded {
        /// The namespace.
        namespace: String,
        /// The bound.
        max: usize,
    },
    /// The volume of a claim of the pod does not exist.
    VolumeMissing {
        /// The volume.
        volume: String,
        /// The claim that is bound to it.
        claim: String,
    },
    /// A field of a volume or of a claim of the pod is invalid.
    VolumeInvalid(Box<Problem>),
    /// The node affinities of the pod's volumes have more combinations than this.
    VolumeTermsExceeded {
        /// The bound.
        max: usize,
    },
    /// ConfigMaps that the pod requires do not exist.
    ConfigMapsMissing {
        /// The namespace of the pod.
        namespace: String,
        /// The first of them, by name.
        names: Vec<String>,
        /// How many there are besides.
        more: usize,
    },
    /// A binding of the pod failed, and the pause until the next attempt is not over.
    BindFailed {
        /// The node.
        node: String,
        /// The message of the failed call, or of the binder.
        message: String,
    },
    /// Lists are missing that the scheduler has; its condition on the pod has this message.
    AsTheConditionSays(String),
    /// The pod has a GPU share, and the installation does not share GPUs.
    GpuSharingDisabled,
    /// The gang may not use its queue. The engine takes such a gang for one without a queue.
    QueueForbidden {
        /// The queue.
        queue: String,
        /// The namespace of the gang.
        namespace: String,
    },
    /// The gang may not have its priority.
    PriorityForbidden {
        /// The gang.
        gang: GangKey,
        /// The rule.
        refusal: PriorityRefusal,
    },
}

impl Refusal {
    /// Whether the engine takes the gang for one without a queue: other tenants' pods are not charged to a queue that is not theirs.
    pub(crate) fn withholds_queue(&self) -> bool {
        matches!(self, Refusal::QueueForbidden { .. })
    }
}

/// Why a pod group may not have its priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorityRefusal {
    /// A system class outside the system's namespaces.
    SystemClass {
        /// The class.
        class: String,
        /// The pod group's namespace.
        namespace: String,
    },
    /// A priority above the ceiling of a queue on the path to the root.
    AboveCeiling {
        /// The pod group's priority class.
        class: Option<String>,
        /// Its value.
        priority: i32,
        /// The queue with the ceiling.
        queue: String,
        /// The ceiling.
        max: i32,
    },
    /// An invalid ceiling. It allows no pod group, since the queue's owner meant to set a bound.
    UnreadableCeiling {
        /// The queue with the ceiling.
        queue: String,
        /// The annotation's value.
        text: String,
    },
}

/// A bound on the affinity terms of many pods, which keeps the work of a placement bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityTermBound {
    /// On the terms of the pods of one namespace that select by one label value.
    Namespace,
    /// On the terms of all pods that select pods of other namespaces by one label value.
    Cluster,
}

/// A node that a pod avoids after a failed binding. It stands beside the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvoidedNode {
    /// The node.
    pub node: String,
    /// Until when.
    pub until: Millis,
}
