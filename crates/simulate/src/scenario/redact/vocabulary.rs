//! Words that a redacted file keeps: they belong to Kubernetes, to vendors of GPUs or to the scheduler, and tell nothing about a cluster.

use kai_api::{keys, parse_duration, parse_time};

use super::names::NameClass;

/// Values of fields, labels and annotations.
const WORDS: &[&str] = &[
    // Booleans and statuses.
    "true",
    "false",
    "True",
    "False",
    "Unknown",
    "null",
    // Phases and statuses of pods, volumes and bind requests.
    "Pending",
    "Running",
    "Succeeded",
    "Failed",
    "Bound",
    "Available",
    "Released",
    "Lost",
    "Pipelined",
    "Binding",
    "Releasing",
    "StuckInReleasing",
    "Gated",
    // Volumes.
    "ReadWriteOnce",
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOncePod",
    "Filesystem",
    "Block",
    "Immediate",
    "WaitForFirstConsumer",
    "kubernetes.io/no-provisioner",
    // Conditions and their reasons.
    "Ready",
    "PodScheduled",
    "Initialized",
    "ContainersReady",
    "PodReadyToStartContainers",
    "DisruptionTarget",
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
    "Unschedulable",
    "SchedulingGated",
    "PodResizePending",
    "Deferred",
    "Infeasible",
    "UnschedulableOnNodePool",
    // Operators and effects.
    "In",
    "NotIn",
    "Exists",
    "DoesNotExist",
    "Gt",
    "Lt",
    "Equal",
    "NoSchedule",
    "PreferNoSchedule",
    "NoExecute",
    // Policies and protocols.
    "Always",
    "OnFailure",
    "Never",
    "TCP",
    "UDP",
    "SCTP",
    "Parallel",
    "OrderedReady",
    "Indexed",
    "NonIndexed",
    "Retain",
    "Delete",
    "Immediate",
    "WaitForFirstConsumer",
    "LeaderCreated",
    "LeaderReady",
    "LeaderExcluded",
    "LeaderWorker",
    "InOrder",
    "AnyOrder",
    "WaitForWorkersReady",
    "AtStartup",
    // Of the scheduler.
    "allocate",
    "consolidation",
    "reclaim",
    "preempt",
    "stalegangeviction",
    "binpack",
    "spread",
    "frag",
    "lca",
    "queue",
    "prefer-larger",
    "prefer-smaller",
    keys::PREEMPTIBLE,
    keys::SEMI_PREEMPTIBLE,
    keys::NON_PREEMPTIBLE,
    keys::RECEIVED_REGULAR,
    keys::RECEIVED_FRACTION,
    keys::RECEIVED_MIG,
    keys::MEMORY_UNIFIED,
    keys::PLATFORM_TEGRA,
    keys::RESERVATION,
    keys::SCALING_POD,
    "bench",
    // Plugins of the scheduler's configuration.
    "predicates",
    "proportion",
    "priority",
    "nodeavailability",
    "resourcetype",
    "podaffinity",
    "elastic",
    "kubeflow",
    "ray",
    "subgrouporder",
    "taskorder",
    "nominatednode",
    "dynamicresources",
    "minruntime",
    "topology",
    "snapshot",
    "gpupack",
    "gpuspread",
    "gpusharingorder",
    "gpujoborder",
    "backgroundpods",
    "nodeplacement",
    "reflectjoborder",
    "sg-nodelocalgreedy",
    "sg-multinodegang",
    "numa",
    // Of nodes and GPUs.
    "linux",
    "amd64",
    "arm64",
    "none",
    "single",
    "mixed",
    "void",
    "all",
    "time-slicing",
    "sm-sharing",
    "driver",
    "mps",
    "watch",
    "required",
    "preferred",
    "NonMemoryEnforced",
    "HamiCore",
    "NvFractions",
    "Disabled",
    keys::NODE_GPU_FRACTIONING_READY,
    "nvidia",
    "MIG",
    // Roles in distributed workloads.
    "master",
    "launcher",
    "worker",
    "head",
    "leader",
];

