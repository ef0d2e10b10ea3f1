//! The agent's state: one value that one task owns and changes by inputs. Pure and synchronous, so tests call it directly. The task
//! publishes a `Snapshot` with what follows from the state: device lists, labels, condition.

use std::collections::BTreeMap;
use std::sync::Arc;

use kai_api::keys::GPU_ENFORCEMENT;
use kai_gpu::{HealthEvent, HealthEventKind, Inventory};

use crate::allocator::inject::Injection;
use crate::allocator::offer::{self, GpuOffer, Offer};
use crate::allocator::plan::{self, Plan, Policy};
use crate::enforcement::audit::LimitsSummary;
use crate::enforcement::tier::NodeEnforcement;
use crate::health::{Change, Health, Rules};
use crate::kubelet::deviceplugin::Device;
use crate::labels::{Labels, labels};
use crate::plugin_config::{AppliedConfig, ConfigStatus};
use crate::share_devices::{self, ShareDeviceOffer};

/// What changes the agent's state. The driver's thread and the injection task send inputs.
#[derive(Debug)]
pub enum Input {
    /// The driver listed its devices.
    Listed(Box<Inventory>),
    /// The driver reported health events.
    Events(Vec<HealthEvent>),
    /// GPUs were probed: UUID, and the error if the GPU did not answer.
    Probed(Vec<(String, Result<(), String>)>),
    /// The driver as a whole does not answer.
    DriverFailed(DriverProblem),
    /// The way of injection changed.
    Injection(Injection),
    /// The node's configuration was read, or could not be used: the sentence says why.
    Config(Result<AppliedConfig, String>),
    /// It was decided by what the node holds containers to their GPU share.
    Enforcement(Box<NodeEnforcement>),
    /// The audit of the containers' limits found something else than before.
    Limits(LimitsSummary),
}

/// Why the driver as a whole does not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverProblem {
    /// What was attempted, and the driver's answer.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

/// By what the node holds containers to their GPU share, as far as that is decided.
#[derive(Debug, Clone)]
enum EnforcementState {
    /// No task decides it: simulated nodes.
    NotAwaited(Option<Arc<NodeEnforcement>>),
    /// Not decided in this run; the last run's decision holds for containers that start meanwhile.
    Pending(Option<Arc<NodeEnforcement>>),
    /// Decided.
    Decided(Arc<NodeEnforcement>),
}

/// The state of the agent.
#[derive(Debug)]
pub struct State {
    /// What is offered now: by the last good configuration, or by the flags.
    policy: Policy,
    config: ConfigStatus,
    inventory: Arc<Inventory>,
    /// Whether the driver listed the inventory in this run; before, the inventory is the last run's.
    confirmed: bool,
    health: Health,
    injection: Arc<Injection>,
    driver_problem: Option<DriverProblem>,
    enforcement: EnforcementState,
    limits: LimitsSummary,
    /// The kubelet's list of share devices. Made once, because it is long and never changes.
    share_devices: Arc<Vec<Device>>,
}

/// What follows from the state at one moment. The owning task publishes a new snapshot after every input.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The GPUs.
    pub inventory: Arc<Inventory>,
    /// Whether the driver listed them in this run.
    pub confirmed: bool,
    /// The offers, by resource name.
    pub offers: BTreeMap<String, Arc<Offer>>,
    /// The node's labels; `None` until the driver has answered.
    pub labels: Option<Labels>,
    /// Unhealthy GPUs with reasons.
    pub failed: Vec<(String, String)>,
    /// Why the driver as a whole does not answer.
    pub driver_problem: Option<DriverProblem>,
    /// Why something is not offered.
    pub notes: Vec<String>,
    /// Where the policy comes from.
    pub config: ConfigStatus,
    /// The policy in words.
    pub policy_summary: String,
    /// How GPUs are injected.
    pub injection: Arc<Injection>,
    /// By what the node holds containers to their GPU share; `None` until that is decided. Before the driver has answered, it is the last
    /// run's.
    pub enforcement: Option<Arc<NodeEnforcement>>,
    /// What the audit of the containers' limits found.
    pub limits: LimitsSummary,
}

