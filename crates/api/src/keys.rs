//! Names that several components share: labels, annotations, resources, environment variables, defaults of an installation. They are KAI's
//! names, so that workloads need no change.

// ---- Requests of a pod, written by its user ----

/// Annotation on pods: fraction of each GPU, a decimal in (0, 1].
pub const GPU_FRACTION: &str = "gpu-fraction";
/// Annotation on pods: memory on each GPU, in MiB.
pub const GPU_MEMORY: &str = "gpu-memory";
/// Annotation on pods: the number of GPUs of a fraction or memory request.
pub const GPU_FRACTION_DEVICES: &str = "gpu-fraction-num-devices";
/// Annotation on pods: the container that gets the GPU share. The name is searched in init containers first.
pub const GPU_FRACTION_CONTAINER: &str = "gpu-fraction-container-name";
/// Annotation on pods with [`GPU_FRACTION`]: the part of each GPU that the container may use at most, above the fraction. Short form of
/// [`CONTAINER_PORTION_LIMIT`].
pub const GPU_FRACTION_LIMIT: &str = "gpu-fraction.limit";
/// Annotation on pods: the memory on each GPU that the container may use at most, a quantity with a unit. Short form of
/// [`CONTAINER_MEMORY_LIMIT`]; without [`GPU_MEMORY`] it is the request, too.
pub const GPU_MEMORY_LIMIT: &str = "gpu-memory.limit";
/// Annotation on pods, for one container: requested memory on each GPU, a quantity.
pub const CONTAINER_MEMORY_REQUEST: ContainerKey = ContainerKey::new("nvidia.com/container.", ".gpu-memory.request");
/// Annotation on pods, for one container: the most memory on each GPU, a quantity. Alone it is the request, too.
pub const CONTAINER_MEMORY_LIMIT: ContainerKey = ContainerKey::new("nvidia.com/container.", ".gpu-memory.limit");
/// Annotation on pods, for one container: its [`crate::ComputeMode`].
pub const CONTAINER_COMPUTE_MODE: ContainerKey = ContainerKey::new("nvidia.com/container.", ".gpu-compute.mode");
/// Annotation on pods with [`GPU_FRACTION`], for one container: the part of each GPU that it may use at most, above the fraction.
pub const CONTAINER_PORTION_LIMIT: ContainerKey =
    ContainerKey::new("kai.scheduler/container.", ".gpu-memory.portion.limit");
/// Annotation on pods: `true` requests a multi-process server (MPS), for fractional requests only.
pub const MPS: &str = "mps";
/// Annotation on pods: `required` or `preferred`, whether the node must hold the container to its GPU memory. The same key as a label on nodes
/// is the node's [`crate::EnforcementTier`].
pub const GPU_ENFORCEMENT: &str = "kai.scheduler/gpu-enforcement";

// ---- The workload of a pod, and its scheduling settings ----