/// Keys of labels and taints.
const LABEL_KEYS: &[&str] = &[
    keys::SUB_GROUP_NAME,
    keys::QUEUE,
    keys::NODE_POOL,
    keys::PROJECT,
    keys::USER,
    keys::PRIORITY_CLASS_NAME,
    keys::RAY_PRIORITY_CLASS_NAME,
    keys::PREEMPTIBILITY,
    keys::TASK_PRIORITY,
    keys::GPU_GROUP,
    keys::SHARED_GPU_MARKER,
    keys::KUBEFLOW_JOB_ROLE,
    keys::KUBEFLOW_JOB_NAME,
    keys::KUBEFLOW_REPLICA_TYPE,
    keys::KUBEFLOW_REPLICA_INDEX,
    keys::RAY_NODE_TYPE,
    keys::RAY_GROUP,
    keys::JOB_SET_REPLICATED_JOB,
    keys::JOB_SET_JOB_INDEX,
    keys::LEADER_WORKER_GROUP_INDEX,
    keys::LEADER_WORKER_INDEX,
    keys::GROVE_POD_GANG,
    keys::KNATIVE_REVISION,
    keys::SPARK_APP_NAME,
    keys::SPARK_APP_SELECTOR,
    keys::NODE_GPU_MEMORY,
    keys::NODE_GPU_COUNT,
    keys::NODE_MIG_STRATEGY,
    keys::NODE_DEVICE_PLUGIN_CONFIG,
    keys::NODE_MIG_ENABLED,
    keys::NODE_GPU_WORKER,
    keys::NODE_CPU_WORKER,
    keys::NODE_GPU_MEMORY_TYPE,
    keys::NODE_PLATFORM,
    keys::NODE_FAKE_GPU,
    keys::GPU_ENFORCEMENT,
    keys::BACKGROUND,
    keys::NODE_HOSTNAME,
    keys::APP,
    keys::SCALING_FOR_POD,
    keys::SCALING_FOR_NAMESPACE,
    keys::SELECTED_NODE,
    keys::MANAGED_BY,
    // Of Kubernetes.
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "kubernetes.io/metadata.name",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/worker",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "node.kubernetes.io/out-of-service",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "job-name",
    "controller-uid",
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    // Of vendors.
    "nvidia.com/gpu",
    "nvidia.com/gpu.present",
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.family",
    "nvidia.com/gpu.machine",
    "nvidia.com/gpu.replicas",
    "nvidia.com/gpu.sharing-strategy",
    "nvidia.com/gpu.compute.major",
    "nvidia.com/gpu.compute.minor",
    "nvidia.com/gpu.clique",
    "nvidia.com/mig.capable",
    "nvidia.com/mig.config",
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.driver-version.major",
    "nvidia.com/cuda.driver-version.minor",
    "nvidia.com/cuda.driver-version.revision",
    "nvidia.com/cuda.runtime-version.full",
    "nvidia.com/cuda.runtime-version.major",
    "nvidia.com/cuda.runtime-version.minor",
    "amd.com/gpu",
];

/// Keys of labels whose numbers the scheduler or its views read. Other numbers may be, for instance, of a project or a customer.
const NUMBER_KEYS: &[&str] = &[
    keys::TASK_PRIORITY,
    keys::NODE_GPU_MEMORY,
    keys::NODE_GPU_COUNT,
    keys::KUBEFLOW_REPLICA_INDEX,
    keys::JOB_SET_JOB_INDEX,
    keys::LEADER_WORKER_GROUP_INDEX,
    keys::LEADER_WORKER_INDEX,
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
    "nvidia.com/gpu.replicas",
    "nvidia.com/gpu.compute.major",
    "nvidia.com/gpu.compute.minor",
    "nvidia.com/cuda.driver-version.full",
    "nvidia.com/cuda.driver-version.major",
    "nvidia.com/cuda.driver-version.minor",
    "nvidia.com/cuda.driver-version.revision",
    "nvidia.com/cuda.runtime-version.full",
    "nvidia.com/cuda.runtime-version.major",
    "nvidia.com/cuda.runtime-version.minor",
];

const RESOURCES: &[&str] = &[
    keys::RESOURCE_CPU,
    keys::RESOURCE_MEMORY,
    keys::RESOURCE_PODS,
    "ephemeral-storage",
    "storage",
    keys::RESOURCE_GPU,
    "nvidia.com/gpu.shared",
    keys::RESOURCE_AMD_GPU,
    keys::RESOURCE_GPU_SHARE,
    keys::RESOURCE_GPU_MEMORY,
];

