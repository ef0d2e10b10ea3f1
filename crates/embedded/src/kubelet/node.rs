//! One simulated node: its capacity, its pods, and the admission of further pods. The node agent's own code chooses the devices. Pure;
//! the parent module talks to the API.

use std::collections::{BTreeMap, BTreeSet};

use kai_engine::model::{GpuRequest, PodKind, PodSpec, Requests};
use kai_node::allocator::plan::{GPU_RESOURCE, device_uuid};
use kai_node::allocator::prefer::PreferenceQuery;
use kai_node::in_process::NodeGpus;
use kai_node::reservation_annotator::ReleasedGpus;

use tokio::time::Instant;

use super::limits::NodeLimits;
use super::node_template::NodeTemplate;

/// A simulated node.
#[derive(Debug)]
pub(super) struct SimulatedNode {
    pub(super) template: NodeTemplate,
    pub(super) gpus: Option<NodeGpus>,
    /// Limits of GPU memory; `None` on a node without GPUs or without kai's node agent.
    pub(super) limits: Option<NodeLimits>,
    pub(super) ready: bool,
    /// The number of next pods that the kubelet rejects; set by tests.
    pub(super) rejections: u32,
    cpu_milli: i64,
    memory_bytes: i64,
    pods: BTreeMap<String, AdmittedPod>,
    /// GPUs whose reservation pod left lately. The node agent allocates them last, because pods may still share them.
    left: ReleasedGpus,
}

/// A pod that the kubelet admitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AdmittedPod {
    cpu_milli: i64,
    memory_bytes: i64,
    /// Device ids by resource.
    pub(super) devices: BTreeMap<String, Vec<String>>,
    /// UUIDs of the GPUs that the pod shares.
    pub(super) shared: Vec<String>,
    pub(super) is_reservation: bool,
}

impl AdmittedPod {
    /// UUIDs of the allocated GPUs.
    pub(super) fn gpu_uuids(&self) -> Vec<String> {
        let ids = self.devices.values().flatten();
        ids.map(|id| device_uuid(id).to_owned()).collect()
    }
}

/// Why the kubelet rejects a pod, as a kubelet words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) reason: String,
    pub(super) message: String,
}

impl SimulatedNode {
    pub(super) fn new(
        template: &NodeTemplate,
        name: &str,
        allocatable: (i64, i64),
        now_seconds: u64,
    ) -> Result<SimulatedNode, String> {
        Ok(SimulatedNode {
            gpus: template.gpus(name)?,
            limits: template.limits(name, now_seconds)?,
            template: template.clone(),
            ready: true,
            rejections: 0,
            cpu_milli: allocatable.0,
            memory_bytes: allocatable.1,
            pods: BTreeMap::new(),
            left: ReleasedGpus::default(),
        })
    }

    /// Admits or rejects a pod. A pod that is admitted already keeps its devices.
    pub(super) fn admit(&mut self, pod: &PodSpec) -> Result<&AdmittedPod, Rejection> {
        if !self.pods.contains_key(&pod.uid) {
            if let Some(rest) = self.rejections.checked_sub(1) {
                self.rejections = rest;
                return Err(Rejection {
                    reason: "UnexpectedAdmissionError".to_owned(),
                    message: "Pod was rejected: made to fail".to_owned(),
                });
            }
            let admitted = self.fit(pod)?;
            if admitted.is_reservation {
                admitted.gpu_uuids().iter().for_each(|gpu| self.left.remove(gpu));
            }
            self.pods.insert(pod.uid.clone(), admitted);
        }
        Ok(&self.pods[&pod.uid])
    }

    /// The admitted pod with this uid.
    pub(super) fn admitted_pod(&self, uid: &str) -> Option<&AdmittedPod> {
        self.pods.get(uid)
    }

    /// Sets the GPUs that the pod shares.
    pub(super) fn share(&mut self, uid: &str, gpus: Vec<String>) {
        if let Some(admitted) = self.pods.get_mut(uid) {
            admitted.shared = gpus;
        }
    }

    /// Sets the CPU and memory of the pod.
    pub(super) fn resize(&mut self, uid: &str, requests: &Requests) {
        if let Some(admitted) = self.pods.get_mut(uid) {
            (admitted.cpu_milli, admitted.memory_bytes) = (requests.cpu_milli, requests.memory_bytes);
        }
    }