/// Annotation on pods: the pod group.
pub const POD_GROUP_NAME: &str = "pod-group-name";
/// Label on pods: the leaf subgroup.
pub const SUB_GROUP_NAME: &str = "kai.scheduler/subgroup-name";
/// Annotation on pods or any of their owners: with `true` the pod grouper ignores the pod.
pub const SKIP_POD_GROUPER: &str = "kai.scheduler/skip-podgrouper";
/// Label on pods, their owners and pod groups: the queue.
pub const QUEUE: &str = "kai.scheduler/queue";
/// Annotation on queues: the namespaces that may use the queue, separated by commas. Without it, all may.
pub const QUEUE_ALLOWED_NAMESPACES: &str = "kai.scheduler/allowed-namespaces";
/// Annotation on queues: the priority ceiling of pod groups in the queue and its descendants, a whole number.
pub const QUEUE_MAX_PRIORITY: &str = "kai.scheduler/max-priority";
/// Label on nodes, queues, pod groups, pods and bind requests: their node pool (partition).
pub const NODE_POOL: &str = "kai.scheduler/node-pool";
/// Label on pods and owners: the project, from which older versions derived the queue.
pub const PROJECT: &str = "project";
/// Label and annotation on pods and owners: the user of the workload.
pub const USER: &str = "user";
/// Label on pods and owners: the priority class of the pod group.
pub const PRIORITY_CLASS_NAME: &str = "priorityClassName";
/// Label on Ray owners: the priority class of the pod group, before [`PRIORITY_CLASS_NAME`].
pub const RAY_PRIORITY_CLASS_NAME: &str = "ray.io/priority-class-name";
/// Label on pods and owners: [`PREEMPTIBLE`], [`SEMI_PREEMPTIBLE`] or [`NON_PREEMPTIBLE`].
pub const PREEMPTIBILITY: &str = "kai.scheduler/preemptibility";
/// Value of [`PREEMPTIBILITY`]: other workloads may evict it.
pub const PREEMPTIBLE: &str = "preemptible";
/// Value of [`PREEMPTIBILITY`]: other workloads may evict the pods beyond its minimum.
pub const SEMI_PREEMPTIBLE: &str = "semi-preemptible";
/// Value of [`PREEMPTIBILITY`]: no workload may evict it.
pub const NON_PREEMPTIBLE: &str = "non-preemptible";
/// Annotation on pods and owners: how long the workload waits before it may evict others.
pub const PREEMPTION_DELAY: &str = "kai.scheduler/preemption-delay";
/// Annotation on pods and owners: how long a gang may run below its minimum; negative means forever.
pub const STALENESS_GRACE_PERIOD: &str = "kai.scheduler/staleness-grace-period";
/// Annotation on jobs and job sets: the number of pods that have to start together.
pub const BATCH_MIN_MEMBER: &str = "kai.scheduler/batch-min-member";
/// Label on pods: priority within the gang, higher first.
pub const TASK_PRIORITY: &str = "kai.scheduler/task-priority";

/// Annotation on owners: the topology of their constraint.
pub const TOPOLOGY: &str = "kai.scheduler/topology";
/// Annotation on owners: the level within which all pods must be.
pub const TOPOLOGY_REQUIRED: &str = "kai.scheduler/topology-required-placement";
/// Annotation on owners: the level within which all pods should be.
pub const TOPOLOGY_PREFERRED: &str = "kai.scheduler/topology-preferred-placement";
/// Annotation on workers: the number of workers in a segment.
pub const SEGMENT_SIZE: &str = "kai.scheduler/segment-size";
/// Annotation on workers: the level within which a segment must be.
pub const SEGMENT_TOPOLOGY_REQUIRED: &str = "kai.scheduler/segment-topology-required-placement";
/// Annotation on workers: the level within which a segment should be.
pub const SEGMENT_TOPOLOGY_PREFERRED: &str = "kai.scheduler/segment-topology-preferred-placement";

// ---- Written on pods by kai; tenants must not write them ----

/// Label on pods that share one GPU, and on its reservation pod: the GPU group.
pub const GPU_GROUP: &str = "runai-gpu-group";
/// Prefix of the labels on pods that share several GPUs: one label per GPU group, with the GPU group as its value too.
pub const GPU_GROUP_PREFIX: &str = "runai-gpu-group/";
/// Annotation on pods: prefix of the names of its GPU sharing ConfigMaps.
pub const SHARED_GPU_CONFIG_MAP: &str = "runai/shared-gpu-configmap";
/// Annotation on bound pods: one of the `RECEIVED_*` values.
pub const RECEIVED_RESOURCE_TYPE: &str = "received-resource-type";
/// Value of [`RECEIVED_RESOURCE_TYPE`]: whole GPUs or none.
pub const RECEIVED_REGULAR: &str = "Regular";
/// Value of [`RECEIVED_RESOURCE_TYPE`]: a fraction of one or more GPUs.
pub const RECEIVED_FRACTION: &str = "Fraction";
/// Value of [`RECEIVED_RESOURCE_TYPE`]: MIG slices.
pub const RECEIVED_MIG: &str = "MigInstance";
/// Annotation on bound pods: UUIDs of the GPUs that the pod shares, one per GPU group, separated by commas.
pub const RECEIVED_GPUS: &str = "kai.scheduler/received-gpus";
/// Annotation on bound pods: [`crate::GpuLimits`], the limits of the container with the GPU share. The node agent enforces them.
pub const GPU_LIMITS: &str = "kai.scheduler/gpu-limits";
/// Annotation on bound pods, for the container with the GPU share: UUIDs or CDI names of its GPUs, separated by commas.
pub const CONTAINER_DEVICES: ContainerKey = ContainerKey::new("nvidia.com/container.", ".gpus.devices");
/// Annotation on bound pods with [`GPU_LIMITS`]: the [`crate::EnforcementTier`] of the node when the pod was bound.
pub const GPU_ENFORCEMENT_TIER: &str = "kai.scheduler/gpu-enforcement-tier";
/// Annotation on bound pods: NUMA zones that the scheduler expects, as JSON.
pub const NUMA_PREDICTED: &str = "kai.scheduler/numa-placement-predicted";
/// Annotation on running pods: NUMA zones that the node reports, as JSON.
pub const NUMA_OBSERVED: &str = "kai.scheduler/numa-placement-observed";
/// Prefix of [`NUMA_PREDICTED`] and [`NUMA_OBSERVED`].
pub const NUMA_PREFIX: &str = "kai.scheduler/numa-placement-";
/// Label on the ConfigMaps that the binder creates for pods which share GPUs; value `true`. Tenants may not change ConfigMaps with this
/// label.
pub const SHARED_GPU_MARKER: &str = "kai.scheduler/shared-gpu";

