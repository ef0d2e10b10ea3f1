//! The text of explanations: where a gang stands, what is missing, and what would help.

use std::fmt;

use super::ReasonText;
use super::words::{Instant, Name, counted, thousands};
use crate::model::{GangKey, NodeCondition};
use crate::reasons::{Check, Resource};
use crate::remedies::{
    Ask, Claim, Constraint, Explanation, GpuAmount, Holder, LargestNode, LargestRequest, NearestMiss, NoRemedy,
    Position, RaisedBound, Remedy, Request, Step, Wait,
};

/// How many nodes the text names; the data has more.
const NODES_NAMED_MAX: usize = 3;
/// How many ended gangs a step names.
const ENDED_NAMED_MAX: usize = 8;

/// An explanation as text: sentences without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplanationText {
    /// Where the gang stands among those that wait.
    pub position: Option<String>,
    /// What a pod needs, and what is missing on the nearest nodes.
    pub needs: Option<String>,
    /// The largest request that fits now.
    pub fits: Option<String>,
    /// What would help, any one of them.
    pub remedies: Vec<RemedyText>,
    /// Why there is no remedy.
    pub no_remedy: Option<String>,
    /// What the budget left out.
    pub cut: Option<String>,
}

/// A remedy as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemedyText {
    /// All of them are needed.
    pub steps: Vec<String>,
    /// Whether a trial started the gang.
    pub tried: bool,
}

impl fmt::Display for RemedyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = self.steps.join(", and ");
        match self.tried {
            true => write!(f, "{joined}"),
            false => write!(f, "{joined} (not tried: more may be needed)"),
        }
    }
}

impl Explanation {
    /// The explanation as text, with these names for gangs. The reason is not part of it.
    pub fn text(&self, name: &dyn Fn(&GangKey) -> String) -> ExplanationText {
        let named = self.nearest.iter().take(NODES_NAMED_MAX);
        let misses: Vec<String> = named
            .map(|miss| ReasonText { reason: miss, name }.to_string())
            .collect();
        ExplanationText {
            position: self.position.as_ref().map(Position::to_string),
            needs: (!misses.is_empty()).then(|| format!("{}; {}", self.request, misses.join("; "))),
            fits: self.largest.text(self.request.gpus).filter(|_| !misses.is_empty()),
            remedies: self.remedies.iter().map(|remedy| remedy.text(name)).collect(),
            no_remedy: self.no_remedy.as_ref().map(NoRemedy::to_string),
            cut: self.is_cut.then(|| {
                let trials = counted(&self.trials.to_string(), "trial");
                format!("the search for remedies ended after {trials}; there may be others")
            }),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.before_in_queue {
            0 => write!(f, "first in its queue")?,
            before => write!(f, "{} in its queue", ordinal(before + 1))?,
        }
        match self.before_in_others {
            0 => write!(f, "; no gang of another queue comes before"),
            1 => write!(f, "; 1 gang of another queue comes before"),
            others => write!(f, "; {others} gangs of other queues come before"),
        }
    }
}

/// `2nd`, `11th`.
fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_one = match self.gpus {
            GpuAmount::Whole(gpus) => format!("{} on one node", counted(&gpus.to_string(), "GPU")),
            GpuAmount::Memory { mib, devices: 1 } => format!("{} MiB of one GPU", thousands(mib)),
            GpuAmount::Memory { mib, devices } => format!("{} MiB of each of {devices} GPUs", thousands(mib)),
            GpuAmount::Fraction { hundredths, devices: 1 } => format!("{hundredths} % of one GPU"),
            GpuAmount::Fraction { hundredths, devices } => format!("{hundredths} % of each of {devices} GPUs"),
            GpuAmount::Mig => "MIG slices".to_owned(),
            GpuAmount::None => {
                let (cpu, memory) = (
                    Resource::Cpu.text(self.cpu_milli),
                    Resource::Memory.text(self.memory_bytes),
                );
                format!("{cpu} and {memory} on one node")
            }
        };
        match self.pods {
            0 | 1 => write!(f, "{of_one}"),
            pods => write!(f, "{of_one} for each of {pods} pods"),
        }
    }
}

