//! Decides which GPUs may be allocated: a state machine over health events and probe results. Pure and without a clock: hysteresis is
//! counted in probes. It returns the changes; `agent` passes them to the kubelet, the node condition and the log.

use std::collections::{BTreeMap, BTreeSet};

use kai_gpu::{Driver, GpuError, HealthEvent, HealthEventKind, Inventory, MigInstance};

use crate::allocator::plan::Unit;

/// Xids that an application causes and after which the GPU still works for the next application.
pub const IGNORED_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Xids after which a GPU may answer and still not work: only a reset clears them.
pub const STICKY_XIDS: [u64; 6] = [48, 64, 79, 95, 119, 120];

/// Every failure doubles the probes that a recovery needs, at most this many times.
const FLAPS_MAX: u32 = 4;

/// After this many successful probes in a row, earlier failures no longer slow a recovery down (an hour at the default interval).
const FORGIVEN_AFTER_PROBES: u32 = 720;

/// Probes one GPU. A driver that does not support probes counts as an answer.
pub fn probe(driver: &dyn Driver, uuid: &str) -> Result<(), GpuError> {
    match driver.probe(uuid) {
        Err(error) if error.is_not_supported() => Ok(()),
        answer => answer,
    }
}

/// What makes a GPU unhealthy, and what makes it healthy again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Xids that never make a GPU unhealthy.
    pub ignored_xids: BTreeSet<u64>,
    /// Xids after which the GPU stays unhealthy until it was reset.
    pub sticky_xids: BTreeSet<u64>,
    /// Successful probes in a row before a GPU is healthy again after its first failure.
    pub good_probes_needed: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            ignored_xids: IGNORED_XIDS.into(),
            sticky_xids: STICKY_XIDS.into(),
            good_probes_needed: 3,
        }
    }
}

impl Rules {
    /// Successful probes in a row that are enough however often a GPU has failed.
    pub fn good_probes_needed_max(&self) -> u32 {
        self.good_probes_needed << FLAPS_MAX
    }
}

/// A GPU or MIG device became healthy or unhealthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// UUID of the physical GPU.
    pub gpu: String,
    /// GPU instance id and compute instance id, if only one MIG device changed.
    pub mig: Option<(u32, u32)>,
    /// The new state.
    pub healthy: bool,
    /// Why, in words for operators.
    pub reason: String,
}

/// The health of all GPUs of the node.
#[derive(Debug, Clone)]
pub struct Health {
    rules: Rules,
    subjects: BTreeMap<Subject, State>,
}

/// A GPU, or one MIG device of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    gpu: String,
    mig: Option<(u32, u32)>,
}

#[derive(Debug, Clone, Default)]
struct State {
    failure: Option<Failure>,
    /// Number of recent failures; each one slows the next recovery down.
    flaps: u32,
    good_probes: u32,
}

#[derive(Debug, Clone)]
struct Failure {
    reason: String,
    /// Whether only a reset ends the failure.
    sticky: bool,
}

