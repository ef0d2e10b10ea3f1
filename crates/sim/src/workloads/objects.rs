//! Workloads as their controllers read them.

use api::{Metadata, Object, Resource, Scope};
use serde::Deserialize;
use serde_json::{Value, json};

/// A workload of any kind.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Workload {
    pub(super) metadata: Metadata,
    pub(super) spec: Value,
    pub(super) status: Value,
}

macro_rules! workload {
    ($name:ident, $group:literal, $plural:literal) => {
        #[derive(Clone, Debug, Deserialize)]
        #[serde(transparent)]
        pub(super) struct $name(pub(super) Workload);

        impl $name {
            /// Not about to be deleted.
            pub(super) fn is_live(&self) -> bool {
                self.0.metadata.deletion_timestamp.is_none()
            }
        }

        impl Object for $name {
            const RESOURCE: Resource = Resource::new($group, "v1", stringify!($name), $plural, Scope::Namespaced);

            fn metadata(&self) -> &Metadata {
                &self.0.metadata
            }
        }
    };
}

workload!(Deployment, "apps", "deployments");
workload!(ReplicaSet, "apps", "replicasets");
workload!(StatefulSet, "apps", "statefulsets");
workload!(Job, "batch", "jobs");

impl Workload {
    /// How many pods it wants.
    pub(super) fn replicas(&self) -> i64 {
        self.spec["replicas"].as_i64().unwrap_or(1)
    }

    pub(super) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn is_owned_by(&self, owner: &Workload) -> bool {
        let uid = owner.uid();
        self.metadata
            .owner_references
            .iter()
            .any(|reference| &*reference.uid == uid)
    }

    /// Metadata of something that this workload owns, from the template's.
    pub(super) fn owned(&self, api_version: &str, kind: &str) -> Value {
        let template = &self.spec["template"]["metadata"];
        json!({
            "labels": template["labels"],
            "annotations": template["annotations"],
            "ownerReferences": [{
                "apiVersion": api_version,
                "kind": kind,
                "name": self.name(),
                "uid": self.uid(),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        })
    }
}