impl fmt::Display for ReasonText<'_, NearestMiss> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NearestMiss {
            node,
            check,
            free_gpus,
            free_mib,
            missing,
            holders,
            more_holders,
        } = self.reason;
        match check {
            Check::Gpus => write!(f, "{node} has {free_gpus} free")?,
            Check::GpuMemory => match free_mib {
                Some(mib) => write!(f, "{node} has {} MiB free on one GPU", thousands(*mib))?,
                None => write!(f, "{node} has no GPU with enough free")?,
            },
            Check::GpuTooSmall => write!(f, "the GPUs of {node} are {} MiB too small", thousands(*missing))?,
            Check::Cpu => write!(f, "{node} lacks {}", Resource::Cpu.text(*missing))?,
            Check::Memory => write!(f, "{node} lacks {}", Resource::Memory.text(*missing))?,
            Check::PodSlots => write!(f, "{node} has no free pod slot")?,
            Check::Extended => write!(f, "{node} lacks {missing} of a requested resource")?,
            Check::Unschedulable => write!(f, "{node} has room but is cordoned")?,
            Check::NotReady => write!(f, "{node} has room but is not ready")?,
            Check::Leaving
            | Check::NodeAffinity
            | Check::Taints
            | Check::HostPorts
            | Check::PodAffinity
            | Check::PodAntiAffinity
            | Check::MigMismatch
            | Check::GpuMemoryUnknown
            | Check::Enforcement
            | Check::ComputeMode
            | Check::SmSharingOnly
            | Check::ComputeModeInUse
            | Check::Fractioning(_)
            | Check::VolumeNodes
            | Check::VolumesToBind
            | Check::Storage
            | Check::ExclusiveClaim
            | Check::AttachLimit
            | Check::QueueBound
            | Check::Domain => write!(f, "{node}: {}", check.text())?,
        }
        let held = matches!(check, Check::Gpus | Check::GpuMemory | Check::Cpu | Check::Memory);
        for group in groups(holders).iter().filter(|_| held) {
            write!(f, ", {}", held_text(group, self.name))?;
        }
        match more_holders {
            0 => Ok(()),
            more => write!(f, ", the rest by {}", counted(&more.to_string(), "other gang")),
        }
    }
}

/// Holders of the same queue that could lose their place by the same rule, in the order of the first of them.
fn groups(holders: &[Holder]) -> Vec<Vec<&Holder>> {
    let mut groups: Vec<Vec<&Holder>> = Vec::new();
    for holder in holders {
        let same = |group: &&mut Vec<&Holder>| (&group[0].queue, group[0].claim) == (&holder.queue, holder.claim);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(holder),
            None => groups.push(vec![holder]),
        }
    }
    groups
}

/// `2 GPUs are held by Job a and Job b (in your queue, not of lower priority)`.
fn held_text(group: &[&Holder], name: &dyn Fn(&GangKey) -> String) -> String {
    // Pods of a Deployment are gangs of their own with one name.
    let mut names: Vec<String> = group.iter().map(|holder| name(&holder.gang)).collect();
    names.dedup();
    let (names, queue) = (listed(&names), Name(&group[0].queue));
    let rule = match group[0].claim {
        Claim::OverQuota => format!("queue {queue} is over its quota: can be reclaimed when you are below yours"),
        Claim::LowerPriority => "of lower priority in your queue: can be preempted".to_owned(),
        Claim::SameQueue => "in your queue, not of lower priority".to_owned(),
        Claim::WithinQuota => format!("queue {queue} is within its quota"),
        Claim::NonPreemptible => "non-preemptible".to_owned(),
        Claim::Core => "the non-preemptible core of a semi-preemptible gang".to_owned(),
    };
    let gpus: i64 = group.iter().map(|holder| holder.gpus.0).sum();
    match gpus {
        0 => format!("which {names} uses ({rule})"),
        gpus => {
            let amount = Resource::Gpu.text(gpus);
            let are = if amount == "1 GPU" { "is" } else { "are" };
            format!("{amount} {are} held by {names} ({rule})")
        }
    }
}