impl Health {
    /// Starts with all GPUs healthy.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            subjects: BTreeMap::new(),
        }
    }

    /// Follows the inventory: new GPUs are healthy, and the state of removed GPUs is dropped.
    pub fn track(&mut self, inventory: &Inventory) {
        let known = |subject: &Subject| {
            let device = inventory.devices.iter().find(|device| device.uuid == subject.gpu);
            device.is_some_and(|device| {
                subject.mig.is_none_or(|mig| {
                    device
                        .mig_devices
                        .iter()
                        .any(|other| (other.gpu_instance_id, other.compute_instance_id) == mig)
                })
            })
        };
        self.subjects.retain(|subject, _| known(subject));
        for device in &inventory.devices {
            self.subjects
                .entry(Subject {
                    gpu: device.uuid.clone(),
                    mig: None,
                })
                .or_default();
        }
    }

    /// Whether a unit may be allocated: its GPU is healthy and, for a MIG device, the MIG device too.
    pub fn allows(&self, unit: &Unit) -> bool {
        self.problem(unit).is_none()
    }

    /// Why a unit may not be allocated.
    pub fn problem(&self, unit: &Unit) -> Option<&str> {
        let failure = |mig| {
            let state = self.subjects.get(&Subject {
                gpu: unit.gpu.clone(),
                mig,
            })?;
            state.failure.as_ref().map(|failure| failure.reason.as_str())
        };
        failure(None).or_else(|| unit.mig.and_then(|mig| failure(Some(mig))))
    }

    /// UUIDs of GPUs that are unhealthy as a whole or in part, with the reason.
    pub fn failed(&self) -> Vec<(String, String)> {
        let failed = self
            .subjects
            .iter()
            .filter_map(|(subject, state)| Some((subject, state.failure.as_ref()?)));
        failed
            .map(|(subject, failure)| match subject.mig {
                None => (subject.gpu.clone(), failure.reason.clone()),
                Some((gi, ci)) => (
                    format!("{} (MIG instance {gi}/{ci})", subject.gpu),
                    failure.reason.clone(),
                ),
            })
            .collect()
    }

    /// Applies an event that the driver reported.
    pub fn event(&mut self, event: &HealthEvent) -> Vec<Change> {
        let (reason, sticky) = match &event.kind {
            HealthEventKind::Xid(xid) if self.rules.ignored_xids.contains(xid) => return Vec::new(),
            HealthEventKind::Xid(xid) => (
                format!("Xid {xid}{}", xid_description(*xid)),
                self.rules.sticky_xids.contains(xid),
            ),
            HealthEventKind::DoubleBitEcc => ("uncorrectable memory error".to_owned(), true),
            HealthEventKind::Lost { reason } => (reason.clone(), false),
            HealthEventKind::Recovered => return self.clear_sticky(event),
            HealthEventKind::InventoryChanged => return Vec::new(),
        };
        let subjects = self.affected(event);
        subjects
            .into_iter()
            .filter_map(|subject| self.fail(subject, reason.clone(), sticky))
            .collect()
    }

    /// Applies the result of a probe: `Err` is the reason why the GPU did not answer.
    pub fn probed(&mut self, gpu: &str, answer: Result<(), String>) -> Vec<Change> {
        match answer {
            Ok(()) => self.record_good_probe(gpu),
            Err(reason) => {
                // A GPU that answers again after this has been reset, so its failures are no longer sticky.
                for (_, state) in self.subjects.iter_mut().filter(|(subject, _)| subject.gpu == gpu) {
                    if let Some(failure) = &mut state.failure {
                        failure.sticky = false;
                    }
                }
                self.fail(
                    Subject {
                        gpu: gpu.to_owned(),
                        mig: None,
                    },
                    reason,
                    false,
                )
                .into_iter()
                .collect()
            }
        }
    }

    fn record_good_probe(&mut self, gpu: &str) -> Vec<Change> {
        let mut changes = Vec::new();
        for (subject, state) in self.subjects.iter_mut().filter(|(subject, _)| subject.gpu == gpu) {
            state.good_probes = state.good_probes.saturating_add(1);
            let needed = self.rules.good_probes_needed << state.flaps.saturating_sub(1).min(FLAPS_MAX);
            match &state.failure {
                Some(failure) if !failure.sticky && state.good_probes >= needed => {
                    let reason = format!("answers again after: {}", failure.reason);
                    changes.push(Change {
                        gpu: subject.gpu.clone(),
                        mig: subject.mig,
                        healthy: true,
                        reason,
                    });
                    state.failure = None;
                    state.good_probes = 0;
                }
                Some(_) => {}
                None if state.good_probes >= FORGIVEN_AFTER_PROBES => state.flaps = 0,
                None => {}
            }
        }
        changes
    }

    fn fail(&mut self, subject: Subject, reason: String, sticky: bool) -> Option<Change> {
        let state = self.subjects.entry(subject.clone()).or_default();
        state.good_probes = 0;
        if let Some(failure) = &mut state.failure {
            failure.sticky |= sticky;
            return None;
        }
        state.flaps = state.flaps.saturating_add(1);
        state.failure = Some(Failure {
            reason: reason.clone(),
            sticky,
        });
        Some(Change {
            gpu: subject.gpu,
            mig: subject.mig,
            healthy: false,
            reason,
        })
    }

    /// The driver reports that the GPU is back. Its failures are no longer sticky, but probes still have to succeed.
    fn clear_sticky(&mut self, event: &HealthEvent) -> Vec<Change> {
        for (subject, state) in &mut self.subjects {
            if event.uuid.as_ref().is_none_or(|gpu| *gpu == subject.gpu)
                && let Some(failure) = &mut state.failure
            {
                failure.sticky = false;
            }
        }
        Vec::new()
    }

    fn affected(&self, event: &HealthEvent) -> Vec<Subject> {
        let mig = event.mig.map(
            |MigInstance {
                 gpu_instance_id,
                 compute_instance_id,
             }| (gpu_instance_id, compute_instance_id),
        );
        match &event.uuid {
            Some(gpu) => vec![Subject { gpu: gpu.clone(), mig }],
            None => self
                .subjects
                .keys()
                .filter(|subject| subject.mig.is_none())
                .cloned()
                .collect(),
        }
    }
}