// ---- Written by workload controllers on their pods ----

/// Label on pods of Kubeflow jobs: `master`, `launcher` or `worker`.
pub const KUBEFLOW_JOB_ROLE: &str = "training.kubeflow.org/job-role";
/// Label on pods of Kubeflow jobs: the job.
pub const KUBEFLOW_JOB_NAME: &str = "training.kubeflow.org/job-name";
/// Label on pods of Kubeflow jobs: the replica spec.
pub const KUBEFLOW_REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// Label on pods of Kubeflow jobs: index of the replica.
pub const KUBEFLOW_REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// Label on pods of Ray clusters: `head` or `worker`.
pub const RAY_NODE_TYPE: &str = "ray.io/node-type";
/// Label on pods of Ray clusters: the worker group.
pub const RAY_GROUP: &str = "ray.io/group";
/// Label on pods of job sets: the replicated job.
pub const JOB_SET_REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
/// Label on pods of job sets: index within the replicated job.
pub const JOB_SET_JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";
/// Label on pods of leader-worker sets: index of the group.
pub const LEADER_WORKER_GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// Label on pods of leader-worker sets: index of the worker; 0 is the leader.
pub const LEADER_WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// Annotation on pods of leader-worker sets: number of pods in a group.
pub const LEADER_WORKER_SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
/// Label on pods of Grove: the gang.
pub const GROVE_POD_GANG: &str = "grove.io/podgang";
/// Annotation on Grove's gangs: the topology, before [`TOPOLOGY`].
pub const GROVE_TOPOLOGY_NAME: &str = "grove.io/topology-name";
/// Label on pods of Knative: the revision.
pub const KNATIVE_REVISION: &str = "serving.knative.dev/revision";
/// Annotation on Knative revisions: minimum number of pods.
pub const KNATIVE_MIN_SCALE: &str = "autoscaling.knative.dev/min-scale";
/// Label on pods of Spark: the application's name.
pub const SPARK_APP_NAME: &str = "spark-app-name";
/// Label on pods of Spark: the application's id.
pub const SPARK_APP_SELECTOR: &str = "spark-app-selector";

/// Label on pods, value `true`: background pods, which make room for all other workloads.
pub const BACKGROUND: &str = "kai.scheduler/background";

// ---- On pod groups ----

/// Annotation on pod groups: the top owner, as YAML.
pub const TOP_OWNER_METADATA: &str = "kai.scheduler/top-owner-metadata";
/// Annotation on pod groups: when the gang last started.
pub const LAST_START: &str = "kai.scheduler/last-start-timestamp";
/// Annotation on pod groups: when the last pod of the gang was evicted for another gang.
pub const LAST_EVICTION: &str = "kai.scheduler/last-eviction-timestamp";
/// Annotation on pod groups: since when the gang runs below its minimum.
pub const STALE_SINCE: &str = "kai.scheduler/stale-podgroup-timestamp";
/// Prefix of the names of pod groups that the pod grouper creates: `pg-<name>-<uid>`.
pub const POD_GROUP_PREFIX: &str = "pg";