    /// Frees the resources of the pod.
    pub(super) fn release(&mut self, uid: &str) {
        if let Some(limits) = &mut self.limits {
            limits.release(uid);
        }
        let Some(admitted) = self.pods.remove(uid) else { return };
        if admitted.is_reservation {
            let gpus = admitted.gpu_uuids().into_iter();
            gpus.for_each(|gpu| self.left.add(gpu, Instant::now()));
        }
    }

    fn fit(&self, pod: &PodSpec) -> Result<AdmittedPod, Rejection> {
        let used = |of: fn(&AdmittedPod) -> i64| self.pods.values().map(of).sum::<i64>();
        let short = |resource: &str, asked: i64, used: i64, capacity: i64| Rejection {
            reason: format!("OutOf{resource}"),
            message: format!(
                "Pod was rejected: Node didn't have enough resource: {resource}, requested: {asked}, used: {used}, capacity: {capacity}"
            ),
        };
        let pods = i64::try_from(self.pods.len()).unwrap_or(i64::MAX);
        if pods >= i64::from(self.template.pods) {
            return Err(short("pods", 1, pods, self.template.pods.into()));
        }
        let plain = [
            (
                "cpu",
                pod.requests.cpu_milli,
                used(|admitted| admitted.cpu_milli),
                self.cpu_milli,
            ),
            (
                "memory",
                pod.requests.memory_bytes,
                used(|admitted| admitted.memory_bytes),
                self.memory_bytes,
            ),
        ];
        for (resource, asked, used, capacity) in plain {
            if asked > 0 && used + asked > capacity {
                return Err(short(resource, asked, used, capacity));
            }
        }
        let mut devices = BTreeMap::new();
        for (resource, count) in device_requests(&pod.requests.gpu) {
            devices.insert(resource.clone(), self.choose(&resource, count)?);
        }
        Ok(AdmittedPod {
            cpu_milli: pod.requests.cpu_milli,
            memory_bytes: pod.requests.memory_bytes,
            devices,
            shared: Vec::new(),
            is_reservation: pod.kind == PodKind::Reservation,
        })
    }

    /// The GPUs that the node agent allocates last. Other device plugins do not know them.
    fn released_gpus(&self) -> BTreeSet<String> {
        match self.template.agent {
            true => self.left.recent(Instant::now()),
            false => BTreeSet::new(),
        }
    }

    /// Chooses devices as the kubelet does: the device plugin's preferred ones of the healthy free devices.
    fn choose(&self, resource: &str, count: usize) -> Result<Vec<String>, Rejection> {
        let unexpected = |message: String| Rejection {
            reason: "UnexpectedAdmissionError".to_owned(),
            message: format!("Pod was rejected: Allocate failed due to {message}, which is unexpected"),
        };
        let taken = |id: &String| {
            let held = self.pods.values().filter_map(|admitted| admitted.devices.get(resource));
            held.flatten().any(|other| other == id)
        };
        let listed = self.gpus.as_ref().map(NodeGpus::resources).unwrap_or_default();
        let offered = listed.into_iter().find(|listed| listed.resource == resource);
        let devices = offered.map(|listed| listed.devices).unwrap_or_default();
        let healthy = devices.into_iter().filter(|device| device.health == "Healthy");
        let available: Vec<String> = healthy.map(|device| device.id).filter(|id| !taken(id)).collect();
        if available.len() < count {
            let message = format!(
                "requested number of devices unavailable for {resource}. Requested: {count}, Available: {}",
                available.len()
            );
            return Err(unexpected(message));
        }
        let Some(gpus) = &self.gpus else {
            return Err(unexpected(format!("no device plugin for {resource}")));
        };
        let question = PreferenceQuery {
            available: &available,
            required: &[],
            size: count,
            wanted_gpus: &BTreeSet::new(),
            released_gpus: &self.released_gpus(),
        };
        let chosen = gpus.preferred(resource, question).map_err(unexpected)?;
        gpus.allocate(resource, &chosen).map_err(unexpected)?;
        Ok(chosen)
    }
}

/// The devices that the kubelet allocates for a request. GPU shares are not among them.
fn device_requests(gpu: &GpuRequest) -> Vec<(String, usize)> {
    let count = |devices: i64| usize::try_from(devices).unwrap_or(0);
    match gpu {
        GpuRequest::None | GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => Vec::new(),
        GpuRequest::Whole { devices } => vec![(GPU_RESOURCE.to_owned(), count(*devices))],
        GpuRequest::Mig { slices, .. } => slices.iter().map(|(name, of)| (name.clone(), count(*of))).collect(),
    }
}
