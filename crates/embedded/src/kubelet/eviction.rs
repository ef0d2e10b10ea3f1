//! Evictions by the kubelet: a node that runs out of memory or disk ends pods, one at a time.

use kai_api::ObjectKey;
use serde_json::Value;

use super::{Kubelets, Stage, pod_status};

impl Kubelets {
    /// The node is short of memory: its kubelet ends the pod that comes first in its order. Answers with that pod.
    pub async fn evict_for_memory_pressure(&self, node: &str) -> Result<Option<ObjectKey>, String> {
        let victim = {
            let state = self.lock();
            let on_node = state
                .pods
                .iter()
                .filter(|(_, record)| record.node == node && record.stage != Stage::Ended && record.stopping.is_none());
            on_node
                .min_by_key(|(key, record)| (rank(&record.object), (*key).clone()))
                .map(|(key, _)| key.clone())
        };
        if let Some(victim) = &victim {
            self.evict(&victim.namespace, &victim.name).await?;
        }
        Ok(victim)
    }

    /// The pod's kubelet ends it for want of memory, whatever comes first in its order.
    pub async fn evict(&self, namespace: &str, name: &str) -> Result<(), String> {
        let key = ObjectKey::new(namespace, name);
        let record = self
            .lock()
            .pods
            .get(&key)
            .filter(|record| record.stage != Stage::Ended)
            .cloned();
        let record = record.ok_or_else(|| format!("pod {key} is on no simulated node"))?;
        let ended = self.inner.end(&key, &record, pod_status::evicted()).await;
        ended.map_err(|error| error.to_string())
    }
}

/// In which order pods go. Who uses more than it asked for goes first: of simulated pods, which use nothing, those count as such that
/// asked for nothing, or for less than their limit. Then priority decides.
fn rank(pod: &Value) -> (u8, i64) {
    let class = match pod["status"]["qosClass"].as_str() {
        Some("Guaranteed") => 2,
        Some("Burstable") => 1,
        Some(_) | None => 0,
    };
    (class, pod["spec"]["priority"].as_i64().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_asked_for_nothing_goes_first_and_priority_decides_between_equals() {
        let pod =
            |class: &str, priority: i64| json!({ "spec": { "priority": priority }, "status": { "qosClass": class } });
        let mut pods = [
            pod("Guaranteed", 5),
            pod("Burstable", 0),
            pod("Guaranteed", 0),
            pod("BestEffort", 9),
        ];
        pods.sort_by_key(rank);
        let order: Vec<&str> = pods
            .iter()
            .map(|pod| pod["status"]["qosClass"].as_str().unwrap())
            .collect();
        assert_eq!(order, ["BestEffort", "Burstable", "Guaranteed", "Guaranteed"]);
        assert_eq!(pods[2]["spec"]["priority"], 0);
    }
}