// ---- On nodes ----

/// Label on nodes: MiB per GPU.
pub const NODE_GPU_MEMORY: &str = "nvidia.com/gpu.memory";
/// Label on nodes: number of physical GPUs.
pub const NODE_GPU_COUNT: &str = "nvidia.com/gpu.count";
/// Label on nodes: the MIG strategy, which determines the resource names of MIG slices.
pub const NODE_MIG_STRATEGY: &str = "nvidia.com/mig.strategy";
/// Label on nodes: the key of the ConfigMap of NVIDIA's device plugin that configures the node.
pub const NODE_DEVICE_PLUGIN_CONFIG: &str = "nvidia.com/device-plugin.config";
/// Label on nodes: whether MIG is enabled.
pub const NODE_MIG_ENABLED: &str = "node-role.kubernetes.io/mig-enabled";
/// Label on nodes for pods with GPUs, where node scheduling is restricted.
pub const NODE_GPU_WORKER: &str = "node-role.kubernetes.io/gpu-worker";
/// Label on nodes for pods without GPUs, where node scheduling is restricted.
pub const NODE_CPU_WORKER: &str = "node-role.kubernetes.io/cpu-worker";
/// Label on nodes: [`MEMORY_UNIFIED`] where GPU memory is the node's RAM.
pub const NODE_GPU_MEMORY_TYPE: &str = "kai.scheduler/gpu-memory-type";
/// Value of [`NODE_GPU_MEMORY_TYPE`].
pub const MEMORY_UNIFIED: &str = "unified";
/// Label on nodes: the platform that the node agent found, such as [`PLATFORM_TEGRA`].
pub const NODE_PLATFORM: &str = "kai.scheduler/platform";
/// Value of [`NODE_PLATFORM`] on Jetson machines.
pub const PLATFORM_TEGRA: &str = "tegra";
/// Condition of nodes, by the node agent: whether containers are held to their GPU memory, and by what.
pub const NODE_GPU_LIMITS: &str = "GPULimits";
/// Condition of nodes that KAI's mode `NvFractions` requires: the node enforces limits of GPU memory.
pub const NODE_GPU_FRACTIONING_READY: &str = "gpu-fractioning.nvidia.com/Ready";
/// Label on nodes whose GPUs are simulated.
pub const NODE_FAKE_GPU: &str = "run.ai/fake.gpu";
/// Label on nodes: the host name, last level of most topologies.
pub const NODE_HOSTNAME: &str = "kubernetes.io/hostname";
/// Prefix of AMD's labels with the GPU's memory. The memory is the end of the key, not the value.
pub const NODE_AMD_MEMORY_PREFIX: &str = "beta.amd.com/gpu.vram";

// ---- On objects of the system ----

