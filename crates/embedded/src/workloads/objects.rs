//! Workloads as controllers read them.

use kai_api::{Metadata, Object, ObjectReference, Resource, Scope};
use serde::Deserialize;
use serde_json::{Value, json};

/// An object of any kind that these controllers reconcile.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Workload {
    pub(super) metadata: Metadata,
    /// `metadata.generation`.
    pub(super) generation: i64,
    pub(super) spec: Value,
    pub(super) status: Value,
}

/// The object as the API serves it.
#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl TryFrom<Raw> for Workload {
    type Error = serde_json::Error;

    fn try_from(raw: Raw) -> Result<Workload, serde_json::Error> {
        Ok(Workload {
            generation: raw.metadata["generation"].as_i64().unwrap_or(0),
            metadata: serde_json::from_value(raw.metadata)?,
            spec: raw.spec,
            status: raw.status,
        })
    }
}

macro_rules! workload {
    ($name:ident, $kind:literal, $group:literal, $plural:literal, $scope:ident) => {
        #[derive(Clone, Debug, Deserialize)]
        #[serde(transparent)]
        pub(super) struct $name(pub(super) Workload);

        impl Object for $name {
            const RESOURCE: Resource = Resource::new($group, "v1", $kind, $plural, Scope::$scope);

            fn metadata(&self) -> &Metadata {
                &self.0.metadata
            }
        }
    };
}

workload!(Deployment, "Deployment", "apps", "deployments", Namespaced);
workload!(ReplicaSet, "ReplicaSet", "apps", "replicasets", Namespaced);
workload!(StatefulSet, "StatefulSet", "apps", "statefulsets", Namespaced);
workload!(DaemonSet, "DaemonSet", "apps", "daemonsets", Namespaced);
workload!(Job, "Job", "batch", "jobs", Namespaced);
workload!(CronJob, "CronJob", "batch", "cronjobs", Namespaced);
workload!(
    ControllerRevision,
    "ControllerRevision",
    "apps",
    "controllerrevisions",
    Namespaced
);
workload!(Claim, "PersistentVolumeClaim", "", "persistentvolumeclaims", Namespaced);
workload!(Volume, "PersistentVolume", "", "persistentvolumes", Cluster);

impl Workload {
    /// Reads an object from a list.
    pub(super) fn of(value: Value) -> Option<Workload> {
        serde_json::from_value(value).ok()
    }

    /// `spec.replicas`.
    pub(super) fn replicas(&self) -> i64 {
        self.spec["replicas"].as_i64().unwrap_or(1)
    }

    /// `spec.minReadySeconds`.
    pub(super) fn min_ready_seconds(&self) -> i64 {
        self.spec["minReadySeconds"].as_i64().unwrap_or(0)
    }

    /// `spec.revisionHistoryLimit`.
    pub(super) fn history_limit(&self) -> usize {
        let limit = self.spec["revisionHistoryLimit"].as_u64().unwrap_or(10);
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Creation time; empty for an object that was never in a cluster.
    pub(super) fn created(&self) -> &str {
        self.metadata.creation_timestamp.as_deref().unwrap_or_default()
    }

    /// A number of the status.
    pub(super) fn counter(&self, field: &str) -> i64 {
        self.status[field].as_i64().unwrap_or(0)
    }

    pub(super) fn is_owned_by(&self, owner: &Workload) -> bool {
        let uid = owner.uid();
        self.metadata
            .owner_references
            .iter()
            .any(|reference| &*reference.uid == uid)
    }

    /// The reference for events about the object.
    pub(super) fn about(&self, resource: &Resource) -> ObjectReference {
        ObjectReference {
            api_version: resource.api_version(),
            kind: resource.kind.to_string(),
            namespace: self.metadata.namespace.as_deref().unwrap_or_default().to_owned(),
            name: self.name().to_owned(),
            uid: self.uid().to_owned(),
        }
    }

    /// Metadata of an owned object, with the owner reference only.
    pub(super) fn owner(&self, resource: &Resource) -> Value {
        json!({ "ownerReferences": [{
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "name": self.name(),
            "uid": self.uid(),
            "controller": true,
            "blockOwnerDeletion": true,
        }] })
    }

    /// A pod from the workload's template, without a name.
    pub(super) fn pod(&self, resource: &Resource) -> Value {
        self.pod_of(resource, &self.spec["template"])
    }

    /// An owned pod from this template, without a name.
    pub(super) fn pod_of(&self, resource: &Resource, template: &Value) -> Value {
        let mut metadata = self.owner(resource);
        copy_present(&template["metadata"], &mut metadata, &["labels", "annotations"]);
        json!({ "metadata": metadata, "spec": template["spec"] })
    }
}

/// Copies the fields that are not null. Admission policies fail on a null.
pub(super) fn copy_present(from: &Value, to: &mut Value, fields: &[&str]) {
    for field in fields {
        if !from[field].is_null() {
            to[field] = from[field].clone();
        }
    }
}

/// The hash of a template. serde_json writes keys in sorted order.
pub(super) fn template_hash(template: &Value) -> String {
    short_hash(&template.to_string())
}

/// The FNV-1a hash of a text as ten hexadecimal digits.
pub(super) fn short_hash(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:010x}", hash & 0xff_ffff_ffff)
}

/// The value of an `IntOrString` of an update strategy: a number, or a percentage of `total`.
pub(super) fn int_or_percent(value: &Value, total: i64, round_up: bool) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    let percent: i64 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    let product = percent.saturating_mul(total);
    Some(if round_up { (product + 99) / 100 } else { product / 100 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_a_template_without_annotations_have_no_null() {
        let workload = Workload::of(json!({
            "metadata": { "name": "web", "uid": "u" },
            "spec": { "template": { "metadata": { "labels": { "app": "web" }, "annotations": null }, "spec": {} } },
        }))
        .unwrap();
        let metadata = workload.pod(&ReplicaSet::RESOURCE)["metadata"].clone();
        assert!(metadata.get("annotations").is_none(), "{metadata}");
        assert_eq!(metadata["labels"], json!({ "app": "web" }));
    }

    #[test]
    fn a_percentage_is_rounded_as_its_field_wants() {
        assert_eq!(int_or_percent(&json!("25%"), 3, true), Some(1));
        assert_eq!(int_or_percent(&json!("25%"), 3, false), Some(0));
        assert_eq!(int_or_percent(&json!(2), 3, false), Some(2));
        assert_eq!(int_or_percent(&json!("x"), 3, false), None);
    }
}
