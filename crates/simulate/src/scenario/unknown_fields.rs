//! Warns of unknown fields, which an API server with strict field validation would reject.
//!
//! The known fields come from the schemas: of our CustomResourceDefinitions, and of Kubernetes' types. Values are not checked here.

use std::sync::LazyLock;

use k8s_openapi::api::{apps, batch, core, scheduling, storage};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kai_api::crd;
use kai_yaml::suggestion;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::{Warnings, display};

/// The schema of a kind.
struct Schema {
    root: Value,
    metadata: Value,
    /// The targets of `$ref`.
    definitions: Map<String, Value>,
}

impl Schema {
    /// The schema of a built-in kind.
    fn of<Kind: JsonSchema>() -> Schema {
        let mut generator = SchemaSettings::draft2020_12().into_generator();
        Schema {
            root: generator.subschema_for::<Kind>().to_value(),
            metadata: generator.subschema_for::<ObjectMeta>().to_value(),
            definitions: generator.take_definitions(true),
        }
    }

    /// The schema of a custom resource.
    fn custom<Spec: JsonSchema, Status: JsonSchema>() -> Schema {
        let mut generator = SchemaSettings::draft2020_12().into_generator();
        let spec = generator.subschema_for::<Spec>();
        let status = generator.subschema_for::<Status>();
        Schema {
            root: json!({ "properties": { "spec": spec, "status": status } }),
            metadata: generator.subschema_for::<ObjectMeta>().to_value(),
            definitions: generator.take_definitions(true),
        }
    }

    fn resolve<'a>(&'a self, mut schema: &'a Value) -> &'a Value {
        // The schema of an optional field is a reference or null.
        if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
            schema = choices
                .iter()
                .find(|choice| choice.get("$ref").is_some())
                .unwrap_or(schema);
        }
        let reference = schema.get("$ref").and_then(Value::as_str);
        let name = reference.and_then(|reference| reference.rsplit('/').next());
        name.and_then(|name| self.definitions.get(name)).unwrap_or(schema)
    }
}

/// The schema of a kind, generated at its first use: most runs need few schemas.
fn schema_of(kind: &str) -> Option<&'static Schema> {
    static NODE: LazyLock<Schema> = LazyLock::new(Schema::of::<core::v1::Node>);
    static POD: LazyLock<Schema> = LazyLock::new(Schema::of::<core::v1::Pod>);
    static PRIORITY_CLASS: LazyLock<Schema> = LazyLock::new(Schema::of::<scheduling::v1::PriorityClass>);
    static VOLUME: LazyLock<Schema> = LazyLock::new(Schema::of::<core::v1::PersistentVolume>);
    static VOLUME_CLAIM: LazyLock<Schema> = LazyLock::new(Schema::of::<core::v1::PersistentVolumeClaim>);
    static STORAGE_CLASS: LazyLock<Schema> = LazyLock::new(Schema::of::<storage::v1::StorageClass>);
    static CSI_NODE: LazyLock<Schema> = LazyLock::new(Schema::of::<storage::v1::CSINode>);
    static CSI_DRIVER: LazyLock<Schema> = LazyLock::new(Schema::of::<storage::v1::CSIDriver>);
    static STORAGE_CAPACITY: LazyLock<Schema> = LazyLock::new(Schema::of::<storage::v1::CSIStorageCapacity>);
    static CONFIG_MAP: LazyLock<Schema> = LazyLock::new(Schema::of::<core::v1::ConfigMap>);
    static DEPLOYMENT: LazyLock<Schema> = LazyLock::new(Schema::of::<apps::v1::Deployment>);
    static REPLICA_SET: LazyLock<Schema> = LazyLock::new(Schema::of::<apps::v1::ReplicaSet>);
    static STATEFUL_SET: LazyLock<Schema> = LazyLock::new(Schema::of::<apps::v1::StatefulSet>);
    static DAEMON_SET: LazyLock<Schema> = LazyLock::new(Schema::of::<apps::v1::DaemonSet>);
    static JOB: LazyLock<Schema> = LazyLock::new(Schema::of::<batch::v1::Job>);
    static QUEUE: LazyLock<Schema> = LazyLock::new(Schema::custom::<crd::QueueSpec, crd::QueueStatus>);
    static POD_GROUP: LazyLock<Schema> = LazyLock::new(Schema::custom::<crd::PodGroupSpec, crd::PodGroupStatus>);
    static BIND_REQUEST: LazyLock<Schema> =
        LazyLock::new(Schema::custom::<crd::BindRequestSpec, crd::BindRequestStatus>);
    static TOPOLOGY: LazyLock<Schema> = LazyLock::new(Schema::custom::<crd::TopologySpec, ()>);
    Some(match kind {
        "Node" => &NODE,
        "Pod" => &POD,
        "PriorityClass" => &PRIORITY_CLASS,
        "PersistentVolume" => &VOLUME,
        "PersistentVolumeClaim" => &VOLUME_CLAIM,
        "StorageClass" => &STORAGE_CLASS,
        "CSINode" => &CSI_NODE,
        "CSIDriver" => &CSI_DRIVER,
        "CSIStorageCapacity" => &STORAGE_CAPACITY,
        "ConfigMap" => &CONFIG_MAP,
        "Deployment" => &DEPLOYMENT,
        "ReplicaSet" => &REPLICA_SET,
        "StatefulSet" => &STATEFUL_SET,
        "DaemonSet" => &DAEMON_SET,
        "Job" => &JOB,
        "Queue" => &QUEUE,
        "PodGroup" => &POD_GROUP,
        "BindRequest" => &BIND_REQUEST,
        "Topology" => &TOPOLOGY,
        _ => return None,
    })
}