/// Annotation on CustomResourceDefinitions: the version of kai that applied them.
pub const CRD_VERSION: &str = "kai.scheduler/crd-version";
/// Annotation on the ClusterRole that anchors an installation: the objects that kai created once, separated by spaces.
pub const CREATED_OBJECTS: &str = "kai.scheduler/created-objects";
/// Label on kai's own pods: their role.
pub const APP: &str = "app";
/// Default value of [`APP`] on reservation pods, and default name of their namespace and service account. `ReservationPods` tells which pods
/// they are.
pub const RESERVATION: &str = "kai-resource-reservation";
/// Value of [`APP`] on scaling pods, which make a cluster autoscaler add nodes.
pub const SCALING_POD: &str = "scaling-pod";
/// Label on scaling pods: the pod that needs a node.
pub const SCALING_FOR_POD: &str = "shared-gpu-pod-name";
/// Annotation on scaling pods: namespace/name of that pod. Labels can't hold long names.
pub const SCALING_FOR: &str = "kai.scheduler/scaling-for";
/// Label on scaling pods: its namespace.
pub const SCALING_FOR_NAMESPACE: &str = "shared-gpu-pod-namespace";
/// Annotation on reservation pods: the UUID of the GPU that the pod holds, despite the key's name.
pub const RESERVED_GPU: &str = "run.ai/reserve_for_gpu_index";
/// Annotation on a reservation pod that replaces a lost one: the UUID of the GPU that the group's pods run on, which it should get.
pub const RESERVATION_WANTED_GPU: &str = "kai.scheduler/wanted-gpu";
/// Annotation on reservation pods: the [`crate::ComputeMode`] of the pods that share the GPU. Without it, they take turns.
pub const RESERVATION_COMPUTE_MODE: &str = "kai.scheduler/gpu-compute-mode";
/// Annotation on reservation pods: the pod that last used the reservation, as namespace and name.
pub const RESERVATION_LAST_USER: &str = "kai.scheduler/last-user";
/// Prefix of the names of reservation pods.
pub const RESERVATION_NAME_PREFIX: &str = "gpu-reservation-";
/// Name of the container in reservation pods.
pub const RESERVATION_CONTAINER: &str = "resource-reservation";
/// Directory in reservation pods that only hold a GPU, where the kubelet writes the value of [`RESERVED_GPU`] into the file
/// [`RESERVATION_GPU_FILE`].
pub const RESERVATION_INFO_DIRECTORY: &str = "/etc/kai-reservation";
/// The file with the UUID of the GPU; empty until the pod is annotated.
pub const RESERVATION_GPU_FILE: &str = "gpu";
/// Annotation on reservation pods that keeps Karpenter from removing their node; value `true`.
pub const KARPENTER_DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Label on bind requests: the node.
pub const SELECTED_NODE: &str = "selected-node";
/// Annotation on volume claims with `WaitForFirstConsumer`: the selected node.
pub const VOLUME_SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation on volumes: a scheduler or controller has chosen the claim of the volume, not a person.
pub const VOLUME_BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation on volume claims: binding is complete.
pub const VOLUME_BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation on resource claims for extended resources; value `true`.
pub const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// Label on objects of an installation.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Annotation on `Evict` events: number of pods evicted together.
pub const EVENT_EVICTED_PODS: &str = "num-evicted-pods";
/// Annotation on `Evict` events: the names of the pods that the pod group loses, with commas. If they are too long, the last entry is `+` and
/// the number of the others.
pub const EVENT_EVICTED_POD_NAMES: &str = "kai.scheduler/evicted-pods";
/// Annotation on `Evict` events of reclaim and preemption: the rule and the numbers that it compared, as JSON.
pub const EVENT_FAIRNESS: &str = "kai.scheduler/fairness";
/// Annotation on `Evict` events: the action that evicted the pods.
pub const EVENT_ACTION: &str = "evictor-action-type";
/// Annotation on `Scheduled` events: the action that chose the place.
pub const EVENT_PLACED_BY: &str = "kai.scheduler/action";
/// Annotation on `Evict` events: the pod group that the pods were evicted for.
pub const EVENT_EVICTOR: &str = "evictor-pod-group-name";
/// Annotation on `Evict` events: its namespace.
pub const EVENT_EVICTOR_NAMESPACE: &str = "evictor-pod-group-namespace";
/// Annotation on `Evict` events: the workload that lost the pods, as people name it. Its pod group may be gone when the event is read.
pub const EVENT_WORKLOAD: &str = "kai.scheduler/evicted-workload";
/// Annotation on `Evict` events: the workload that the pods were evicted for, as people name it.
pub const EVENT_EVICTOR_WORKLOAD: &str = "kai.scheduler/evictor-workload";

// ---- Resources ----

/// CPU.
pub const RESOURCE_CPU: &str = "cpu";
/// Memory.
pub const RESOURCE_MEMORY: &str = "memory";
/// The number of pods of a node.
pub const RESOURCE_PODS: &str = "pods";
/// Whole NVIDIA GPUs.
pub const RESOURCE_GPU: &str = "nvidia.com/gpu";
/// Whole AMD GPUs.
pub const RESOURCE_AMD_GPU: &str = "amd.com/gpu";
/// Share devices: through one of them the node agent brings a shared GPU into a container. Admission adds one to each pod with a GPU share.
/// Its amount does not depend on the size of the share. The engine does not require it of nodes that don't report it.
pub const RESOURCE_GPU_SHARE: &str = "kai.scheduler/gpu-share";
/// Requested GPU memory in MiB, in the status of pod groups and queues.
pub const RESOURCE_GPU_MEMORY: &str = "run.ai/gpu.memory";
/// Prefix of MIG slices, as resource names and as legacy annotations.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";
/// Suffix of all whole-GPU resources. A name that ends in `gpu` without the slash, such as `example.com/vgpu`, is another resource.
pub const GPU_SUFFIX: &str = "/gpu";