const VARIABLES: &[&str] = &[
    keys::ENV_VISIBLE_DEVICES,
    keys::ENV_VISIBLE_DEVICES_LEGACY,
    keys::ENV_GPU_PORTION,
    keys::ENV_GPU_PORTION_LEGACY,
    keys::ENV_CUDA_MEMORY_LIMIT,
    keys::ENV_DRIVER_CAPABILITIES,
];

const KINDS: &[&str] = &[
    "Node",
    "Queue",
    "PodGroup",
    "Pod",
    "PriorityClass",
    "BindRequest",
    "Topology",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "CSINode",
    "CSIDriver",
    "CSIStorageCapacity",
    "ConfigMap",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "JobSet",
    "LeaderWorkerSet",
    "TFJob",
    "XGBoostJob",
    "JAXJob",
    "MPIJob",
    "PyTorchJob",
    "Notebook",
    "RayCluster",
    "RayJob",
    "RayService",
    "Service",
    "Revision",
    "AmlJob",
    "SPOTRequest",
    "RunaiJob",
    "Workflow",
    "TrainJob",
    "DynamoGraphDeployment",
    "TrainingWorkload",
    "InteractiveWorkload",
    "DistributedWorkload",
    "InferenceWorkload",
    "DistributedInferenceWorkload",
    "Namespace",
    "ServiceAccount",
    "Secret",
];

const API_GROUPS: &[&str] = &[
    "apps",
    "batch",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "scheduling.run.ai",
    "kai.scheduler",
    "jobset.x-k8s.io",
    "leaderworkerset.x-k8s.io",
    "kubeflow.org",
    "ray.io",
    "serving.knative.dev",
    "amlarc.azureml.com",
    "egx.nvidia.io",
    "run.ai",
    "argoproj.io",
    "trainer.kubeflow.org",
    "nvidia.com",
    "grove.io",
];

/// The longest amount, time or number.
const SCALAR_MAX: usize = 40;

/// Whether the text of a field may stay: a word, a number, an amount, a time or a duration.
pub(super) fn is_word(text: &str) -> bool {
    text.is_empty() || WORDS.contains(&text) || is_scalar(text)
}

/// Whether the value of a label may stay. `is_compared` labels are compared as numbers.
pub(super) fn is_label_value(key: &str, value: &str, is_compared: bool) -> bool {
    let is_number = || {
        value.len() <= SCALAR_MAX
            && value
                .bytes()
                .all(|byte| byte.is_ascii_digit() || b".-+".contains(&byte))
    };
    value.is_empty()
        || WORDS.contains(&value)
        || ((is_compared || NUMBER_KEYS.contains(&key) || key.starts_with(keys::NODE_AMD_MEMORY_PREFIX)) && is_number())
        || (key == "nvidia.com/gpu.product" && value.starts_with("NVIDIA-"))
}

fn is_scalar(text: &str) -> bool {
    text.len() <= SCALAR_MAX && (is_amount(text) || parse_time(text).is_ok() || parse_duration(text).is_ok())
}

/// A number, with an exponent or the suffix of a Kubernetes quantity.
fn is_amount(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = unsigned.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    let has_digits = unsigned.len() > digits.len() && unsigned.bytes().any(|byte| byte.is_ascii_digit());
    let is_exponent = || {
        digits
            .strip_prefix(['e', 'E'])
            .is_some_and(|number| number.parse::<i32>().is_ok())
    };
    has_digits
        && ([
            "", "n", "u", "m", "k", "K", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
        ]
        .contains(&digits)
            || is_exponent())
}

/// Whether the key of a label or taint may stay.
pub(super) fn is_label_key(key: &str) -> bool {
    let is_memory = |rest: &str| {
        rest.bytes()
            .all(|byte| byte.is_ascii_digit() || b".GTM".contains(&byte))
    };
    key.is_empty() || LABEL_KEYS.contains(&key) || key.strip_prefix(keys::NODE_AMD_MEMORY_PREFIX).is_some_and(is_memory)
}

