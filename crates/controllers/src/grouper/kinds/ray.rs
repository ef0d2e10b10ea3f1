//! Ray: a subgroup for the head and one per worker group. RayJobs and RayServices use the numbers of their RayCluster.

use kai_api::crd::{SubGroup, TopologyConstraint};
use kai_api::keys;

use super::super::desired_pod_group::{DesiredPodGroup, leaf, topology_constraint};
use super::super::field::Field;
use super::super::workload::{GroupingError, ObjectRef, Owner, Workload};
use super::default_group;

/// Paths in the status of an owner that may name its RayCluster; the first that exists counts.
type Paths = &'static [&'static [&'static str]];

pub(super) const OF_JOB: Paths = &[&["status", "rayClusterName"]];
pub(super) const OF_SERVICE: Paths = &[
    &["status", "activeServiceStatus", "rayClusterName"],
    &["status", "pendingServiceStatus", "rayClusterName"],
];
const HEAD_GROUP: &str = "headgroup";

/// `paths` is empty for a RayCluster.
pub(super) fn desired(workload: &Workload<'_>, top: &Owner, paths: Paths) -> Result<DesiredPodGroup, GroupingError> {
    let cluster = match paths {
        [] => workload.object(top.reference())?,
        paths => workload.object(cluster_of(workload, top, paths)?)?,
    };
    let mut desired = default_group(workload, top);
    if let Some(class) = top.labels.get(keys::RAY_PRIORITY_CLASS_NAME) {
        desired.spec.priority_class_name = Some(class.clone());
        desired.origins.priority_class =
            format!("label {} of {} {}", keys::RAY_PRIORITY_CLASS_NAME, top.kind, top.name);
    }
    let groups = groups(&Field::of(cluster))?;
    let total: i64 = groups.iter().filter_map(|group| group.min_member).map(i64::from).sum();
    desired.min_member(
        i32::try_from(total).unwrap_or(i32::MAX),
        "the head, and minReplicas or replicas of spec.workerGroupSpecs",
    );
    // A pod group of an older version stays without subgroups.
    let present = workload.cluster.pod_group(&desired.namespace, &desired.name);
    if present.is_none_or(|present| !present.as_written().sub_groups.is_empty()) {
        let of_pod = workload.label(keys::RAY_GROUP);
        desired.sub_group = of_pod
            .filter(|name| groups.iter().any(|group| group.name == *name))
            .map(str::to_owned);
        desired.spec.sub_groups = groups;
        desired.origins.sub_groups = format!("head and spec.workerGroupSpecs; pods by label {}", keys::RAY_GROUP);
    }
    Ok(desired)
}

fn cluster_of(workload: &Workload<'_>, top: &Owner, paths: Paths) -> Result<ObjectRef, GroupingError> {
    let owner = Field::of(workload.object(top.reference())?);
    for path in paths {
        let field = path.iter().fold(owner.clone(), |field, key| field.at(key));
        if let Some(name) = field.text()? {
            return Ok(ObjectRef {
                api_version: top.api_version.clone(),
                kind: "RayCluster".to_owned(),
                name: name.to_owned(),
            });
        }
    }
    let reason = "it names no RayCluster yet; check that the Ray operator runs";
    Err(workload.refuse_owner(top, paths[0].join("."), reason))
}

fn groups(cluster: &Field<'_>) -> Result<Vec<SubGroup>, GroupingError> {
    let spec = cluster.at("spec");
    let mut groups = vec![SubGroup {
        topology_constraint: topology(&spec.at("headGroupSpec"))?,
        ..leaf(HEAD_GROUP, 1)
    }];
    for (index, group) in spec.at("workerGroupSpecs").items()?.iter().enumerate() {
        let Some(pods) = pods_of(group)? else { continue };
        let name = match group.at("groupName").text()? {
            Some(name) => name.to_owned(),
            None => format!("worker-group-{index}"),
        };
        groups.push(SubGroup {
            topology_constraint: topology(group)?,
            ..leaf(name, pods)
        });
    }
    Ok(groups)
}

/// Pods of a worker group that have to start together; `None` if the group has no pods now.
fn pods_of(group: &Field<'_>) -> Result<Option<i32>, GroupingError> {
    if group.at("suspended").flag()? || group.at("suspend").flag()? {
        return Ok(None);
    }
    let replicas = group.at("replicas").count()?.unwrap_or(0);
    let min = group.at("minReplicas").count()?.unwrap_or(0);
    if min > replicas {
        let reason = format!("{replicas} is less than minReplicas, which is {min}; raise it");
        return Err(group.at("replicas").refuse(reason));
    }
    if replicas == 0 {
        return Ok(None);
    }
    let hosts = group.at("numOfHosts");
    let hosts_count = hosts.count()?.unwrap_or(1);
    let pods = if min > 0 { min } else { replicas }.checked_mul(hosts_count);
    pods.map(Some)
        .ok_or_else(|| hosts.refuse("so many pods are no cluster"))
}

fn topology(group: &Field<'_>) -> Result<Option<TopologyConstraint>, GroupingError> {
    let template = group.at("template").at("metadata").at("annotations");
    let field = template.at(keys::TOPOLOGY);
    let topology = field.text()?;
    let required = template.at(keys::TOPOLOGY_REQUIRED).text()?;
    let preferred = template.at(keys::TOPOLOGY_PREFERRED).text()?;
    match (topology, required.or(preferred)) {
        (_, None) => Ok(None),
        (None, Some(_)) => Err(field.refuse("it is missing beside a placement annotation; name the topology")),
        (Some(_), Some(_)) => Ok(topology_constraint(topology, required, preferred)),
    }
}
