//! Why a pod waits and why a pod was evicted: as data, and in this file only, as text.

use std::sync::Arc;

use std::fmt;

use crate::model::{Action, GangKey, Gpus, Millis, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX};

/// Why a pod does not run.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The pod names no gang, or one that does not exist.
    GangMissing(Option<GangKey>),
    /// The gang names no queue (an empty name), or one that does not exist.
    QueueMissing(String),
    /// The gang names a queue whose ancestors lead to no root.
    QueueDisconnected {
        /// The queue.
        queue: String,
        /// The ancestor that does not exist; `None` = the ancestors form a cycle.
        missing: Option<String>,
    },
    /// The gang names a queue that has children.
    QueueNotLeaf(String),
    /// The pod names a subgroup that its gang does not have.
    UnknownSubGroup(String),
    /// The gang exceeds a bound on subgroups.
    SubGroupsExceeded(SubGroupExcess),
    /// The pod has scheduling gates.
    Gated,
    /// The pod or gang was refused before it came to the engine, for this reason; see [`PodSpec::refused`](crate::model::PodSpec).
    Refused(String),
    /// Too few pods of the gang exist.
    GangNotReady {
        /// Pods that exist and can start.
        ready: u32,
        /// Pods that must start together.
        required: u32,
        /// The first subgroups that lack pods, by name.
        lacking: Vec<PodsLacking>,
    },
    /// The pods would exceed the limit of a queue.
    OverLimit(QueueBound),
    /// The pods of a non-preemptible gang would exceed the quota of a queue.
    OverQuota(QueueBound),
    /// No node can take the pod.
    NoNode(Rejections),
    /// Too few pods of the gang fit on nodes.
    GangShort {
        /// Pods of the gang that would fit.
        placed: u32,
        /// Pods that must start together.
        required: u32,
        /// The subgroup that has too few; `None` = the gang itself.
        sub_group: Option<String>,
        /// Why the next pod does not fit.
        rejections: Rejections,
    },
    /// No domain of the required topology level can hold the gang or subgroup.
    NoDomain {
        /// Topology.
        topology: String,
        /// Level.
        level: String,
        /// Domains with the number of the pods that fit there, best first.
        domains: Vec<(String, u32)>,
        /// Pods that must be placed together.
        required: u32,
    },
    /// The topology or one of its levels does not exist.
    TopologyUnknown {
        /// Topology.
        topology: String,
        /// The level, if the level is missing.
        level: Option<String>,
    },
    /// The preemption delay of the gang is not over: it may not evict other gangs yet.
    PreemptionDelay {
        /// End of the delay.
        until: Millis,
    },
    /// The pod is pipelined.
    WaitsForRelease {
        /// The node.
        node: String,
    },
    /// The pod was evicted.
    Evicted(EvictionReason),
    /// The cycle did not try the pod.
    NotTried,
    /// The budget of the cycle was used up before the search for a node ended.
    CutShort,
}

/// A subgroup, or a gang without subgroups, that lacks pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsLacking {
    /// The subgroup; `None` = a gang without subgroups.
    pub sub_group: Option<String>,
    /// Pods that must start together.
    pub required: u32,
    /// Pods that exist and have not ended.
    pub existing: u32,
    /// Pods of them that have scheduling gates.
    pub gated: u32,
}

/// The text of KAI, which scripts look for in events.
impl fmt::Display for PodsLacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiting for {} pods", self.required)?;
        if let Some(name) = &self.sub_group {
            write!(f, " for SubGroup {name}")?;
        }
        write!(f, ", currently {} exist, {} are gated", self.existing, self.gated)
    }
}

/// Which bound on subgroups a gang exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubGroupExcess {
    /// The gang has this many subgroups, more than [`SUB_GROUPS_MAX`].
    Count(u32),
    /// The subgroups are nested deeper than [`SUB_GROUP_DEPTH_MAX`].
    Depth,
}

impl fmt::Display for SubGroupExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubGroupExcess::Count(count) => write!(
                f,
                "{count} subgroups are more than the {SUB_GROUPS_MAX} that a pod group may have; join some of them, or make several \
                 pod groups"
            ),
            SubGroupExcess::Depth => write!(
                f,
                "subgroups are nested more than {SUB_GROUP_DEPTH_MAX} levels deep; leave out levels"
            ),
        }
    }
}

