//! The status of pods.

use std::fmt;

use kai_engine::report::Status;
use serde::{Deserialize, Serialize};

/// The status of a pod in scheduling. In JSON its name, as in the answer of `/explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodStatus {
    /// Waits to be placed.
    Pending,
    /// Held back by scheduling gates.
    Gated,
    /// Placed on resources that other pods are still releasing.
    Pipelined,
    /// The binding is decided and being carried out.
    Binding,
    /// Bound, not yet running.
    Bound,
    /// Running.
    Running,
    /// Being deleted.
    Releasing,
    /// Past its deletion time for too long: its resources don't count as releasing.
    StuckInReleasing,
    /// Ended with success.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// The node does not report the pod; or a status of a newer scheduler.
    #[serde(other)]
    Unknown,
}

impl PodStatus {
    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        Status::from(self).name()
    }
}

impl fmt::Display for PodStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Status> for PodStatus {
    fn from(status: Status) -> PodStatus {
        match status {
            Status::Pending => PodStatus::Pending,
            Status::Gated => PodStatus::Gated,
            Status::Pipelined => PodStatus::Pipelined,
            Status::Binding => PodStatus::Binding,
            Status::Bound => PodStatus::Bound,
            Status::Running => PodStatus::Running,
            Status::Releasing => PodStatus::Releasing,
            Status::StuckInReleasing => PodStatus::StuckInReleasing,
            Status::Succeeded => PodStatus::Succeeded,
            Status::Failed => PodStatus::Failed,
            Status::Unknown => PodStatus::Unknown,
        }
    }
}

impl From<PodStatus> for Status {
    fn from(status: PodStatus) -> Status {
        match status {
            PodStatus::Pending => Status::Pending,
            PodStatus::Gated => Status::Gated,
            PodStatus::Pipelined => Status::Pipelined,
            PodStatus::Binding => Status::Binding,
            PodStatus::Bound => Status::Bound,
            PodStatus::Running => Status::Running,
            PodStatus::Releasing => Status::Releasing,
            PodStatus::StuckInReleasing => Status::StuckInReleasing,
            PodStatus::Succeeded => Status::Succeeded,
            PodStatus::Failed => Status::Failed,
            PodStatus::Unknown => Status::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_engine() {
        let names = [
            "Pending",
            "Gated",
            "Pipelined",
            "Binding",
            "Bound",
            "Running",
            "Releasing",
            "StuckInReleasing",
            "Succeeded",
            "Failed",
            "Unknown",
        ];
        for name in names {
            let json = format!("\"{name}\"");
            let status: PodStatus = serde_json::from_str(&json).unwrap();
            assert_eq!(status.name(), name);
            assert_eq!(PodStatus::from(Status::from(status)), status);
            assert_eq!(serde_json::to_string(&status).unwrap(), json);
        }
        assert_eq!(
            serde_json::from_str::<PodStatus>("\"New\"").unwrap(),
            PodStatus::Unknown
        );
    }
}
