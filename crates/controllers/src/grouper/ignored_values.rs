//! Values of a pod and of the workload above it that have no effect on the pod group. Telling only; the rules are `api`'s.

use kai_api::Problem;

use super::workload::{Owner, Workload};

/// A value without effect, and the object that has it.
#[derive(Clone, Debug, PartialEq)]
pub struct IgnoredValue {
    /// The object.
    pub owner: Owner,
    /// What is wrong with it.
    pub problem: Problem,
}

/// All of them: those of the owners, then the pod's own.
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