/// A queue bound that a request would exceed, with the numbers that were compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// The queue: the gang's queue or an ancestor of it.
    pub queue: String,
    /// Which resource.
    pub resource: Resource,
    /// The bound.
    pub bound: i64,
    /// What counts against the bound already.
    pub used: i64,
    /// What was requested on top.
    pub requested: i64,
}

/// A resource that queues divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Milli-cores.
    Cpu,
    /// Bytes.
    Memory,
    /// Millionths of a GPU.
    Gpu,
}

impl Resource {
    /// All resources, in the order of arrays in queue views.
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Gpu];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "CPU",
            Resource::Memory => "memory",
            Resource::Gpu => "GPU",
        }
    }

    fn text(self, amount: i64) -> String {
        match self {
            Resource::Cpu => counted(&Decimal(amount, 1_000).to_string(), "core"),
            Resource::Memory => format!("{} GB of memory", Decimal(amount / 1_000_000, 1_000)),
            Resource::Gpu => counted(&Decimal(amount / 1_000, 1_000).to_string(), "GPU"),
        }
    }
}

/// `3 pods`, `1 pod`.
fn counted(number: &str, what: &str) -> String {
    format!("{number} {what}{}", if number == "1" { "" } else { "s" })
}

/// A point in time in the format of Kubernetes (RFC 3339, UTC).
struct Instant(Millis);

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.0.div_euclid(1000);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Days since 1970 to a date. Years begin in March here, in cycles of 400 years with 146,097 days.
        let shifted = days + 719_468;
        let (cycle, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = year + cycle * 400 + carry;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// A fixed-point number without trailing zeros.
struct Decimal(i64, i64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decimal(amount, unit) = *self;
        let (sign, amount, unit) = (
            if amount < 0 { "-" } else { "" },
            amount.unsigned_abs(),
            unit.unsigned_abs(),
        );
        write!(f, "{sign}{}", amount / unit)?;
        let digits = unit.ilog10() as usize;
        let rest = format!("{:0digits$}", amount % unit);
        let rest = rest.trim_end_matches('0');
        if rest.is_empty() { Ok(()) } else { write!(f, ".{rest}") }
    }
}

/// Why nodes can't take a pod: the first check that each node failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// Checks with the number of nodes that failed each, the most frequent first.
    pub checks: Vec<(Check, u32)>,
    /// Extended resources that the pod requests, if a node has too little of them.
    pub extended: Vec<String>,
    /// The gangs that hold the most GPUs on nodes which the pod may use, with these GPUs.
    pub holders: Arc<[(GangKey, Gpus)]>,
    /// Whether the victim search ended for lack of budget.
    pub search_cut: bool,
}

/// A check that a node failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Too few free GPUs.
    Gpus,
    /// No device has enough memory left.
    GpuMemory,
    /// The device is smaller than the request.
    GpuTooSmall,
    /// Too little CPU.
    Cpu,
    /// Too little memory.
    Memory,
    /// No free pod slot.
    PodSlots,
    /// Too little of another resource (MIG slices included).
    Extended,
    /// Cordoned.
    Unschedulable,
    /// Not ready or under pressure.
    NotReady,
    /// Node selector or required node affinity.
    NodeAffinity,
    /// Taints.
    Taints,
    /// A requested host port is in use.
    HostPorts,
    /// Pod affinity.
    PodAffinity,
    /// Pod anti-affinity.
    PodAntiAffinity,
    /// The MIG mode of the node does not suit the GPU request.
    MigMismatch,
    /// The memory of the node's GPUs is not known.
    GpuMemoryUnknown,
    /// What the pod would be charged on the node exceeds a queue bound.
    QueueBound,
    /// Outside the topology domain.
    Domain,
}

