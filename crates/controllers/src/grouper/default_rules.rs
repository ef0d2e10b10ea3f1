//! The default rules, with which the rules of all kinds begin: name, owner, labels, queue, priority. The file of a kind changes the
//! result.

use std::collections::BTreeMap;

use kai_api::crd::{PodGroupSpec, Preemptibility};
use kai_api::keys;

use super::desired_pod_group::{DesiredPodGroup, Origins, OwnerRef, topology_constraint};
use super::workload::{Owner, Workload};

/// Annotations that a pod group does not inherit: the scheduler writes them on the pod group, or `kubectl apply` needs them.
const NOT_INHERITED: [&str; 4] = [
    keys::LAST_START,
    keys::LAST_EVICTION,
    keys::STALE_SINCE,
    "kubectl.kubernetes.io/last-applied-configuration",
];

/// The desired pod group of a workload without rules of its own. The labels and annotations of `owners` are read in order, the nearest
/// owner first.
pub(super) fn desired(workload: &Workload<'_>, base: &Owner, owners: &[Owner], default_class: &str) -> DesiredPodGroup {
    let annotated = |key: &str| base.annotations.get(key).map(String::as_str);
    let (queue, queue_origin) = queue(workload, base);
    let (priority_class, priority_origin) = priority(workload, owners, default_class);
    let (preemptibility, preemptibility_origin) = preemptibility(workload, owners).unzip();
    let topology_constraint = topology_constraint(
        annotated(keys::TOPOLOGY),
        annotated(keys::TOPOLOGY_REQUIRED),
        annotated(keys::TOPOLOGY_PREFERRED),
    );
    let topology_origin = topology_constraint
        .as_ref()
        .map(|_| format!("annotations of {}", words(base)));
    DesiredPodGroup {
        namespace: workload.namespace().to_owned(),
        name: name_of(base),
        owner: owned_by(base),
        labels: labels(workload, base),
        annotations: annotations(workload, base),
        spec: PodGroupSpec {
            min_member: Some(1),
            queue: Some(queue),
            priority_class_name: Some(priority_class),
            preemptibility,
            topology_constraint,
            preemption_delay: duration(workload, owners, keys::PREEMPTION_DELAY, |millis| millis >= 0),
            staleness_grace_period: duration(workload, owners, keys::STALENESS_GRACE_PERIOD, |_| true),
            ..PodGroupSpec::default()
        },
        sub_group: None,
        clears_sub_group: false,
        origins: Origins {
            minimum: "default: one pod".to_owned(),
            queue: queue_origin,
            priority_class: priority_origin,
            preemptibility: preemptibility_origin.unwrap_or_default(),
            topology: topology_origin.unwrap_or_default(),
            ..Origins::default()
        },
    }
}

/// Kind and name, for people.
fn words(owner: &Owner) -> String {
    format!("{} {}", owner.kind, owner.name)
}

fn label_of(key: &str, owner: &Owner) -> String {
    format!("label {key} of {}", words(owner))
}

fn label_of_pod(key: &str) -> String {
    format!("label {key} of the pod")
}

/// `pg-<name>-<uid>`.
pub(super) fn name_of(owner: &Owner) -> String {
    format!("{}-{}-{}", keys::POD_GROUP_PREFIX, owner.name, owner.uid)
}

/// The owner reference from a pod group to this owner.
pub(super) fn owned_by(owner: &Owner) -> OwnerRef {
    OwnerRef {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    }
}

/// The queue and its origin: the owner's label, the pod's label, the legacy project label, or the default queue.
pub(super) fn queue(workload: &Workload<'_>, base: &Owner) -> (String, String) {
    let label = |key: &str| {
        let own = base.labels.get(key).map(|text| (text.as_str(), label_of(key, base)));
        let found = own.or_else(|| Some((workload.label(key)?, label_of_pod(key))));
        found.filter(|(text, _)| !text.is_empty())
    };
    if let Some((queue, origin)) = label(&workload.options.queue_label) {
        return (queue.to_owned(), origin);
    }
    match (label(keys::PROJECT), workload.label(&workload.options.node_pool_label)) {
        (Some((project, origin)), Some(pool)) => (format!("{project}-{pool}"), format!("{origin}, and the node pool")),
        (Some((project, origin)), None) => (project.to_owned(), origin),
        (None, _) => (keys::DEFAULT_QUEUE.to_owned(), "default".to_owned()),
    }
}