impl LargestRequest {
    /// The largest whole request for a pod that asks for whole GPUs, and the largest share for one that shares.
    fn text(&self, asked: GpuAmount) -> Option<String> {
        let whole = || match &self.whole {
            Some((gpus, node)) => format!(
                "largest request that fits now: {} on {node}",
                counted(&gpus.to_string(), "GPU")
            ),
            None => "no whole GPU is free now".to_owned(),
        };
        let share = || match &self.mib {
            Some((mib, node)) => format!("largest share that fits now: {} MiB on {node}", thousands(*mib)),
            None => "no share of a GPU is free now".to_owned(),
        };
        match asked {
            GpuAmount::Whole(_) => Some(whole()),
            GpuAmount::Memory { .. } | GpuAmount::Fraction { .. } => Some(share()),
            GpuAmount::None | GpuAmount::Mig => None,
        }
    }
}

impl Step {
    /// The step as text, with these names for gangs.
    pub fn with_names<'a>(&'a self, name: &'a dyn Fn(&GangKey) -> String) -> ReasonText<'a, Step> {
        ReasonText { reason: self, name }
    }
}

impl Remedy {
    fn text(&self, name: &dyn Fn(&GangKey) -> String) -> RemedyText {
        let is_end = |step: &&Step| matches!(step, Step::End { .. });
        let mut steps: Vec<String> = Vec::new();
        let ended: Vec<String> = self
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::End { gang, pods, waits } => Some(ended(&name(gang), *pods, *waits)),
                _ => None,
            })
            .collect();
        if !ended.is_empty() {
            steps.push(format!("end {}", listed(&ended)));
        }
        let others = self.steps.iter().filter(|step| !is_end(step));
        steps.extend(others.map(|step| step.with_names(name).to_string()));
        RemedyText {
            steps,
            tried: self.tried,
        }
    }
}

fn ended(name: &str, pods: u32, waits: bool) -> String {
    match (pods, waits) {
        (_, true) => format!("{name} (which waits too)"),
        (0 | 1, false) => name.to_owned(),
        (pods, false) => format!("{name} ({pods} pods)"),
    }
}

