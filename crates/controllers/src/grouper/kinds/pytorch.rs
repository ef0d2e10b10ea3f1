//! PyTorch jobs: a subgroup for the master and one for the workers. The workers may be divided into segments, each with a topology
//! constraint. An elastic job starts with its minimum.

use kai_api::crd::{SubGroup, TopologyConstraint};
use kai_api::keys;

use super::super::desired_pod_group::{DesiredPodGroup, leaf, parent, topology_constraint};
use super::super::field::Field;
use super::super::workload::{GroupingError, Owner, Workload};
use super::kubeflow::{self, Replicas};
use super::{SUB_GROUPS_MAX, default_group};

const REPLICAS: Replicas = Replicas {
    field: "pytorchReplicaSpecs",
    mandatory: &[],
};
const MASTER: &str = "master";
const WORKER: &str = "worker";

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> Result<DesiredPodGroup, GroupingError> {
    let job = Field::of(workload.object(top.reference())?);
    let elastic = job.at("spec").at("elasticPolicy").at("minReplicas").count()?;
    let (min, origin) = match kubeflow::min_available(&job)? {
        Some(min) => (min, kubeflow::MIN_AVAILABLE.to_owned()),
        None => {
            let total = kubeflow::total(&job, &REPLICAS)?;
            match elastic {
                Some(min) => (min, "spec.elasticPolicy.minReplicas".to_owned()),
                None => (total, kubeflow::all_replicas(&REPLICAS)),
            }
        }
    };
    let mut desired = default_group(workload, top);
    desired.min_member(min, origin);
    desired.origins.sub_groups = format!("spec.{}; pods by label {}", REPLICAS.field, keys::KUBEFLOW_REPLICA_TYPE);

    let specs = job.at("spec").at(REPLICAS.field);
    let masters = specs.at("Master").at("replicas").count()?.unwrap_or(0);
    if masters > 0 {
        desired.spec.sub_groups.push(leaf(MASTER, masters));
    }
    let role = workload.label(keys::KUBEFLOW_REPLICA_TYPE);
    if role == Some(MASTER) && masters > 0 {
        desired.sub_group = Some(MASTER.to_owned());
    }
    if specs.at("Worker").exists() {
        let workers = Workers {
            spec: specs.at("Worker"),
            min: (min - masters).max(0),
            pod_is_worker: role == Some(WORKER),
        };
        workers.add_to(&mut desired, workload, top)?;
    }
    Ok(desired)
}

struct Workers<'a> {
    spec: Field<'a>,
    /// Workers that have to start together.
    min: i32,
    /// Whether the pod is a worker.
    pod_is_worker: bool,
}

impl Workers<'_> {
    fn add_to(&self, desired: &mut DesiredPodGroup, workload: &Workload<'_>, top: &Owner) -> Result<(), GroupingError> {
        let count = self.spec.at("replicas").count()?.unwrap_or(1);
        let size = self.segment_size(workload)?;
        let (Some(size), true) = (size, count > 0) else {
            desired.spec.sub_groups.push(leaf(WORKER, self.min));
            desired.sub_group = desired
                .sub_group
                .take()
                .or(self.pod_is_worker.then(|| WORKER.to_owned()));
            return Ok(());
        };
        let segments = segments_of(count, size);
        if i64::from(segments) > SUB_GROUPS_MAX {
            let reason = format!("{segments} segments are more than {SUB_GROUPS_MAX}; make segments larger");
            return Err(self.spec.at("replicas").refuse(reason));
        }
        let topology = self.topology(workload, top)?;
        desired.spec.sub_groups.push(parent(WORKER, segments));
        let mandatory = segments_of(self.min, size);
        for segment in 0..segments {
            let members = match segment {
                _ if segment >= mandatory => 0,
                _ if segment == segments - 1 => count - segment * size,
                _ => size,
            };
            desired.spec.sub_groups.push(SubGroup {
                parent: Some(WORKER.to_owned()),
                topology_constraint: topology.clone(),
                ..leaf(segment_name(segment), members)
            });
        }
        if self.pod_is_worker {
            // A job that was scaled up has workers beyond the count read here; the next update of the job adds their segments.
            let segment = (index(workload)? / size).min(segments - 1);
            desired.sub_group = Some(segment_name(segment));
        }
        Ok(())
    }

    /// The pod's annotation overrides that of the template, which may have changed since the pod was created.
    fn annotation<'w>(&'w self, workload: &Workload<'w>, key: &str) -> Result<Option<&'w str>, GroupingError> {
        let of_template = self
            .spec
            .at("template")
            .at("metadata")
            .at("annotations")
            .at(key)
            .text()?;
        Ok(workload.annotation(key).filter(|text| !text.is_empty()).or(of_template))
    }

    fn segment_size(&self, workload: &Workload<'_>) -> Result<Option<i32>, GroupingError> {
        let Some(text) = self.annotation(workload, keys::SEGMENT_SIZE)? else {
            return Ok(None);
        };
        match super::parse_count(text).filter(|size| *size > 0) {
            Some(size) => Ok(Some(size)),
            None => {
                let field = self
                    .spec
                    .at("template")
                    .at("metadata")
                    .at("annotations")
                    .at(keys::SEGMENT_SIZE);
                Err(field.refuse(format!("{text:?} is not a size; write a whole number of 1 or more")))
            }
        }
    }

    fn topology(&self, workload: &Workload<'_>, top: &Owner) -> Result<Option<TopologyConstraint>, GroupingError> {
        let of_job = top.annotations.get(keys::TOPOLOGY).map(String::as_str);
        let topology = self.annotation(workload, keys::TOPOLOGY)?.or(of_job);
        let required = self.annotation(workload, keys::SEGMENT_TOPOLOGY_REQUIRED)?;
        let preferred = self.annotation(workload, keys::SEGMENT_TOPOLOGY_PREFERRED)?;
        let complete = topology.is_some() && (required.is_some() || preferred.is_some());
        Ok(topology_constraint(topology, required, preferred).filter(|_| complete))
    }
}

fn segments_of(pods: i32, size: i32) -> i32 {
    pods / size + i32::from(pods % size > 0)
}

fn segment_name(segment: i32) -> String {
    format!("{WORKER}-{segment}")
}

fn index(workload: &Workload<'_>) -> Result<i32, GroupingError> {
    let text = workload.label(keys::KUBEFLOW_REPLICA_INDEX).unwrap_or_default();
    super::parse_count(text).ok_or_else(|| {
        let field = format!("metadata.labels.{}", keys::KUBEFLOW_REPLICA_INDEX);
        workload.refuse_pod(field, format!("{text:?} is not the number of a worker"))
    })
}
