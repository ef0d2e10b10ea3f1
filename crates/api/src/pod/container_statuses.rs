//! The statuses of a pod's containers. Kept are the time since when the containers run, and what the kubelet allocated to each.

use kai_engine::model::Millis;
use serde::{Deserialize, Deserializer};

use super::chosen::chosen;
use crate::parse_time;
use crate::resources::{RawResources, ResourceRequirements};
use crate::text::{Text, null_as_default};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: Text,
    state: Option<State>,
    allocated_resources: RawResources,
    #[serde(deserialize_with = "null_as_default")]
    resources: ResourceRequirements,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<Running>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Running {
    started_at: Option<String>,
}

/// What the kubelet reports about the requests of a container, or of the whole pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReportedRequests {
    /// The name of the container; empty for the whole pod.
    pub(super) name: Text,
    /// The requests that the kubelet has admitted.
    pub(super) allocated: RawResources,
    /// The requests that the container runs with.
    pub(super) actual: RawResources,
}

impl ReportedRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.actual.is_empty()
    }

    /// Whether the kubelet reports what the spec says. Kubelet and API server write the same text for the same amount; a list that is
    /// written in another way only takes memory.
    pub(super) fn are_those_of(&self, spec: &RawResources) -> bool {
        let same = |reported: &RawResources| reported.is_empty() || reported == spec;
        same(&self.allocated) && same(&self.actual)
    }
}

/// The statuses of the containers, or of the init containers.
#[derive(Debug, Default)]
pub(super) struct ContainerStatuses {
    /// When the container started that has run for longest. A time that can't be read counts as none.
    pub(super) started: Option<Millis>,
    /// The reported requests of the containers that have any.
    pub(super) requests: Vec<ReportedRequests>,
}

impl<'de> Deserialize<'de> for ContainerStatuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = chosen(deserializer, |container: ContainerStatus| {
            let started = container.state.and_then(|state| state.running?.started_at);
            let requests = ReportedRequests {
                name: container.name,
                allocated: container.allocated_resources,
                actual: container.resources.requests,
            };
            Some((started.and_then(|time| parse_time(&time).ok()), requests))
        })?;
        let started = read.iter().filter_map(|(started, _)| *started).min();
        let requests = read.into_iter().map(|(_, requests)| requests);
        let requests = requests.filter(|requests| !requests.is_empty());
        Ok(ContainerStatuses {
            started,
            requests: requests.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pod;
    use super::*;

    fn started(statuses: &str) -> Option<Millis> {
        let pod: Pod = serde_json::from_str(&format!(r#"{{"status":{{"containerStatuses":{statuses}}}}}"#)).unwrap();
        pod.started()
    }

    #[test]
    fn the_container_that_has_run_for_longest_counts() {
        assert_eq!(
            started(
                r#"[{"name":"a","state":{"running":{"startedAt":"1970-01-01T00:00:05Z"}}},
                    {"name":"b","state":{"running":{"startedAt":"1970-01-01T00:00:03Z"}}},
                    {"name":"c","state":{"terminated":{"startedAt":"1970-01-01T00:00:01Z"}}}]"#
            ),
            Some(Millis(3_000))
        );
        for none in [
            "null",
            "[]",
            r#"[{"state":null},{"state":{"running":{"startedAt":"soon"}}},{}]"#,
        ] {
            assert_eq!(started(none), None, "{none}");
        }
    }

    #[test]
    fn a_container_that_starts_again_is_no_change() {
        let at = |time: &str| -> Pod {
            let status = format!(r#"{{"containerStatuses":[{{"state":{{"running":{{"startedAt":"{time}"}}}}}}]}}"#);
            serde_json::from_str(&format!(r#"{{"status":{status}}}"#)).unwrap()
        };
        let first = at("1970-01-01T00:00:05Z");
        assert!(at("1970-01-01T00:00:09Z").same_content(&first));
        assert!(!Pod::default().same_content(&first));
    }
}
