//! The node agent's decisions (labels, device lists, allocation, health) behind plain calls, for simulated kubelets and for tests.
//! Synchronous and deterministic: no socket, file, thread, clock or Kubernetes. Every call goes to the code that the running agent uses.

use std::sync::Arc;

use kai_gpu::fake::{FakeDriver, Settings};
use kai_gpu::{Driver, HealthEvent, HealthEventKind, Inventory};

use crate::Error;
use crate::agent::report;
use crate::agent::state::{Input, Snapshot, State};
use crate::allocator::inject::{Injection, Mode};
use crate::allocator::offer::Offer;
use crate::allocator::plan::Policy;
use crate::allocator::prefer::PreferenceQuery;
use crate::driver_files::prepare;
use crate::enforcement::tier::NodeEnforcement;
use crate::health::{Change, Rules};
use crate::kubelet::deviceplugin::{ContainerAllocateResponse, Device};
use crate::labels::Labels;

/// The agent's settings on the simulated node. The default is the agent's default.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// MIG and time slicing.
    pub policy: Policy,
    /// What makes a GPU unhealthy, and for how long.
    pub rules: Rules,
    /// How GPUs are injected, which decides the content of Allocate responses.
    pub mode: Mode,
    /// By what the node holds containers to their GPU share; `None` for a node without the label.
    pub enforcement: Option<NodeEnforcement>,
}

/// The GPUs of one node, as its agent offers them.
#[derive(Debug)]
pub struct NodeGpus {
    state: State,
    rules: Rules,
    snapshot: Snapshot,
}

/// One extended resource, as the device plugin lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// `nvidia.com/gpu`.
    pub resource: String,
    /// Ids (`GPU-…`, `GPU-…::1`), health (`Healthy` or `Unhealthy`) and NUMA node. All of them are the node's capacity, the
    /// healthy ones are its allocatable.
    pub devices: Vec<Device>,
}

impl NodeGpus {
    /// A node with fake GPUs: `"a100-40:8".parse::<Settings>()?.seeded("node-1")`. The seed should be the node's name, or all nodes have
    /// the same UUIDs.
    pub fn fake(settings: &Settings, setup: Setup) -> Result<Self, Error> {
        Ok(Self::new(FakeDriver::new(settings)?.devices()?, setup))
    }

    /// A node with any inventory.
    pub fn new(inventory: Inventory, setup: Setup) -> Self {
        let injection = injection(&inventory, setup.mode);
        let mut state = State::new(setup.policy, setup.rules.clone(), None);
        state.apply(Input::Listed(Box::new(inventory)));
        state.apply(Input::Injection(injection));
        if let Some(enforcement) = setup.enforcement {
            state.apply(Input::Enforcement(Box::new(enforcement)));
        }
        let snapshot = state.snapshot();
        Self {
            state,
            rules: setup.rules,
            snapshot,
        }
    }

    /// The hardware.
    pub fn inventory(&self) -> &Inventory {
        &self.snapshot.inventory
    }

    /// The node's labels. Health does not change them.
    pub fn labels(&self) -> Labels {
        self.snapshot.labels.clone().unwrap_or_default()
    }

    /// The device lists that the kubelet's ListAndWatch streams would carry now, by resource name. Empty on a node without GPUs.
    pub fn resources(&self) -> Vec<Listed> {
        let listed = |(name, offer): (&String, &Arc<Offer>)| Listed {
            resource: name.clone(),
            devices: offer.devices().to_vec(),
        };
        self.snapshot.offers.iter().map(listed).collect()
    }

    /// The Allocate response for one container. The caller tracks which ids are free. `Err` is a sentence for the pod's status.
    pub fn allocate(&self, resource: &str, device_ids: &[String]) -> Result<ContainerAllocateResponse, String> {
        self.offer(resource)?.allocate(device_ids)
    }

    /// The GetPreferredAllocation response for one container: which of the free ids it should get.
    pub fn preferred(&self, resource: &str, query: PreferenceQuery) -> Result<Vec<String>, String> {
        Ok(self.offer(resource)?.prefer(query))
    }