/// Warns of unknown fields of an object. Objects of unknown kinds are not checked.
pub(super) fn check(kind: &str, object: &Value, warnings: &mut Warnings) {
    let (Some(schema), Some(fields)) = (schema_of(kind), object.as_object()) else {
        return;
    };
    let mut checker = Checker {
        schema,
        kind,
        object,
        path: Vec::new(),
        warnings,
    };
    let root = schema.resolve(&schema.root);
    for (field, value) in fields {
        match field.as_str() {
            "apiVersion" | "kind" => {}
            // The definitions of custom resources have no schema of metadata.
            "metadata" => checker.field(field, value, Some(&schema.metadata), root),
            _ => checker.field(field, value, property(root, field), root),
        }
    }
}

fn property<'s>(schema: &'s Value, field: &str) -> Option<&'s Value> {
    schema.get("properties").and_then(|properties| properties.get(field))
}

struct Checker<'c> {
    schema: &'static Schema,
    kind: &'c str,
    object: &'c Value,
    path: Vec<String>,
    warnings: &'c mut Warnings,
}

impl Checker<'_> {
    /// `within` is the schema of the parent.
    fn field(&mut self, field: &str, value: &Value, schema: Option<&Value>, within: &Value) {
        // A null counts as a missing field.
        if value.is_null() {
            return;
        }
        self.path.push(field.to_owned());
        match schema {
            Some(schema) => self.value(value, self.schema.resolve(schema)),
            None => self.unknown(field, within),
        }
        self.path.pop();
    }

    fn value(&mut self, value: &Value, schema: &Value) {
        match value {
            Value::Object(fields) => {
                let others = schema.get("additionalProperties");
                let any = schema.get("properties").is_none()
                    || schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
                for (field, value) in fields {
                    match property(schema, field).or(others.filter(|others| others.is_object())) {
                        None if any || others == Some(&Value::Bool(true)) => {}
                        found => self.field(field, value, found, schema),
                    }
                }
            }
            Value::Array(entries) => {
                let Some(schema) = schema.get("items").map(|items| self.schema.resolve(items)) else {
                    return;
                };
                for (at, entry) in entries.iter().enumerate() {
                    self.path.push(format!("[{at}]"));
                    self.value(entry, schema);
                    self.path.pop();
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn unknown(&mut self, field: &str, within: &Value) {
        let known = within.get("properties").and_then(Value::as_object);
        let known = known.into_iter().flat_map(|known| known.keys().map(String::as_str));
        let (object, kind) = (display(self.kind, self.object), self.kind);
        let path = self.path.join(".").replace(".[", "[");
        self.warnings.push(format_args!(
            "{object}: {path}: {kind} has no such field (it is ignored){}",
            suggestion(field, known)
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn warnings_of(kind: &str, object: Value) -> Vec<String> {
        let mut warnings = Warnings::default();
        check(kind, &object, &mut warnings);
        warnings.lines().collect()
    }

    #[test]
    fn typos_in_custom_resources_are_told_with_the_nearest_field() {
        let queue =
            json!({ "metadata": { "name": "q" }, "spec": { "resources": { "gpu": { "qouta": 3, "limit": -1 } } } });
        assert_eq!(
            warnings_of("Queue", queue),
            ["Queue q: spec.resources.gpu.qouta: Queue has no such field (it is ignored); did you mean quota?"]
        );
        let group = json!({ "metadata": { "name": "g", "lables": {} }, "spec": { "subGroups": [{ "name": "a", "minMembers": 2 }] } });
        assert_eq!(
            warnings_of("PodGroup", group),
            [
                "PodGroup g: metadata.lables: PodGroup has no such field (it is ignored); did you mean labels?",
                "PodGroup g: spec.subGroups[0].minMembers: PodGroup has no such field (it is ignored); did you mean minMember?",
            ]
        );
        let constraint = json!({ "spec": { "topologyConstraint": { "topolgy": "t" } } });
        assert_eq!(
            warnings_of("PodGroup", constraint),
            [
                "PodGroup (no name): spec.topologyConstraint.topolgy: PodGroup has no such field (it is ignored); did you mean \
                 topology?"
            ]
        );
        for (kind, field) in [("BindRequest", "podNam"), ("Topology", "level")] {
            assert_eq!(warnings_of(kind, json!({ "spec": { field: 1 } })).len(), 1, "{kind}");
        }
    }

    #[test]
    fn typos_in_kinds_of_kubernetes_are_told_too() {
        let pod = json!({
            "metadata": { "name": "p", "namespace": "ns", "annotations": { "any": "thing" }, "managedFields": [{ "fieldsV1": { "f:a": {} } }] },
            "spec": {
                "nodeSelectr": { "a": "b" },
                "containers": [{ "name": "main", "resources": { "limit": { "nvidia.com/gpu": 1 }, "requests": { "cpu": 1 } } }],
            },
        });
        assert_eq!(
            warnings_of("Pod", pod),
            [
                "Pod ns/p: spec.containers[0].resources.limit: Pod has no such field (it is ignored); did you mean limits?",
                "Pod ns/p: spec.nodeSelectr: Pod has no such field (it is ignored); did you mean nodeSelector?",
            ]
        );
        let job = json!({ "spec": { "paralellism": 2, "template": { "spec": { "containers": [] } } } });
        assert_eq!(
            warnings_of("Job", job),
            ["Job (no name): spec.paralellism: Job has no such field (it is ignored); did you mean parallelism?"]
        );
    }

    #[test]
    fn kinds_without_a_schema_and_nulls_are_not_judged() {
        assert_eq!(
            warnings_of("Widget", json!({ "spec": { "a": 1 } })),
            Vec::<String>::new()
        );
        assert_eq!(
            warnings_of("Node", json!({ "spec": { "nothing": null } })),
            Vec::<String>::new()
        );
    }
}
