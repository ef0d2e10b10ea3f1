//! Later states of a pod, for programs that play the rest of a cluster: the binder, the kubelet and the owner of the pod.

use kai_engine::model::Millis;

use super::{Pod, Status};
use crate::keys;
use crate::text::{Text, TextMap};
use crate::time::format_time;

impl Pod {
    /// The pod after the binder bound it and the kubelet started it, with the labels of its GPU groups.
    #[must_use]
    pub fn started_on(&self, node: &str, gpu_groups: &[String]) -> Pod {
        let labels = match gpu_groups {
            [] => Vec::new(),
            [one] => vec![(Text::common(keys::GPU_GROUP), Text::common(one))],
            several => several
                .iter()
                .map(|group| (format!("{}{group}", keys::GPU_GROUP_PREFIX).into(), Text::common(group)))
                .collect(),
        };
        self.with_state(Some(node), "Running", labels)
    }

    /// The pod after it was deleted and its owner created it again: pending, without node and GPU groups. It keeps uid and creation time.
    #[must_use]
    pub fn recreated(&self) -> Pod {
        let mut pod = self.with_state(None, "Pending", Vec::new());
        pod.metadata.deletion_timestamp = None;
        let annotations = self.metadata.annotations.iter();
        let annotations = annotations.filter(|(key, _)| !keys::SCHEDULER_POD_ANNOTATIONS.contains(key));
        let annotations = annotations.map(|(key, value)| (Text::common(key), value.clone()));
        pod.metadata.annotations = TextMap::from_entries(annotations.collect());
        pod
    }

    /// The pod after the API server got a request to delete it.
    #[must_use]
    pub fn terminating_since(&self, time: Millis) -> Pod {
        let mut pod = self.clone();
        pod.metadata.deletion_timestamp = Some(format_time(time).into());
        pod
    }

    fn with_state(&self, node: Option<&str>, phase: &str, gpu_group_labels: Vec<(Text, Text)>) -> Pod {
        let mut pod = self.clone();
        pod.spec.node_name = node.map(Text::common);
        pod.status = Status {
            phase: Some(Text::common(phase)),
            ..Status::default()
        };
        let others = self.metadata.labels.iter();
        let others = others.filter(|(key, _)| !keys::is_gpu_group_label(key));
        let others = others.map(|(key, value)| (Text::common(key), value.clone()));
        pod.metadata.labels = TextMap::from_entries(others.chain(gpu_group_labels).collect());
        pod
    }
}

#[cfg(test)]
mod tests {
    use kai_engine::model::PodPhase;

    use super::*;
    use crate::Object;

    #[test]
    fn a_pod_starts_ends_and_returns() {
        let pending: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"p","uid":"u","labels":{"a":"b","runai-gpu-group":"old"}},"status":{"nominatedNodeName":"m"}}"#,
        )
        .unwrap();
        let groups = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let running = pending.started_on("n", &groups(&["x"]));
        assert_eq!((running.node_name(), running.phase()), (Some("n"), PodPhase::Running));
        assert_eq!((running.gpu_groups(), running.nominated_node()), (vec!["x"], None));
        assert_eq!(pending.started_on("n", &groups(&["x", "y"])).gpu_groups(), ["x", "y"]);
        let leaving = running.terminating_since(Millis(1000));
        assert_eq!(
            leaving.metadata.deletion_timestamp.as_deref(),
            Some("1970-01-01T00:00:01Z")
        );
        let again = leaving.recreated();
        assert_eq!(
            (again.node_name(), again.phase(), again.is_terminating()),
            (None, PodPhase::Pending, false)
        );
        assert_eq!(
            (again.gpu_groups().len(), again.metadata().labels.text("a")),
            (0, Some("b"))
        );
    }
}
