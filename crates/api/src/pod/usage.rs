//! The resources of a pod in the status of its pod group and queue. Unlike the requests of a node's pods, these leave out init containers and
//! overhead, as KAI's API defines them.

use std::collections::BTreeMap;

use kai_engine::model::GpuRequest;

use super::Pod;
use crate::gpu_request::{gpu_request, occupied};
use crate::{Quantity, QuantityText, keys};

impl Pod {
    /// The requests of regular containers, by resource name. A limit without a request counts as the request, as in the API server. Invalid
    /// amounts are left out.
    pub fn container_requests(&self) -> BTreeMap<&str, Vec<Quantity>> {
        let mut requests: BTreeMap<&str, Vec<Quantity>> = BTreeMap::new();
        for container in &self.spec.containers {
            let resources = &container.resources;
            let limits = resources
                .limits
                .iter()
                .filter(|(name, _)| resources.requests.get(name).is_none());
            // A share device only brings the GPU into the container; the pod's GPU request has the amount.
            let counted = |(name, _): &(&str, _)| *name != keys::RESOURCE_GPU_SHARE;
            for (name, text) in resources.requests.iter().chain(limits).filter(counted) {
                let text: &QuantityText = text;
                if let Ok(quantity) = Quantity::parse(text.as_str()) {
                    requests.entry(name).or_default().push(quantity);
                }
            }
        }
        requests
    }

    /// The GPU request, or the valid part of an invalid one.
    pub fn gpu_usage(&self) -> GpuRequest {
        let (_, gpus) = self.requests(&mut Vec::new());
        gpu_request(&gpus).unwrap_or_else(|_| occupied(&gpus))
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
