//! Validation of in-place resizes (`pods/resize`): more CPU or memory has to fit the limits of the pod's queue and its parents, and for
//! non-preemptible pods their quotas. As in KAI this is a guard, not a guarantee: amounts come from the status of queues, which follows the
//! cluster within seconds, and a resize whose pod group or queue can't be read is admitted.

use kai_api::{Pod, PodGroup, Quantity, QuantityText, keys};
use kai_engine::model::{Millis, Preemptibility, ResourceQuota};
use serde::Deserialize as _;

use super::args::{Feature, Settings};
use super::queue_lister::QueueLister;
use super::review::{FieldError, Operation, Request, Verdict};
use super::unstructured::{self, MetadataMap};
use crate::status::amount_text;

/// Queues above a pod that are checked. Deeper trees exist only as cycles of parents.
const ANCESTORS_MAX: usize = 64;

/// More of a resource, in thousandths.
struct Increase {
    resource: &'static str,
    milli: i64,
}

/// The pod group of the pod that is resized, by namespace and name; `None` if there is nothing to check.
pub(super) fn pod_group_of(request: &Request, settings: &Settings) -> Option<(String, String)> {
    let ours = unstructured::text(&request.object, "/spec/schedulerName") == Some(&settings.scheduler_name);
    // The scheduler checks the limits for a pod that has no node yet.
    let is_placed = unstructured::text(&request.object, "/spec/nodeName").is_some_and(|node| !node.is_empty());
    let checked = ours && is_placed && settings.resize_validation == Feature::On;
    let group = unstructured::entry(&request.old_object, MetadataMap::Annotations, keys::POD_GROUP_NAME)?;
    (checked && request.operation == Operation::Update && !group.is_empty())
        .then(|| (request.namespace.clone(), group.into_owned()))
}

/// Reviews a resize of a pod of this pod group.
pub(super) fn validate(
    request: &Request,
    settings: &Settings,
    queues: &dyn QueueLister,
    group: Option<&PodGroup>,
) -> Verdict {
    let pods = Pod::deserialize(&request.old_object).and_then(|old| Ok((old, Pod::deserialize(&request.object)?)));
    let (Some(group), Ok((old, new))) = (group, pods) else {
        return Verdict::default();
    };
    let increases = increases(&old, &new);
    let is_non_preemptible = group.rank(&queues.priority_classes()).1 == Preemptibility::NonPreemptible;
    let mut errors = Vec::new();
    let mut next = Some(group.queue().to_owned());
    for _ in 0..ANCESTORS_MAX {
        let Some(queue) = next.and_then(|name| queues.get(&name)) else {
            break;
        };
        for increase in &increases {
            errors.extend(too_much(
                &queue,
                increase,
                is_non_preemptible,
                settings.upsize_on_bounded_queues,
            ));
        }
        next = queue.parent().map(str::to_owned);
    }
    Verdict::of(&request.object_name("Pod"), &errors)
}

/// What the resize adds to what the queue is charged for the pod already. Amounts that move between containers add nothing, and neither
/// does a resource whose sum stays as it is in the spec.
fn increases(old: &Pod, new: &Pod) -> Vec<Increase> {
    let (charged, before, after) = (
        old.requests_milli(),
        old.spec_requests_milli(),
        new.spec_requests_milli(),
    );
    let increase = |resource: &'static str| {
        let amount = |of: &std::collections::BTreeMap<String, i64>| of.get(resource).copied().unwrap_or(0);
        let milli = amount(&after).saturating_sub(amount(&charged));
        (amount(&after) != amount(&before) && milli > 0).then_some(Increase { resource, milli })
    };
    [keys::RESOURCE_CPU, keys::RESOURCE_MEMORY]
        .into_iter()
        .filter_map(increase)
        .collect()
}

