//! What the hook leaves for the agent, one file for each share device: a receipt after it has set and read back the limits, or a report of
//! its failure. The agent's audit compares receipts with the driver. Data only; `receipt_dir` reads and writes the files.

use kai_api::ObjectReference;
use serde::{Deserialize, Serialize};

use super::limits::GpuLimit;

/// The container that a hook runs for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerName {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's name in the pod.
    pub container: String,
}

impl ContainerName {
    /// Namespace, pod and container, for messages.
    pub fn shown(&self) -> String {
        format!("{}/{}, container {}", self.namespace, self.pod, self.container)
    }

    /// The pod, for events.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: self.namespace.clone(),
            name: self.pod.clone(),
            uid: self.uid.clone(),
        }
    }
}

/// What the hook did for a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The container in Kubernetes.
    pub container: ContainerName,
    /// The runtime's id of the container. A restarted container has another one.
    pub container_id: String,
    /// The container's cgroup directory on the host.
    pub cgroup: String,
    /// When the hook ended, in seconds since 1970.
    pub at_seconds: u64,
    /// The limits that the driver confirmed; empty if the container has none.
    pub limits: Vec<GpuLimit>,
    /// The limit of the container's system memory that the hook set, where GPU and CPU share memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_memory_bytes: Option<u64>,
    /// Why the container has no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// What a limit is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LimitedMemory {
    /// The memory of GPUs.
    #[default]
    Gpu,
    /// The memory that GPU and CPU share.
    System,
}

impl LimitedMemory {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            LimitedMemory::Gpu => "GPU memory",
            LimitedMemory::System => "system memory",
        }
    }
}

/// Why the hook could not set the limits of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The driver's error constant, as `ERROR_NO_PERMISSION`; `None` if the driver was not the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Whether the driver works, has the GPU, and refused. Then the next container will hardly fare better.
    #[serde(default)]
    pub refused: bool,
    /// Which memory is not limited.
    #[serde(default)]
    pub memory: LimitedMemory,
    /// What failed, and the remedy.
    pub message: String,
    /// Whether the container started nevertheless (policy `open`).
    pub started: bool,
    /// The limits that the container was promised and does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub promised: Vec<GpuLimit>,
}
