//! Decides what happens to pods that use more GPU memory than their share: after a grace an event, and an eviction if that is wanted. Pure: the
//! shell passes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

const MIB: u64 = 1 << 20;
/// A pod that stays above its share is told again after this time. Events expire after an hour.
pub const TELL_AGAIN: Duration = Duration::from_secs(600);
/// Until an eviction is tried again: the API server may refuse it because of a disruption budget.
pub const EVICT_AGAIN: Duration = Duration::from_secs(60);

/// What the agent does to a pod that escaped its limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Repair {
    /// It reports the pod.
    #[default]
    None,
    /// It reports the pod and evicts it.
    Evict,
}

/// A pod with a GPU share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharePod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The container with the share.
    pub container: String,
    /// What it may use on each GPU of the node, in MiB by the GPU's UUID.
    pub share_mib: BTreeMap<String, u64>,
}

/// Memory that the processes of a pod use on one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsedMemory {
    /// The sum of what the driver says.
    pub bytes: u64,
    /// Processes whose memory the driver does not say.
    pub unmeasured: u32,
}

/// What pods use of the GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Used memory by pod UID and GPU UUID.
    pub used: BTreeMap<(String, String), UsedMemory>,
    /// UUIDs of the GPUs that did not answer: what is used of them is not known.
    pub unanswered: BTreeSet<String>,
}

/// What to do about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Record a Warning event with this message.
    Tell {
        /// The pod.
        pod: SharePod,
        /// What it uses, and what it may.
        message: String,
    },
    /// Evict the pod.
    Evict {
        /// The pod.
        pod: SharePod,
        /// What it uses, and what it may.
        message: String,
    },
}

/// One pod on one GPU, for the metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The pod.
    pub pod: SharePod,
    /// UUID of the GPU.
    pub gpu: String,
    /// What it uses.
    pub used: UsedMemory,
    /// What it may use, in bytes.
    pub share_bytes: u64,
    /// Whether it is above its share for longer than the grace.
    pub exceeded: bool,
}

/// How long a pod has been above its share on a GPU.
#[derive(Debug, Clone, Copy)]
struct Excess {
    since: Instant,
    told: Option<Instant>,
}

/// The pods above their share. One task owns it.
#[derive(Debug)]
pub struct ExcessWatch {
    grace: Duration,
    repair: Repair,
    /// The longest time between two measurements that belong together.
    gap_max: Duration,
    /// When the last measurement was made.
    observed: Option<Instant>,
    /// By pod and GPU.
    excesses: BTreeMap<(String, String), Excess>,
    /// When the eviction of a pod was last tried, by UID.
    evicted: BTreeMap<String, Instant>,
}

impl ExcessWatch {
    /// Nothing was seen yet.
    pub fn new(grace: Duration, repair: Repair, gap_max: Duration) -> Self {
        Self {
            grace,
            repair,
            gap_max,
            observed: None,
            excesses: BTreeMap::new(),
            evicted: BTreeMap::new(),
        }
    }

    /// Forgets which pods are above their share: the node is not watched any more, or was not measured for too long.
    pub fn forget(&mut self) {
        self.excesses.clear();
        self.observed = None;
    }