fn too_much(
    queue: &kai_api::Queue,
    increase: &Increase,
    is_non_preemptible: bool,
    upsize_on_bounded: Feature,
) -> Option<FieldError> {
    // A queue that can't be read does not schedule; its conditions say why.
    let quota = queue.read(Millis(0)).ok()?.value.quota;
    let is_cpu = increase.resource == keys::RESOURCE_CPU;
    // Thousandths per unit of the engine.
    let (bounds, unit): (&ResourceQuota, i64) = if is_cpu { (&quota.cpu, 1) } else { (&quota.memory, 1000) };
    let status = queue.status();
    let checks = [
        (bounds.limit, &status.allocated, "limit", "all pods of the queue"),
        (
            bounds.deserved.filter(|_| is_non_preemptible),
            &status.allocated_non_preemptible,
            "quota",
            "its non-preemptible pods",
        ),
    ];
    let name = queue.metadata.plain_name();
    let resource = increase.resource;
    let text = |milli: i64| amount_text(resource, i128::from(milli));
    checks.into_iter().find_map(|(bound, held, kind, whose)| {
        let bound = bound?.saturating_mul(unit);
        let held = held.get(resource).map_or(0, milli);
        let field = format!("spec.containers[].resources.requests.{resource}");
        if upsize_on_bounded == Feature::Off {
            let problem = format!(
                "queue {name} has a {kind} of {}, and this installation allows no resize to more {resource} in such a queue \
                 (--block-upsize-on-bounded-queues); create a new pod with the larger request instead",
                text(bound)
            );
            return Some(FieldError::forbidden(field, problem));
        }
        let free = bound.saturating_sub(held).max(0);
        (increase.milli > free).then(|| {
            let problem = format!(
                "the resize adds {}, but {whose} have {} of the {kind} of {} of queue {name}; add at most {}, or ask an administrator \
                 for a higher {kind}",
                text(increase.milli),
                text(held),
                text(bound),
                text(free)
            );
            FieldError::forbidden(field, problem)
        })
    })
}

