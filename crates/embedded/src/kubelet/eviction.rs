//! Evictions by the kubelet under memory pressure.

use kai_api::ObjectKey;
use serde_json::Value;

use super::{Kubelets, Stage, pod_status};

impl Kubelets {
    /// Simulates memory pressure: the kubelet evicts the first pod of its eviction order. Returns that pod.
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

    /// Makes the kubelet evict this pod, regardless of the eviction order.
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

/// The eviction order. A kubelet first evicts pods that use more than they request. Simulated pods use nothing, so the QoS class stands
/// for that: BestEffort, then Burstable. Priority decides between equals.
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
