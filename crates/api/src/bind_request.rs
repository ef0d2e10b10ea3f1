//! BindRequests: decisions of the scheduler that the binder executes.

use kai_engine::model::{BindInFlight, GpuFraction, PodSpec, VolumeChoice};
use serde::{Deserialize, Deserializer};

use crate::gpu_enforcement::ComputeMode;
use crate::gpu_request::parse_portion;
use crate::metadata::Metadata;
use crate::quantity::shorten;
use crate::text::{Text, null_as_default};

/// A BindRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct BindRequest {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "spec_with_groups")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: Status,
}

crate::object::object!(
    BindRequest,
    "scheduling.run.ai",
    "v1alpha2",
    "BindRequest",
    "bindrequests",
    Namespaced
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    pod_name: Option<Text>,
    selected_node: Option<Text>,
    /// From the list with compute modes if the one without is empty.
    #[serde(rename = "selectedGPUGroups", deserialize_with = "null_as_default")]
    selected_gpu_groups: Vec<Text>,
    #[serde(deserialize_with = "null_as_default")]
    selected_fractional_gpu_groups: Vec<FractionalGroup>,
    #[serde(deserialize_with = "null_as_default")]
    selected_volumes: Vec<SelectedVolume>,
    backoff_limit: Option<i32>,
    received_resource_type: Option<Text>,
    #[serde(rename = "receivedGPU")]
    received_gpu: Option<ReceivedGpu>,
}

/// What a claim of the pod gets that has no volume yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SelectedVolume {
    /// Name of the claim, which is in the pod's namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub claim_name: Text,
    /// The volume; `None` = the provisioner makes one.
    pub volume_name: Option<Text>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FractionalGroup {
    #[serde(deserialize_with = "null_as_default")]
    id: Text,
    compute_sharing_mode: Option<Text>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ReceivedGpu {
    #[serde(deserialize_with = "portion")]
    portion: Option<GpuFraction>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<Text>,
    failed_attempts: Option<i32>,
    reason: Option<Text>,
}

/// The spec, with the GPU groups in one list.
fn spec_with_groups<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spec, D::Error> {
    let mut spec: Spec = null_as_default(deserializer)?;
    if spec.selected_gpu_groups.is_empty() {
        let groups = spec.selected_fractional_gpu_groups.iter();
        spec.selected_gpu_groups = groups.map(|group| group.id.clone()).collect();
    }
    Ok(spec)
}

/// A portion that can't be read counts as missing: the scheduler alone writes it, and the binder still has the pod's annotation.
fn portion<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GpuFraction>, D::Error> {
    let text: Option<Text> = Option::deserialize(deserializer)?;
    Ok(text.and_then(|text| parse_portion(&text)))
}

/// The lists of GPU groups of a bind request contradict each other or themselves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuGroupsError {
    /// The lists name other groups, or in another order.
    #[error(
        "spec.selectedGPUGroups names {old}, but spec.selectedFractionalGpuGroups names {new}; name the same groups in the same order, or \
         leave the old list out"
    )]
    ListsDiffer {
        /// The groups in the list before KAI 0.18.
        old: String,
        /// The groups in the list with compute modes.
        new: String,
    },
    /// A pod has one compute mode.
    #[error("spec.selectedFractionalGpuGroups has groups of different computeSharingMode; a pod has one")]
    ModesDiffer,
    /// A compute mode that does not exist.
    #[error("spec.selectedFractionalGpuGroups: computeSharingMode {0:?} is unknown; write time-slicing or sm-sharing")]
    UnknownMode(String),
}

/// The phase of a bind request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindPhase {
    /// The binder has not finished an attempt, or has set no known phase.
    Pending,
    /// The pod is bound.
    Succeeded,
    /// The last attempt failed.
    Failed,
}

impl BindRequest {
    /// The pod's name; the request's own name if the spec has none.
    pub fn pod_name(&self) -> &str {
        self.spec
            .pod_name
            .as_deref()
            .unwrap_or_else(|| self.metadata.plain_name())
    }

    /// The selected node; empty if missing.
    pub fn selected_node(&self) -> &str {
        self.spec.selected_node.as_deref().unwrap_or_default()
    }

    /// The selected GPU groups, one per device, from either list.
    pub fn gpu_groups(&self) -> &[Text] {
        &self.spec.selected_gpu_groups
    }

