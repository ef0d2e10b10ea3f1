//! Pods.

mod bounds;
mod chosen;
mod conditions;
mod config_maps;
pub(crate) mod constraints;
mod container_statuses;
mod requests;
mod reservation;
mod resize;
#[cfg(test)]
mod resource_laws;
mod scaling;
mod share_terms;
mod template;
mod transitions;
mod usage;
mod volumes;

pub use conditions::{ConditionStatus, PodCondition};
pub use reservation::ReservationPods;
pub use volumes::VolumeClaim;

use container_statuses::{ContainerStatuses, ReportedRequests};
use resize::Resize;
use template::{Container, Spec};
use usage::ReadGpus;

use kai_engine::model::{GangKey, Millis, PodKind, PodPhase, PodSpec, TaskRank, UsedVolumes};
use serde::Deserialize;

use crate::error::FieldError;
use crate::metadata::Metadata;
use crate::resources::{RawResources, ResourceRequirements};
use crate::text::{Text, null_as_default};
use crate::{Error, Object, Problem, Read, Resource, Scope, keys};

const SKIPPED: &str = "the pod is skipped";
const REFUSED: &str = "the pod is not scheduled";
const IGNORED: &str = "the pod runs already and keeps what it has";

/// A Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "RawPod")]
pub struct Pod {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    pub metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPod {
    kind: Option<Text>,
    #[serde(deserialize_with = "null_as_default")]
    metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: RawStatus,
}

impl From<RawPod> for Pod {
    fn from(raw: RawPod) -> Pod {
        Pod {
            kind: raw.kind,
            metadata: raw.metadata,
            status: raw.status.beside(&raw.spec),
            spec: raw.spec,
        }
    }
}

impl Object for Pod {
    const RESOURCE: Resource = Resource::new("", "v1", "Pod", "pods", Scope::Namespaced);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Ended pods hold no resources. In clusters with many jobs most pods have ended.
    fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// A gang with a succeeded pod is finishing: the scheduler must not evict its other pods for being too few.
    fn matters_when_terminal(&self) -> bool {
        self.status.phase.as_deref() == Some("Succeeded") && self.pod_group().is_some()
    }
}

#[derive(Clone, Debug, Default)]
struct Status {
    phase: Option<Text>,
    nominated_node_name: Option<Text>,
    conditions: Vec<PodCondition>,
    /// When the container started that has run for longest.
    started: Option<Millis>,
    resize: Option<Box<Resize>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawStatus {
    phase: Option<Text>,
    nominated_node_name: Option<Text>,
    #[serde(deserialize_with = "conditions::of_interest")]
    conditions: Vec<PodCondition>,
    container_statuses: ContainerStatuses,
    init_container_statuses: ContainerStatuses,
    allocated_resources: RawResources,
    #[serde(deserialize_with = "null_as_default")]
    resources: ResourceRequirements,
}

impl RawStatus {
    /// The status, with the requests that the kubelet reports where they differ from the spec.
    fn beside(mut self, spec: &Spec) -> Status {
        let pending = self.conditions.iter().position(PodCondition::is_resize_pending);
        let pending = pending.map(|at| self.conditions.swap_remove(at));
        let mut containers = self.container_statuses.requests;
        containers.append(&mut self.init_container_statuses.requests);
        let pod = ReportedRequests {
            name: Text::default(),
            allocated: self.allocated_resources,
            actual: self.resources.requests,
        };
        Status {
            phase: self.phase,
            nominated_node_name: self.nominated_node_name,
            conditions: self.conditions,
            started: self.container_statuses.started,
            resize: Resize::of(spec, pending.as_ref(), containers, pod),
        }
    }
}

impl Status {
    /// A container that starts again is no change: nothing is decided by its time, and containers may start again and again.
    fn same_content(&self, earlier: &Status) -> bool {
        let Status {
            phase,
            nominated_node_name,
            conditions,
            started,
            resize,
        } = self;
        *phase == earlier.phase
            && *nominated_node_name == earlier.nominated_node_name
            && *conditions == earlier.conditions
            && started.is_some() == earlier.started.is_some()
            && *resize == earlier.resize
    }
}

/// What distinguishes the scheduler's pods and its reservation pods from other pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// The `schedulerName` of this scheduler's pods.
    pub scheduler_name: String,
    /// The reservation pods.
    pub reservation_pods: ReservationPods,
}

impl Default for PodIdentity {
    fn default() -> PodIdentity {
        PodIdentity {
            scheduler_name: keys::SCHEDULER_NAME.to_owned(),
            reservation_pods: ReservationPods::default(),
        }
    }
}

impl Pod {
    /// The pod group in the pod's annotation.
    pub fn pod_group(&self) -> Option<&str> {
        self.pod_group_text().map(|name| &**name)
    }

