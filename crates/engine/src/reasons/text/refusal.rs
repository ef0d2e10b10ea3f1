//! The text of refusals.

use std::fmt;

use super::words::Instant;
use crate::affinity::{TERMS_OF_ALL_MAX, TERMS_OF_NAMESPACE_MAX};
use crate::model::AFFINITY_TERMS_MAX;
use crate::reasons::{AffinityTermBound, AvoidedNode, PriorityRefusal, Refusal};

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::InvalidField { field, error } => write!(f, "{field}: {error}"),
            Refusal::AffinityTermsExceeded(terms) => write!(
                f,
                "spec.affinity has {terms} terms about other pods; give it at most {AFFINITY_TERMS_MAX}"
            ),
            // The texts about volumes begin with those of kube-scheduler, which users search for.
            Refusal::VolumeClaimMissing { claim } => write!(
                f,
                "persistentvolumeclaim {claim:?} not found; create it, or name another claim in spec.volumes of the pod"
            ),
            Refusal::EphemeralClaimMissing { claim } => write!(
                f,
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {claim:?}"
            ),
            Refusal::EphemeralClaimForeign { claim } => write!(
                f,
                "PVC {claim:?} was not created for the pod (pod is not owner); delete the claim, or give the pod or its volume another name"
            ),
            Refusal::VolumeClaimDeleted { claim } => write!(
                f,
                "persistentvolumeclaim {claim:?} is being deleted; create it again once it is gone"
            ),
            Refusal::VolumeClaimLost { claim, volume } => write!(
                f,
                "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {volume:?}; delete the claim and create it again"
            ),
            Refusal::VolumeClaimUnbound { claim } => write!(
                f,
                "pod has unbound immediate PersistentVolumeClaims: {claim}; the events of the claim say what it waits for"
            ),
            Refusal::StorageClassMissing { claim, class } => write!(
                f,
                "storageclass.storage.k8s.io {class:?} not found, which claim {claim} names; create the class, or the claim with another one"
            ),
            Refusal::UnboundClaimsExceeded { max } => write!(
                f,
                "the pod has more than {max} volume claims that wait for it; give it fewer volumes"
            ),
            Refusal::VolumeRequestsExceeded { namespace, max } => write!(
                f,
                "claims of namespace {namespace} wait for more than {max} different kinds of volumes, and those of the pod come after them; use \
                 fewer different sizes, classes and selectors"
            ),
            Refusal::VolumeMissing { volume, claim } => {
                write!(f, "persistent volume {volume} of claim {claim} does not exist")
            }
            Refusal::VolumeInvalid(problem) => write!(f, "{problem}"),
            Refusal::VolumeTermsExceeded { max } => write!(
                f,
                "the volumes of the pod are bound to too many different sets of nodes ({max} at most)"
            ),
            Refusal::ConfigMapsMissing { namespace, names, more } => write_config_maps(f, namespace, names, *more),
            Refusal::BindFailed { node, message } => write!(
                f,
                "binding to node {node} failed and is tried again in a while: {message}"
            ),
            Refusal::AsTheConditionSays(message) => write!(f, "{message}"),
            Refusal::GpuSharingDisabled => write!(
                f,
                "GPU sharing is switched off; request whole GPUs, or ask an administrator to set spec.global.gpuSharingMode of the Config"
            ),
            Refusal::QueueForbidden { queue, namespace } => write!(
                f,
                "queue {queue} is not for namespace {namespace}; use a queue of yours, or ask an administrator to name the namespace in \
                 the queue's annotation kai.scheduler/allowed-namespaces"
            ),
            Refusal::PriorityForbidden { gang, refusal } => {
                write!(f, "PodGroup {gang}: spec.priorityClassName: {refusal}")
            }
        }
    }
}

/// Begins with KAI's text, which users search for.
fn write_config_maps(f: &mut fmt::Formatter<'_>, namespace: &str, names: &[String], more: usize) -> fmt::Result {
    write!(f, "Missing required configmaps: {}", names.join(", "))?;
    if more > 0 {
        write!(f, " and {more} more")?;
    }
    write!(
        f,
        "; create them in namespace {namespace}, or mark them as optional in the pod"
    )
}

/// Follows the name of the field.
impl fmt::Display for PriorityRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PriorityRefusal::SystemClass { class, namespace } => write!(
                f,
                "priority class {class} is for the system's own namespaces, and {namespace} is none of them; name another priority class, \
                 for instance train"
            ),
            PriorityRefusal::AboveCeiling {
                class,
                priority,
                queue,
                max,
            } => {
                match class {
                    Some(class) => write!(f, "priority class {class}")?,
                    None => write!(f, "a pod group without a priority class")?,
                }
                write!(
                    f,
                    " has priority {priority}, and queue {queue} allows {max} at most; name a class of at most {max}, or ask an \
                     administrator to raise the queue's annotation kai.scheduler/max-priority"
                )
            }
            PriorityRefusal::UnreadableCeiling { queue, text } => write!(
                f,
                "the queue's ceiling can't be read: Queue {queue}: metadata.annotations.kai.scheduler/max-priority: {text:?} is not a \
                 whole number; ask an administrator to write one, as in 100"
            ),
        }
    }
}

impl fmt::Display for AffinityTermBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AffinityTermBound::Namespace => write!(
                f,
                "spec.affinity: pods of the namespace have {TERMS_OF_NAMESPACE_MAX} other terms with the same label value, or without a value (NotIn, \
                 Exists, DoesNotExist); give many pods equal terms, or select by a label value that few terms have"
            ),
            AffinityTermBound::Cluster => write!(
                f,
                "spec.affinity: pods have {TERMS_OF_ALL_MAX} other terms about other namespaces with the same label value, or without a value (NotIn, \
                 Exists, DoesNotExist); select pods of the own namespace, or by a label value that few terms have"
            ),
        }
    }
}

impl fmt::Display for AvoidedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AvoidedNode { node, until } = self;
        let until = Instant(*until);
        write!(f, "node {node} is left out until {until} because binding to it failed")
    }
}
