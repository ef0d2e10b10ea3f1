//! The served resources: built-in ones from a table, custom ones from their CustomResourceDefinitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

/// Whether the objects of a kind are in namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    /// Cluster-wide.
    Cluster,
}

/// The subresource `scale`: JSON paths of its fields.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scale {
    pub(crate) spec_replicas: String,
    pub(crate) status_replicas: String,
    pub(crate) selector: Option<String>,
}

/// The part of a kind that only custom resources have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Custom {
    /// `openAPIV3Schema`, if there is one.
    pub(crate) schema: Option<Arc<Value>>,
    /// `additionalPrinterColumns`.
    pub(crate) columns: Vec<Value>,
    /// JSON paths of `selectableFields`.
    pub(crate) selectable: Vec<String>,
}

/// One served resource in one version.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// API group; empty for the core one.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Name in paths, e.g. `pods`.
    pub plural: String,
    /// Singular name.
    pub singular: String,
    /// The `kind` of its objects.
    pub kind: String,
    /// The `kind` of its lists.
    pub list_kind: String,
    /// Short names, e.g. `po`.
    pub short_names: Vec<String>,
    /// Categories such as `all`.
    pub categories: Vec<String>,
    /// Namespaced or not.
    pub scope: Scope,
    /// Whether the kind has a status subresource.
    pub status: bool,
    pub(crate) scale: Option<Scale>,
    pub(crate) custom: Option<Custom>,
    /// The version of stored objects.
    pub(crate) storage_version: String,
    /// The table of the store that holds its objects.
    pub(crate) table: usize,
}

impl Kind {
    /// `group/version`, or `version` for the core group.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// The `apiVersion` of stored objects. Events of both API groups are stored in the core form.
    pub(crate) fn stored_api_version(&self) -> String {
        if self.is("events.k8s.io", "events") {
            "v1".to_owned()
        } else {
            api_version(&self.group, &self.storage_version)
        }
    }

    /// Whether its objects are in namespaces.
    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// Whether the server sets `metadata.generation`. In the core group only kinds that controllers reconcile have it.
    pub(crate) fn counts_generations(&self) -> bool {
        let workload = matches!(self.plural.as_str(), "pods" | "replicationcontrollers");
        let counted = self.status || self.is("scheduling.k8s.io", "priorityclasses");
        self.custom.is_some() || if self.group.is_empty() { workload } else { counted }
    }

    /// Whether this is the named resource of the named group.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    pub(crate) fn object_ref<'a>(&'a self, name: &'a str) -> super::status_error::ObjectRef<'a> {
        super::status_error::ObjectRef {
            group: &self.group,
            resource: &self.plural,
            name,
        }
    }
}

pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// All served resources.
#[derive(Debug)]
pub(crate) struct Kinds {
    by_path: BTreeMap<(String, String, String), Arc<Kind>>,
    tables: BTreeMap<(String, String), usize>,
}

/// Group version, plural, kind, short names, categories, flags: `n` namespaced, `s` status, `r` replicas (scale).
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

const ALL: &[&str] = &["all"];
const BUILT_IN: &[Row] = &[
    ("v1", "pods", "Pod", &["po"], ALL, "ns"),
    ("v1", "nodes", "Node", &["no"], &[], "s"),
    ("v1", "namespaces", "Namespace", &["ns"], &[], "s"),
    ("v1", "configmaps", "ConfigMap", &["cm"], &[], "n"),
    ("v1", "secrets", "Secret", &[], &[], "n"),
    ("v1", "services", "Service", &["svc"], ALL, "ns"),
    ("v1", "serviceaccounts", "ServiceAccount", &["sa"], &[], "n"),
    ("v1", "events", "Event", &["ev"], &[], "n"),
    ("v1", "persistentvolumes", "PersistentVolume", &["pv"], &[], "s"),
    (
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        &["pvc"],
        &[],
        "ns",
    ),
    ("v1", "endpoints", "Endpoints", &["ep"], &[], "n"),
    ("v1", "limitranges", "LimitRange", &["limits"], &[], "n"),
    ("v1", "resourcequotas", "ResourceQuota", &["quota"], &[], "ns"),
    (
        "v1",
        "replicationcontrollers",
        "ReplicationController",
        &["rc"],
        ALL,
        "nsr",
    ),
    ("v1", "podtemplates", "PodTemplate", &[], &[], "n"),
    ("apps/v1", "deployments", "Deployment", &["deploy"], ALL, "nsr"),
    ("apps/v1", "replicasets", "ReplicaSet", &["rs"], ALL, "nsr"),
    ("apps/v1", "statefulsets", "StatefulSet", &["sts"], ALL, "nsr"),
    ("apps/v1", "daemonsets", "DaemonSet", &["ds"], ALL, "ns"),
    ("apps/v1", "controllerrevisions", "ControllerRevision", &[], &[], "n"),
    ("batch/v1", "jobs", "Job", &[], ALL, "ns"),
    ("batch/v1", "cronjobs", "CronJob", &["cj"], ALL, "ns"),
    (
        "autoscaling/v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        &["hpa"],
        ALL,
        "ns",
    ),
    ("coordination.k8s.io/v1", "leases", "Lease", &[], &[], "n"),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice", &[], &[], "n"),
    ("networking.k8s.io/v1", "ingresses", "Ingress", &["ing"], &[], "ns"),
    (
        "networking.k8s.io/v1",
        "networkpolicies",
        "NetworkPolicy",
        &["netpol"],
        &[],
        "n",
    ),
    (
        "scheduling.k8s.io/v1",
        "priorityclasses",
        "PriorityClass",
        &["pc"],
        &[],
        "",
    ),
    ("events.k8s.io/v1", "events", "Event", &["ev"], &[], "n"),
    (
        "admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        &[],
        &[],
        "",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        &[],
        &[],
        "",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        &[],
        &[],
        "s",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        &[],
        &[],
        "",
    ),
    (
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        &["crd", "crds"],
        &[],
        "s",
    ),
    ("apiregistration.k8s.io/v1", "apiservices", "APIService", &[], &[], "s"),
    ("rbac.authorization.k8s.io/v1", "roles", "Role", &[], &[], "n"),
    (
        "rbac.authorization.k8s.io/v1",
        "rolebindings",
        "RoleBinding",
        &[],
        &[],
        "n",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "clusterroles",
        "ClusterRole",
        &[],
        &[],
        "",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "clusterrolebindings",
        "ClusterRoleBinding",
        &[],
        &[],
        "",
    ),
    ("storage.k8s.io/v1", "storageclasses", "StorageClass", &["sc"], &[], ""),
    ("storage.k8s.io/v1", "csidrivers", "CSIDriver", &[], &[], ""),
    ("storage.k8s.io/v1", "csinodes", "CSINode", &[], &[], ""),
    (
        "storage.k8s.io/v1",
        "csistoragecapacities",
        "CSIStorageCapacity",
        &[],
        &[],
        "n",
    ),
    (
        "storage.k8s.io/v1",
        "volumeattachments",
        "VolumeAttachment",
        &[],
        &[],
        "s",
    ),
    ("resource.k8s.io/v1", "resourceclaims", "ResourceClaim", &[], &[], "ns"),
    (
        "resource.k8s.io/v1",
        "resourceclaimtemplates",
        "ResourceClaimTemplate",
        &[],
        &[],
        "n",
    ),
    ("resource.k8s.io/v1", "resourceslices", "ResourceSlice", &[], &[], ""),
    ("resource.k8s.io/v1", "deviceclasses", "DeviceClass", &[], &[], ""),
    (
        "policy/v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        &["pdb"],
        &[],
        "ns",
    ),
    ("node.k8s.io/v1", "runtimeclasses", "RuntimeClass", &[], &[], ""),
];