/// The first priority class that exists, and its origin: named by the owners and the pod, then by the administrator's kind defaults.
pub(super) fn priority(workload: &Workload<'_>, owners: &[Owner], default_class: &str) -> (String, String) {
    let exists = |name: &str| workload.cluster.has_priority_class(name);
    let of_pod = || {
        let label = workload.label(keys::PRIORITY_CLASS_NAME);
        let label = label.map(|class| (class, label_of_pod(keys::PRIORITY_CLASS_NAME)));
        label.or_else(|| {
            Some((
                workload.pod.priority_class_name()?,
                "spec.priorityClassName of the pod".to_owned(),
            ))
        })
    };
    let candidates = owners.iter().filter_map(|owner| {
        let label = owner.labels.get(keys::PRIORITY_CLASS_NAME);
        let label = label.map(|class| (class.as_str(), label_of(keys::PRIORITY_CLASS_NAME, owner)));
        label.or_else(of_pod)
    });
    let defaults = &workload.options.kind_defaults;
    let by_kind = owners.iter().filter_map(|owner| {
        let class = defaults.priority_class(&owner.kind, owner.group())?;
        Some((class, format!("administrator's default for {}", owner.kind)))
    });
    let found = candidates.chain(by_kind).find(|(class, _)| exists(class));
    let (class, origin) = found.unwrap_or_else(|| (default_class, "default".to_owned()));
    (class.to_owned(), origin)
}

fn preemptibility(workload: &Workload<'_>, owners: &[Owner]) -> Option<(Preemptibility, String)> {
    let key = keys::PREEMPTIBILITY;
    let of_owners = owners.iter().filter_map(|owner| {
        let value = Preemptibility::parse(owner.labels.get(key)?)?;
        Some((value, label_of(key, owner)))
    });
    let of_pod = || Some((Preemptibility::parse(workload.label(key)?)?, label_of_pod(key)));
    let by_kind = || {
        let defaults = &workload.options.kind_defaults;
        let mut all = owners.iter();
        all.find_map(|owner| {
            let value = defaults.preemptibility(&owner.kind, owner.group())?;
            Some((value, format!("administrator's default for {}", owner.kind)))
        })
    };
    let mut of_owners = of_owners;
    of_owners.next().or_else(of_pod).or_else(by_kind)
}

/// The first valid duration, as it was written.
fn duration(workload: &Workload<'_>, owners: &[Owner], key: &str, allowed: impl Fn(i64) -> bool) -> Option<String> {
    let of_owners = owners
        .iter()
        .filter_map(|owner| owner.annotations.get(key).map(String::as_str));
    let mut candidates = of_owners.chain(workload.annotation(key));
    let valid = |text: &&str| kai_api::parse_duration(text).is_ok_and(|duration| allowed(duration.0));
    candidates.find(valid).map(str::to_owned)
}

pub(super) fn labels(workload: &Workload<'_>, base: &Owner) -> BTreeMap<String, String> {
    let mut labels = base.labels.clone();
    if let Some(user) = workload.label(keys::USER) {
        labels.entry(keys::USER.to_owned()).or_insert_with(|| user.to_owned());
    }
    labels
}

/// The annotations of the pod group. The owner's annotations override the derived ones.
pub(super) fn annotations(workload: &Workload<'_>, base: &Owner) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    if let Some(user) = workload.annotation(keys::USER) {
        annotations.insert(keys::USER.to_owned(), user.to_owned());
    }
    annotations.insert(keys::TOP_OWNER_METADATA.to_owned(), owner_yaml(base));
    let inherited = base
        .annotations
        .iter()
        .filter(|(key, _)| !NOT_INHERITED.contains(&key.as_str()));
    annotations.extend(inherited.map(|(key, value)| (key.clone(), value.clone())));
    annotations
}

/// Values are written as JSON strings, so that YAML reads a name such as `true` or `1e3` as a string.
fn owner_yaml(owner: &Owner) -> String {
    let parts = [
        ("name", owner.name.as_str()),
        ("uid", &owner.uid),
        ("group", owner.group()),
        ("version", owner.version()),
        ("kind", &owner.kind),
    ];
    let line = |(key, value): (&str, &str)| format!("{key}: {}\n", serde_json::Value::from(value));
    parts.into_iter().map(line).collect()
}