/// `a`, `a and b`, `a, b and 3 more`.
fn listed(names: &[String]) -> String {
    let shown = names.len().min(ENDED_NAMED_MAX);
    match names {
        [] => String::new(),
        [one] => one.clone(),
        _ if names.len() > shown => format!("{} and {} more", names[..shown].join(", "), names.len() - shown),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

impl fmt::Display for ReasonText<'_, Step> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Step::End { gang, pods, waits } => write!(f, "end {}", ended(&(self.name)(gang), *pods, *waits)),
            Step::Raise {
                queue,
                bound,
                resource,
                from,
                to,
            } => {
                let bound = match bound {
                    RaisedBound::Limit => "limit",
                    RaisedBound::Quota => "quota",
                };
                let (from, to) = (resource.text(*from), resource.text(*to));
                write!(f, "raise the {bound} of queue {} from {from} to {to}", Name(queue))
            }
            Step::MakePreemptible => write!(f, "make the workload preemptible (label kai.scheduler/preemptibility)"),
            Step::AskAtMost(ask) => write!(f, "ask for at most {ask}"),
            Step::LowerMinimum { sub_group, from, to } => {
                let to = counted(&to.to_string(), "pod");
                match sub_group {
                    None => write!(f, "lower the minimum of the gang from {from} to {to}"),
                    Some(name) => write!(f, "lower the minimum of subgroup {} from {from} to {to}", Name(name)),
                }
            }
            Step::Uncordon(node) => write!(f, "uncordon node {node}"),
            Step::MakeReady { node, conditions } => {
                let conditions: Vec<&str> = conditions.iter().map(|condition| condition.text()).collect();
                write!(f, "repair node {node} ({})", conditions.join(", "))
            }
            Step::AddNodes { count, like } => {
                write!(f, "add {} like {like}", counted(&count.to_string(), "node"))
            }
            Step::Relax(constraint) => write!(f, "{constraint}"),
            Step::RemoveGates { pods } => write!(
                f,
                "remove the scheduling gates of {}",
                counted(&pods.to_string(), "pod")
            ),
            Step::CreatePods { sub_group, count } => {
                write!(f, "create {}", counted(&count.to_string(), "more pod"))?;
                match sub_group {
                    Some(name) => write!(f, " of subgroup {}", Name(name)),
                    None => Ok(()),
                }
            }
            Step::CreateGang(Some(gang)) => write!(f, "create pod group {gang}"),
            Step::CreateGang(None) => write!(f, "name a pod group in the annotation pod-group-name of the pod"),
            Step::CreateQueue(queue) if queue.is_empty() => write!(f, "name a queue in spec.queue of the pod group"),
            Step::CreateQueue(queue) => write!(f, "create queue {}", Name(queue)),
            Step::NameLeafQueue(queue) => write!(f, "name a queue below {} in spec.queue", Name(queue)),
            Step::ChangeParent(queue) => write!(
                f,
                "change spec.parentQueue of queue {} or of a queue above it",
                Name(queue)
            ),
            Step::NameSubGroup(name) => write!(
                f,
                "add subgroup {} to the pod group, or name one that exists",
                Name(name)
            ),
            Step::CreateTopology { topology, level: None } => write!(f, "create topology {}", Name(topology)),
            Step::CreateTopology {
                topology,
                level: Some(level),
            } => write!(f, "add level {} to topology {}", Name(level), Name(topology)),
            Step::Correct => write!(f, "correct what the reason names"),
            Step::Wait(wait) => write!(f, "{wait}"),
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Gpus(gpus) => write!(f, "{} for each pod", counted(&gpus.to_string(), "GPU")),
            Ask::GpuMemoryMib(mib) => write!(f, "{} MiB of GPU memory for each pod", thousands(*mib)),
            Ask::GpuHundredths(hundredths) => write!(f, "{hundredths} % of a GPU for each pod"),
            Ask::CpuMilli(milli) => write!(f, "{} for each pod", Resource::Cpu.text(*milli)),
            Ask::MemoryBytes(bytes) => write!(f, "{} for each pod", Resource::Memory.text(*bytes)),
        }
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Constraint::NodeAffinity => "leave out the node selector and the required node affinity of the pods",
            Constraint::Taints => "let the pods tolerate the taints of the nodes",
            Constraint::HostPorts => "leave out the host ports of the pods",
            Constraint::PodAffinity => "leave out the pod affinity of the pods",
            Constraint::PodAntiAffinity => "leave out the pod anti-affinity of the pods",
            Constraint::Enforcement => {
                "let the pods start without enforced GPU memory (annotation kai.scheduler/gpu-enforcement: preferred)"
            }
            Constraint::ComputeMode => "let the pods share their GPUs by time-slicing (annotation gpu-compute.mode)",
            Constraint::Topology => "leave out the topology constraint of the gang",
        })
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::NextCycle => write!(f, "wait: the next cycle starts it"),
            Wait::Release { node, pods } => {
                let leave = if *pods == 1 { "leaves" } else { "leave" };
                let pods = counted(&pods.to_string(), "pod");
                write!(f, "wait until {pods} {leave} node {node}: a place there is reserved")
            }
            Wait::PreemptionDelay(until) => {
                let until = Instant(*until);
                write!(f, "wait until its preemption delay is over, at {until}")
            }
            Wait::MinRuntime(until) => {
                let until = Instant(*until);
                write!(
                    f,
                    "wait until {until}, when the minimum runtime of gangs that may be evicted is over"
                )
            }
            Wait::LaterCycles => write!(f, "wait: the search goes on in later cycles"),
            Wait::BackOff => write!(f, "wait until the pause after the last attempt is over"),
        }
    }
}