    /// The compute mode of the GPU groups, or how the request contradicts itself. The list without modes means time-slicing.
    pub fn compute_mode(&self) -> Result<ComputeMode, GpuGroupsError> {
        let fractional = &self.spec.selected_fractional_gpu_groups;
        let new = || fractional.iter().map(|group| &group.id);
        if !fractional.is_empty() && !self.spec.selected_gpu_groups.iter().eq(new()) {
            return Err(GpuGroupsError::ListsDiffer {
                old: names(self.spec.selected_gpu_groups.iter()),
                new: names(new()),
            });
        }
        let mut modes = fractional
            .iter()
            .map(|group| match group.compute_sharing_mode.as_deref() {
                None | Some("") => Ok(ComputeMode::default()),
                Some(name) => ComputeMode::from_name(name).ok_or_else(|| GpuGroupsError::UnknownMode(shorten(name))),
            });
        let first = modes.next().unwrap_or(Ok(ComputeMode::default()))?;
        for mode in modes {
            if mode? != first {
                return Err(GpuGroupsError::ModesDiffer);
            }
        }
        Ok(first)
    }

    /// The type of resources that the pod gets, one of the `RECEIVED_*` keys.
    pub fn received_resource_type(&self) -> &str {
        let given = self.spec.received_resource_type.as_deref();
        given.unwrap_or(crate::keys::RECEIVED_REGULAR)
    }

    /// The part of each GPU that the pod gets; `None` if it is missing or can't be read.
    pub fn portion(&self) -> Option<GpuFraction> {
        self.spec.received_gpu.as_ref()?.portion
    }

    /// The phase in the status.
    pub fn phase(&self) -> BindPhase {
        match self.status.phase.as_deref() {
            Some("Succeeded") => BindPhase::Succeeded,
            Some("Failed") => BindPhase::Failed,
            _ => BindPhase::Pending,
        }
    }

    /// Why the last attempt failed.
    pub fn reason(&self) -> &str {
        self.status.reason.as_deref().unwrap_or_default()
    }

    /// The number of failed attempts.
    pub fn failed_attempts(&self) -> i32 {
        self.status.failed_attempts.unwrap_or(0)
    }

    /// The number of failed attempts after which the binder gives up; `None`: one.
    pub fn backoff_limit(&self) -> Option<i32> {
        self.spec.backoff_limit
    }

    /// What the claims of the pod get that had no volume when the scheduler decided.
    pub fn selected_volumes(&self) -> &[SelectedVolume] {
        &self.spec.selected_volumes
    }

    /// Whether the request failed and the binder makes no further attempt.
    pub fn failed_for_good(&self) -> bool {
        let is_exhausted = self.backoff_limit().is_none_or(|limit| self.failed_attempts() >= limit);
        self.phase() == BindPhase::Failed && is_exhausted
    }

    /// Whether the request is for the pod with this uid, among the pods of its namespace and pod name: an earlier pod may have had the name.
    ///
    /// A request names its pod as an owner. The garbage collector keeps it while any of its owners exists, so it is for each pod among them.
    /// A request without such an owner is for any pod of the name; KAI never looks at the uid.
    pub fn is_for_pod(&self, uid: &str) -> bool {
        let mut pods = self
            .metadata
            .owner_references
            .iter()
            .filter(|owner| &*owner.kind == "Pod")
            .peekable();
        pods.peek().is_none() || pods.any(|owner| &*owner.uid == uid)
    }

    /// Adds the binding in flight to the pod. The GPU groups of a finished request take precedence over the pod's labels.
    pub fn attach(&self, pod: &mut PodSpec) {
        let Some(bind) = self.in_flight() else { return };
        if !bind.gpu_groups.is_empty() {
            pod.gpu_groups.clone_from(&bind.gpu_groups);
        }
        pod.bind_in_flight = pod.node.is_none().then_some(bind);
    }

    /// The binding in flight; `None` if the request failed for good.
    fn in_flight(&self) -> Option<BindInFlight> {
        if self.failed_for_good() || self.selected_node().is_empty() {
            return None;
        }
        let node = self.selected_node().to_owned();
        let gpu_groups = self.spec.selected_gpu_groups.iter().map(Text::to_string).collect();
        let volumes = self.selected_volumes().iter().map(|selected| VolumeChoice {
            claim: format!("{}/{}", self.metadata.namespace(), selected.claim_name),
            volume: selected.volume_name.as_ref().map(Text::to_string),
        });
        let volumes = volumes.collect();
        Some(BindInFlight {
            node,
            gpu_groups,
            volumes,
        })
    }
}