impl State {
    /// Starts from the inventory of the last run, which is served until the driver answers. `policy` is that of the flags.
    pub fn new(policy: Policy, rules: Rules, last_known: Option<Inventory>) -> Self {
        let mut health = Health::new(rules);
        let inventory = Arc::new(last_known.unwrap_or_default());
        health.track(&inventory);
        Self {
            share_devices: Arc::new(share_devices::offer::devices(policy.share_devices)),
            policy,
            config: ConfigStatus::FlagsOnly,
            inventory,
            confirmed: false,
            health,
            injection: Arc::default(),
            driver_problem: None,
            enforcement: EnforcementState::NotAwaited(None),
            limits: LimitsSummary::default(),
        }
    }

    /// A task decides by what the node holds containers. Until then, the last run's decision holds, and no label is written: an older label
    /// must not disappear for a moment.
    pub fn await_enforcement(mut self, last_decided: Option<NodeEnforcement>) -> Self {
        self.enforcement = EnforcementState::Pending(last_decided.map(Arc::new));
        self
    }

    /// The node is configured by files. Until they are read, it uses the configuration of the last run; without one, it waits.
    pub fn await_config(mut self, last_used: Option<AppliedConfig>) -> Self {
        match last_used {
            Some(last_used) => self.configure(Ok(last_used)),
            None => self.config = ConfigStatus::Pending,
        }
        self
    }

    /// A configuration that can't be used changes nothing: devices must not disappear because of a typo.
    fn configure(&mut self, config: Result<AppliedConfig, String>) {
        self.config = match config {
            Ok(applied) => {
                let share_devices = self.policy.share_devices;
                self.policy = Policy {
                    share_devices,
                    ..applied.policy.clone()
                };
                ConfigStatus::Applied(applied)
            }
            Err(problem) => ConfigStatus::Rejected { problem },
        };
    }

    /// Applies an input and returns the GPUs whose health changed.
    pub fn apply(&mut self, input: Input) -> Vec<Change> {
        match input {
            Input::Listed(listed) => self.listed(*listed),
            Input::Events(events) => events.iter().flat_map(|event| self.health.event(event)).collect(),
            Input::Probed(answers) => answers
                .into_iter()
                .flat_map(|(gpu, answer)| self.health.probed(&gpu, answer))
                .collect(),
            Input::DriverFailed(problem) => {
                let reason = problem.reason.clone();
                self.driver_problem = Some(problem);
                let kind = HealthEventKind::Lost { reason };
                self.health.event(&HealthEvent {
                    uuid: None,
                    mig: None,
                    kind,
                })
            }
            Input::Injection(injection) => {
                self.injection = Arc::new(injection);
                Vec::new()
            }
            Input::Config(config) => {
                self.configure(config);
                Vec::new()
            }
            Input::Enforcement(decided) => {
                let decided = Arc::new(*decided);
                self.enforcement = match self.enforcement {
                    EnforcementState::NotAwaited(_) => EnforcementState::NotAwaited(Some(decided)),
                    EnforcementState::Pending(_) | EnforcementState::Decided(_) => EnforcementState::Decided(decided),
                };
                Vec::new()
            }
            Input::Limits(limits) => {
                self.limits = limits;
                Vec::new()
            }
        }
    }

