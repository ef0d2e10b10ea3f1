//! Reads the chain of owners of a pod up to the top owner, by metadata only.

use kai_api::{OwnerReference, Pod};
use kai_cluster::{Client, Target, printable};

use super::rules::RuleSet;
use super::workload::Owner;

/// The ClusterRole kai-grouping-rules has the rules of all ClusterRoles with this label.
const AGGREGATION_LABEL: &str = "kai.scheduler/aggregate-to-grouping-rules";

/// Bound of the chain, against cycles of owner references. No real chain is longer.
const OWNERS_MAX: usize = 16;

/// Why the chain of owners could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnerError {
    #[error(
        "Pod {pod}: metadata.ownerReferences: {kind} {name} of uid {uid} is not there (any more); the pod is grouped if it appears"
    )]
    NotFound {
        pod: String,
        kind: String,
        name: String,
        uid: String,
    },
    #[error(
        "{kind} {name}: metadata.ownerReferences: it has several owners; leave one, or annotate it with kai.scheduler/skip-podgrouper=true"
    )]
    SeveralOwners { kind: String, name: String },
    #[error("Pod {pod}: metadata.ownerReferences: its owners have more than 16 owners above them")]
    TooManyOwners { pod: String },
    #[error("Pod {pod}: metadata.ownerReferences: {}", missing_right(.api_version, .kind, .name))]
    Forbidden {
        pod: String,
        api_version: String,
        kind: String,
        name: String,
    },
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
}

/// The problem that kai may not read an object of another project, and the remedy.
pub(super) fn missing_right(api_version: &str, kind: &str, name: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let group = match group {
        "" => String::new(),
        group => format!("{}/", printable(group)),
    };
    format!(
        "kai may not read {} {} of {group}{}, by which the pod is grouped; an administrator allows it with a ClusterRole that may get this \
         kind and has the label {AGGREGATION_LABEL}=true",
        printable(kind),
        printable(name),
        printable(version)
    )
}

/// The owners of a pod, the nearest first. The chain ends below an owner that RBAC does not let us read, unless a declared rule groups its
/// kind: then the pod waits for the right.
pub(super) async fn owners_of(client: &Client, rules: &RuleSet, pod: &Pod) -> Result<Vec<Owner>, OwnerError> {
    let mut owners = Vec::new();
    let mut next = pod.metadata.owner_references.first().cloned();
    while let Some(reference) = next {
        if owners.len() == OWNERS_MAX {
            return Err(OwnerError::TooManyOwners {
                pod: pod.metadata.qualified_name(),
            });
        }
        let metadata = match read(client, pod, &reference).await {
            Ok(metadata) => metadata,
            Err(error)
                if error.is_forbidden() && rules.rule_of_kind(&reference.api_version, &reference.kind).is_some() =>
            {
                return Err(OwnerError::Forbidden {
                    pod: pod.metadata.qualified_name(),
                    api_version: reference.api_version.to_string(),
                    kind: reference.kind.to_string(),
                    name: reference.name.to_string(),
                });
            }
            Err(error) if error.is_forbidden() => {
                tracing::debug!(%error, "the owner is not readable and is ignored");
                return Ok(owners);
            }
            Err(error) => return Err(error.into()),
        };
        let metadata = metadata.filter(|metadata| metadata.uid.as_ref() == Some(&reference.uid));
        let Some(metadata) = metadata else {
            return Err(OwnerError::NotFound {
                pod: pod.metadata.qualified_name(),
                kind: printable(&reference.kind).into_owned(),
                name: printable(&reference.name).into_owned(),
                uid: printable(&reference.uid).into_owned(),
            });
        };
        owners.push(Owner::new(&reference.api_version, &reference.kind, &metadata));
        next = match metadata.owner_references.as_slice() {
            [] => None,
            [only] => Some(only.clone()),
            _ => {
                return Err(OwnerError::SeveralOwners {
                    kind: printable(&reference.kind).into_owned(),
                    name: format!("{}/{}", pod.metadata.namespace(), printable(&reference.name)),
                });
            }
        };
    }
    Ok(owners)
}

async fn read(
    client: &Client,
    pod: &Pod,
    reference: &OwnerReference,
) -> Result<Option<kai_api::Metadata>, kai_cluster::Error> {
    let Some(resource) = client.resource_of(&reference.api_version, &reference.kind).await? else {
        return Ok(None);
    };
    let target = Target {
        resource: &resource,
        namespace: pod.metadata.namespace(),
        name: &reference.name,
    };
    client.get_metadata(target).await
}
