//! Labels and annotations of a pod and its owners that have no effect on the pod group. The rules are in `kai_api`.

use kai_api::Problem;

use super::workload::{Owner, Workload};

/// A value without effect, and its object.
#[derive(Clone, Debug, PartialEq)]
pub struct IgnoredValue {
    /// The object that has the value.
    pub owner: Owner,
    /// The problem, as users read it.
    pub problem: Problem,
}

/// The ignored values of the owners, then those of the pod.
pub fn ignored_values(workload: &Workload<'_>) -> Vec<IgnoredValue> {
    let has_class = |class: &str| workload.cluster.has_priority_class(class);
    let mut found = Vec::new();
    for owner in workload.owners {
        let (labels, annotations) = (&owner.labels, &owner.annotations);
        let object = format!("{} {}/{}", owner.kind, workload.namespace(), owner.name);
        let problems = kai_api::ignored_values(
            &object,
            |key| labels.get(key).map(String::as_str),
            |key| annotations.get(key).map(String::as_str),
            has_class,
        );
        found.extend(problems.into_iter().map(|problem| IgnoredValue {
            owner: owner.clone(),
            problem,
        }));
    }
    let own = workload.pod.ignored_values(has_class).into_iter();
    found.extend(own.map(|problem| IgnoredValue {
        owner: Owner::of_pod(workload.pod),
        problem,
    }));
    found
}