impl Kinds {
    pub(crate) fn built_in() -> Self {
        let mut kinds = Self {
            by_path: BTreeMap::new(),
            tables: BTreeMap::new(),
        };
        for row in BUILT_IN {
            kinds.add(row_kind(row));
        }
        kinds
    }

    /// The number of tables of the store.
    pub(crate) fn tables(&self) -> usize {
        self.tables.len()
    }

    pub(crate) fn add(&mut self, mut kind: Kind) -> Arc<Kind> {
        // Both event resources share one table.
        let group = if kind.plural == "events" && kind.group == "events.k8s.io" {
            ""
        } else {
            kind.group.as_str()
        };
        let next = self.tables.len();
        kind.table = *self
            .tables
            .entry((group.to_owned(), kind.plural.clone()))
            .or_insert(next);
        let path = (kind.group.clone(), kind.version.clone(), kind.plural.clone());
        let kind = Arc::new(kind);
        self.by_path.insert(path, kind.clone());
        kind
    }

    /// Stops serving every version of a custom resource.
    pub(crate) fn remove(&mut self, group: &str, plural: &str) {
        self.by_path
            .retain(|_, kind| kind.custom.is_none() || !kind.is(group, plural));
    }

    pub(crate) fn get(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        self.by_path
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
            .cloned()
    }

    /// The kind of an object by its `apiVersion` and `kind`.
    pub(crate) fn of_object(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.iter()
            .find(|k| k.group == group && k.version == version && k.kind == kind)
            .cloned()
    }

    /// The preferred version of a resource.
    pub(crate) fn preferred(&self, group: &str, plural: &str) -> Option<Arc<Kind>> {
        let of_resource = || self.iter().filter(|k| k.is(group, plural));
        of_resource()
            .find(|k| k.version == k.storage_version)
            .or_else(|| of_resource().next())
            .cloned()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.by_path.values()
    }
}

fn row_kind(row: &Row) -> Kind {
    let &(api_version, plural, kind, short_names, categories, flags) = row;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let owned = |texts: &[&str]| texts.iter().map(|&t| t.to_owned()).collect();
    Kind {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        short_names: owned(short_names),
        categories: owned(categories),
        scope: if flags.contains('n') {
            Scope::Namespaced
        } else {
            Scope::Cluster
        },
        status: flags.contains('s'),
        scale: flags.contains('r').then(|| Scale {
            spec_replicas: ".spec.replicas".to_owned(),
            status_replicas: ".status.replicas".to_owned(),
            selector: None,
        }),
        custom: None,
        storage_version: version.to_owned(),
        table: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_by_path_and_by_object() {
        let kinds = Kinds::built_in();
        let pods = kinds.get("", "v1", "pods").unwrap();
        assert_eq!(kinds.of_object("v1", "Pod").unwrap(), pods);
        assert_eq!(kinds.preferred("apps", "deployments").unwrap().api_version(), "apps/v1");
        assert!(kinds.get("", "v1", "pod").is_none());
        let core = kinds.get("", "v1", "events").unwrap();
        assert_eq!(core.table, kinds.get("events.k8s.io", "v1", "events").unwrap().table);
    }
}
