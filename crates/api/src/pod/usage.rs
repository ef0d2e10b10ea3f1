//! What a pod counts for in the status of its group and queue. Not what it needs of a node: init containers and overhead are left
//! out, as the API defines these fields.

use std::collections::BTreeMap;

use kai_engine::model::GpuRequest;

use super::Pod;
use crate::gpu_request::{gpu_request, occupied};
use crate::{Quantity, QuantityText, keys};

impl Pod {
    /// What its regular containers ask for, by resource name. A limit without a request is a request, as the API server has it;
    /// amounts that can't be read count for nothing.
    pub fn container_requests(&self) -> BTreeMap<&str, Vec<Quantity>> {
        let mut asked: BTreeMap<&str, Vec<Quantity>> = BTreeMap::new();
        for container in &self.spec.containers {
            let resources = &container.resources;
            let limits = resources
                .limits
                .iter()
                .filter(|(name, _)| resources.requests.get(name).is_none());
            // A slot is a way, not an amount.
            let counted = |(name, _): &(&str, _)| *name != keys::RESOURCE_GPU_SHARE;
            for (name, text) in resources.requests.iter().chain(limits).filter(counted) {
                let text: &QuantityText = text;
                if let Ok(quantity) = Quantity::parse(text.as_str()) {
                    asked.entry(name).or_default().push(quantity);
                }
            }
        }
        asked
    }

    /// The GPUs it asks for; of a request that makes no sense as a whole, the part that does.
    pub fn gpu_usage(&self) -> GpuRequest {
        let (_, ask) = self.requests(&mut Vec::new());
        gpu_request(&ask).unwrap_or_else(|_| occupied(&ask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_containers_count_and_limits_stand_in() {
        let text = r#"{"spec":{
            "initContainers":[{"resources":{"requests":{"cpu":"9"}}}],
            "overhead":{"cpu":"1"},
            "containers":[{"resources":{"requests":{"cpu":"1"},"limits":{"cpu":"4","nvidia.com/gpu":1}}},
                          {"resources":{"requests":{"cpu":"500m","memory":"lots","kai.scheduler/gpu-share":"1"}}}]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        let milli: Vec<(&str, i64)> = pod
            .container_requests()
            .into_iter()
            .map(|(name, quantities)| (name, quantities.into_iter().map(Quantity::milli).sum()))
            .collect();
        assert_eq!(milli, [("cpu", 1500), ("nvidia.com/gpu", 1000)]);
    }
}
