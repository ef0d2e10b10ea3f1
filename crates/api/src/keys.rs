//! Label, annotation and resource names, in one place. They are KAI's, so that workloads move over untouched.

/// Annotation on pods: part of each GPU, a decimal in (0, 1].
pub const GPU_FRACTION: &str = "gpu-fraction";
/// Annotation on pods: memory on each GPU, in MiB.
pub const GPU_MEMORY: &str = "gpu-memory";
/// Annotation on pods: how many GPUs a fraction or memory request is about.
pub const GPU_FRACTION_DEVICES: &str = "gpu-fraction-num-devices";
/// Prefix of MIG slices, both as resource names and as the old annotations.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";
/// How the names of all whole-GPU resources end.
pub const GPU_SUFFIX: &str = "gpu";

/// Annotation on pods: the pod group it belongs to.
pub const POD_GROUP_NAME: &str = "pod-group-name";
/// Label on pods: the leaf subgroup it belongs to.
pub const SUB_GROUP_NAME: &str = "kai.scheduler/subgroup-name";
/// Label on pods and their owners: the queue.
pub const QUEUE: &str = "kai.scheduler/queue";
/// Label on nodes, queues and pod groups: the partition of the cluster they belong to.
pub const NODE_POOL: &str = "kai.scheduler/node-pool";
/// Label on pods and owners: the priority class of the pod group.
pub const PRIORITY_CLASS_NAME: &str = "priorityClassName";
/// Label on pods and owners: `preemptible` or `non-preemptible`.
pub const PREEMPTIBILITY: &str = "kai.scheduler/preemptibility";
/// Label on pods: place within the gang, higher first.
pub const TASK_PRIORITY: &str = "kai.scheduler/task-priority";
/// Label on pods of Kubeflow jobs.
pub const KUBEFLOW_JOB_ROLE: &str = "training.kubeflow.org/job-role";
/// Label on pods of Ray clusters.
pub const RAY_NODE_TYPE: &str = "ray.io/node-type";

/// Label on pods that share one GPU: the group.
pub const GPU_GROUP: &str = "runai-gpu-group";
/// Prefix of the labels on pods that share several GPUs: one label per group.
pub const GPU_GROUP_PREFIX: &str = "runai-gpu-group/";

/// Annotation on pod groups: when the gang last started from nothing.
pub const LAST_START: &str = "kai.scheduler/last-start-timestamp";
/// Annotation on pod groups: when one of its pods was last evicted for others.
pub const LAST_EVICTION: &str = "kai.scheduler/last-eviction-timestamp";
/// Annotation on pod groups: since when the gang runs below its minimum.
pub const STALE_SINCE: &str = "kai.scheduler/stale-podgroup-timestamp";

/// Label on nodes: MiB per GPU.
pub const NODE_GPU_MEMORY: &str = "nvidia.com/gpu.memory";
/// Label on nodes: physical GPUs.
pub const NODE_GPU_COUNT: &str = "nvidia.com/gpu.count";
/// Label on nodes: how MIG slices are named.
pub const NODE_MIG_STRATEGY: &str = "nvidia.com/mig.strategy";
/// Label on nodes: whether MIG is in use.
pub const NODE_MIG_ENABLED: &str = "node-role.kubernetes.io/mig-enabled";
/// Label on nodes: `unified` where GPU memory is the node's RAM.
pub const NODE_GPU_MEMORY_TYPE: &str = "kai.scheduler/gpu-memory-type";

/// Label that says what a helper pod of ours is.
pub const APP: &str = "app";
/// Value of [`APP`] on reservation pods, and the namespace they live in.
pub const RESERVATION: &str = "kai-resource-reservation";
/// Value of [`APP`] on pods that make a cluster autoscaler add nodes.
pub const SCALING_POD: &str = "scaling-pod";

/// The scheduler name that pods ask for.
pub const SCHEDULER_NAME: &str = "kai-scheduler";
/// The queue of workloads that name none.
pub const DEFAULT_QUEUE: &str = "default-queue";
/// The priority class of workloads that name none.
pub const DEFAULT_PRIORITY_CLASS: &str = "train";

/// Whether the resource is a whole GPU of any vendor.
pub fn is_gpu_resource(name: &str) -> bool {
    name.ends_with(GPU_SUFFIX)
}