    /// Applies one measurement. A pod that is below its share once begins anew.
    pub fn observe(&mut self, now: Instant, pods: &[SharePod], usage: &Usage) -> (Vec<Action>, Vec<Watched>) {
        if self
            .observed
            .is_some_and(|last| now.duration_since(last) > self.gap_max)
        {
            self.forget();
        }
        self.observed = Some(now);
        let (mut actions, mut watched) = (Vec::new(), Vec::new());
        let mut above = BTreeSet::new();
        for pod in pods {
            let mut exceeds = None;
            for (gpu, share_mib) in &pod.share_mib {
                let key = (pod.uid.clone(), gpu.clone());
                let Some(used) = usage.used.get(&key).copied() else {
                    continue;
                };
                let share_bytes = share_mib.saturating_mul(MIB);
                let mut exceeded = false;
                if used.bytes > share_bytes {
                    above.insert(key.clone());
                    let excess = self.excesses.entry(key).or_insert(Excess { since: now, told: None });
                    exceeded = now.duration_since(excess.since) > self.grace;
                    if exceeded {
                        let message = message(gpu, used.bytes, *share_mib, self.grace);
                        if is_due(now, excess.told, TELL_AGAIN) {
                            excess.told = Some(now);
                            let (pod, message) = (pod.clone(), message.clone());
                            actions.push(Action::Tell { pod, message });
                        }
                        exceeds.get_or_insert(message);
                    }
                }
                let (pod, gpu) = (pod.clone(), gpu.clone());
                watched.push(Watched {
                    pod,
                    gpu,
                    used,
                    share_bytes,
                    exceeded,
                });
            }
            if let (Repair::Evict, Some(message)) = (self.repair, exceeds)
                && is_due(now, self.evicted.get(&pod.uid).copied(), EVICT_AGAIN)
            {
                self.evicted.insert(pod.uid.clone(), now);
                let pod = pod.clone();
                actions.push(Action::Evict { pod, message });
            }
        }
        self.excesses
            .retain(|key, _| above.contains(key) || usage.unanswered.contains(&key.1));
        self.evicted.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
        (actions, watched)
    }
}

fn is_due(now: Instant, last: Option<Instant>, pause: Duration) -> bool {
    last.is_none_or(|last| now.duration_since(last) >= pause)
}