    /// A GPU that the driver no longer lists stays in the inventory as unhealthy: containers may still hold it, and the kubelet must not
    /// lose its device id because the driver misses it for a while. MIG devices follow the driver's list.
    fn listed(&mut self, mut listed: Inventory) -> Vec<Change> {
        self.driver_problem = None;
        let mut gone = Vec::new();
        if self.confirmed {
            for device in &self.inventory.devices {
                if !listed.devices.iter().any(|other| other.uuid == device.uuid) {
                    gone.push(device.uuid.clone());
                    listed.devices.push(device.clone());
                }
            }
            listed.devices.sort_by_key(|device| device.index);
        }
        self.confirmed = true;
        self.health.track(&listed);
        self.inventory = Arc::new(listed);
        let reason = || Err("missing from the driver's list".to_owned());
        gone.iter().flat_map(|gpu| self.health.probed(gpu, reason())).collect()
    }

    /// The snapshot of the present state.
    pub fn snapshot(&self) -> Snapshot {
        let Plan { resources, notes } = plan::plan(&self.inventory, &self.policy);
        let offer = |resource: plan::Resource| {
            let name = resource.name.clone();
            let offer = GpuOffer {
                devices: offer::devices(&resource, &self.health),
                resource,
                inventory: self.inventory.clone(),
                injection: self.injection.clone(),
                shared_policy: self.policy.shared_policy,
                one_per_container: self.policy.sharing.one_per_container,
            };
            (name, Arc::new(Offer::Gpus(offer)))
        };
        let (enforcement, enforcement_decided) = match &self.enforcement {
            EnforcementState::NotAwaited(set) => (set.clone(), true),
            EnforcementState::Pending(last) => (last.clone(), false),
            EnforcementState::Decided(decided) => (Some(decided.clone()), true),
        };
        let share_devices = (!self.share_devices.is_empty()).then(|| {
            let offer = Offer::ShareDevices(ShareDeviceOffer {
                devices: self.share_devices.clone(),
                inventory: self.inventory.clone(),
                enforcement: enforcement.clone(),
            });
            (offer.name().to_owned(), Arc::new(offer))
        });
        let is_configured = self.config != ConfigStatus::Pending;
        Snapshot {
            inventory: self.inventory.clone(),
            confirmed: self.confirmed,
            // A node without GPUs registers no resource: the kubelet would keep a zero in the node's capacity for ever.
            offers: resources
                .into_iter()
                .map(offer)
                .chain(share_devices)
                .filter(|_| is_configured && !self.inventory.devices.is_empty())
                .collect(),
            labels: (self.confirmed && is_configured && (enforcement_decided || self.inventory.devices.is_empty()))
                .then(|| self.labels(enforcement.as_deref())),
            failed: self.health.failed(),
            driver_problem: self.driver_problem.clone(),
            notes,
            config: self.config.clone(),
            policy_summary: self.policy.summary(),
            injection: self.injection.clone(),
            enforcement,
            limits: self.limits.clone(),
        }
    }

