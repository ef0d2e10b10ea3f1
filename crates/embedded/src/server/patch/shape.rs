//! How lists and maps merge: which field tells the items of a list apart, which are replaced as a whole. For built-in
//! kinds by the field's name, for custom ones by their schema. Never looks at values.

use serde_json::Value;

/// The shape of a value at some place of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape<'a> {
    /// Within a built-in kind or any object's metadata: known by the names of the field and of the one around it.
    BuiltIn { field: &'a str, parent: &'a str },
    /// Within a custom kind: its schema.
    Schema { schema: &'a Value, root: bool },
    /// Nothing is known: lists are replaced as a whole.
    Untyped,
}

/// How a list merges.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ListShape<'a> {
    /// As a whole.
    Atomic,
    /// Item by item, each at most once.
    Set,
    /// By these fields of the items.
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
            // An item is known by its list's name.
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

    /// Whether an object at this place is replaced as a whole.
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