/// The meaning of frequent Xids, for messages.
fn xid_description(xid: u64) -> &'static str {
    match xid {
        48 => " (double-bit ECC error)",
        61 | 62 => " (internal micro-controller halt)",
        63 => " (memory row remapped)",
        64 => " (memory row could not be remapped)",
        74 => " (NVLink error)",
        79 => " (GPU has fallen off the bus)",
        92 => " (high single-bit ECC error rate)",
        94 => " (contained memory error)",
        95 => " (uncontained memory error)",
        119 | 120 => " (GSP firmware does not answer)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use kai_gpu::Driver;
    use kai_gpu::fake::{FakeDriver, Settings};

    use super::*;
    use crate::allocator::plan::{MigStrategy, Plan, Policy, plan};

    fn start(settings: &str) -> (Health, Inventory, Plan) {
        let settings = settings.parse::<Settings>().unwrap().seeded("node");
        let inventory = FakeDriver::new(&settings).unwrap().devices().unwrap();
        let mut health = Health::new(Rules::default());
        health.track(&inventory);
        let plan = plan(
            &inventory,
            &Policy {
                mig: MigStrategy::Mixed,
                ..Policy::default()
            },
        );
        (health, inventory, plan)
    }

    fn xid(gpu: &str, xid: u64) -> HealthEvent {
        HealthEvent {
            uuid: Some(gpu.to_owned()),
            mig: None,
            kind: HealthEventKind::Xid(xid),
        }
    }

    #[test]
    fn a_gpu_that_answers_again_comes_back_after_three_good_probes() {
        let (mut health, inventory, _) = start("t4");
        let gpu = &inventory.devices[0].uuid;
        assert_eq!(health.probed(gpu, Err("GPU is lost".into())).len(), 1);
        assert!(health.probed(gpu, Err("GPU is lost".into())).is_empty(), "nothing new");
        assert!(health.probed(gpu, Ok(())).is_empty());
        assert!(
            health.probed(gpu, Err("GPU is lost".into())).is_empty(),
            "starts the count again"
        );
        assert!(health.probed(gpu, Ok(())).is_empty());
        assert!(health.probed(gpu, Ok(())).is_empty());
        let back = health.probed(gpu, Ok(()));
        assert!(back[0].healthy && back[0].reason.contains("GPU is lost"), "{back:?}");
    }

    #[test]
    fn flapping_makes_recovery_slower_up_to_a_bound() {
        let (mut health, inventory, _) = start("t4");
        let gpu = &inventory.devices[0].uuid;
        let mut probes_needed = Vec::new();
        for _ in 0..8 {
            health.probed(gpu, Err("lost".into()));
            let mut probes = 1;
            while health.probed(gpu, Ok(())).is_empty() {
                probes += 1;
            }
            probes_needed.push(probes);
        }
        assert_eq!(probes_needed, [3, 6, 12, 24, 48, 48, 48, 48]);
    }

    #[test]
    fn application_errors_are_ignored_and_hard_ones_stick_until_a_reset() {
        let (mut health, inventory, _) = start("t4");
        let gpu = &inventory.devices[0].uuid;
        for ignored in IGNORED_XIDS {
            assert!(health.event(&xid(gpu, ignored)).is_empty());
        }
        assert_eq!(health.event(&xid(gpu, 48)).len(), 1);
        for _ in 0..100 {
            assert!(health.probed(gpu, Ok(())).is_empty(), "answers, but was not reset");
        }
        health.event(&HealthEvent {
            uuid: Some(gpu.clone()),
            mig: None,
            kind: HealthEventKind::Recovered,
        });
        assert_eq!(health.probed(gpu, Ok(())).len(), 1);
        // A reset is also seen as a GPU that stops to answer.
        health.event(&xid(gpu, 79));
        health.probed(gpu, Err("GPU is lost".into()));
        let back = (0..6).map(|_| health.probed(gpu, Ok(())).len()).sum::<usize>();
        assert_eq!(back, 1);
    }

    #[test]
    fn every_slice_of_a_failed_gpu_fails_but_a_slice_fails_alone() {
        let (mut health, inventory, plan) = start("a100-40:1/1g.5gb*3,a100-40");
        let slices = &plan
            .resources
            .iter()
            .find(|resource| resource.name.contains("mig"))
            .unwrap()
            .units;
        let gpu = &inventory.devices[0].uuid;
        let (gi, ci) = slices[1].mig.unwrap();
        let mut event = xid(gpu, 94);
        event.mig = Some(MigInstance {
            gpu_instance_id: gi,
            compute_instance_id: ci,
        });
        let changes = health.event(&event);
        assert_eq!(changes[0].mig, Some((gi, ci)));
        assert_eq!(
            slices.iter().map(|unit| health.allows(unit)).collect::<Vec<_>>(),
            [true, false, true]
        );
        health.event(&xid(gpu, 79));
        assert!(slices.iter().all(|unit| !health.allows(unit)));
        let other = &plan
            .resources
            .iter()
            .find(|resource| !resource.name.contains("mig"))
            .unwrap()
            .units[0];
        assert!(health.allows(other));
    }

    #[test]
    fn a_lost_driver_fails_all_and_what_left_the_inventory_is_forgotten() {
        let (mut health, mut inventory, _) = start("t4:2");
        let kind = HealthEventKind::Lost {
            reason: "Driver Not Loaded".into(),
        };
        assert_eq!(
            health
                .event(&HealthEvent {
                    uuid: None,
                    mig: None,
                    kind
                })
                .len(),
            2
        );
        assert_eq!(health.failed().len(), 2);
        inventory.devices.truncate(1);
        health.track(&inventory);
        assert_eq!(health.failed().len(), 1);
    }
}
