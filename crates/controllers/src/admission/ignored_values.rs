//! Warnings about values of pods, pod groups and queues that have no effect. KAI admits such values, and so do we. The rules are in
//! `kai_api`; the scheduler and `kai simulate` use them too.

use kai_api::{Error, PriorityClasses, Problem};
use kai_engine::model::Millis;
use serde::Deserialize as _;
use serde_json::Value;

/// Warnings for the author of a pod group.
pub(super) fn pod_group(object: &Value, classes: &PriorityClasses) -> Vec<String> {
    let group = kai_api::PodGroup::deserialize(object).ok();
    let read = group.and_then(|group| group.read(classes, Millis(0)).ok());
    warnings(read.map(|read| read.problems).unwrap_or_default(), classes)
}

/// Warnings for the author of a pod.
pub(super) fn pod(object: &Value, classes: &PriorityClasses) -> Vec<String> {
    let pod = kai_api::Pod::deserialize(object).ok();
    let problems = pod.map(|pod| {
        let values = pod.ignored_values(|class| classes.contains(class)).into_iter();
        let values = values.chain(pod.ignored_task_priority());
        values.chain(pod.ignored_share_annotations()).collect()
    });
    warnings(problems.unwrap_or_default(), classes)
}

/// Warnings for the author of a queue.
pub(super) fn queue(object: &Value) -> Vec<String> {
    let queue = kai_api::Queue::deserialize(object).ok();
    let read = queue.and_then(|queue| queue.read(Millis(0)).ok());
    warnings(
        read.map(|read| read.problems).unwrap_or_default(),
        &PriorityClasses::default(),
    )
}

/// One line per problem, without the object's name, which the API server adds. Before the first priority class is known, no class
/// counts as missing.
fn warnings(problems: Vec<Problem>, classes: &PriorityClasses) -> Vec<String> {
    let known = |problem: &Problem| !(classes.is_empty() && matches!(problem.error, Error::NoPriorityClass(_)));
    let line = |problem: Problem| format!("{}: {} ({})", problem.field, problem.error, problem.effect);
    problems.into_iter().filter(known).map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_group_is_warned_of_what_has_no_effect() {
        let group = json!({"metadata": {"name": "g"}, "spec": {"priorityClassName": "hgih", "preemptibility": "maybe",
            "preemptionDelay": "soon", "stalenessGracePeriod": "later", "topologyConstraint": {"topology": "racks"}}});
        let classes = PriorityClasses::installed();
        let fields: Vec<String> = pod_group(&group, &classes)
            .iter()
            .map(|line| line.split(':').next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(
            fields,
            [
                "spec.priorityClassName",
                "spec.preemptibility",
                "spec.preemptionDelay",
                "spec.stalenessGracePeriod",
                "spec.topologyConstraint"
            ]
        );
        assert_eq!(
            pod_group(&group, &PriorityClasses::default()).len(),
            4,
            "no class is known yet"
        );
    }

    #[test]
    fn a_queue_is_warned_of_a_negative_min_runtime() {
        let object = json!({"metadata": {"name": "q"}, "spec": {"reclaimMinRuntime": "-1m"}});
        assert_eq!(
            queue(&object),
            [
                "spec.reclaimMinRuntime: \"-1m\" is negative; write a duration of zero or more, as in 5m (it counts as zero)"
            ]
        );
    }

    #[test]
    fn a_pod_is_warned_of_what_has_no_effect() {
        let object = json!({"metadata": {"name": "p", "labels": {"kai.scheduler/task-priority": "high"}}});
        assert_eq!(
            pod(&object, &PriorityClasses::installed()),
            [
                "metadata.labels.kai.scheduler/task-priority: \"high\" is not a whole number; write one, as in 3 (the value is ignored)"
            ]
        );
        let misspelt = "nvidia.com/container.main.gpu-memory.requests";
        let object = json!({"metadata": {"name": "p", "annotations": {misspelt: "4Gi"}}});
        let told = pod(&object, &PriorityClasses::installed());
        assert!(
            told.len() == 1
                && told[0].starts_with(&format!(
                    "metadata.annotations.{misspelt}: nothing reads this key; known "
                )),
            "{told:?}"
        );
        assert_eq!(pod(&json!({"metadata": 3}), &PriorityClasses::installed()), [""; 0]);
    }
}