// ---- Environment variables and ConfigMap keys of pods that share GPUs ----

/// The GPUs that are visible to a container.
pub const ENV_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The legacy ConfigMap key of [`ENV_VISIBLE_DEVICES`], updated where it exists.
pub const ENV_VISIBLE_DEVICES_LEGACY: &str = "RUNAI-VISIBLE-DEVICES";
/// The container's fraction of each GPU.
pub const ENV_GPU_PORTION: &str = "GPU_PORTION";
/// The legacy name of the variable above.
pub const ENV_GPU_PORTION_LEGACY: &str = "RUNAI_NUM_OF_GPUS";
/// GPU memory limit for HAMi's interposed library.
pub const ENV_CUDA_MEMORY_LIMIT: &str = "CUDA_DEVICE_MEMORY_LIMIT";
/// The driver capabilities to inject.
pub const ENV_DRIVER_CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
/// Suffix of the name of the second GPU sharing ConfigMap, the one for `envFrom`.
pub const ENV_CONFIG_MAP_SUFFIX: &str = "-evar";
/// Suffix of the values of [`SHARED_GPU_CONFIG_MAP`].
pub const SHARED_GPU_SUFFIX: &str = "-shared-gpu";
/// Prefix of GPUs' CDI names: the UUID follows.
pub const CDI_DEVICE_PREFIX: &str = "k8s.device-plugin.nvidia.com/gpu=";

// ---- Defaults of an installation ----

/// Taints of nodes that are being removed: by Cluster Autoscaler, by Karpenter (its present and its old name), and by an administrator
/// after a node was shut down.
pub const LEAVING_TAINTS: [&str; 4] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "node.kubernetes.io/out-of-service",
];

/// The `schedulerName` of pods.
pub const SCHEDULER_NAME: &str = "kai-scheduler";
/// The namespace of the system.
pub const SYSTEM_NAMESPACE: &str = "kai-scheduler";
/// The namespace and service account of scaling pods.
pub const SCALE_ADJUST_NAMESPACE: &str = "kai-scale-adjust";
/// The name of the only Config object that has an effect.
pub const CONFIG_NAME: &str = "kai-config";
/// The shard of objects without a node-pool label, and its name in conditions and events.
pub const DEFAULT_SHARD: &str = "default";
/// The queue of workloads without a queue.
pub const DEFAULT_QUEUE: &str = "default-queue";
/// The parent of [`DEFAULT_QUEUE`] on a fresh installation.
pub const DEFAULT_PARENT_QUEUE: &str = "default-parent-queue";
/// The subgroup of pods without a subgroup.
pub const DEFAULT_SUB_GROUP: &str = "default";
/// The runtime class of pods that share GPUs.
pub const RUNTIME_CLASS: &str = "nvidia";
/// The priority class of workloads without one.
pub const DEFAULT_PRIORITY_CLASS: &str = PRIORITY_TRAIN;
/// Priority class of training.
pub const PRIORITY_TRAIN: &str = "train";
/// Priority class of preemptible interactive work.
pub const PRIORITY_BUILD_PREEMPTIBLE: &str = "build-preemptible";
/// Priority class of interactive work.
pub const PRIORITY_BUILD: &str = "build";
/// Priority class of services.
pub const PRIORITY_INFERENCE: &str = "inference";
/// The priority classes of an installation, with their values.
pub const PRIORITY_CLASSES: [(&str, i32); 4] = [
    (PRIORITY_TRAIN, 50),
    (PRIORITY_BUILD_PREEMPTIBLE, 75),
    (PRIORITY_BUILD, 100),
    (PRIORITY_INFERENCE, 125),
];