impl Check {
    /// Text for people.
    pub fn text(self) -> &'static str {
        match self {
            Check::Gpus => "node(s) didn't have enough resources: GPUs",
            Check::GpuMemory => "node(s) didn't have enough resources: GPU memory",
            Check::GpuTooSmall => "node(s) didn't have enough resources: GPU memory (the GPUs are too small)",
            Check::Cpu => "node(s) didn't have enough resources: CPU cores",
            Check::Memory => "node(s) didn't have enough resources: memory",
            Check::PodSlots => "node(s) pod number exceeded",
            Check::Extended => "node(s) didn't have enough resources: extended resources",
            Check::Unschedulable => "node is unschedulable",
            Check::NotReady => "node has NotReady condition or is under pressure",
            Check::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Check::Taints => "node(s) had untolerated taint(s)",
            Check::HostPorts => "node(s) didn't have free ports for the requested pod ports",
            Check::PodAffinity => "node(s) didn't match pod affinity rules",
            Check::PodAntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Check::MigMismatch => "node(s) whose MIG mode does not suit the GPU request",
            Check::GpuMemoryUnknown => "node(s) with unknown GPU memory (label nvidia.com/gpu.memory missing)",
            Check::QueueBound => "node(s) where it would pass a queue's bound",
            Check::Domain => "node(s) outside the topology domain",
        }
    }
}

/// Why a pod was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// For another gang.
    For {
        /// The action that evicted the pod.
        action: Action,
        /// The gang that gets the resources.
        gang: Arc<GangKey>,
        /// Whether the pod is already pipelined to another node.
        moved: bool,
        /// Pods evicted together.
        pods: u32,
    },
    /// The gang of the pod ran below its minimum for too long.
    StaleGang,
}

impl fmt::Display for GangKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for QueueBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueBound {
            queue,
            resource,
            bound,
            used,
            requested,
        } = self;
        let (bound, used, requested) = (resource.text(*bound), resource.text(*used), resource.text(*requested));
        write!(f, "queue {queue}: {bound}, {used} in use, {requested} more asked for")
    }
}

/// Displays a reason, with names for gangs that the reader knows.
#[derive(Clone, Copy)]
pub struct ReasonText<'a, T> {
    reason: &'a T,
    name: &'a dyn Fn(&GangKey) -> String,
}

impl<T> ReasonText<'_, T> {
    fn of<'b, U>(&'b self, reason: &'b U) -> ReasonText<'b, U> {
        ReasonText {
            reason,
            name: self.name,
        }
    }
}

impl<T> fmt::Debug for ReasonText<'_, T>
where
    Self: fmt::Display,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Reason {
    /// The reason as text, with these names for gangs.
    pub fn with_names<'a>(&'a self, name: &'a dyn Fn(&GangKey) -> String) -> ReasonText<'a, Reason> {
        ReasonText { reason: self, name }
    }
}

impl EvictionReason {
    /// The reason as text, with these names for gangs.
    pub fn with_names<'a>(&'a self, name: &'a dyn Fn(&GangKey) -> String) -> ReasonText<'a, EvictionReason> {
        ReasonText { reason: self, name }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.with_names(&GangKey::to_string))
    }
}

impl fmt::Display for EvictionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.with_names(&GangKey::to_string))
    }
}

impl fmt::Display for ReasonText<'_, Rejections> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rejections {
            checks,
            extended,
            holders,
            search_cut,
        } = self.reason;
        if checks.is_empty() {
            return write!(f, "there is no node");
        }
        for (at, (check, nodes)) in checks.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{nodes} ")?;
            match (check, extended.as_slice()) {
                (Check::Extended, [mig]) if crate::cluster::mig_slices(mig) > 0 => {
                    write!(f, "node(s) didn't have enough of mig profile: {mig}")?;
                }
                (Check::Extended, names) if !names.is_empty() => {
                    write!(f, "node(s) didn't have enough resources: {}", names.join(" or "))?;
                }
                _ => f.write_str(check.text())?,
            }
        }
        for (at, (name, gpus)) in sums_by_name(holders, self.name).iter().enumerate() {
            let lead = if at == 0 { "; held by" } else { "," };
            write!(f, "{lead} {name} ({})", Resource::Gpu.text(gpus.0))?;
        }
        if *search_cut {
            write!(
                f,
                "; the search for gangs to make room was cut short and goes on in a later cycle"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for ReasonText<'_, EvictionReason> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            EvictionReason::For {
                action,
                gang,
                moved,
                pods,
            } => {
                let what = match action {
                    Action::Reclaim => "reclaimed for",
                    Action::Preempt => "preempted by",
                    Action::Consolidation => "moved to make room for",
                    Action::Allocate | Action::StaleGangEviction => "evicted for",
                };
                let moved = if *moved && *action != Action::Consolidation {
                    "; it has a new place"
                } else {
                    ""
                };
                let gang = (self.name)(gang);
                write!(f, "{what} {gang} ({} in all{moved})", counted(&pods.to_string(), "pod"))
            }
            EvictionReason::StaleGang => write!(f, "its gang runs below its minimum for too long"),
        }
    }
}