/// Whether the name of a resource may stay.
pub(super) fn is_resource(name: &str) -> bool {
    let is_pages = |size: &str| is_amount(size);
    RESOURCES.contains(&name) || is_mig(name) || name.strip_prefix("hugepages-").is_some_and(is_pages)
}

/// Whether this is a profile of MIG slices, such as `nvidia.com/mig-1g.10gb`.
pub(super) fn is_mig(name: &str) -> bool {
    let is_profile = |profile: &str| {
        profile
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b"gbme.+-".contains(&byte))
    };
    name.strip_prefix(keys::MIG_PREFIX).is_some_and(is_profile)
}

/// Whether the name of an environment variable may stay.
pub(super) fn is_variable(name: &str) -> bool {
    VARIABLES.contains(&name)
}

/// Whether the kind may stay.
pub(super) fn is_kind(kind: &str) -> bool {
    kind.is_empty() || KINDS.contains(&kind)
}

/// Whether the API group may stay.
pub(super) fn is_api_group(group: &str) -> bool {
    group.is_empty() || API_GROUPS.contains(&group)
}

/// Whether this is a version of an API.
pub(super) fn is_version(version: &str) -> bool {
    let rest = version.strip_prefix('v').unwrap_or("x");
    let rest = rest.trim_matches(|letter: char| letter.is_ascii_digit());
    ["", "alpha", "beta"].contains(&rest)
}

/// What the values of a label are. Selectors, node affinity and taints of the same key mean the same.
pub(super) fn class_of_label(key: &str) -> NameClass {
    match key {
        keys::NODE_HOSTNAME | keys::SELECTED_NODE => NameClass::Node,
        // Without a queue, a project names the queue.
        keys::QUEUE | keys::PROJECT => NameClass::Queue,
        keys::NODE_POOL => NameClass::NodePool,
        keys::PRIORITY_CLASS_NAME | keys::RAY_PRIORITY_CLASS_NAME => NameClass::PriorityClass,
        keys::SUB_GROUP_NAME | keys::JOB_SET_REPLICATED_JOB | keys::RAY_GROUP => NameClass::SubGroup,
        keys::SCALING_FOR_POD | "statefulset.kubernetes.io/pod-name" => NameClass::Pod,
        keys::SCALING_FOR_NAMESPACE | "kubernetes.io/metadata.name" => NameClass::Namespace,
        keys::KUBEFLOW_JOB_NAME | "batch.kubernetes.io/job-name" | "job-name" => NameClass::Workload,
        "batch.kubernetes.io/controller-uid" | "controller-uid" => NameClass::Uid,
        group if keys::is_gpu_group_label(group) => NameClass::GpuGroup,
        _ => NameClass::Value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_times_stay_and_names_do_not() {
        for kept in [
            "",
            "4",
            "-1",
            "0.5",
            "250m",
            "80Gi",
            "1e3",
            "5m",
            "1h30m",
            "2026-01-01T00:00:00Z",
            "Running",
        ] {
            assert!(is_word(kept), "{kept}");
        }
        for replaced in ["acme", "node-1", "10.0.0.1x", "4 GPUs", "e", "-", "."] {
            assert!(!is_word(replaced), "{replaced}");
        }
    }

    #[test]
    fn numbers_of_unknown_labels_do_not_stay() {
        assert!(is_label_value(keys::NODE_GPU_MEMORY, "81920", false));
        assert!(!is_label_value("acme/project", "81920", false));
        assert!(is_label_value("acme/generation", "3", true));
        assert!(!is_label_value("nvidia.com/gpu.product", "acme", false));
    }

    #[test]
    fn resources_of_vendors_stay() {
        for kept in ["cpu", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "hugepages-2Mi"] {
            assert!(is_resource(kept), "{kept}");
        }
        for replaced in ["acme.com/fpga", "nvidia.com/mig-acme", "hugepages-acme"] {
            assert!(!is_resource(replaced), "{replaced}");
        }
    }

    #[test]
    fn api_versions() {
        assert!(is_version("v1") && is_version("v2alpha2") && is_version("v1beta1"));
        assert!(!is_version("acme") && !is_version("vacme") && !is_version(""));
    }
}
