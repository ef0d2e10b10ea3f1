//! LeaderWorkerSets: a pod group per replica of the set, with a leader and its workers. The pods may be divided into segments, each
//! with a topology constraint.

use kai_api::crd::{SubGroup, TopologyConstraint};
use kai_api::keys;

use super::super::desired_pod_group::{DesiredPodGroup, leaf, parent, topology_constraint};
use super::super::field::Field;
use super::super::workload::{GroupingError, Owner, PodOrigin, Workload};
use super::{SUB_GROUPS_MAX, default_group, parse_count};

const LEADER: &str = "leader";
const WORKERS: &str = "workers";

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> Result<DesiredPodGroup, GroupingError> {
    let set = Field::of(workload.object(top.reference())?);
    let template = set.at("spec").at("leaderWorkerTemplate");
    let field = template.at("size");
    let size = field.count()?.filter(|size| *size > 0);
    let size = size.ok_or_else(|| field.refuse("it has to be 1 or more"))?;
    let role = Role::of(workload)?;

    let policy = set.at("spec").at("startupPolicy");
    let min = match policy.text()? {
        None | Some("LeaderCreated") => size,
        Some("LeaderReady") => size_when_leader_ready(workload, &role, size),
        Some(other) => return Err(policy.refuse(format!("{other:?} is neither LeaderCreated nor LeaderReady"))),
    };
    let mut desired = default_group(workload, top);
    desired.min_member(min, "spec.leaderWorkerTemplate.size");
    desired.origins.sub_groups = format!("spec.leaderWorkerTemplate; pods by label {}", keys::LEADER_WORKER_INDEX);
    if let Some(group) = workload.label(keys::LEADER_WORKER_GROUP_INDEX).and_then(parse_count) {
        desired.name = format!("{}-group-{group}", desired.name);
    }
    match segment_size(&template, top, min)? {
        None => add_leader_and_workers(&mut desired, &role, min),
        Some(segment) => {
            let topology = segment_topology(&template, workload, top)?;
            let segments = Segments { size: min, segment };
            segments.add_to(&mut desired, &template, &role, topology, workload.pod_origin)?;
        }
    }
    Ok(desired)
}

/// With `LeaderReady` the workers are created once the leader is ready, so a leader without a node is the whole group.
fn size_when_leader_ready(workload: &Workload<'_>, role: &Role, size: i32) -> i32 {
    match (role, workload.pod.node_name()) {
        (Role::Leader, None) => 1,
        _ => workload
            .annotation(keys::LEADER_WORKER_SIZE)
            .and_then(parse_count)
            .filter(|size| *size > 0)
            .unwrap_or(size),
    }
}

/// The pod's role in its replica.
enum Role {
    Leader,
    Worker(i32),
    /// The pod has no worker index.
    Unknown,
}

impl Role {
    fn of(workload: &Workload<'_>) -> Result<Role, GroupingError> {
        let Some(text) = workload.label(keys::LEADER_WORKER_INDEX) else {
            return Ok(Role::Unknown);
        };
        match parse_count(text) {
            Some(0) => Ok(Role::Leader),
            Some(index) => Ok(Role::Worker(index)),
            None => {
                let field = format!("metadata.labels.{}", keys::LEADER_WORKER_INDEX);
                Err(workload.refuse_pod(field, format!("{text:?} is not the number of a worker")))
            }
        }
    }
}

fn add_leader_and_workers(desired: &mut DesiredPodGroup, role: &Role, size: i32) {
    desired.spec.sub_groups.push(leaf(LEADER, 1));
    if size > 1 {
        desired.spec.sub_groups.push(leaf(WORKERS, size - 1));
    }
    desired.sub_group = match role {
        Role::Leader => Some(LEADER.to_owned()),
        Role::Worker(_) | Role::Unknown => (size > 1).then(|| WORKERS.to_owned()),
    };
}

struct Segments {
    /// Pods of a replica.
    size: i32,
    /// Pods of a segment.
    segment: i32,
}