    /// The node's labels. A node without GPUs has none about GPU shares.
    fn labels(&self, enforcement: Option<&NodeEnforcement>) -> Labels {
        let mut labels = labels(&self.inventory, &self.policy);
        if let (Some(enforcement), false) = (enforcement, self.inventory.devices.is_empty()) {
            labels.insert(GPU_ENFORCEMENT.to_owned(), enforcement.tier.name().to_owned());
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use kai_api::EnforcementTier;
    use kai_gpu::Driver;
    use kai_gpu::fake::{FakeDriver, Settings};

    use super::*;
    use crate::allocator::plan::GPU_RESOURCE;
    use crate::allocator::sharing::{Rename, Sharing};

    fn inventory(settings: &str) -> Inventory {
        FakeDriver::new(&settings.parse::<Settings>().unwrap().seeded("node"))
            .unwrap()
            .devices()
            .unwrap()
    }

    fn state(last_known: Option<Inventory>) -> State {
        let policy = Policy {
            sharing: Sharing::of_gpus(2, Rename::Keep).unwrap(),
            ..Policy::default()
        };
        State::new(policy, Rules::default(), last_known)
    }

    fn healthy(state: &State) -> Vec<bool> {
        let snapshot = state.snapshot();
        let offer = snapshot.offers.get(GPU_RESOURCE).expect("the resource is offered");
        offer
            .devices()
            .iter()
            .map(|device| device.health == "Healthy")
            .collect()
    }

    #[test]
    fn the_last_inventory_is_served_but_not_labelled() {
        let state = state(Some(inventory("t4")));
        assert_eq!(healthy(&state), [true, true]);
        assert_eq!(state.snapshot().labels, None);
    }

    fn config(text: &str) -> AppliedConfig {
        AppliedConfig {
            source: "ConfigMap ns/gpus, key a".to_owned(),
            policy: crate::plugin_config::parse(text)
                .unwrap()
                .settings
                .over(&Policy::default())
                .unwrap(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_configuration_changes_the_offers_and_a_bad_one_changes_nothing() {
        let mut state = State::new(Policy::default(), Rules::default(), None).await_config(None);
        state.apply(Input::Listed(Box::new(inventory("t4"))));
        let waiting = state.snapshot();
        assert!(waiting.offers.is_empty() && waiting.labels.is_none() && waiting.confirmed);

        // Without a good one before, the flags decide.
        state.apply(Input::Config(Err("no such key".to_owned())));
        assert_eq!(healthy(&state).len(), 1);

        state.apply(Input::Config(Ok(config("sharing: {timeSlicing: {replicas: 3}}"))));
        assert_eq!(healthy(&state).len(), 3);
        assert_eq!(state.snapshot().labels.unwrap()["nvidia.com/gpu.replicas"], "3");
        state.apply(Input::Config(Err("a typo".to_owned())));
        let kept = state.snapshot();
        assert_eq!(healthy(&state).len(), 3, "the last good one stays");
        assert_eq!(
            kept.config,
            ConfigStatus::Rejected {
                problem: "a typo".to_owned()
            }
        );
        assert_eq!(
            kept.policy_summary,
            "MIG strategy none, nvidia.com/gpu with 3 replicas of each device"
        );

        state.apply(Input::Config(Ok(config(
            "sharing: {timeSlicing: {replicas: 2, renameByDefault: true}}",
        ))));
        let renamed: Vec<String> = state.snapshot().offers.into_keys().collect();
        assert_eq!(renamed, ["nvidia.com/gpu.shared"]);
    }

    #[test]
    fn the_last_runs_configuration_applies_until_the_files_are_read() {
        let flags = Policy {
            share_devices: 2,
            ..Policy::default()
        };
        let last = config("sharing: {timeSlicing: {replicas: 3}}");
        let state = State::new(flags, Rules::default(), Some(inventory("t4"))).await_config(Some(last));
        assert_eq!(healthy(&state).len(), 3);
        assert_eq!(state.snapshot().offers["kai.scheduler/gpu-share"].devices().len(), 2);
    }

    #[test]
    fn all_replicas_of_a_failed_gpu_are_marked_and_come_back() {
        let mut state = state(None);
        state.apply(Input::Listed(Box::new(inventory("t4:2"))));
        let gpu = inventory("t4:2").devices[1].uuid.clone();
        let probe = |answer: Result<(), String>| Input::Probed(vec![(gpu.clone(), answer)]);
        assert_eq!(state.apply(probe(Err("GPU is lost".into()))).len(), 1);
        assert_eq!(healthy(&state), [true, true, false, false]);
        for _ in 0..3 {
            state.apply(probe(Ok(())));
        }
        assert_eq!(healthy(&state), [true; 4]);
    }

    #[test]
    fn a_driver_that_is_gone_fails_all_but_removes_none() {
        let mut state = state(None);
        state.apply(Input::Listed(Box::new(inventory("t4:2"))));
        let problem = DriverProblem {
            reason: "Driver Not Loaded".into(),
            remedy: "load it".into(),
        };
        state.apply(Input::DriverFailed(problem));
        assert_eq!(healthy(&state), [false; 4]);
        assert!(state.snapshot().labels.is_some());
        state.apply(Input::Listed(Box::new(inventory("t4:1"))));
        assert_eq!(state.snapshot().inventory.devices.len(), 2, "a missing GPU stays known");
        let failed = state.snapshot().failed;
        assert_eq!(failed.len(), 2, "{failed:?}");
    }

    #[test]
    fn a_gpu_that_is_listed_again_returns_after_good_probes() {
        let mut state = state(None);
        let (all, gpu) = (inventory("t4:2"), inventory("t4:2").devices[0].uuid.clone());
        // NVML counts anew when a card is gone: the other one takes over its index.
        let mut rest = all.clone();
        rest.devices.remove(0);
        rest.devices[0].index = 0;
        state.apply(Input::Listed(Box::new(all.clone())));
        for _ in 0..5 {
            let changes = state.apply(Input::Listed(Box::new(rest.clone())));
            assert!(changes.iter().all(|change| change.gpu == gpu && !change.healthy));
            state.apply(Input::Probed(vec![(gpu.clone(), Err("not found".into()))]));
        }
        let ids = |state: &State| {
            state.snapshot().offers[GPU_RESOURCE]
                .devices()
                .iter()
                .map(|device| device.id.clone())
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(
            (
                ids(&state).len(),
                healthy(&state).iter().filter(|healthy| **healthy).count()
            ),
            (4, 2)
        );
        let before = ids(&state);
        state.apply(Input::Listed(Box::new(all)));
        assert_eq!(
            healthy(&state),
            [false, false, true, true],
            "being listed is not enough"
        );
        for _ in 0..2 {
            assert!(state.apply(Input::Probed(vec![(gpu.clone(), Ok(()))])).is_empty());
        }
        assert_eq!(state.apply(Input::Probed(vec![(gpu, Ok(()))])).len(), 1);
        assert_eq!(healthy(&state), [true; 4]);
        assert_eq!(ids(&state), before, "the ids are the same");
    }

    #[test]
    fn the_tier_is_a_label_once_it_is_decided_and_the_last_runs_holds_until_then() {
        let tier = |snapshot: &Snapshot| snapshot.enforcement.as_ref().map(|decided| decided.tier);
        let decided = |tier| NodeEnforcement {
            tier,
            ..NodeEnforcement::switched_off()
        };
        let mut state = state(None).await_enforcement(Some(decided(EnforcementTier::Driver)));
        state.apply(Input::Listed(Box::new(inventory("t4"))));
        let pending = state.snapshot();
        assert_eq!(
            (tier(&pending), &pending.labels),
            (Some(EnforcementTier::Driver), &None)
        );
        state.apply(Input::Enforcement(Box::new(decided(EnforcementTier::Watch))));
        let after = state.snapshot();
        assert_eq!(tier(&after), Some(EnforcementTier::Watch));
        assert_eq!(after.labels.unwrap()["kai.scheduler/gpu-enforcement"], "watch");

        let mut empty = State::new(Policy::default(), Rules::default(), None).await_enforcement(None);
        empty.apply(Input::Listed(Box::default()));
        assert_eq!(
            empty.snapshot().labels,
            Some(Labels::new()),
            "a node without GPUs waits for nothing"
        );
    }

    #[test]
    fn a_node_without_gpus_offers_no_resource_and_has_no_labels() {
        let mut state = state(None);
        assert!(state.snapshot().offers.is_empty());
        state.apply(Input::Listed(Box::default()));
        assert!(state.snapshot().offers.is_empty());
        assert_eq!(state.snapshot().labels, Some(Labels::new()));
    }

    #[test]
    fn what_the_last_run_knew_and_this_driver_denies_is_dropped() {
        let mut state = state(Some(inventory("t4:2")));
        state.apply(Input::Listed(Box::new(inventory("t4:1"))));
        assert_eq!(state.snapshot().inventory.devices.len(), 1);
    }
}