impl fmt::Display for ReasonText<'_, Reason> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::GangMissing(None) => write!(f, "the pod belongs to no pod group (annotation pod-group-name)"),
            Reason::GangMissing(Some(gang)) => write!(f, "pod group {gang} does not exist"),
            Reason::QueueMissing(queue) if queue.is_empty() => {
                write!(f, "the pod group names no queue; write the name of one into spec.queue")
            }
            Reason::QueueMissing(queue) => write!(f, "queue {} does not exist", Name(queue)),
            Reason::QueueDisconnected { queue, missing } => write_disconnected(f, queue, missing.as_deref()),
            Reason::QueueNotLeaf(queue) => write!(f, "queue {} has child queues; name one of them", Name(queue)),
            Reason::UnknownSubGroup(name) => write!(f, "the pod group has no subgroup {}", Name(name)),
            Reason::SubGroupsExceeded(excess) => write!(f, "the pod group is not scheduled: {excess}"),
            Reason::Gated => write!(f, "scheduling gates are set"),
            Reason::Refused(text) => write!(f, "{text}"),
            Reason::GangNotReady { ready, required, .. } => {
                write!(f, "the gang has {ready} pods ready to start, {required} are required")
            }
            Reason::OverLimit(bound) => write!(f, "over the limit of {bound}"),
            Reason::OverQuota(bound) => write!(f, "non-preemptible and over the quota of {bound}"),
            Reason::NoNode(rejections) => {
                let rejections = self.of(rejections);
                write!(f, "no nodes with enough resources were found: {rejections}")
            }
            Reason::GangShort {
                placed,
                required,
                sub_group,
                rejections,
            } => {
                let rejections = self.of(rejections);
                match sub_group {
                    None => write!(f, "only {placed} of {required} pods of the gang fit: {rejections}"),
                    Some(name) => write!(
                        f,
                        "only {placed} pods fit while subgroup {name} requires {required}: {rejections}"
                    ),
                }
            }
            Reason::NoDomain {
                topology,
                level,
                domains,
                required,
            } => {
                let pods = counted(&required.to_string(), "pod");
                write!(f, "no {level} of topology {topology} can hold {pods} together")?;
                write_domains(f, domains)
            }
            Reason::TopologyUnknown { topology, level: None } => {
                write!(f, "topology {} does not exist", Name(topology))
            }
            Reason::TopologyUnknown {
                topology,
                level: Some(level),
            } => {
                write!(f, "topology {} has no level {}", Name(topology), Name(level))
            }
            Reason::PreemptionDelay { until } => {
                write!(
                    f,
                    "may not evict others before its preemption delay is over, at {}",
                    Instant(*until)
                )
            }
            Reason::WaitsForRelease { node } => write!(f, "waits for pods to leave node {node}"),
            Reason::Evicted(reason) => write!(f, "{}", self.of(reason)),
            Reason::NotTried => write!(f, "not reached in this cycle"),
            Reason::CutShort => write!(
                f,
                "the search for a place was cut short by the cycle's budget of work and goes on in the next cycles"
            ),
        }
    }
}

/// How many holders of GPUs a reason names.
const HOLDERS_NAMED_MAX: usize = 3;