    /// Makes the GPU with the UUID `gpu` fail a probe.
    pub fn fail(&mut self, gpu: &str, reason: &str) -> Vec<Change> {
        self.apply(Input::Probed(vec![(gpu.to_owned(), Err(reason.to_owned()))]))
    }

    /// Applies a health event of a GPU or MIG device, such as an Xid.
    pub fn report(&mut self, event: HealthEvent) -> Vec<Change> {
        self.apply(Input::Events(vec![event]))
    }

    /// Makes a GPU answer one probe. After enough answers in a row a failed GPU is healthy again.
    pub fn answer_probe(&mut self, gpu: &str) -> Vec<Change> {
        self.apply(Input::Probed(vec![(gpu.to_owned(), Ok(()))]))
    }

    /// Repairs a GPU: applies as many successful probes as its recovery needs.
    pub fn recover(&mut self, gpu: &str) -> Vec<Change> {
        let mut changes = self.report(HealthEvent {
            uuid: Some(gpu.to_owned()),
            mig: None,
            kind: HealthEventKind::Recovered,
        });
        for _ in 0..self.rules.good_probes_needed_max() {
            if !self.snapshot.failed.iter().any(|(failed, _)| failed.starts_with(gpu)) {
                break;
            }
            changes.extend(self.answer_probe(gpu));
        }
        changes
    }

    /// Applies a changed inventory: MIG devices, or a card that was added or removed. A removed GPU stays listed as unhealthy.
    pub fn relist(&mut self, inventory: Inventory) -> Vec<Change> {
        self.apply(Input::Listed(Box::new(inventory)))
    }

    /// Changes by what the node holds containers to their GPU share.
    pub fn enforce(&mut self, enforcement: NodeEnforcement) {
        self.apply(Input::Enforcement(Box::new(enforcement)));
    }

    /// The node condition `GPUsHealthy`: status, reason, message. `None` on a node without GPUs.
    pub fn condition(&self) -> Option<(kai_cluster::ConditionStatus, String, String)> {
        report::condition(&self.snapshot)
    }

    /// The event that the agent records on the node for a health change.
    pub fn event(&self, change: &Change) -> kai_cluster::NodeEvent {
        report::event(change, &self.snapshot.inventory)
    }

    fn apply(&mut self, input: Input) -> Vec<Change> {
        let changes = self.state.apply(input);
        self.snapshot = self.state.snapshot();
        changes
    }

    fn offer(&self, resource: &str) -> Result<&Offer, String> {
        let offer = self.snapshot.offers.get(resource).map(Arc::as_ref);
        offer.ok_or_else(|| format!("this node does not offer {resource}"))
    }
}

