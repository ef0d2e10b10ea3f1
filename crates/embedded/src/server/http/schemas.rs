//! Schemas and descriptions of the built-in kinds from the k8s-openapi crate, for `kubectl explain`. Pure.

use k8s_openapi::api::{
    admissionregistration::v1 as admissionregistration, apps::v1 as apps, autoscaling::v2 as autoscaling,
    batch::v1 as batch, coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
    events::v1 as events, networking::v1 as networking, node::v1 as node, policy::v1 as policy, rbac::v1 as rbac,
    resource::v1 as resource, scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::server::kinds::Kind;

/// The schemas of one group and version.
pub(super) struct Schemas(SchemaGenerator);

impl Schemas {
    pub(super) fn new() -> Self {
        Self(SchemaGenerator::new(SchemaSettings::openapi3()))
    }

    /// Adds the schema of a kind and returns its name; `None` if the kind is not built in.
    pub(super) fn add(&mut self, kind: &Kind) -> Option<String> {
        let add = adder(&kind.api_version(), &kind.kind)?;
        Some(add(&mut self.0))
    }

    /// Adds the schema of ObjectMeta, to which custom kinds refer, and returns its name.
    pub(super) fn add_metadata(&mut self) -> String {
        named::<ObjectMeta>(&mut self.0)
    }

    /// All added schemas with the schemas they refer to.
    pub(super) fn done(mut self) -> Map<String, Value> {
        self.0.take_definitions(true)
    }
}

fn named<T: JsonSchema>(generator: &mut SchemaGenerator) -> String {
    generator.subschema_for::<T>();
    T::schema_name().into_owned()
}

type Adder = fn(&mut SchemaGenerator) -> String;

/// The function that adds the schema of a kind.
fn adder(api_version: &str, kind: &str) -> Option<Adder> {
    macro_rules! of_kind {
        ($($version:literal $module:ident: $($kind:ident)*;)*) => {
            match (api_version, kind) {
                $($(($version, stringify!($kind)) => Some(named::<$module::$kind>),)*)*
                _ => None,
            }
        };
    }
    of_kind! {
        "v1" core: Pod Node Namespace ConfigMap Secret Service ServiceAccount Event PersistentVolume PersistentVolumeClaim
            Endpoints LimitRange ResourceQuota ReplicationController PodTemplate;
        "apps/v1" apps: Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision;
        "batch/v1" batch: Job CronJob;
        "autoscaling/v2" autoscaling: HorizontalPodAutoscaler;
        "coordination.k8s.io/v1" coordination: Lease;
        "discovery.k8s.io/v1" discovery: EndpointSlice;
        "networking.k8s.io/v1" networking: Ingress NetworkPolicy;
        "scheduling.k8s.io/v1" scheduling: PriorityClass;
        "events.k8s.io/v1" events: Event;
        "admissionregistration.k8s.io/v1" admissionregistration: MutatingWebhookConfiguration
            ValidatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding;
        "apiextensions.k8s.io/v1" apiextensions: CustomResourceDefinition;
        "apiregistration.k8s.io/v1" apiregistration: APIService;
        "rbac.authorization.k8s.io/v1" rbac: Role RoleBinding ClusterRole ClusterRoleBinding;
        "storage.k8s.io/v1" storage: StorageClass CSIDriver CSINode CSIStorageCapacity VolumeAttachment;
        "resource.k8s.io/v1" resource: ResourceClaim ResourceClaimTemplate ResourceSlice DeviceClass;
        "policy/v1" policy: PodDisruptionBudget;
        "node.k8s.io/v1" node: RuntimeClass;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::kinds::Kinds;

    #[test]
    fn every_built_in_kind_has_a_schema_with_descriptions() {
        let mut schemas = Schemas::new();
        let mut names = Vec::new();
        for kind in Kinds::built_in().iter() {
            names.push(
                schemas
                    .add(kind)
                    .unwrap_or_else(|| panic!("{} {}", kind.api_version(), kind.kind)),
            );
        }
        let done = schemas.done();
        for name in names {
            assert!(done[&name]["description"].is_string(), "{name}");
        }
        assert!(done.contains_key("io.k8s.api.core.v1.Container"));
    }

    #[test]
    fn schemas_and_the_table_of_types_know_the_same_fields() {
        let mut schemas = Schemas::new();
        for kind in Kinds::built_in().iter() {
            schemas.add(kind);
        }
        let types = crate::server::types::types();
        let mut compared = 0;
        for (name, schema) in schemas.done() {
            // io.k8s.api.core.v1.Pod is core.v1.Pod in the table.
            let short: Vec<&str> = name.rsplitn(4, '.').collect();
            let Some(of_type) = types.get(&format!("{}.{}.{}", short[2], short[1], short[0])) else {
                continue;
            };
            let fields = schema["properties"].as_object().into_iter().flatten();
            for (field, _) in fields.filter(|(field, _)| !matches!(field.as_str(), "apiVersion" | "kind")) {
                assert!(types.field(of_type, field).is_some(), "{name}: {field}");
                compared += 1;
            }
        }
        assert!(compared > 1_000, "{compared}");
    }
}
