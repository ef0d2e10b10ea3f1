//! Why a pod waits and why one was evicted: data first, then the one place that turns it into text.

use std::sync::Arc;

use std::fmt;

use crate::model::{Action, GangKey, Gpus, Millis, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX};

/// Why a pod does not run.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// It names no gang, or one that does not exist.
    GangMissing(Option<GangKey>),
    /// Its gang names no queue (an empty name), or one that does not exist.
    QueueMissing(String),
    /// Its gang names a queue that has no way to a root.
    QueueCutOff {
        /// The queue.
        queue: String,
        /// The queue above it that does not exist; `None` = the queues above it form a cycle.
        missing: Option<String>,
    },
    /// Its gang names a queue that has children.
    QueueNotLeaf(String),
    /// It names a subgroup that its gang does not have.
    UnknownSubGroup(String),
    /// Its gang has more subgroups than are scheduled.
    SubGroupsExceeded(SubGroupExcess),
    /// Scheduling gates hold it.
    Gated,
    /// The edge can't serve it, in the edge's words.
    Refused(String),
    /// The gang waits for more of its pods to exist.
    GangNotReady {
        /// Pods that could start.
        ready: u32,
        /// Pods that must start together.
        required: u32,
        /// The first of the subgroups that lack pods, by name.
        lacking: Vec<PodsLacking>,
    },
    /// A queue's limit would be passed.
    OverLimit(QueueBound),
    /// A pod that can't be evicted must stay within its queue's quota.
    OverQuota(QueueBound),
    /// No node can take it.
    NoNode(Rejections),
    /// Other pods of its gang found no node.
    GangShort {
        /// Pods of the gang that would have found a place.
        placed: u32,
        /// Pods that must start together.
        required: u32,
        /// The subgroup that fell short; `None` = the gang itself.
        sub_group: Option<String>,
        /// Why the next pod found none.
        rejections: Rejections,
    },
    /// No domain of the required topology level can hold the group.
    NoDomain {
        /// Topology.
        topology: String,
        /// Level.
        level: String,
        /// Domains and how many of the pods each could take, best first.
        domains: Vec<(String, u32)>,
        /// Pods to be placed together.
        required: u32,
    },
    /// The topology or one of its levels does not exist.
    TopologyUnknown {
        /// Topology.
        topology: String,
        /// Level, if it is the level that is missing.
        level: Option<String>,
    },
    /// It may not evict others yet.
    PreemptionDelay {
        /// Until then.
        until: Millis,
    },
    /// It has a place and waits for it to become free.
    WaitsForRelease {
        /// The node.
        node: String,
    },
    /// It was evicted.
    Evicted(EvictionReason),
    /// It was not reached in this cycle.
    NotTried,
    /// The cycle's budget of work was used up before it was known whether there is a place.
    CutShort,
}

/// A subgroup that lacks pods, or a gang without subgroups that does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodsLacking {
    /// The subgroup; `None` = the gang has none.
    pub sub_group: Option<String>,
    /// Pods that must start together.
    pub required: u32,
    /// Pods that exist and have not ended.
    pub existing: u32,
    /// Those of them that scheduling gates hold.
    pub gated: u32,
}

/// In KAI's words, which scripts look for in events.
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
    /// It has this many subgroups, more than [`SUB_GROUPS_MAX`].
    Count(u32),
    /// Its subgroups are nested deeper than [`SUB_GROUP_DEPTH_MAX`].
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

/// A queue bound that was hit, with the numbers that were compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// The queue; it may be an ancestor of the gang's own.
    pub queue: String,
    /// Which resource.
    pub resource: Resource,
    /// The bound.
    pub bound: i64,
    /// What counts against it already.
    pub used: i64,
    /// What was asked on top.
    pub requested: i64,
}

/// A resource that queues share out.
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
    /// In the order of all queue arrays.
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

/// A point in time as people and Kubernetes write it, in UTC.
struct Instant(Millis);

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.0.div_euclid(1000);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Days since 1970 to a date: years that begin in March, in cycles of 400 years of 146,097 days.
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

/// Why nodes could not take a pod: the first check that each of them failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejections {
    /// Checks and how many nodes failed each, most first.
    pub checks: Vec<(Check, u32)>,
    /// Extended resources that the pod asks for, where some node has too little of them.
    pub extended: Vec<String>,
    /// Who holds the most of the short resource on nodes that would otherwise do: gang and its GPUs there.
    pub holders: Vec<(GangKey, Gpus)>,
    /// The search for gangs that could make room was cut short.
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
    /// No pod slot.
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
    /// A host port is taken.
    HostPorts,
    /// Pod affinity.
    PodAffinity,
    /// Pod anti-affinity.
    PodAntiAffinity,
    /// MIG pods and others don't mix there.
    MigMismatch,
    /// The memory of its GPUs is not known.
    GpuMemoryUnknown,
    /// The queue's bound is passed by what the pod would take there.
    QueueBound,
    /// Outside the topology domain.
    Domain,
}

