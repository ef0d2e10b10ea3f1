//! Comparison of a queue's quota with those of its parent, siblings and children. Quotas that do not add up are warnings, never errors:
//! the administrator may want them.

use kai_engine::model::{Millis, Quota, ResourceQuota};
use serde::Deserialize as _;

use super::args::{Feature, Settings};
use super::queue::name;
use super::queue_lister::QueueLister;
use super::review::{FieldError, Request};
use super::unstructured;

/// Compares the quota with the parent's; with quota validation on also with siblings and children. A missing parent is then an error.
pub(super) fn quotas(
    request: &Request,
    settings: &Settings,
    queues: &dyn QueueLister,
    warnings: &mut Vec<String>,
) -> Option<FieldError> {
    let parent_name = unstructured::text(&request.object, "/spec/parentQueue");
    let parent = parent_name.and_then(|name| queues.get(name));
    if let (Some(parent_name), None) = (parent_name, &parent) {
        let text = format!("queue {parent_name} does not exist; create it, or choose another parent");
        if settings.quota_validation == Feature::On {
            return Some(FieldError::invalid("spec.parentQueue", text));
        }
        warnings.push(format!(
            "spec.parentQueue: {text}; workloads of this queue wait until then"
        ));
    }
    let own = kai_api::Queue::deserialize(&request.object)
        .ok()
        .and_then(|queue| quota(&queue))?;
    let limits = parent_name.zip(parent.and_then(|parent| quota(&parent)));
    if let Some((parent_name, limits)) = &limits {
        let text = format!("it exceeds that of parent queue {parent_name}");
        warnings.extend(exceeding_resources(&own, limits, &text));
    }
    if settings.quota_validation == Feature::Off {
        return None;
    }
    let name = name(request);
    let all = queues.list();
    let siblings_of = |parent: &str| -> Vec<Quota> {
        let others = all
            .iter()
            .filter(|queue| queue.parent() == Some(parent) && queue.metadata.plain_name() != name);
        others.filter_map(|queue| quota(queue)).collect()
    };
    if let Some((parent_name, limits)) = limits {
        let all_children = siblings_of(parent_name).into_iter().chain([own]);
        warnings.extend(exceeding_sums(
            all_children,
            &limits,
            &format!("the children of {parent_name} exceed it together"),
        ));
    }
    for child in all.iter().filter(|queue| queue.parent() == Some(name)) {
        let text = format!("child queue {} exceeds it", child.metadata.plain_name());
        warnings.extend(
            quota(child)
                .into_iter()
                .flat_map(|child| exceeding_resources(&child, &own, &text)),
        );
    }
    warnings.extend(exceeding_sums(
        siblings_of(name).into_iter(),
        &own,
        "its children exceed it together",
    ));
    None
}

fn quota(queue: &kai_api::Queue) -> Option<Quota> {
    Some(queue.read(Millis(0)).ok()?.value.quota)
}

fn parts(quota: &Quota) -> [(&'static str, &ResourceQuota); 3] {
    [("GPU", &quota.gpu), ("CPU", &quota.cpu), ("memory", &quota.memory)]
}

fn exceeding_resources(child: &Quota, parent: &Quota, text: &str) -> Vec<String> {
    let above = kai_api::quotas_above_parent(child, parent).into_iter();
    above.map(|resource| format!("{resource} quota: {text}")).collect()
}

/// `exceeding_resources` warns of an unlimited child; an unlimited quota adds nothing to the sum.
fn exceeding_sums(children: impl Iterator<Item = Quota>, parent: &Quota, text: &str) -> Vec<String> {
    let mut totals = [0i64; 3];
    for child in children {
        for (total, (_, part)) in totals.iter_mut().zip(parts(&child)) {
            *total = total.saturating_add(part.deserved.unwrap_or(0));
        }
    }
    let pairs = totals.into_iter().zip(parts(parent));
    pairs
        .filter(|(total, (_, parent))| parent.deserved.is_some_and(|parent| *total > parent))
        .map(|(_, (resource, _))| format!("{resource} quota: {text}"))
        .collect()
}