/// Thousandths; an amount that can't be read counts as none.
fn milli(text: &QuantityText) -> i64 {
    Quantity::parse(text.as_str()).map_or(0, Quantity::milli)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::super::review::Decision;
    use super::*;

    fn queue(name: &str, parent: &str, resources: Value, status: Value) -> Arc<kai_api::Queue> {
        let object = json!({ "metadata": { "name": name }, "spec": { "parentQueue": parent, "resources": resources }, "status": status });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn free() -> Value {
        json!({ "quota": -1, "limit": -1 })
    }

    fn pod(cpu: &str, memory: &str, status: Value) -> Value {
        json!({
            "metadata": { "name": "p", "namespace": "a", "annotations": { "pod-group-name": "g" } },
            "spec": { "schedulerName": "kai-scheduler", "nodeName": "n", "containers": [
                { "name": "main", "resources": { "requests": { "cpu": cpu, "memory": memory } } }] },
            "status": status,
        })
    }

    fn resize(old: Value, new: Value) -> Request {
        Request {
            operation: Operation::Update,
            sub_resource: "resize".into(),
            namespace: "a".into(),
            name: "p".into(),
            object: new,
            old_object: old,
            ..Request::default()
        }
    }

    fn group(preemptibility: &str) -> PodGroup {
        let group = json!({ "metadata": { "name": "g", "namespace": "a" },
                            "spec": { "queue": "team", "preemptibility": preemptibility } });
        serde_json::from_value(group).unwrap()
    }

    fn message(
        request: &Request,
        preemptibility: &str,
        settings: &Settings,
        queues: &Vec<Arc<kai_api::Queue>>,
    ) -> String {
        match validate(request, settings, queues, Some(&group(preemptibility))).decision {
            Decision::Allowed => String::new(),
            Decision::Denied { message, .. } => message,
            Decision::Patched(_) => panic!("validation changes nothing"),
        }
    }

    /// Queue `team` has a limit of 4 CPUs, of which 3 are allocated; its parent a limit of 1 GB of memory.
    fn queues() -> Vec<Arc<kai_api::Queue>> {
        vec![
            queue(
                "team",
                "all",
                json!({ "gpu": free(), "cpu": { "quota": 2000, "limit": 4000 }, "memory": free() }),
                json!({ "allocated": { "cpu": "3" }, "allocatedNonPreemptible": { "cpu": "1500m" } }),
            ),
            queue(
                "all",
                "",
                json!({ "gpu": free(), "cpu": free(), "memory": { "quota": -1, "limit": 1000 } }),
                json!({ "allocated": { "memory": "900M" } }),
            ),
        ]
    }

    #[test]
    fn more_than_the_limit_of_a_queue_or_its_parent_is_refused() {
        let check = |cpu: &str, memory: &str, expect: &str| {
            let request = resize(pod("1", "100M", json!({})), pod(cpu, memory, json!({})));
            let message = message(&request, "preemptible", &Settings::default(), &queues());
            assert_eq!(message, expect, "{cpu} {memory}");
        };
        check("2", "200M", "");
        check("500m", "1M", "");
        check(
            "2500m",
            "100M",
            "Pod a/p: spec.containers[].resources.requests.cpu: the resize adds 1500m, but all pods of the queue have 3 of the limit of 4 of \
             queue team; add at most 1, or ask an administrator for a higher limit",
        );
        check(
            "1",
            "300M",
            "Pod a/p: spec.containers[].resources.requests.memory: the resize adds 200000000, but all pods of the queue have 900000000 of \
             the limit of 1000000000 of queue all; add at most 100000000, or ask an administrator for a higher limit",
        );
    }

    #[test]
    fn non_preemptible_pods_have_to_fit_the_quota() {
        let request = resize(pod("1", "1", json!({})), pod("1600m", "1", json!({})));
        let settings = Settings::default();
        assert_eq!(message(&request, "preemptible", &settings, &queues()), "");
        let refused = message(&request, "non-preemptible", &settings, &queues());
        assert!(
            refused.contains("its non-preemptible pods have 1500m of the quota of 2 of queue team"),
            "{refused}"
        );
    }

    #[test]
    fn what_the_queue_is_charged_already_adds_nothing() {
        let queues = queues();
        let check = |status: Value, old: &str, new: &str, is_allowed: bool| {
            let request = resize(pod(old, "1", status.clone()), pod(new, "1", status.clone()));
            let message = message(&request, "preemptible", &Settings::default(), &queues);
            assert_eq!(message.is_empty(), is_allowed, "{status} {old} {new}: {message}");
        };
        let runs_with = |cpu: &str, conditions: Value| {
            json!({ "containerStatuses": [{ "name": "main", "allocatedResources": { "cpu": cpu, "memory": "1" } }],
                    "conditions": conditions })
        };
        // A pending decrease is charged until it has happened.
        check(runs_with("3", json!([])), "1", "4", true);
        check(runs_with("3", json!([])), "1", "5", false);
        // An infeasible increase is not charged; asking for less of it is an increase still.
        let infeasible = json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
        check(runs_with("1", infeasible.clone()), "64", "2", true);
        check(runs_with("1", infeasible.clone()), "64", "3", false);
        // The sum of the pod stays as it is.
        check(runs_with("1", infeasible), "64", "64", true);
    }

    #[test]
    fn installations_may_refuse_every_increase_in_a_bounded_queue() {
        let settings = Settings {
            upsize_on_bounded_queues: Feature::Off,
            ..Settings::default()
        };
        let request = |cpu: &str| resize(pod("1", "1", json!({})), pod(cpu, "1", json!({})));
        let refused = message(&request("1001m"), "preemptible", &settings, &queues());
        assert!(refused.contains("queue team has a limit of 4"), "{refused}");
        assert_eq!(message(&request("999m"), "preemptible", &settings, &queues()), "");
    }

    #[test]
    fn only_placed_pods_of_this_scheduler_are_checked() {
        let settings = Settings::default();
        let request = resize(pod("1", "1", json!({})), pod("9", "1", json!({})));
        assert_eq!(pod_group_of(&request, &settings), Some(("a".into(), "g".into())));
        for (pointer, value) in [("schedulerName", json!("default-scheduler")), ("nodeName", json!(null))] {
            let mut other = request.clone();
            other.object["spec"][pointer] = value;
            assert_eq!(pod_group_of(&other, &settings), None);
        }
        let off = Settings {
            resize_validation: Feature::Off,
            ..Settings::default()
        };
        assert_eq!(pod_group_of(&request, &off), None);
        let verdict = validate(&request, &settings, &queues(), None);
        assert_eq!(verdict, Verdict::default(), "a pod group that can't be read");
    }

    #[test]
    fn a_cycle_of_parents_ends() {
        let resources = json!({ "gpu": free(), "cpu": free(), "memory": free() });
        let queues = vec![
            queue("team", "other", resources.clone(), json!({})),
            queue("other", "team", resources, json!({})),
        ];
        let request = resize(pod("1", "1", json!({})), pod("9", "1", json!({})));
        assert_eq!(message(&request, "preemptible", &Settings::default(), &queues), "");
    }
}