impl NodeCondition {
    fn text(self) -> &'static str {
        match self {
            NodeCondition::NotReady => "not ready",
            NodeCondition::MemoryPressure => "memory pressure",
            NodeCondition::DiskPressure => "disk pressure",
            NodeCondition::PidPressure => "PID pressure",
            NodeCondition::NetworkUnavailable => "network unavailable",
            NodeCondition::Leaving => "being removed",
        }
    }
}

impl fmt::Display for NoRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoRemedy::NotWaiting => write!(f, "the pod does not wait"),
            NoRemedy::NoNodeLargeEnough { largest: None } => {
                write!(f, "no remedy: no node of the cluster may take the pod")
            }
            NoRemedy::NoNodeLargeEnough {
                largest:
                    Some(LargestNode {
                        node,
                        gpus,
                        gpu_memory_mib,
                    }),
            } => {
                write!(
                    f,
                    "no remedy: no node could hold the pod even if it were empty; the largest, {node}, has {}",
                    counted(&gpus.to_string(), "GPU")
                )?;
                match gpu_memory_mib.filter(|_| *gpus > 0) {
                    Some(mib) => write!(f, " of {} MiB", thousands(mib)),
                    None => Ok(()),
                }
            }
            NoRemedy::NoAllocate => write!(
                f,
                "no remedy: the actions of this policy leave out allocate, which starts gangs where there is room"
            ),
            NoRemedy::NotFound => write!(f, "no remedy was found: nothing that was tried starts the gang"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Gpus, Millis};

    fn key(name: &str) -> Arc<GangKey> {
        Arc::new(GangKey {
            namespace: "team-blue".to_owned(),
            name: name.to_owned(),
        })
    }

    fn deployment(gang: &GangKey) -> String {
        format!("Deployment {gang}")
    }

    fn holder(name: &str, gpus: i64, claim: Claim) -> Holder {
        Holder {
            gang: key(name),
            gpus: Gpus::whole(gpus),
            queue: "blue".to_owned(),
            claim,
        }
    }

    fn check(step: Step, expect: &str) {
        assert_eq!(step.with_names(&deployment).to_string(), expect);
    }

    #[test]
    fn an_explanation_says_what_is_missing_and_who_holds_it() {
        let explanation = Explanation {
            gang: Some(key("llm")),
            reason: None,
            position: Some(Position {
                before_in_queue: 1,
                before_in_others: 2,
            }),
            request: Request {
                gpus: GpuAmount::Whole(4),
                pods: 1,
                ..Request::default()
            },
            nearest: vec![NearestMiss {
                node: "h100-1".into(),
                check: Check::Gpus,
                free_gpus: 2,
                free_mib: Some(81_900),
                missing: 2,
                holders: vec![
                    holder("train-7", 2, Claim::OverQuota),
                    holder("old", 4, Claim::NonPreemptible),
                ],
                more_holders: 1,
            }],
            largest: LargestRequest {
                whole: Some((2, "h100-1".into())),
                mib: Some((24_576, "thor".into())),
            },
            remedies: vec![
                Remedy {
                    steps: vec![
                        Step::End {
                            gang: key("train-7"),
                            pods: 2,
                            waits: false,
                        },
                        Step::Uncordon("h100-2".into()),
                        Step::End {
                            gang: key("next"),
                            pods: 1,
                            waits: true,
                        },
                    ],
                    tried: true,
                },
                Remedy {
                    steps: vec![Step::CreateQueue("blue".to_owned())],
                    tried: false,
                },
            ],
            no_remedy: None,
            is_cut: true,
            trials: 7,
        };
        let text = explanation.text(&deployment);
        assert_eq!(
            text.position.as_deref(),
            Some("2nd in its queue; 2 gangs of other queues come before")
        );
        assert_eq!(
            text.needs.as_deref(),
            Some(
                "4 GPUs on one node; h100-1 has 2 free, 2 GPUs are held by Deployment team-blue/train-7 (queue blue is over its quota: can \
                 be reclaimed when you are below yours), 4 GPUs are held by Deployment team-blue/old (non-preemptible), the rest by \
                 1 other gang"
            )
        );
        assert_eq!(
            text.fits.as_deref(),
            Some("largest request that fits now: 2 GPUs on h100-1")
        );
        assert_eq!(
            text.remedies[0].to_string(),
            "end Deployment team-blue/train-7 (2 pods) and Deployment team-blue/next (which waits too), and uncordon node h100-2"
        );
        assert_eq!(
            text.remedies[1].to_string(),
            "create queue blue (not tried: more may be needed)"
        );
        assert_eq!(
            text.cut.as_deref(),
            Some("the search for remedies ended after 7 trials; there may be others")
        );
        assert_eq!(
            explanation
                .largest
                .text(GpuAmount::Memory { mib: 1, devices: 1 })
                .as_deref(),
            Some("largest share that fits now: 24,576 MiB on thor")
        );
    }

    #[test]
    fn steps_name_the_object_and_the_value() {
        check(
            Step::Raise {
                queue: "red".to_owned(),
                bound: RaisedBound::Limit,
                resource: Resource::Gpu,
                from: Gpus::whole(8).0,
                to: Gpus::hundredths(850).0,
            },
            "raise the limit of queue red from 8 GPUs to 8.5 GPUs",
        );
        check(Step::AskAtMost(Ask::Gpus(1)), "ask for at most 1 GPU for each pod");
        check(
            Step::AskAtMost(Ask::GpuMemoryMib(24_576)),
            "ask for at most 24,576 MiB of GPU memory for each pod",
        );
        check(
            Step::LowerMinimum {
                sub_group: Some("workers".to_owned()),
                from: 4,
                to: 3,
            },
            "lower the minimum of subgroup workers from 4 to 3 pods",
        );
        check(
            Step::AddNodes {
                count: 2,
                like: "node-3".into(),
            },
            "add 2 nodes like node-3",
        );
        check(
            Step::MakeReady {
                node: "n".into(),
                conditions: vec![NodeCondition::NotReady, NodeCondition::DiskPressure],
            },
            "repair node n (not ready, disk pressure)",
        );
        check(
            Step::Wait(Wait::PreemptionDelay(Millis(0))),
            "wait until its preemption delay is over, at 1970-01-01T00:00:00Z",
        );
        check(
            Step::Wait(Wait::Release {
                node: "n".to_owned(),
                pods: 1,
            }),
            "wait until 1 pod leaves node n: a place there is reserved",
        );
        check(
            Step::CreatePods {
                sub_group: None,
                count: 1,
            },
            "create 1 more pod",
        );
    }

    #[test]
    fn numbers_have_their_endings() {
        let ordinals: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 112].into_iter().map(ordinal).collect();
        assert_eq!(ordinals.join(" "), "1st 2nd 3rd 4th 11th 12th 13th 21st 112th");
        assert_eq!(
            [0, 999, 1_000, -1_234_567].map(thousands).join(" "),
            "0 999 1,000 -1,234,567"
        );
    }

    #[test]
    fn the_largest_node_is_named_if_none_is_large_enough() {
        let largest = Some(LargestNode {
            node: "h100-1".into(),
            gpus: 8,
            gpu_memory_mib: Some(81_900),
        });
        assert_eq!(
            NoRemedy::NoNodeLargeEnough { largest }.to_string(),
            "no remedy: no node could hold the pod even if it were empty; the largest, h100-1, has 8 GPUs of 81,900 MiB"
        );
    }
}