/// The priority class of reservation pods. Workloads can't have it: see [`crate::PriorityClasses::insert`].
pub const RESERVATION_PRIORITY_CLASS: &str = "kai-resource-reservation";
/// The value of [`RESERVATION_PRIORITY_CLASS`]: the highest that Kubernetes allows to users. For a pod of two thousand millions or more, which
/// is critical, the kubelet would evict other pods; but it has to reject a reservation pod on a node without a free GPU.
pub const RESERVATION_PRIORITY: i32 = 1_000_000_000;

/// Whether the resource is a whole GPU of any vendor.
pub fn is_gpu_resource(name: &str) -> bool {
    name.ends_with(GPU_SUFFIX)
}

/// The key of an annotation for one container: prefix, name of the container, suffix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerKey {
    /// What precedes the name, with the slash.
    pub prefix: &'static str,
    /// What follows the name.
    pub suffix: &'static str,
}

impl ContainerKey {
    const fn new(prefix: &'static str, suffix: &'static str) -> ContainerKey {
        ContainerKey { prefix, suffix }
    }

    /// The key for this container. `None` if the API server would not accept it: names of containers have up to 63 characters, and so has
    /// the part of a key behind the slash.
    pub fn of(self, container: &str) -> Option<String> {
        const NAME_BYTES_MAX: usize = 63;
        let key = format!("{}{container}{}", self.prefix, self.suffix);
        let name = key.split_once('/').map_or(&*key, |(_, name)| name);
        (name.len() <= NAME_BYTES_MAX).then_some(key)
    }

    /// The container that the key names; `None` for other keys.
    pub fn container(self, key: &str) -> Option<&str> {
        key.strip_prefix(self.prefix)?.strip_suffix(self.suffix)
    }
}

impl std::fmt::Display for ContainerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}*{}", self.prefix, self.suffix)
    }
}

/// A set of keys of labels or annotations.
#[derive(Clone, Copy, Debug)]
pub struct KeySet {
    /// Names.
    pub exact: &'static [&'static str],
    /// Prefixes.
    pub prefixes: &'static [&'static str],
    /// Keys for one container, of any container.
    pub containers: &'static [ContainerKey],
}

impl KeySet {
    /// Whether the key is in the set.
    pub fn contains(&self, key: &str) -> bool {
        self.exact.contains(&key)
            || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
            || self.containers.iter().any(|pattern| pattern.container(key).is_some())
    }
}

/// The labels of pods that only kai may write: the GPU groups.
pub const SCHEDULER_POD_LABELS: KeySet = KeySet {
    exact: &[GPU_GROUP],
    prefixes: &[GPU_GROUP_PREFIX],
    containers: &[],
};
/// The annotations of pods that only binders may write, when they bind.
pub const BINDER_POD_ANNOTATIONS: KeySet = KeySet {
    exact: &[RECEIVED_RESOURCE_TYPE, RECEIVED_GPUS, GPU_LIMITS, GPU_ENFORCEMENT_TIER],
    prefixes: &[],
    containers: &[CONTAINER_DEVICES],
};
/// The annotations of pods that only kai may write: with them a tenant could take a GPU that kai did not allocate.
pub const SCHEDULER_POD_ANNOTATIONS: KeySet = KeySet {
    exact: &joined::<7>(
        BINDER_POD_ANNOTATIONS.exact,
        &[RESERVED_GPU, RESERVATION_LAST_USER, RESERVATION_COMPUTE_MODE],
    ),
    prefixes: &[NUMA_PREFIX],
    containers: BINDER_POD_ANNOTATIONS.containers,
};

/// The annotations of a pod's GPU request. The user writes them at creation, and nobody changes them later, because the scheduler accounts
/// by them. Admission and the binder add those for one container.
pub const GPU_REQUEST_ANNOTATIONS: KeySet = KeySet {
    exact: &[
        GPU_FRACTION,
        GPU_MEMORY,
        GPU_FRACTION_DEVICES,
        GPU_FRACTION_CONTAINER,
        GPU_FRACTION_LIMIT,
        GPU_MEMORY_LIMIT,
        GPU_ENFORCEMENT,
        SHARED_GPU_CONFIG_MAP,
    ],
    prefixes: &[],
    containers: &[
        CONTAINER_MEMORY_REQUEST,
        CONTAINER_MEMORY_LIMIT,
        CONTAINER_COMPUTE_MODE,
        CONTAINER_PORTION_LIMIT,
    ],
};
/// The keys of annotations for one container that some program reads or writes.
const CONTAINER_ANNOTATIONS: [ContainerKey; 5] = [
    CONTAINER_MEMORY_REQUEST,
    CONTAINER_MEMORY_LIMIT,
    CONTAINER_COMPUTE_MODE,
    CONTAINER_PORTION_LIMIT,
    CONTAINER_DEVICES,
];
/// Keys of a pod's GPU request that make it one with a GPU share: a part of a GPU.
pub const GPU_SHARE_ANNOTATIONS: KeySet = KeySet {
    exact: &[GPU_FRACTION, GPU_MEMORY, GPU_MEMORY_LIMIT],
    prefixes: &[],
    containers: &[CONTAINER_MEMORY_REQUEST, CONTAINER_MEMORY_LIMIT],
};