impl Check {
    /// What the check found, for people.
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

/// Why and for whom a pod was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// For another gang.
    For {
        /// What evicted it.
        action: Action,
        /// Who gets the room.
        gang: Arc<GangKey>,
        /// Whether it has a new place already.
        moved: bool,
        /// Pods evicted together.
        pods: u32,
    },
    /// Its own gang fell below its minimum.
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

/// A reason in words, in which gangs are called as the reader knows them.
#[derive(Clone, Copy)]
pub struct Told<'a, T> {
    what: &'a T,
    name: &'a dyn Fn(&GangKey) -> String,
}

impl<T> Told<'_, T> {
    fn of<'b, U>(&'b self, what: &'b U) -> Told<'b, U> {
        Told { what, name: self.name }
    }
}

impl<T> fmt::Debug for Told<'_, T>
where
    Self: fmt::Display,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Reason {
    /// The reason in words, with these names for gangs.
    pub fn told<'a>(&'a self, name: &'a dyn Fn(&GangKey) -> String) -> Told<'a, Reason> {
        Told { what: self, name }
    }
}

impl EvictionReason {
    /// The reason in words, with these names for gangs.
    pub fn told<'a>(&'a self, name: &'a dyn Fn(&GangKey) -> String) -> Told<'a, EvictionReason> {
        Told { what: self, name }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.told(&GangKey::to_string))
    }
}

impl fmt::Display for EvictionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.told(&GangKey::to_string))
    }
}

impl fmt::Display for Told<'_, Rejections> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rejections {
            checks,
            extended,
            holders,
            search_cut,
        } = self.what;
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
        for (at, (gang, gpus)) in holders.iter().enumerate() {
            let lead = if at == 0 { "; held by" } else { "," };
            write!(f, "{lead} {} ({})", (self.name)(gang), Resource::Gpu.text(gpus.0))?;
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

impl fmt::Display for Told<'_, EvictionReason> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
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

impl fmt::Display for Told<'_, Reason> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Reason::GangMissing(None) => write!(f, "the pod belongs to no pod group (annotation pod-group-name)"),
            Reason::GangMissing(Some(gang)) => write!(f, "pod group {gang} does not exist"),
            Reason::QueueMissing(queue) if queue.is_empty() => {
                write!(f, "the pod group names no queue; write the name of one into spec.queue")
            }
            Reason::QueueMissing(queue) => write!(f, "queue {queue} does not exist"),
            Reason::QueueCutOff {
                queue,
                missing: Some(missing),
            } => write!(
                f,
                "queue {queue} waits for queue {missing} above it, which does not exist; create {missing}, or change spec.parentQueue of \
                 the queue that names it"
            ),
            Reason::QueueCutOff { queue, missing: None } => write!(
                f,
                "queue {queue} is below itself; change spec.parentQueue of one of the queues above it"
            ),
            Reason::QueueNotLeaf(queue) => write!(f, "queue {queue} has child queues; name one of them"),
            Reason::UnknownSubGroup(name) => write!(f, "the pod group has no subgroup {name}"),
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
                sub_group: None,
                rejections,
            } => {
                let rejections = self.of(rejections);
                write!(f, "only {placed} of {required} pods of the gang fit: {rejections}")
            }
            Reason::GangShort {
                placed,
                required,
                sub_group: Some(name),
                rejections,
            } => {
                let rejections = self.of(rejections);
                write!(
                    f,
                    "only {placed} pods fit while subgroup {name} requires {required}: {rejections}"
                )
            }
            Reason::NoDomain {
                topology,
                level,
                domains,
                required,
            } => {
                write!(
                    f,
                    "no {level} of topology {topology} can hold {} together",
                    counted(&required.to_string(), "pod")
                )?;
                for (at, (domain, fits)) in domains.iter().enumerate() {
                    write!(f, "{} {domain}: {fits}", if at == 0 { "; room in" } else { "," })?;
                }
                Ok(())
            }
            Reason::TopologyUnknown { topology, level: None } => write!(f, "topology {topology} does not exist"),
            Reason::TopologyUnknown {
                topology,
                level: Some(level),
            } => {
                write!(f, "topology {topology} has no level {level}")
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

/// What KAI says of a gang that waits for pods of its own.
pub fn not_ready(lacking: &[PodsLacking]) -> String {
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
            not_ready(&[lacking(None)]),
            "Job is not ready for scheduling. Waiting for 2 pods, currently 1 exist, 0 are gated."
        );
        assert_eq!(
            not_ready(&[lacking(Some("a")), lacking(Some("b"))]),
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
        let cut_off = |missing: Option<&str>| Reason::QueueCutOff {
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
    fn nodes_are_counted_in_words_that_are_known_from_kai() {
        let rejections = Rejections {
            checks: vec![(Check::Gpus, 2), (Check::PodSlots, 1), (Check::Extended, 1)],
            extended: vec!["nvidia.com/mig-1g.5gb".to_owned()],
            holders: Vec::new(),
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
            holders: vec![(gang.clone(), Gpus::ONE)],
            search_cut: false,
        });
        assert!(
            held.told(&name)
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
            evicted.told(&name).to_string(),
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
