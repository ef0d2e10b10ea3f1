//! Knative services: the pods of a revision's minimum scale are a gang, or each pod has its own pod group.

use std::collections::BTreeSet;

use kai_api::crd::PodGroupSpec;
use kai_api::keys;

use super::super::default_rules;
use super::super::desired_pod_group::{DesiredPodGroup, Origins};
use super::super::workload::{GroupingError, ObjectRef, Owner, Workload};
use super::parse_count;

pub(super) fn desired(workload: &Workload<'_>) -> Result<DesiredPodGroup, GroupingError> {
    let Some(name) = workload.label(keys::KNATIVE_REVISION) else {
        let field = format!("metadata.labels.{}", keys::KNATIVE_REVISION);
        return Err(workload.refuse_pod(field, "it is missing; Knative writes it"));
    };
    let reference = ObjectRef {
        api_version: "serving.knative.dev/v1".to_owned(),
        kind: "Revision".to_owned(),
        name: name.to_owned(),
    };
    let object = workload.object(reference)?;
    let Some(mut revision) = Owner::of_object(object) else {
        return Err(workload.refuse_pod("metadata.labels".to_owned(), format!("Revision {name} can't be read")));
    };
    // Objects from a list have no API version and kind.
    revision.api_version = "serving.knative.dev/v1".to_owned();
    revision.kind = "Revision".to_owned();

    let gang = workload.options.knative_gang && !has_groups_per_pod(workload, name);
    let owner = if gang {
        revision.clone()
    } else {
        Owner::of_pod(workload.pod)
    };
    let min = revision.annotations.get(keys::KNATIVE_MIN_SCALE);
    let min = min.and_then(|text| parse_count(text)).unwrap_or(1);
    let priority_owners: &[Owner] = if gang { std::slice::from_ref(&revision) } else { &[] };
    let (queue, queue_origin) = default_rules::queue(workload, &revision);
    let (priority_class, priority_origin) =
        default_rules::priority(workload, priority_owners, keys::PRIORITY_INFERENCE);
    Ok(DesiredPodGroup {
        namespace: workload.namespace().to_owned(),
        name: default_rules::name_of(&owner),
        owner: default_rules::owned_by(&owner),
        labels: default_rules::labels(workload, &revision),
        annotations: default_rules::annotations(workload, &revision),
        spec: PodGroupSpec {
            min_member: Some(if gang { min } else { 1 }),
            queue: Some(queue),
            priority_class_name: Some(priority_class),
            ..PodGroupSpec::default()
        },
        sub_group: None,
        clears_sub_group: false,
        origins: Origins {
            minimum: format!("annotation {} of Revision {name}", keys::KNATIVE_MIN_SCALE),
            queue: queue_origin,
            priority_class: priority_origin,
            ..Origins::default()
        },
    })
}

/// Whether pods of the revision have pod groups of their own; then the other pods get their own, too.
fn has_groups_per_pod(workload: &Workload<'_>, revision: &str) -> bool {
    let pods = workload
        .cluster
        .pods_labelled(workload.namespace(), keys::KNATIVE_REVISION, revision);
    let names: Vec<&str> = pods.iter().filter_map(|pod| pod.pod_group()).collect();
    let different: BTreeSet<&str> = names.iter().copied().collect();
    if different.len() < names.len() {
        return false;
    }
    match different.first() {
        Some(_) if different.len() > 1 => true,
        Some(only) => {
            let group = workload.cluster.pod_group(workload.namespace(), only);
            group.is_some_and(|group| {
                group
                    .metadata
                    .owner_references
                    .first()
                    .is_some_and(|owner| &*owner.kind == "Pod")
            })
        }
        None => false,
    }
}