/// The GPUs by the name of their holders, the largest sums first: pods of a Deployment are gangs of their own with one name.
fn sums_by_name(holders: &[(GangKey, Gpus)], name: &dyn Fn(&GangKey) -> String) -> Vec<(String, Gpus)> {
    let mut sums: Vec<(String, Gpus)> = Vec::new();
    for (gang, gpus) in holders {
        let name = name(gang);
        match sums.iter_mut().find(|(other, _)| *other == name) {
            Some((_, sum)) => sum.0 = sum.0.saturating_add(gpus.0),
            None => sums.push((name, *gpus)),
        }
    }
    sums.sort_by_key(|(_, gpus)| std::cmp::Reverse(gpus.0));
    sums.truncate(HOLDERS_NAMED_MAX);
    sums
}

/// A name in a sentence: as it is, or in quotes if it would not be seen as one word.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |letter: char| letter.is_ascii_graphic() && letter != '"';
        match !self.0.is_empty() && self.0.chars().all(plain) {
            true => f.write_str(self.0),
            false => write!(f, "{:?}", self.0),
        }
    }
}

fn write_disconnected(f: &mut fmt::Formatter<'_>, queue: &str, missing: Option<&str>) -> fmt::Result {
    let queue = Name(queue);
    match missing.map(Name) {
        Some(missing) => write!(
            f,
            "queue {queue} waits for queue {missing} above it, which does not exist; create {missing}, or change spec.parentQueue of the \
             queue that names it"
        ),
        None => write!(
            f,
            "queue {queue} is below itself; change spec.parentQueue of one of the queues above it"
        ),
    }
}

fn write_domains(f: &mut fmt::Formatter<'_>, domains: &[(String, u32)]) -> fmt::Result {
    for (at, (domain, fits)) in domains.iter().enumerate() {
        write!(f, "{} {domain}: {fits}", if at == 0 { "; room in" } else { "," })?;
    }
    Ok(())
}

