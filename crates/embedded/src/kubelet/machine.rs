//! One simulated machine: what it has, who is on it, and whether one more pod fits. Devices are chosen by the node agent's own code.
//! Pure; the shell in the parent module talks to the API.

use std::collections::{BTreeMap, BTreeSet};

use kai_engine::model::{GpuRequest, PodSpec};
use kai_node::allocator::plan::{GPU_RESOURCE, device_uuid};
use kai_node::allocator::prefer::PreferenceQuery;
use kai_node::in_process::NodeGpus;
use kai_node::reservation_annotator::ReleasedGpus;

use tokio::time::Instant;

use super::template::NodeTemplate;

/// A simulated machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) template: NodeTemplate,
    pub(super) gpus: Option<NodeGpus>,
    pub(super) ready: bool,
    /// Pods that it does not take, whatever they ask for.
    pub(super) rejections: u32,
    cpu_milli: i64,
    memory_bytes: i64,
    tenants: BTreeMap<String, Tenant>,
    /// What the node agent keeps for the next reservation pod.
    left: ReleasedGpus,
}

/// A pod on the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tenant {
    cpu_milli: i64,
    memory_bytes: i64,
    /// Device ids by resource.
    pub(super) devices: BTreeMap<String, Vec<String>>,
    /// UUIDs of GPUs that its containers were told, and of which it has a part.
    pub(super) shared: Vec<String>,
    is_reservation: bool,
}

impl Tenant {
    /// The UUIDs of the GPUs it was given.
    pub(super) fn gpu_uuids(&self) -> Vec<String> {
        let ids = self.devices.values().flatten();
        ids.map(|id| device_uuid(id).to_owned()).collect()
    }
}

/// Why a kubelet does not take a pod, in a kubelet's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) reason: String,
    pub(super) message: String,
}

impl Machine {
    pub(super) fn new(template: &NodeTemplate, name: &str, allocatable: (i64, i64)) -> Result<Machine, String> {
        Ok(Machine {
            gpus: template.gpus(name)?,
            template: template.clone(),
            ready: true,
            rejections: 0,
            cpu_milli: allocatable.0,
            memory_bytes: allocatable.1,
            tenants: BTreeMap::new(),
            left: ReleasedGpus::default(),
        })
    }

    /// Takes the pod, or says why not. A pod that is there already keeps what it has.
    pub(super) fn admit(&mut self, pod: &PodSpec) -> Result<&Tenant, Rejection> {
        if !self.tenants.contains_key(&pod.uid) {
            if let Some(rest) = self.rejections.checked_sub(1) {
                self.rejections = rest;
                return Err(Rejection {
                    reason: "UnexpectedAdmissionError".to_owned(),
                    message: "Pod was rejected: made to fail".to_owned(),
                });
            }
            let tenant = self.fit(pod)?;
            if tenant.is_reservation {
                tenant.gpu_uuids().iter().for_each(|gpu| self.left.remove(gpu));
            }
            self.tenants.insert(pod.uid.clone(), tenant);
        }
        Ok(&self.tenants[&pod.uid])
    }

    /// What the pod was given.
    pub(super) fn tenant(&self, uid: &str) -> Option<&Tenant> {
        self.tenants.get(uid)
    }

    /// The pod's containers were told these GPUs.
    pub(super) fn share(&mut self, uid: &str, gpus: Vec<String>) {
        if let Some(tenant) = self.tenants.get_mut(uid) {
            tenant.shared = gpus;
        }
    }

    /// The pod is gone.
    pub(super) fn release(&mut self, uid: &str) {
        let Some(tenant) = self.tenants.remove(uid) else { return };
        if tenant.is_reservation {
            let gpus = tenant.gpu_uuids().into_iter();
            gpus.for_each(|gpu| self.left.add(gpu, Instant::now()));
        }
    }

    fn fit(&self, pod: &PodSpec) -> Result<Tenant, Rejection> {
        let used = |of: fn(&Tenant) -> i64| self.tenants.values().map(of).sum::<i64>();
        let short = |resource: &str, asked: i64, used: i64, capacity: i64| Rejection {
            reason: format!("OutOf{resource}"),
            message: format!(
                "Pod was rejected: Node didn't have enough resource: {resource}, requested: {asked}, used: {used}, capacity: {capacity}"
            ),
        };
        let pods = i64::try_from(self.tenants.len()).unwrap_or(i64::MAX);
        if pods >= i64::from(self.template.pods) {
            return Err(short("pods", 1, pods, self.template.pods.into()));
        }
        let plain = [
            (
                "cpu",
                pod.requests.cpu_milli,
                used(|tenant| tenant.cpu_milli),
                self.cpu_milli,
            ),
            (
                "memory",
                pod.requests.memory_bytes,
                used(|tenant| tenant.memory_bytes),
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
        Ok(Tenant {
            cpu_milli: pod.requests.cpu_milli,
            memory_bytes: pod.requests.memory_bytes,
            devices,
            shared: Vec::new(),
            is_reservation: pod.namespace == kai_api::keys::RESERVATION,
        })
    }

    /// Chooses devices as the kubelet does: of the healthy free ones, those that the plugin prefers.
    fn choose(&self, resource: &str, count: usize) -> Result<Vec<String>, Rejection> {
        let unexpected = |message: String| Rejection {
            reason: "UnexpectedAdmissionError".to_owned(),
            message: format!("Pod was rejected: Allocate failed due to {message}, which is unexpected"),
        };
        let taken = |id: &String| {
            let held = self.tenants.values().filter_map(|tenant| tenant.devices.get(resource));
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
            released_gpus: &self.left.recent(Instant::now()),
        };
        let chosen = gpus.preferred(resource, question).map_err(unexpected)?;
        gpus.allocate(resource, &chosen).map_err(unexpected)?;
        Ok(chosen)
    }
}

/// Devices that the kubelet hands out. Parts of GPUs are none of its business.
fn device_requests(gpu: &GpuRequest) -> Vec<(String, usize)> {
    let count = |devices: i64| usize::try_from(devices).unwrap_or(0);
    match gpu {
        GpuRequest::None | GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => Vec::new(),
        GpuRequest::Whole { devices } => vec![(GPU_RESOURCE.to_owned(), count(*devices))],
        GpuRequest::Mig { slices, .. } => slices.iter().map(|(name, of)| (name.clone(), count(*of))).collect(),
    }
}
