//! The annotations that a redacted file keeps, and the fields that only the pod grouper reads.

use kai_api::keys::{self, ContainerKey};

use super::names::NameClass;

/// The rule of an annotation's value; `None` for annotations that the scheduler does not read.
pub(super) fn of_annotation(key: &str) -> Option<Annotation> {
    use kai_api::keys as k;
    Some(match key {
        k::POD_GROUP_NAME => Annotation::Name(NameClass::PodGroup),
        k::GPU_FRACTION_CONTAINER => Annotation::Name(NameClass::Container),
        k::TOPOLOGY | k::GROVE_TOPOLOGY_NAME => Annotation::Name(NameClass::Topology),
        k::TOPOLOGY_REQUIRED | k::TOPOLOGY_PREFERRED | k::SEGMENT_TOPOLOGY_REQUIRED | k::SEGMENT_TOPOLOGY_PREFERRED => {
            Annotation::Name(NameClass::LabelKey)
        }
        k::QUEUE_ALLOWED_NAMESPACES => Annotation::Names(NameClass::Namespace),
        k::RESERVED_GPU | k::RESERVATION_WANTED_GPU => Annotation::Name(NameClass::Gpu),
        k::RECEIVED_GPUS => Annotation::Names(NameClass::Gpu),
        k::VOLUME_SELECTED_NODE => Annotation::Name(NameClass::Node),
        k::SHARED_GPU_CONFIG_MAP => Annotation::ConfigMap,
        k::TOP_OWNER_METADATA => Annotation::TopOwner,
        k::GPU_FRACTION
        | k::GPU_FRACTION_LIMIT
        | k::GPU_MEMORY
        | k::GPU_MEMORY_LIMIT
        | k::GPU_FRACTION_DEVICES
        | k::GPU_ENFORCEMENT
        | k::RESERVATION_COMPUTE_MODE
        | k::MPS
        | k::SKIP_POD_GROUPER
        | k::PREEMPTION_DELAY
        | k::STALENESS_GRACE_PERIOD
        | k::BATCH_MIN_MEMBER
        | k::QUEUE_MAX_PRIORITY
        | k::SEGMENT_SIZE
        | k::RECEIVED_RESOURCE_TYPE
        | k::LAST_START
        | k::LAST_EVICTION
        | k::STALE_SINCE
        | k::VOLUME_BIND_COMPLETED
        | k::LEADER_WORKER_SIZE
        | k::KNATIVE_MIN_SCALE
        | "batch.kubernetes.io/job-completion-index"
        | "controller.kubernetes.io/pod-deletion-cost"
        | "deployment.kubernetes.io/revision" => Annotation::Word,
        mig if super::vocabulary::is_mig(mig) => Annotation::Word,
        _ => return None,
    })
}

/// The annotations for one container whose values stay. The container's name is a part of the key.
pub(super) const CONTAINER_KEYS: &[ContainerKey] = &[
    keys::CONTAINER_MEMORY_REQUEST,
    keys::CONTAINER_MEMORY_LIMIT,
    keys::CONTAINER_COMPUTE_MODE,
    keys::CONTAINER_PORTION_LIMIT,
];

/// How to redact the value of an annotation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Annotation {
    Word,
    Name(NameClass),
    /// Names, separated by commas.
    Names(NameClass),
    /// The beginning of the names of GPU sharing ConfigMaps.
    ConfigMap,
    /// Lines of YAML with kind and name.
    TopOwner,
}

/// Fields that the pod grouper reads in workloads of other projects, with the classes of their texts. Their numbers and booleans stay.
pub(super) const GROUPED_FIELDS: &[(&str, Option<NameClass>)] = &[
    ("Launcher", None),
    ("Master", None),
    ("Worker", None),
    ("activeServiceStatus", None),
    ("elasticPolicy", None),
    ("envs", None),
    ("AZUREML_NODE_COUNT", None),
    ("groupName", Some(NameClass::SubGroup)),
    ("headGroupSpec", None),
    ("jaxReplicaSpecs", None),
    ("job", None),
    ("launcherCreationPolicy", None),
    ("leaderTemplate", None),
    ("leaderWorkerTemplate", None),
    ("minAvailable", None),
    ("minReplicas", None),
    ("mpiReplicaSpecs", None),
    ("name", Some(NameClass::SubGroup)),
    ("numOfHosts", None),
    ("options", None),
    ("parallelism", None),
    ("pendingServiceStatus", None),
    ("priorityClass", Some(NameClass::PriorityClass)),
    ("priorityClassName", Some(NameClass::PriorityClass)),
    ("pytorchReplicaSpecs", None),
    ("rayClusterName", Some(NameClass::Workload)),
    ("replicas", None),
    ("replicatedJobs", None),
    ("runPolicy", None),
    ("schedulingPolicy", None),
    ("size", None),
    ("spec", None),
    ("startupPolicy", None),
    ("startupPolicyOrder", None),
    ("subGroupPolicy", None),
    ("subGroupPolicyType", None),
    ("subGroupSize", None),
    ("suspend", None),
    ("template", None),
    ("tfReplicaSpecs", None),
    ("workerGroupSpecs", None),
    ("workerTemplate", None),
    ("xgbReplicaSpecs", None),
];
