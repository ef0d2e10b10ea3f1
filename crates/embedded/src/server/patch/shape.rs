//! Merge rules of lists and maps: the key fields of list items, and which values are atomic. Built-in kinds have them by field name,
//! custom kinds by their schema.

use serde_json::Value;

/// The merge rules of one value of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    /// A value of a built-in kind or of metadata, known by the names of its field and of the parent field.
    BuiltIn { field: &'a str, parent: &'a str },
    /// A value of a custom kind, known by its schema.
    Schema { schema: &'a Value, root: bool },
    /// A value without rules: lists are atomic.
    Untyped,
}

/// The merge rules of a list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ListShape<'a> {
    /// The list is replaced.
    Atomic,
    /// Items are merged by value.
    Set,
    /// Items are merged by these key fields.
    Map(Vec<&'a str>),
}

impl<'a> Shape<'a> {
    pub(crate) const BUILT_IN: Self = Shape::BuiltIn { field: "", parent: "" };

    /// The shape of a custom resource's objects.
    pub(crate) fn of_schema(schema: &'a Value) -> Self {
        Self::Schema { schema, root: true }
    }

    pub(crate) fn child(self, name: &'a str) -> Self {
        match self {
            Self::BuiltIn { field, .. } => Self::BuiltIn {
                field: name,
                parent: field,
            },
            Self::Schema { root: true, .. } if name == "metadata" => Self::BuiltIn {
                field: "metadata",
                parent: "",
            },
            Self::Schema { schema, .. } => {
                let property = schema["properties"]
                    .get(name)
                    .or_else(|| schema.get("additionalProperties"));
                property
                    .filter(|s| s.is_object())
                    .map_or(Self::Untyped, |schema| Self::Schema { schema, root: false })
            }
            Self::Untyped => Self::Untyped,
        }
    }

    pub(crate) fn item(self) -> Self {
        match self {
            // The rules of an item are under the name of its list.
            Self::BuiltIn { .. } | Self::Untyped => self,
            Self::Schema { schema, .. } => schema
                .get("items")
                .map_or(Self::Untyped, |schema| Self::Schema { schema, root: false }),
        }
    }

    pub(crate) fn list(self) -> ListShape<'a> {
        match self {
            Self::Untyped => ListShape::Atomic,
            Self::BuiltIn { field, parent } => built_in_list(field, parent),
            Self::Schema { schema, .. } => match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => ListShape::Set,
                Some("map") => {
                    let keys = schema["x-kubernetes-list-map-keys"]
                        .as_array()
                        .map(Vec::as_slice)
                        .unwrap_or_default();
                    ListShape::Map(keys.iter().filter_map(Value::as_str).collect())
                }
                _ => ListShape::Atomic,
            },
        }
    }

    /// Whether a JSON object here is replaced instead of merged.
    pub(crate) fn atomic_map(self) -> bool {
        match self {
            Self::Untyped => false,
            Self::BuiltIn { field, .. } => matches!(
                field,
                "selector"
                    | "labelSelector"
                    | "namespaceSelector"
                    | "objectSelector"
                    | "nodeSelector"
                    | "fieldRef"
                    | "configMapKeyRef"
                    | "secretKeyRef"
                    | "resourceFieldRef"
                    | "involvedObject"
                    | "claimRef"
                    | "scaleTargetRef"
                    | "roleRef"
            ),
            Self::Schema { schema, .. } => schema["x-kubernetes-map-type"] == "atomic",
        }
    }
}

fn built_in_list<'a>(field: &str, parent: &str) -> ListShape<'a> {
    let keys: &[&str] = match (parent, field) {
        (_, "finalizers") => return ListShape::Set,
        ("containers" | "initContainers" | "ephemeralContainers", "ports") => &["containerPort", "protocol"],
        ("spec", "ports") => &["port", "protocol"],
        (
            _,
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "env"
            | "volumes"
            | "imagePullSecrets"
            | "schedulingGates"
            | "resourceClaims"
            | "claims"
            | "webhooks"
            | "matchConditions"
            | "variables"
            | "secrets",
        ) => &["name"],
        ("metadata", "ownerReferences") => &["uid"],
        ("status", "conditions" | "addresses") => &["type"],
        (_, "volumeMounts") => &["mountPath"],
        (_, "volumeDevices") => &["devicePath"],
        (_, "hostAliases") => &["ip"],
        ("status", "podIPs") => &["ip"],
        (_, "topologySpreadConstraints") => &["topologyKey", "whenUnsatisfiable"],
        _ => return ListShape::Atomic,
    };
    ListShape::Map(keys.to_vec())
}
