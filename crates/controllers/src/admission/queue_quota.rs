//! Comparison of a queue's quota with those of its parent, siblings and children. The administrator chooses whether quotas that do not add
//! up are ignored, lead to warnings, or are refused.

use kai_engine::model::{Millis, Quota, ResourceQuota};
use serde::Deserialize as _;

use super::args::{Feature, QuotaViolation, Settings};
use super::queue::name;
use super::queue_lister::QueueLister;
use super::review::{FieldError, Request};
use super::unstructured;

/// How many children with a quota above their parent's a message names.
const CHILDREN_NAMED_MAX: usize = 8;

/// Quotas that do not add up: the resource, and the text.
type Violation = (&'static str, String);

/// Compares the quota with those of parent, siblings and children; adds warnings and returns errors. A missing parent is an error with
/// quota validation on.
pub(super) fn quotas(
    request: &Request,
    settings: &Settings,
    queues: &dyn QueueLister,
    warnings: &mut Vec<String>,
) -> Vec<FieldError> {
    let parent_name = unstructured::text(&request.object, "/spec/parentQueue");
    let parent = parent_name.and_then(|name| queues.get(name));
    if let (Some(parent_name), None) = (parent_name, &parent) {
        let text = format!("queue {parent_name} does not exist; create it, or choose another parent");
        if settings.quota_validation == Feature::On {
            return vec![FieldError::invalid("spec.parentQueue", text)];
        }
        warnings.push(format!(
            "spec.parentQueue: {text}; workloads of this queue wait until then"
        ));
    }
    if settings.quota_violation == QuotaViolation::None {
        return Vec::new();
    }
    let violations = violations(request, parent_name.zip(parent.as_deref()), queues);
    // An administrator can still edit other fields of a queue whose quota did not add up before.
    let is_new = ["/spec/resources", "/spec/parentQueue"]
        .iter()
        .any(|field| request.object.pointer(field) != request.old_object.pointer(field));
    if settings.quota_violation == QuotaViolation::Block && is_new {
        let refuse = |(resource, text): Violation| {
            let field = format!("spec.resources.{}.quota", resource.to_lowercase());
            FieldError::invalid(field, format!("{text}; change one of these quotas"))
        };
        return violations.into_iter().map(refuse).collect();
    }
    warnings.extend(
        violations
            .into_iter()
            .map(|(resource, text)| format!("{resource} quota: {text}")),
    );
    Vec::new()
}

fn violations(request: &Request, parent: Option<(&str, &kai_api::Queue)>, queues: &dyn QueueLister) -> Vec<Violation> {
    let own = kai_api::Queue::deserialize(&request.object).ok();
    let Some(own) = own.and_then(|queue| quota(&queue)) else {
        return Vec::new();
    };
    let mut violations = Vec::new();
    let name = name(request);
    let all = queues.list();
    let others_below = |parent: &str| -> Vec<(String, Quota)> {
        let others = all
            .iter()
            .filter(|queue| queue.parent() == Some(parent) && queue.metadata.plain_name() != name);
        let named = others.filter_map(|queue| Some((queue.metadata.plain_name().to_owned(), quota(queue)?)));
        named.collect()
    };
    if let Some((parent_name, limits)) = parent.and_then(|(name, parent)| Some((name, quota(parent)?))) {
        let above = kai_api::quotas_above_parent(&own, &limits);
        let text = format!("it exceeds that of parent queue {parent_name}");
        violations.extend(above.into_iter().map(|resource| (resource, text.clone())));
        let siblings = others_below(parent_name);
        let children = siblings.iter().map(|(_, quota)| quota).chain([&own]);
        let text = format!("the children of {parent_name} exceed it together");
        violations.extend(exceeding_sums(children, &limits, &text));
    }
    let children = others_below(name);
    violations.extend(exceeding_children(&children, &own));
    let children = children.iter().map(|(_, quota)| quota);
    violations.extend(exceeding_sums(children, &own, "its children exceed it together"));
    violations
}

/// The children whose quota exceeds that of their parent, by resource.
fn exceeding_children(children: &[(String, Quota)], parent: &Quota) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (resource, _) in parts(parent) {
        let exceeds = |(_, child): &&(String, Quota)| kai_api::quotas_above_parent(child, parent).contains(&resource);
        let mut names: Vec<&str> = children.iter().filter(exceeds).map(|(name, _)| name.as_str()).collect();
        let more = names.len().saturating_sub(CHILDREN_NAMED_MAX);
        names.truncate(CHILDREN_NAMED_MAX);
        let names = names.join(", ");
        match (names.is_empty(), more) {
            (true, _) => {}
            (false, 0) => violations.push((resource, format!("child queues exceed it: {names}"))),
            (false, _) => violations.push((resource, format!("child queues exceed it: {names} and {more} more"))),
        }
    }
    violations
}

fn quota(queue: &kai_api::Queue) -> Option<Quota> {
    Some(queue.read(Millis(0)).ok()?.value.quota)
}

fn parts(quota: &Quota) -> [(&'static str, &ResourceQuota); 3] {
    [("GPU", &quota.gpu), ("CPU", &quota.cpu), ("memory", &quota.memory)]
}

/// An unlimited child exceeds a limited parent by itself; an unlimited quota adds nothing to the sum.
fn exceeding_sums<'q>(children: impl Iterator<Item = &'q Quota>, parent: &Quota, text: &str) -> Vec<Violation> {
    let mut totals = [0i64; 3];
    for child in children {
        for (total, (_, part)) in totals.iter_mut().zip(parts(child)) {
            *total = total.saturating_add(part.deserved.unwrap_or(0));
        }
    }
    let pairs = totals.into_iter().zip(parts(parent));
    pairs
        .filter(|(total, (_, parent))| parent.deserved.is_some_and(|parent| *total > parent))
        .map(|(_, (resource, _))| (resource, text.to_owned()))
        .collect()
}
