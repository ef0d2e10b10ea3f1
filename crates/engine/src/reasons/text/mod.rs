//! The text of reasons, for conditions, events, the debug endpoints and the tables of `kai simulate`.

#[cfg(test)]
mod every_reason;
mod gpu_share_error;
mod invalid_value;
mod refusal;
mod rejections;
mod remedies;
#[cfg(test)]
mod tests;
mod words;

use std::fmt;

use crate::model::{Action, GangKey, SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX};
use crate::reasons::{BackgroundCause, EvictionReason, PodsLacking, QueueBound, Reason, SubGroupExcess};
pub use remedies::{ExplanationText, RemedyText};
use words::{Instant, Name, counted};

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
            Reason::Refused(refusal) => write!(f, "{refusal}"),
            Reason::AffinityTermsExceeded(bound) => write!(f, "{bound}"),
            Reason::GangNotReady {
                ready,
                required,
                lacking,
            } => match lacking.first().map(|lacking| (lacking, lacking.sub_group.as_deref())) {
                // The gang has pods enough, but not in every subgroup.
                Some((lacking, Some(name))) if ready >= required => {
                    let (ready, required) = (lacking.existing.saturating_sub(lacking.gated), lacking.required);
                    write!(
                        f,
                        "subgroup {name} has {ready} pods ready to start, {required} are required"
                    )
                }
                Some(_) | None => write!(f, "the gang has {ready} pods ready to start, {required} are required"),
            },
            Reason::OverLimit(bound) => write!(f, "over the limit of {bound}"),
            Reason::OverQuota(bound) => write!(f, "non-preemptible and over the quota of {bound}"),
            Reason::CoreOverQuota(bound) => write!(f, "the core is non-preemptible and over the quota of {bound}"),
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

impl fmt::Display for ReasonText<'_, EvictionReason> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            EvictionReason::For {
                action,
                gang,
                moved,
                pods,
                fairness: _,
            } => {
                let what = match action {
                    Action::Reclaim => "reclaimed for",
                    Action::Preempt => "preempted by",
                    Action::Consolidation => "moved to make room for",
                    Action::Allocate | Action::StaleGangEviction | Action::BackgroundPods => "evicted for",
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
            EvictionReason::LeavingNode => write!(
                f,
                "its gang falls below its minimum and has pods on a node that is being removed; it moves as a whole"
            ),
            EvictionReason::Background { pods, cause } => {
                let cause = match cause {
                    BackgroundCause::Room => "made room for other workloads",
                    BackgroundCause::QueueBound => "left the limit or quota of a queue to other workloads",
                };
                let pods = counted(&pods.to_string(), "pod");
                write!(f, "background pods {cause} ({pods} in all)")
            }
        }
    }
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

/// The text of KAI for a gang that lacks pods.
pub fn not_ready_text(lacking: &[PodsLacking]) -> String {
    let sentences = lacking.iter().map(|lacking| format!(" {lacking}."));
    format!("Job is not ready for scheduling.{}", sentences.collect::<String>())
}

/// The text of one domain of [`Reason::NoDomain`]: its name, and the number of the required pods that fit there.
pub fn domain_text((domain, fits): &(String, u32), required: u32) -> String {
    format!("{domain}: room for {fits} of {required} pods")
}
