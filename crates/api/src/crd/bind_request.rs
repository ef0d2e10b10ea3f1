//! The BindRequest kind: a decision of the scheduler about one pod, which the binder executes.

use k8s_openapi::api::core::v1::ContainerExtendedResourceRequest;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequest};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ResourceList, schema};

/// The decision.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "scheduling.run.ai",
    version = "v1alpha2",
    kind = "BindRequest",
    plural = "bindrequests",
    singular = "bindrequest",
    namespaced,
    status = "BindRequestStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A decision of the scheduler about one pod, which the binder executes.",
    printcolumn = r#"{"name":"Pod","type":"string","jsonPath":".spec.podName"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.selectedNode"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Failed","type":"integer","jsonPath":".status.failedAttempts"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.reason","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BindRequestSpec {
    /// The pod, in the same namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
    /// The node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selected_node: String,
    /// The type of resources that the pod gets: Regular, Fraction or MigInstance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub received_resource_type: String,
    /// The number of GPUs and the fraction of each.
    #[serde(rename = "receivedGPU", skip_serializing_if = "Option::is_none")]
    pub received_gpu: Option<ReceivedGpu>,
    /// The GPU groups of the shared GPUs, one per GPU. Before KAI 0.18; selectedFractionalGpuGroups has the same groups.
    #[serde(rename = "selectedGPUGroups", default, skip_serializing_if = "Vec::is_empty")]
    pub selected_gpu_groups: Vec<String>,
    /// The GPU groups of the shared GPUs, one per GPU, with their compute modes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selected_fractional_gpu_groups: Vec<FractionalGpuGroup>,
    /// What the pod's volume claims get that have no volume yet: a volume that exists, or a new one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selected_volumes: Vec<SelectedVolume>,
    /// Devices for the pod's resource claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_claim_allocations: Vec<ResourceClaimAllocation>,
    /// Devices for extended resources that a DRA driver provides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended_resource_claim_allocation: Option<ExtendedResourceClaimAllocation>,
    /// The NUMA zones that the node is expected to choose.
    #[serde(rename = "predictedNUMAZones", default, skip_serializing_if = "Vec::is_empty")]
    pub predicted_numa_zones: Vec<NumaZone>,
    /// The number of failed attempts after which the binder gives up; 1 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_limit: Option<i32>,
}

/// The number of GPUs that a pod gets and the fraction of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ReceivedGpu {
    /// The number of GPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: i32,
    /// The fraction of each GPU, with two decimals: 1.00 is a whole GPU.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub portion: String,
}

/// A GPU group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FractionalGpuGroup {
    /// The GPU group.
    pub id: String,
    /// How its pods use the multiprocessors: time-slicing or sm-sharing; time-slicing if unset.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compute_sharing_mode: String,
}

/// What a volume claim gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectedVolume {
    /// The claim, in the same namespace.
    pub claim_name: String,
    /// The volume. If unset, the provisioner of the claim's storage class makes one for the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_name: String,
}

/// Devices for one resource claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct ResourceClaimAllocation {
    /// The claim's name in the pod's spec.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// An AllocationResult of resource.k8s.io/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<AllocationResult>")]
    pub allocation: Option<AllocationResult>,
}

/// Devices for extended resources.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtendedResourceClaimAllocation {
    /// An AllocationResult of resource.k8s.io/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::embedded::<AllocationResult>")]
    pub allocation: Option<AllocationResult>,
    /// The requests of the claim to create, DeviceRequests of resource.k8s.io/v1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<DeviceRequest>>")]
    pub device_requests: Vec<DeviceRequest>,
    /// The request for each extended resource of each container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::embedded::<Vec<ContainerExtendedResourceRequest>>")]
    pub container_mappings: Vec<ContainerExtendedResourceRequest>,
}

/// Part of a pod's resources in one NUMA zone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct NumaZone {
    /// The zone.
    pub zone: String,
    /// The amounts by resource name.
    #[schemars(schema_with = "schema::resource_list")]
    pub amount: ResourceList,
}

/// The status of a bind request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindRequestStatus {
    /// Pending, Succeeded or Failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The number of failed attempts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_attempts: i32,
}

impl BindRequestStatus {
    /// Phase: the binder has not bound the pod yet.
    pub const PENDING: &str = "Pending";
    /// Phase: the pod is bound.
    pub const SUCCEEDED: &str = "Succeeded";
    /// Phase: the last attempt failed.
    pub const FAILED: &str = "Failed";
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}