/// The text of KAI for a gang that lacks pods.
pub fn not_ready_text(lacking: &[PodsLacking]) -> String {
    let sentences = lacking.iter().map(|lacking| format!(" {lacking}."));
    format!("Job is not ready for scheduling.{}", sentences.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_that_waits_for_pods_says_so_in_words_that_are_known_from_kai() {
        let lacking = |sub_group: Option<&str>| PodsLacking {
            sub_group: sub_group.map(str::to_owned),
            required: 2,
            existing: 1,
            gated: 0,
        };
        assert_eq!(
            not_ready_text(&[lacking(None)]),
            "Job is not ready for scheduling. Waiting for 2 pods, currently 1 exist, 0 are gated."
        );
        assert_eq!(
            not_ready_text(&[lacking(Some("a")), lacking(Some("b"))]),
            "Job is not ready for scheduling. Waiting for 2 pods for SubGroup a, currently 1 exist, 0 are gated. \
             Waiting for 2 pods for SubGroup b, currently 1 exist, 0 are gated."
        );
    }

    #[test]
    fn instants_are_written_as_dates() {
        let check = |seconds: i64, expect: &str| assert_eq!(Instant(Millis::seconds(seconds)).to_string(), expect);
        check(0, "1970-01-01T00:00:00Z");
        check(951_782_399, "2000-02-28T23:59:59Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_767_268_800, "2026-01-01T12:00:00Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
    }

    #[test]
    fn a_queue_is_missing_by_name_or_by_the_queue_above_it() {
        let check = |reason: Reason, expect: &str| assert_eq!(reason.to_string(), expect);
        check(Reason::QueueMissing("team".to_owned()), "queue team does not exist");
        check(
            Reason::QueueMissing(String::new()),
            "the pod group names no queue; write the name of one into spec.queue",
        );
        let cut_off = |missing: Option<&str>| Reason::QueueDisconnected {
            queue: "team".to_owned(),
            missing: missing.map(str::to_owned),
        };
        check(
            cut_off(Some("company")),
            "queue team waits for queue company above it, which does not exist; create company, or change spec.parentQueue of the \
             queue that names it",
        );
        check(
            cut_off(None),
            "queue team is below itself; change spec.parentQueue of one of the queues above it",
        );
    }

    #[test]
    fn a_name_that_is_no_word_is_in_quotes() {
        let check = |name: &str, expect: &str| {
            assert_eq!(Reason::QueueMissing(name.to_owned()).to_string(), expect);
        };
        check("team-a.b_c", "queue team-a.b_c does not exist");
        check("   ", "queue \"   \" does not exist");
        check("a b", "queue \"a b\" does not exist");
        check("a\n", "queue \"a\\n\" does not exist");
    }

    #[test]
    fn holders_of_one_name_are_summed() {
        let holder = |name: &str, millionths: i64| {
            let key = GangKey {
                namespace: "a".to_owned(),
                name: name.to_owned(),
            };
            (key, Gpus(millionths))
        };
        let held = Reason::NoNode(Rejections {
            checks: vec![(Check::Gpus, 2)],
            holders: Arc::new([
                holder("train", 400_000),
                holder("model-0", 250_000),
                holder("model-1", 250_000),
                holder("a", 200_000),
                holder("b", 100_000),
            ]),
            ..Rejections::default()
        });
        let name = |gang: &GangKey| match gang.name.split_once('-') {
            Some((name, _)) => format!("Deployment a/{name}"),
            None => format!("Job a/{}", gang.name),
        };
        let told = held.with_names(&name).to_string();
        assert!(
            told.ends_with("; held by Deployment a/model (0.5 GPUs), Job a/train (0.4 GPUs), Job a/a (0.2 GPUs)"),
            "{told}"
        );
    }

    #[test]
    fn nodes_are_counted_in_words_that_are_known_from_kai() {
        let rejections = Rejections {
            checks: vec![(Check::Gpus, 2), (Check::PodSlots, 1), (Check::Extended, 1)],
            extended: vec!["nvidia.com/mig-1g.5gb".to_owned()],
            holders: Arc::default(),
            search_cut: false,
        };
        let expect = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs, \
                      1 node(s) pod number exceeded, 1 node(s) didn't have enough of mig profile: nvidia.com/mig-1g.5gb";
        assert_eq!(Reason::NoNode(rejections).to_string(), expect);
    }

    #[test]
    fn gangs_are_called_as_the_reader_knows_them() {
        let gang = GangKey {
            namespace: "a".to_owned(),
            name: "pg-llm-0-uid".to_owned(),
        };
        let name = |gang: &GangKey| format!("Deployment {}/llm", gang.namespace);
        let held = Reason::NoNode(Rejections {
            checks: vec![(Check::Gpus, 2)],
            extended: Vec::new(),
            holders: Arc::new([(gang.clone(), Gpus::ONE)]),
            search_cut: false,
        });
        assert!(
            held.with_names(&name)
                .to_string()
                .ends_with("; held by Deployment a/llm (1 GPU)")
        );
        assert!(held.to_string().ends_with("; held by a/pg-llm-0-uid (1 GPU)"));
        let evicted = EvictionReason::For {
            action: Action::Preempt,
            gang: Arc::new(gang),
            moved: false,
            pods: 1,
        };
        assert_eq!(
            evicted.with_names(&name).to_string(),
            "preempted by Deployment a/llm (1 pod in all)"
        );
    }

    #[test]
    fn what_was_cut_short_says_so() {
        let rejections = Rejections {
            checks: vec![(Check::Gpus, 2)],
            search_cut: true,
            ..Rejections::default()
        };
        let expect = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs; the search for \
                      gangs to make room was cut short and goes on in a later cycle";
        assert_eq!(Reason::NoNode(rejections).to_string(), expect);
        let expect =
            "the search for a place was cut short by the cycle's budget of work and goes on in the next cycles";
        assert_eq!(Reason::CutShort.to_string(), expect);
    }

    #[test]
    fn amounts_read_naturally() {
        let bound = QueueBound {
            queue: "team".to_owned(),
            resource: Resource::Gpu,
            bound: 1_000_000,
            used: 500_000,
            requested: 2_000_000,
        };
        let expect = "over the limit of queue team: 1 GPU, 0.5 GPUs in use, 2 GPUs more asked for";
        assert_eq!(Reason::OverLimit(bound).to_string(), expect);
    }
}