    /// The pod group as shared text.
    pub fn pod_group_text(&self) -> Option<&Text> {
        let name = self.metadata.annotations.get(keys::POD_GROUP_NAME);
        name.filter(|name| !name.is_empty())
    }

    /// Whether all fields that kai keeps are equal, apart from the resource version. Many updates by kubelets change other fields only.
    pub fn same_content(&self, earlier: &Pod) -> bool {
        let Pod {
            kind: _,
            metadata,
            spec,
            status,
        } = self;
        // The field that changes most comes first.
        status.same_content(&earlier.status) && *spec == earlier.spec && metadata.same_content(&earlier.metadata)
    }

    /// The scheduler in the pod's spec.
    pub fn scheduler_name(&self) -> &str {
        self.spec.scheduler_name.as_deref().unwrap_or("default-scheduler")
    }

    /// The node that the pod is bound to.
    pub fn node_name(&self) -> Option<&str> {
        self.spec.node_name.as_deref().filter(|node| !node.is_empty())
    }

    /// The phase. An unknown text counts as phase `Unknown`.
    pub fn phase(&self) -> PodPhase {
        self.read_phase(&mut Vec::new())
    }

    /// When the container started that has run for longest; `None` = none runs.
    pub fn started(&self) -> Option<Millis> {
        self.status.started
    }

    /// Whether the pod has a deletion timestamp.
    pub fn is_terminating(&self) -> bool {
        self.metadata.is_terminating()
    }

    /// The number of scheduling gates.
    pub fn scheduling_gates(&self) -> usize {
        self.spec.scheduling_gates.len()
    }

    /// The priority class in the pod's spec.
    pub fn priority_class_name(&self) -> Option<&str> {
        self.spec.priority_class_name.as_deref().filter(|name| !name.is_empty())
    }

    /// The nominated node.
    pub fn nominated_node(&self) -> Option<&str> {
        self.status
            .nominated_node_name
            .as_deref()
            .filter(|node| !node.is_empty())
    }

    /// The condition of this type while it is not true. Only `PodCondition::SCHEDULED` and `BOUND` are kept.
    pub fn condition(&self, type_: &str) -> Option<&PodCondition> {
        self.status
            .conditions
            .iter()
            .find(|condition| &*condition.type_ == type_)
    }

    /// The volume claims of the pod. Volumes without a claim are not kept.
    pub fn volume_claims(&self) -> &[VolumeClaim] {
        &self.spec.volumes.claims
    }

    /// The names of the ConfigMaps that the pod requires, without those that the binder creates for it.
    pub fn config_maps(&self) -> impl Iterator<Item = &str> {
        let annotations = &self.metadata.annotations;
        let sharing = annotations
            .text(keys::SHARED_GPU_CONFIG_MAP)
            .filter(|prefix| !prefix.is_empty());
        let names = self.spec.config_maps.iter().map(|name| &**name);
        names.filter(move |name| sharing.is_none_or(|prefix| !name.starts_with(prefix)))
    }

    /// Whether the pod has resource claims.
    pub fn has_resource_claims(&self) -> bool {
        !self.spec.resource_claims.is_empty()
    }