/// The injection of a node without driver files: a simulated kubelet has none.
fn injection(inventory: &Inventory, mode: Mode) -> Injection {
    match mode {
        Mode::Cdi => Injection::Cdi,
        Mode::Mounts => match prepare::fake_spec(inventory) {
            Some(spec) => Injection::Mounts {
                spec: Box::new(spec),
                volume: None,
            },
            None => Injection::Unknown,
        },
        Mode::Envvar => Injection::Envvar {
            visible: prepare::visible_device_names(inventory),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::allocator::plan::{GPU_RESOURCE, MigStrategy};
    use crate::allocator::sharing::{Rename, Sharing};

    fn node(gpus: &str, setup: Setup) -> NodeGpus {
        NodeGpus::fake(&gpus.parse::<Settings>().unwrap().seeded("node-1"), setup).unwrap()
    }

    fn replicas(count: u32) -> Setup {
        let mut setup = Setup::default();
        setup.policy.sharing = Sharing::of_gpus(count, Rename::Keep).unwrap();
        setup
    }

    fn ids(node: &NodeGpus, health: &str) -> Vec<String> {
        let resources = node.resources();
        let devices = resources.iter().flat_map(|listed| &listed.devices);
        devices
            .filter(|device| device.health == health)
            .map(|device| device.id.clone())
            .collect()
    }

    #[test]
    fn a_simulated_kubelet_gets_what_a_real_one_gets() {
        let node = node("h100:8", Setup::default());
        assert_eq!(node.labels()["nvidia.com/gpu.count"], "8");
        let free = ids(&node, "Healthy");
        assert_eq!(free.len(), 8);
        let query = PreferenceQuery {
            available: &free,
            required: &free[5..6],
            size: 2,
            wanted_gpus: &BTreeSet::new(),
            released_gpus: &BTreeSet::new(),
        };
        let chosen = node.preferred(GPU_RESOURCE, query).unwrap();
        assert_eq!((chosen.len(), &chosen[0]), (2, &free[5]));
        let answer = node.allocate(GPU_RESOURCE, &chosen).unwrap();
        let names: Vec<_> = answer.cdi_devices.iter().map(|device| device.name.clone()).collect();
        assert_eq!(
            names,
            chosen
                .iter()
                .map(|id| format!("kai.scheduler/gpu={id}"))
                .collect::<Vec<_>>()
        );
        assert_eq!(answer.envs["KAI_FAKE_VISIBLE_DEVICES"], chosen.join(","));
        assert!(node.allocate("nvidia.com/mig-1g.5gb", &chosen).is_err());
        assert!(node.allocate(GPU_RESOURCE, &["GPU-none".to_owned()]).is_err());
    }

    #[test]
    fn the_same_settings_give_the_same_node() {
        let (one, two) = (node("t4:2", replicas(3)), node("t4:2", replicas(3)));
        assert_eq!(one.resources(), two.resources());
        assert_eq!(one.labels(), two.labels());
        let other = NodeGpus::fake(&Settings::of("t4", 2).seeded("node-2"), replicas(3)).unwrap();
        assert_ne!(one.resources(), other.resources());
    }

    #[test]
    fn a_gpu_fails_with_its_replicas_and_recovers_however_often_it_failed() {
        let mut node = node("t4:2", replicas(4));
        let gpu = node.inventory().devices[0].uuid.clone();
        for round in 0..8 {
            let changes = node.fail(&gpu, "GPU is lost");
            assert_eq!(changes.len(), 1);
            assert_eq!(ids(&node, "Unhealthy").len(), 4);
            assert_eq!(node.condition().unwrap().1, "GPUUnhealthy");
            assert!(node.allocate(GPU_RESOURCE, &[format!("{gpu}::0")]).is_err());
            assert!(node.answer_probe(&gpu).is_empty(), "one good answer is not enough");
            assert_eq!(node.recover(&gpu).len(), 1, "round {round}");
            assert!(ids(&node, "Unhealthy").is_empty());
        }
        assert!(node.recover(&gpu).is_empty(), "nothing to recover");
    }

    #[test]
    fn a_sticky_error_of_one_partition_leaves_the_others() {
        let setup = Setup {
            policy: Policy {
                mig: MigStrategy::Mixed,
                ..Policy::default()
            },
            ..Setup::default()
        };
        let mut node = node("a100-40:1/1g.5gb*3", setup);
        let device = node.inventory().devices[0].clone();
        let slice = &device.mig_devices[1];
        let changes = node.report(HealthEvent {
            uuid: Some(device.uuid.clone()),
            mig: Some(kai_gpu::MigInstance {
                gpu_instance_id: slice.gpu_instance_id,
                compute_instance_id: slice.compute_instance_id,
            }),
            kind: HealthEventKind::Xid(48),
        });
        assert_eq!(node.event(&changes[0]).reason, "GPUUnhealthy");
        assert_eq!(ids(&node, "Unhealthy"), [slice.uuid.as_str()]);
        assert_eq!(node.recover(&device.uuid).len(), 1);
        assert_eq!(ids(&node, "Healthy").len(), 3);
    }

    #[test]
    fn each_mode_answers_in_its_own_way() {
        let of = |mode| {
            let node = node(
                "t4",
                Setup {
                    mode,
                    ..Setup::default()
                },
            );
            let id = node.inventory().devices[0].uuid.clone();
            node.allocate(GPU_RESOURCE, &[id]).unwrap()
        };
        assert_eq!(of(Mode::Cdi).cdi_devices.len(), 1);
        let mounts = of(Mode::Mounts);
        let nodes: Vec<_> = mounts.devices.iter().map(|node| node.container_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidia0", "/dev/nvidiactl"]);
        assert!(of(Mode::Envvar).envs["NVIDIA_VISIBLE_DEVICES"].starts_with("GPU-"));
    }
}