impl Segments {
    fn add_to(
        &self,
        desired: &mut DesiredPodGroup,
        template: &Field<'_>,
        role: &Role,
        topology: Option<TopologyConstraint>,
        pod_origin: PodOrigin,
    ) -> Result<(), GroupingError> {
        let last = self.of_worker(self.size - 1);
        if i64::from(last) >= SUB_GROUPS_MAX {
            let reason = format!("more than {SUB_GROUPS_MAX} segments; make segments larger");
            return Err(template.at("size").refuse(reason));
        }
        let policy = template.at("subGroupPolicy").at("subGroupPolicyType");
        let leader_excluded = match policy.text()? {
            None | Some("LeaderWorker") => false,
            Some("LeaderExcluded") if self.leader_is_extra() => true,
            Some("LeaderExcluded") => {
                let reason = format!("{} workers can't be divided by {}", self.size - 1, self.segment);
                return Err(template.at("size").refuse(reason));
            }
            Some(other) => return Err(policy.refuse(format!("{other:?} is neither LeaderWorker nor LeaderExcluded"))),
        };
        let of_segment = |segment: i32, group: SubGroup| SubGroup {
            name: segment_name(segment),
            topology_constraint: topology.clone(),
            ..group
        };
        let groups = &mut desired.spec.sub_groups;
        if leader_excluded {
            groups.push(leaf(LEADER, 1));
        }
        for segment in 0..=last {
            let workers = self.workers_in(segment);
            groups.push(match segment {
                0 if !leader_excluded => of_segment(0, parent("", 2)),
                _ => of_segment(segment, leaf("", workers)),
            });
        }
        if !leader_excluded {
            for (name, min) in [(LEADER, 1), (WORKERS, self.workers_in(0))] {
                groups.push(SubGroup {
                    parent: Some(segment_name(0)),
                    ..leaf(name, min)
                });
            }
        }
        desired.sub_group = match role {
            Role::Leader => Some(LEADER.to_owned()),
            Role::Unknown if pod_origin == PodOrigin::Template => None,
            Role::Unknown => return Err(template.at("size").refuse("the pod does not say which worker it is")),
            Role::Worker(index) => match self.of_worker(*index).min(last) {
                0 if !leader_excluded => Some(WORKERS.to_owned()),
                segment => Some(segment_name(segment)),
            },
        };
        Ok(())
    }

    /// Whether the workers alone fill the segments, so that the first segment has the leader in addition.
    fn leader_is_extra(&self) -> bool {
        (self.size - 1) % self.segment == 0
    }

    fn of_worker(&self, index: i32) -> i32 {
        match (index, self.leader_is_extra()) {
            (0, _) => 0,
            (index, true) => (index - 1) / self.segment,
            (index, false) => index / self.segment,
        }
    }

    /// Workers of a segment, without the leader.
    fn workers_in(&self, segment: i32) -> i32 {
        let (first, end) = match self.leader_is_extra() {
            true => (segment * self.segment + 1, (segment + 1) * self.segment + 1),
            false => ((segment * self.segment).max(1), (segment + 1) * self.segment),
        };
        end.min(self.size) - first
    }
}

fn segment_name(segment: i32) -> String {
    format!("segment-{segment}")
}

fn segment_size(template: &Field<'_>, top: &Owner, size: i32) -> Result<Option<i32>, GroupingError> {
    let in_policy = template.at("subGroupPolicy").at("subGroupSize");
    let on_template = template
        .at("workerTemplate")
        .at("metadata")
        .at("annotations")
        .at(keys::SEGMENT_SIZE);
    let annotated = match top.annotations.get(keys::SEGMENT_SIZE) {
        Some(text) => Some(text.as_str()),
        None => on_template.text()?,
    };
    let (segment, field) = match (in_policy.count()?, annotated) {
        (Some(segment), _) => (segment, in_policy),
        (None, Some(text)) => match parse_count(text) {
            Some(segment) => (segment, on_template),
            None => return Err(on_template.refuse(format!("{text:?} is not a size; write a whole number above 1"))),
        },
        (None, None) => return Ok(None),
    };
    // A group of one leader has no segments.
    if size == 1 {
        return Ok(None);
    }
    if segment <= 1 || segment > size {
        let reason = format!("segments of {segment} pods make no sense in a group of {size}; write 2 to {size}");
        return Err(field.refuse(reason));
    }
    Ok(Some(segment))
}

fn segment_topology(
    template: &Field<'_>,
    workload: &Workload<'_>,
    top: &Owner,
) -> Result<Option<TopologyConstraint>, GroupingError> {
    let annotations = template.at("workerTemplate").at("metadata").at("annotations");
    let said = |key: &str| -> Result<Option<String>, GroupingError> {
        let of_pod = workload.annotation(key).filter(|text| !text.is_empty());
        Ok(of_pod.or(annotations.at(key).text()?).map(str::to_owned))
    };
    let topology = said(keys::TOPOLOGY)?.or_else(|| top.annotations.get(keys::TOPOLOGY).cloned());
    let (required, preferred) = (
        said(keys::SEGMENT_TOPOLOGY_REQUIRED)?,
        said(keys::SEGMENT_TOPOLOGY_PREFERRED)?,
    );
    let complete = topology.is_some() && (required.is_some() || preferred.is_some());
    Ok(topology_constraint(topology.as_deref(), required.as_deref(), preferred.as_deref()).filter(|_| complete))
}