    /// The GPU groups in the pod's labels, one per device.
    pub fn gpu_groups(&self) -> Vec<&str> {
        // Each of several devices has a label with a prefix, a single device has the plain label. Pods with both occur, and have all devices.
        let labels = &self.metadata.labels;
        let several = labels
            .iter()
            .filter_map(|(key, _)| key.strip_prefix(keys::GPU_GROUP_PREFIX));
        let mut groups: Vec<&str> = several.chain(labels.text(keys::GPU_GROUP)).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The kind of pod from the scheduler's point of view.
    pub fn kind(&self, identity: &PodIdentity) -> PodKind {
        match self.metadata.labels.text(keys::APP) {
            _ if identity.reservation_pods.contains(self) => PodKind::Reservation,
            Some(keys::SCALING_POD) if self.scheduler_name() != identity.scheduler_name => PodKind::Utility,
            _ if self.scheduler_name() == identity.scheduler_name => PodKind::Workload,
            _ => PodKind::Foreign,
        }
    }

    /// The engine's type; `Err` if the engine can't take the pod. `now` is the creation time of pods without one.
    pub fn read(&self, identity: &PodIdentity, now: Millis) -> Result<Read<PodSpec>, Problem> {
        let object = || format!("Pod {}", self.metadata.qualified_name());
        let mut errors = Vec::new();
        let mut value = self
            .spec(identity, now, &mut errors)
            .map_err(|error| error.of(object(), SKIPPED))?;
        // A bound pod can't be refused: the valid part of its request is what it occupies.
        let effect = if value.node.is_some() { IGNORED } else { REFUSED };
        if value.node.is_none() && value.kind == PodKind::Workload {
            value.refused = errors.first().cloned().map(FieldError::refusal);
        }
        let errors = errors.into_iter().take(bounds::PROBLEMS_MAX);
        let errors = errors.map(|error| error.of(object(), effect));
        let problems = errors.chain(self.ignored_task_priority()).collect();
        Ok(Read { value, problems })
    }

    fn spec(&self, identity: &PodIdentity, now: Millis, errors: &mut Vec<FieldError>) -> Result<PodSpec, FieldError> {
        let name = self.metadata.required_name()?.to_owned();
        let namespace = self.metadata.namespace().to_owned();
        let given = |text: &Option<Text>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
        let node = given(&self.spec.node_name);
        let (mut requests, gpus) = self.requests(errors);
        let ReadGpus { request, terms, error } = self.read_gpus(&gpus);
        errors.extend(error.map(|(field, error)| FieldError::new(field, error)));
        requests.gpu = request;
        if !self.spec.resource_claims.is_empty() {
            errors.push(FieldError::new("spec.resourceClaims", Error::ResourceClaims));
        }
        let mut constraints = self.constraints(&namespace, errors);
        constraints.share = terms.into();
        Ok(PodSpec {
            uid: self.metadata.uid_or(|| format!("{namespace}/{name}")),
            created: self.metadata.created(now)?,
            kind: self.kind(identity),
            gang: self.pod_group().map(|gang| GangKey {
                namespace: namespace.clone(),
                name: gang.to_owned(),
            }),
            sub_group: self.metadata.labels.text(keys::SUB_GROUP_NAME).map(str::to_owned),
            phase: self.read_phase(errors),
            deletion: self.metadata.deletion()?,
            gated: !self.spec.scheduling_gates.is_empty(),
            gpu_groups: self.gpu_groups().into_iter().map(str::to_owned).collect(),
            bind_in_flight: None,
            background: false,
            requests,
            constraints,
            volumes: UsedVolumes::default(),
            labels: self.metadata.labels.to_labels(),
            rank: self.rank(),
            nominated_node: given(&self.status.nominated_node_name),
            refused: None,
            node,
            namespace,
            name,
        })
    }

    fn read_phase(&self, errors: &mut Vec<FieldError>) -> PodPhase {
        match self.status.phase.as_deref() {
            None | Some("" | "Pending") => PodPhase::Pending,
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            Some("Unknown") => PodPhase::Unknown,
            Some(other) => {
                let known = "Pending, Running, Succeeded, Failed and Unknown";
                errors.push(FieldError::new(
                    "status.phase",
                    Error::Unknown {
                        text: other.to_owned(),
                        known,
                    },
                ));
                PodPhase::Unknown
            }
        }
    }

    fn rank(&self) -> TaskRank {
        let label = |key: &str| self.metadata.labels.text(key);
        TaskRank {
            leads_kubeflow_job: matches!(label(keys::KUBEFLOW_JOB_ROLE), Some("master" | "launcher")),
            heads_ray_cluster: label(keys::RAY_NODE_TYPE) == Some("head"),
            priority: label(keys::TASK_PRIORITY).map(|text| text.parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kai_engine::model::GpuRequest;

    use super::*;

    fn pod(text: &str) -> Read<PodSpec> {
        let pod: Pod = serde_json::from_str(text).unwrap();
        pod.read(&PodIdentity::default(), Millis(0)).unwrap()
    }

    #[test]
    fn kinds() {
        let kind = |namespace: &str, scheduler: &str, app: &str| {
            let text = format!(
                r#"{{"metadata":{{"name":"p","namespace":"{namespace}","labels":{{"app":"{app}"}}}},"spec":{{"schedulerName":"{scheduler}"}}}}"#
            );
            pod(&text).value.kind
        };
        assert_eq!(kind("a", "kai-scheduler", "x"), PodKind::Workload);
        assert_eq!(kind("a", "default-scheduler", "x"), PodKind::Foreign);
        assert_eq!(
            kind(
                "kai-resource-reservation",
                "default-scheduler",
                "kai-resource-reservation"
            ),
            PodKind::Reservation
        );
        assert_eq!(
            kind("tenant", "kai-scheduler", "kai-resource-reservation"),
            PodKind::Workload
        );
        assert_eq!(kind("a", "default-scheduler", "scaling-pod"), PodKind::Utility);
        assert_eq!(kind("a", "kai-scheduler", "scaling-pod"), PodKind::Workload);
    }

    #[test]
    fn a_new_version_may_say_nothing_new() {
        let pod = |version: u32, label: &str, node: &str, phase: &str| -> Pod {
            let text = format!(
                r#"{{"metadata":{{"name":"p","resourceVersion":"{version}","labels":{{"a":"{label}"}}}},
                    "spec":{{"nodeName":"{node}"}},"status":{{"phase":"{phase}","podIP":"10.0.0.{version}"}}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let first = pod(1, "x", "n", "Running");
        assert!(pod(2, "x", "n", "Running").same_content(&first));
        for other in [
            pod(2, "y", "n", "Running"),
            pod(2, "x", "m", "Running"),
            pod(2, "x", "n", "Pending"),
        ] {
            assert!(!other.same_content(&first), "{other:?}");
        }
    }

    #[test]
    fn groups_come_from_labels() {
        let text = r#"{"metadata":{"name":"p","labels":{"runai-gpu-group/b":"b","runai-gpu-group/a":"a","runai-gpu-group":"c"}}}"#;
        assert_eq!(pod(text).value.gpu_groups, ["a", "b", "c"]);
        assert_eq!(
            pod(r#"{"metadata":{"name":"p","labels":{"runai-gpu-group":"c"}}}"#)
                .value
                .gpu_groups,
            ["c"]
        );
    }

    #[test]
    fn a_bad_request_is_a_reason_to_wait_and_a_running_pod_keeps_its_gpus() {
        let text = |node: &str| {
            format!(
                r#"{{"metadata":{{"name":"p","annotations":{{"gpu-fraction":"NaN"}}}},
                    "spec":{{"schedulerName":"kai-scheduler"{node},
                             "containers":[{{"resources":{{"limits":{{"nvidia.com/gpu":1}}}}}}]}}}}"#
            )
        };
        let waiting = pod(&text(""));
        assert!(
            waiting
                .value
                .refused
                .unwrap()
                .to_string()
                .starts_with("metadata.annotations.gpu-fraction: ")
        );
        assert_eq!(waiting.problems.len(), 1);
        let running = pod(&text(r#","nodeName":"n""#));
        assert_eq!(
            (running.value.refused, running.value.requests.gpu),
            (None, GpuRequest::Whole { devices: 1 })
        );
    }
}