/// The groups for a message.
fn names<'a>(groups: impl Iterator<Item = &'a Text>) -> String {
    let names: Vec<String> = groups.map(|group| shorten(group)).collect();
    format!("[{}]", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_of_gpu_groups_are_read() {
        let check = |lists: &str, groups: &[&str], mode: Result<ComputeMode, &str>| {
            let request: BindRequest = serde_json::from_str(&format!(r#"{{"spec":{{{lists}}}}}"#)).unwrap();
            assert_eq!(request.gpu_groups(), groups, "{lists}");
            let found = request.compute_mode().map_err(|error| error.to_string());
            match (found, mode) {
                (Ok(found), Ok(mode)) => assert_eq!(found, mode, "{lists}"),
                (Err(found), Err(words)) => assert!(found.contains(words), "{lists}: {found}"),
                (found, _) => panic!("{lists}: {found:?}"),
            }
        };
        let slicing = Ok(ComputeMode::TimeSlicing);
        check("", &[], slicing);
        check(r#""selectedGPUGroups":["g","h"]"#, &["g", "h"], slicing);
        check(r#""selectedFractionalGpuGroups":[{"id":"g"}]"#, &["g"], slicing);
        check(
            r#""selectedGPUGroups":null,"selectedFractionalGpuGroups":[{"id":"g","computeSharingMode":"sm-sharing"},
               {"id":"h","computeSharingMode":"sm-sharing"}]"#,
            &["g", "h"],
            Ok(ComputeMode::SmSharing),
        );
        check(
            r#""selectedGPUGroups":["g"],"selectedFractionalGpuGroups":[{"id":"g","computeSharingMode":"time-slicing"}]"#,
            &["g"],
            slicing,
        );
        check(
            r#""selectedGPUGroups":["g","h"],"selectedFractionalGpuGroups":[{"id":"h"},{"id":"g"}]"#,
            &["g", "h"],
            Err("names [g, h], but spec.selectedFractionalGpuGroups names [h, g]; name the same"),
        );
        check(
            r#""selectedFractionalGpuGroups":[{"id":"g"},{"id":"h","computeSharingMode":"sm-sharing"}]"#,
            &["g", "h"],
            Err("different computeSharingMode"),
        );
        check(
            r#""selectedFractionalGpuGroups":[{"id":"g","computeSharingMode":"mps"}]"#,
            &["g"],
            Err("\"mps\" is unknown; write"),
        );
    }

    fn check(text: &str, expect: Option<&str>) {
        let request: BindRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.in_flight().map(|bind| bind.node).as_deref(), expect, "{text}");
    }

    #[test]
    fn a_bind_request_is_for_each_pod_that_owns_it() {
        let check = |owners: &str, expect: bool| {
            let text = format!(r#"{{"metadata":{{"ownerReferences":[{owners}]}}}}"#);
            let request: BindRequest = serde_json::from_str(&text).unwrap();
            assert_eq!(request.is_for_pod("u"), expect, "{text}");
        };
        check("", true);
        check(r#"{"kind":"Pod","uid":"u"}"#, true);
        check(r#"{"kind":"Pod","uid":"v"}"#, false);
        check(r#"{"kind":"Job","uid":"v"}"#, true);
        check(r#"{"kind":"Pod","uid":"v"},{"kind":"Pod","uid":"u"}"#, true);
        check(r#"{"kind":"Pod","uid":"v"},{"kind":"Job","uid":"u"}"#, false);
    }

    #[test]
    fn a_bind_request_counts_until_it_failed_for_good() {
        check(r#"{"spec":{"podName":"p","selectedNode":"n"}}"#, Some("n"));
        check(r#"{"spec":{"selectedNode":"n"},"status":{"phase":"Failed"}}"#, None);
        let limited =
            r#"{"spec":{"selectedNode":"n","backoffLimit":3},"status":{"phase":"Failed","failedAttempts":2}}"#;
        check(limited, Some("n"));
        check(r#"{"spec":{}}"#, None);
    }
}