/// Whether an annotation looks like one for a container, and nothing reads it: a misspelt key requests no GPU.
pub(crate) fn is_unknown_of_container(key: &str) -> bool {
    CONTAINER_ANNOTATIONS
        .iter()
        .any(|pattern| key.starts_with(pattern.prefix))
        && CONTAINER_ANNOTATIONS
            .iter()
            .all(|pattern| pattern.container(key).is_none())
}

/// Both lists in one, of `N` keys in all.
const fn joined<const N: usize>(first: &[&'static str], second: &[&'static str]) -> [&'static str; N] {
    assert!(first.len() + second.len() == N, "N is the number of keys");
    let mut all = [""; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() {
            first[at]
        } else {
            second[at - first.len()]
        };
        at += 1;
    }
    all
}

/// Whether the label names a GPU group of the pod.
pub fn is_gpu_group_label(key: &str) -> bool {
    SCHEDULER_POD_LABELS.contains(key)
}

/// Whether only kai may write the label or annotation of a pod.
pub fn is_scheduler_owned(key: &str) -> bool {
    SCHEDULER_POD_LABELS.contains(key) || SCHEDULER_POD_ANNOTATIONS.contains(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_merely_ends_in_gpu_is_no_gpu() {
        assert!(is_gpu_resource("nvidia.com/gpu") && is_gpu_resource("amd.com/gpu"));
        for other in [
            "example.com/vgpu",
            "gpu",
            "example.com/shared-gpu",
            "nvidia.com/gpu.shared",
        ] {
            assert!(!is_gpu_resource(other), "{other}");
        }
    }

    #[test]
    fn what_tenants_must_not_write() {
        for key in [
            "runai-gpu-group",
            "runai-gpu-group/a",
            "received-resource-type",
            "run.ai/reserve_for_gpu_index",
            "kai.scheduler/received-gpus",
            "kai.scheduler/gpu-limits",
            "kai.scheduler/gpu-enforcement-tier",
            "kai.scheduler/last-user",
            "kai.scheduler/gpu-compute-mode",
            "nvidia.com/container.main.gpus.devices",
            "nvidia.com/container..gpus.devices",
            "kai.scheduler/numa-placement-observed",
        ] {
            assert!(is_scheduler_owned(key), "{key}");
        }
        for key in [
            "runai-gpu-groups",
            "gpu-fraction",
            "pod-group-name",
            "nvidia.com/container.main.gpu-memory.request",
            "nvidia.com/container.gpus.devices",
        ] {
            assert!(!is_scheduler_owned(key), "{key}");
        }
        assert!(is_gpu_group_label("runai-gpu-group") && is_gpu_group_label("runai-gpu-group/a"));
        assert!(!is_gpu_group_label("runai-gpu-groups") && !is_gpu_group_label("received-resource-type"));
    }

    #[test]
    fn keys_of_containers() {
        let request = CONTAINER_MEMORY_REQUEST;
        let key = request.of("main").unwrap();
        assert_eq!(key, "nvidia.com/container.main.gpu-memory.request");
        assert_eq!(request.container(&key), Some("main"));
        assert_eq!(CONTAINER_MEMORY_LIMIT.container(&key), None);
        assert_eq!(request.container("nvidia.com/container.gpu-memory.request"), None);
        assert!(request.of(&"c".repeat(34)).is_some() && request.of(&"c".repeat(35)).is_none());
    }
}