fn message(gpu: &str, used_bytes: u64, share_mib: u64, grace: Duration) -> String {
    let used_mib = used_bytes.div_ceil(MIB);
    format!(
        "the pod uses {used_mib} MiB of GPU {gpu}, its share is {share_mib} MiB, for more than {} seconds; lower its use (CUDA contexts count, \
         too) or request a larger share",
        grace.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);
    const GAP_MAX: Duration = Duration::from_secs(600);

    fn pod(name: &str, share_mib: u64) -> SharePod {
        SharePod {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            container: "main".to_owned(),
            share_mib: ["GPU-0", "GPU-1"].map(|gpu| (gpu.to_owned(), share_mib)).into(),
        }
    }

    fn usage(entries: &[(&str, &str, u64)]) -> Usage {
        let used = |mib| UsedMemory {
            bytes: mib * MIB,
            unmeasured: 0,
        };
        let entries = entries.iter();
        let entries = entries.map(|(pod, gpu, mib)| ((format!("uid-{pod}"), (*gpu).to_owned()), used(*mib)));
        Usage {
            used: entries.collect(),
            unanswered: BTreeSet::new(),
        }
    }

    fn words(actions: &[Action]) -> Vec<String> {
        let word = |action: &Action| match action {
            Action::Tell { pod, .. } => format!("tell {}", pod.name),
            Action::Evict { pod, .. } => format!("evict {}", pod.name),
        };
        actions.iter().map(word).collect()
    }

    /// Seconds, the MiB of pods on GPUs then, and what is done.
    type Step<'a> = (u64, &'a [(&'a str, &'a str, u64)], &'a [&'a str]);

    #[track_caller]
    fn check(repair: Repair, steps: &[Step]) {
        let start = Instant::now();
        let mut watch = ExcessWatch::new(GRACE, repair, GAP_MAX);
        let pods = [pod("a", 100), pod("b", 200)];
        for (second, entries, wanted) in steps {
            let (actions, _) = watch.observe(start + Duration::from_secs(*second), &pods, &usage(entries));
            assert_eq!(words(&actions), *wanted, "after {second} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_told_once_it_was_above_its_share_for_longer_than_the_grace() {
        let above: &[(&str, &str, u64)] = &[("a", "GPU-0", 101), ("b", "GPU-0", 200)];
        let within: &[(&str, &str, u64)] = &[("a", "GPU-0", 100)];
        check(
            Repair::None,
            &[
                (0, above, &[]),
                (60, above, &[]),
                (61, above, &["tell a"]),
                (75, above, &[]),
                (660, above, &[]),
                (661, above, &["tell a"]),
                (700, within, &[]),
                (710, above, &[]),
                (770, above, &[]),
                (771, above, &["tell a"]),
            ],
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_gpu_that_did_not_answer_once_ends_no_excess() {
        let start = Instant::now();
        let mut watch = ExcessWatch::new(GRACE, Repair::None, GAP_MAX);
        let pods = [pod("a", 100)];
        let above = usage(&[("a", "GPU-0", 101)]);
        let unknown = Usage {
            unanswered: ["GPU-0".to_owned()].into(),
            ..Usage::default()
        };
        for (second, usage) in [(0, &above), (15, &unknown), (30, &above), (60, &above)] {
            let (actions, _) = watch.observe(start + Duration::from_secs(second), &pods, usage);
            assert_eq!(words(&actions), [""; 0], "after {second} s");
        }
        let (actions, _) = watch.observe(start + Duration::from_secs(61), &pods, &above);
        assert_eq!(words(&actions), ["tell a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_begins_anew_after_a_gap_between_measurements() {
        let above: &[(&str, &str, u64)] = &[("a", "GPU-0", 101)];
        check(
            Repair::Evict,
            &[
                (0, above, &[]),
                (601, above, &[]),
                (661, above, &[]),
                (662, above, &["tell a", "evict a"]),
            ],
        );
        let start = Instant::now();
        let mut watch = ExcessWatch::new(GRACE, Repair::None, GAP_MAX);
        let pods = [pod("a", 100)];
        watch.observe(start, &pods, &usage(above));
        watch.forget();
        let (actions, _) = watch.observe(start + GRACE * 2, &pods, &usage(above));
        assert!(actions.is_empty(), "the node had another tier meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_above_every_memory_is_never_exceeded() {
        let mut watch = ExcessWatch::new(GRACE, Repair::None, GAP_MAX);
        let (_, watched) = watch.observe(Instant::now(), &[pod("a", u64::MAX)], &usage(&[("a", "GPU-0", 1)]));
        assert_eq!(watched[0].share_bytes, u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn an_eviction_follows_the_event_and_is_tried_again() {
        let above: &[(&str, &str, u64)] = &[("b", "GPU-0", 300), ("b", "GPU-1", 300)];
        check(
            Repair::Evict,
            &[
                (0, above, &[]),
                (61, above, &["tell b", "tell b", "evict b"]),
                (100, above, &[]),
                (121, above, &["evict b"]),
            ],
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_are_not_known_and_gpus_without_a_share_do_not_count() {
        let others: &[(&str, &str, u64)] = &[("stranger", "GPU-0", 9000), ("a", "GPU-7", 9000)];
        check(Repair::Evict, &[(0, others, &[]), (100, others, &[])]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_message_has_the_numbers_and_the_metrics_have_every_pod() {
        let start = Instant::now();
        let mut watch = ExcessWatch::new(GRACE, Repair::None, GAP_MAX);
        let pods = [pod("a", 100), pod("b", 200)];
        let used = usage(&[("a", "GPU-0", 150), ("b", "GPU-1", 20)]);
        watch.observe(start, &pods, &used);
        let (actions, watched) = watch.observe(start + GRACE * 2, &pods, &used);
        let [Action::Tell { message, .. }] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(
            message,
            "the pod uses 150 MiB of GPU GPU-0, its share is 100 MiB, for more than 60 seconds; lower its use (CUDA contexts count, too) or \
             request a larger share"
        );
        let told: Vec<_> = watched
            .iter()
            .map(|watched| (watched.pod.name.as_str(), watched.gpu.as_str(), watched.exceeded))
            .collect();
        assert_eq!(told, [("a", "GPU-0", true), ("b", "GPU-1", false)]);
    }
}
