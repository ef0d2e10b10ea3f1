//! Validation of queues, and of the use of a queue by a namespace.

use std::collections::BTreeSet;

use kai_api::{PriorityCeiling, keys};
use kai_engine::reasons::Refusal;
use serde_json::Value;

use super::args::{Feature, Settings};
use super::ignored_values;
use super::queue_lister::QueueLister;
use super::queue_quota::quotas;
use super::review::{FieldError, Operation, Request, Verdict};
use super::unstructured::{self, MetadataMap};

/// Upper bound of an amount, in the units of the API. The scheduler's own bound is of this order; the scheduler skips a queue beyond
/// it.
const AMOUNT_MAX: f64 = 1e11;
const UNLIMITED: f64 = -1.0;
/// Resources of a queue: name in the API, name in messages.
const RESOURCES: [(&str, &str); 3] = [("gpu", "GPU"), ("cpu", "CPU"), ("memory", "memory")];

/// Reviews a queue.
pub(super) fn validate(request: &Request, settings: &Settings, queues: &dyn QueueLister) -> Verdict {
    let object = request.object_name("Queue");
    match request.operation {
        Operation::Connect => Verdict::default(),
        Operation::Delete => deletion(request, settings, queues),
        Operation::Create | Operation::Update => {
            // A queue that is being deleted must be able to lose its finalizers.
            if unstructured::text(&request.object, "/metadata/deletionTimestamp").is_some() {
                return Verdict::default();
            }
            let mut errors = validate_spec(&request.object);
            errors.extend(ancestor_cycle(request, queues));
            let mut warnings = warnings_of(&request.object);
            if errors.is_empty() {
                warnings.extend(ignored_values::queue(&request.object));
                errors.extend(quotas(request, settings, queues, &mut warnings));
            }
            Verdict::of(&object, &errors).with_warnings(warnings)
        }
    }
}

/// The error if pods of the namespace may not use the queue.
pub(crate) fn access(queues: &dyn QueueLister, queue: &str, namespace: &str, field: String) -> Option<FieldError> {
    let queue = queues.get(queue)?;
    if queue.namespaces()?.contain(namespace) {
        return None;
    }
    let refusal = Refusal::QueueForbidden {
        queue: queue.metadata.plain_name().to_owned(),
        namespace: namespace.to_owned(),
    };
    Some(FieldError::forbidden(field, refusal.to_string()))
}

/// Errors in the queue itself, without other objects.
fn validate_spec(queue: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match queue.pointer("/spec/resources") {
        None | Some(Value::Null) => {
            let text = "it is missing; write gpu, cpu and memory, each with quota, limit and overQuotaWeight";
            errors.push(FieldError::invalid("spec.resources", text));
        }
        Some(resources) => {
            for (resource, _) in RESOURCES {
                errors.extend(amounts(resource, resources.get(resource)));
            }
        }
    }
    if let Some(text) = unstructured::entry(queue, MetadataMap::Annotations, keys::QUEUE_MAX_PRIORITY)
        && let PriorityCeiling::Unreadable(text) = PriorityCeiling::parse(&text)
    {
        let field = format!("metadata.annotations.{}", keys::QUEUE_MAX_PRIORITY);
        let text =
            format!("{text:?} is not a whole number; write the highest priority that pod groups may have, as in 100");
        errors.push(FieldError::invalid(field, text));
    }
    for field in ["preemptMinRuntime", "reclaimMinRuntime"] {
        let Some(text) = unstructured::text(queue, &format!("/spec/{field}")) else {
            continue;
        };
        if let Err(error) = kai_api::parse_duration(text) {
            errors.push(FieldError::invalid(format!("spec.{field}"), error.to_string()));
        }
    }
    errors
}

fn amounts(name: &str, resource: Option<&Value>) -> Vec<FieldError> {
    let Some(resource) = resource.filter(|resource| !resource.is_null()) else {
        return Vec::new();
    };
    if !resource.is_object() {
        let text = "it is no object; write quota, limit and overQuotaWeight in it";
        return vec![FieldError::invalid(format!("spec.resources.{name}"), text)];
    }
    let wrong = |(part, unlimited): (&str, Unlimited)| {
        let text = amount(resource.get(part)?, unlimited).err()?;
        Some(FieldError::invalid(format!("spec.resources.{name}.{part}"), text))
    };
    let parts = [
        ("quota", Unlimited::Allowed),
        ("limit", Unlimited::Allowed),
        ("overQuotaWeight", Unlimited::Invalid),
    ];
    parts.into_iter().filter_map(wrong).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unlimited {
    Allowed,
    Invalid,
}

fn amount(value: &Value, unlimited: Unlimited) -> Result<(), String> {
    let remedy = match unlimited {
        Unlimited::Allowed => "write -1 for unlimited, or a number of zero or more",
        Unlimited::Invalid => "write a number of zero or more",
    };
    if value.is_null() {
        return Ok(());
    }
    match value.as_f64() {
        Some(UNLIMITED) if unlimited == Unlimited::Allowed => Ok(()),
        Some(number) if number > AMOUNT_MAX => {
            Err(format!("{value} is more than any cluster has; write the real amount"))
        }
        Some(number) if number.is_finite() && number >= 0.0 => Ok(()),
        Some(_) => Err(format!("{value} is no amount; {remedy}")),
        None => Err(format!("{value} is no number; {remedy}")),
    }
}

/// A parent may be deleted before its children: scripts and Helm delete queues in any order. The children's workloads wait until the
/// parent exists again.
fn deletion(request: &Request, settings: &Settings, queues: &dyn QueueLister) -> Verdict {
    let children = children(request, queues);
    if children.is_empty() {
        return Verdict::default();
    }
    let children = children.join(", ");
    match settings.parent_queue_protection {
        Feature::On => {
            let text = format!("the queue has children: {children}; delete them first, or give them another parent");
            Verdict::of(
                &request.object_name("Queue"),
                &[FieldError::invalid("spec.parentQueue", text)],
            )
        }
        Feature::Off => {
            let text = format!(
                "the queue has children: {children}; their workloads wait until the queue exists again or they have another parent"
            );
            Verdict::default().with_warnings(vec![text])
        }
    }
}

fn children(request: &Request, queues: &dyn QueueLister) -> Vec<String> {
    let name = name(request);
    let mut children: BTreeSet<String> = queues
        .list()
        .iter()
        .filter(|queue| queue.parent() == Some(name))
        .map(|queue| queue.metadata.plain_name().to_owned())
        .collect();
    if children.is_empty() {
        // Before the informer has queues, the status tells the children.
        let stated = unstructured::list(&request.old_object, "/status/childQueues");
        let still_there = |child: &&str| queues.get(child).is_none_or(|queue| queue.parent() == Some(name));
        let unknown = queues.list().is_empty();
        let stated = stated.iter().filter_map(Value::as_str).filter(still_there);
        children.extend(stated.filter(|_| unknown).map(str::to_owned));
    }
    children.into_iter().collect()
}

fn ancestor_cycle(request: &Request, queues: &dyn QueueLister) -> Option<FieldError> {
    let name = name(request);
    let mut path = vec![name.to_owned()];
    let mut next = unstructured::text(&request.object, "/spec/parentQueue").map(str::to_owned);
    while let Some(parent) = next {
        let is_repeated = path.contains(&parent);
        path.push(parent.clone());
        if parent == name {
            let text = format!(
                "the queue would be its own ancestor: {}; choose another parent",
                path.join(" -> ")
            );
            return Some(FieldError::invalid("spec.parentQueue", text));
        }
        // A cycle among the ancestors is not this queue's error, but the walk must end.
        next = if is_repeated {
            None
        } else {
            queues.get(&parent).and_then(|queue| queue.parent().map(str::to_owned))
        };
    }
    None
}

/// Warnings about the queue itself, without other objects.
fn warnings_of(queue: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if queue.pointer("/spec/resources").is_none_or(Value::is_null) {
        warnings.push("spec.resources: it is missing".to_owned());
    }
    for (resource, _) in RESOURCES {
        let number = |part: &str| {
            queue
                .pointer(&format!("/spec/resources/{resource}/{part}"))
                .and_then(Value::as_f64)
        };
        let (Some(quota), Some(limit)) = (number("quota"), number("limit")) else {
            continue;
        };
        if limit >= 0.0 && (quota > limit || quota == UNLIMITED) {
            warnings.push(format!(
                "spec.resources.{resource}: the quota of {quota} can't be used, because the limit is {limit}"
            ));
        }
    }
    warnings
}

pub(super) fn name(request: &Request) -> &str {
    match request.name.as_str() {
        "" => unstructured::text(&request.object, "/metadata/name").unwrap_or_default(),
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::args::QuotaViolation;
    use super::super::review::Decision;
    use super::*;

    fn queue(name: &str, parent: &str, gpu: f64) -> Value {
        json!({"metadata": {"name": name}, "spec": {"parentQueue": parent, "resources": {
            "gpu": {"quota": gpu, "limit": -1, "overQuotaWeight": 1}}}})
    }

    fn directory(queues: &[Value]) -> Vec<Arc<kai_api::Queue>> {
        let read = |queue: &Value| Arc::new(serde_json::from_value(queue.clone()).unwrap());
        queues.iter().map(read).collect()
    }

    fn ask(operation: Operation, object: Value, queues: &[Value], quota_validation: Feature) -> (String, Vec<String>) {
        let settings = Settings {
            quota_validation,
            ..Settings::default()
        };
        ask_with(operation, object, queues, &settings)
    }

    fn ask_with(operation: Operation, object: Value, queues: &[Value], settings: &Settings) -> (String, Vec<String>) {
        let (object, old_object) = match operation {
            Operation::Delete => (Value::Null, object),
            _ => (object, Value::Null),
        };
        let name = [&object, &old_object]
            .iter()
            .find_map(|object| unstructured::text(object, "/metadata/name"));
        let request = Request {
            operation,
            name: name.unwrap_or_default().to_owned(),
            object,
            old_object,
            ..Request::default()
        };
        let verdict = validate(&request, settings, &directory(queues));
        let message = match verdict.decision {
            Decision::Denied { message, .. } => message,
            Decision::Allowed => String::new(),
            Decision::Patched(_) => panic!("validation changes nothing"),
        };
        (message, verdict.warnings)
    }

    fn refused(object: Value, queues: &[Value], expect: &str) {
        assert_eq!(ask(Operation::Create, object, queues, Feature::Off).0, expect);
    }

    #[test]
    fn resources_must_be_there() {
        let message = "Queue q: spec.resources: it is missing; write gpu, cpu and memory, each with quota, limit and \
                       overQuotaWeight";
        refused(json!({"metadata": {"name": "q"}, "spec": {}}), &[], message);
        refused(
            json!({"metadata": {"name": "q"}, "spec": {"resources": null}}),
            &[],
            message,
        );
        refused(json!({"metadata": {"name": "q"}}), &[], message);
        refused(json!({"metadata": {"name": "q"}, "spec": {"resources": {}}}), &[], "");
    }

    #[test]
    fn amounts_are_minus_one_or_not_negative() {
        let with =
            |amount: Value| json!({"metadata": {"name": "q"}, "spec": {"resources": {"cpu": {"limit": amount}}}});
        for amount in [json!(-1), json!(-1.0), json!(0), json!(0.5), json!(1e9), json!(null)] {
            refused(with(amount), &[], "");
        }
        refused(
            with(json!(-2)),
            &[],
            "Queue q: spec.resources.cpu.limit: -2 is no amount; write -1 for unlimited, or a number of zero or more",
        );
        for amount in [
            json!(-0.5),
            json!("NaN"),
            json!("-1"),
            json!(1e300),
            json!([]),
            json!(true),
            json!(f64::MAX),
        ] {
            let (message, _) = ask(Operation::Create, with(amount.clone()), &[], Feature::Off);
            assert!(
                message.starts_with("Queue q: spec.resources.cpu.limit: "),
                "{amount}: {message}"
            );
        }
        let weight =
            json!({"metadata": {"name": "q"}, "spec": {"resources": {"gpu": {"overQuotaWeight": -1}, "memory": 3}}});
        let (message, _) = ask(Operation::Create, weight, &[], Feature::Off);
        assert_eq!(
            message,
            "Queue q: spec.resources.gpu.overQuotaWeight: -1 is no amount; write a number of zero or more\nQueue q: \
             spec.resources.memory: it is no object; write quota, limit and overQuotaWeight in it"
        );
        let runtime = json!({"metadata": {"name": "q"}, "spec": {"resources": {}, "preemptMinRuntime": "soon"}});
        assert!(
            ask(Operation::Create, runtime, &[], Feature::Off)
                .0
                .contains("spec.preemptMinRuntime")
        );
    }

    #[test]
    fn a_parent_is_no_descendant() {
        refused(
            queue("a", "a", 0.0),
            &[],
            "Queue a: spec.parentQueue: the queue would be its own ancestor: a -> a; choose another parent",
        );
        let tree = [queue("b", "a", 0.0), queue("c", "b", 0.0)];
        refused(
            queue("a", "c", 0.0),
            &tree,
            "Queue a: spec.parentQueue: the queue would be its own ancestor: a -> c -> b -> a; choose another parent",
        );
        refused(queue("d", "c", 0.0), &tree, "");
        // Broken before, and elsewhere.
        refused(queue("d", "x", 0.0), &[queue("x", "y", 0.0), queue("y", "x", 0.0)], "");
    }

    fn delete(object: Value, queues: &[Value], parent_queue_protection: Feature) -> (String, Vec<String>) {
        let settings = Settings {
            parent_queue_protection,
            ..Settings::default()
        };
        ask_with(Operation::Delete, object, queues, &settings)
    }

    #[test]
    fn a_parent_may_go_before_its_children_with_a_warning() {
        let tree = [queue("c", "a", 0.0), queue("b", "a", 0.0)];
        let words = "the queue has children: b, c; their workloads wait until the queue exists again or they have another parent";
        assert_eq!(
            delete(queue("a", "", 0.0), &tree, Feature::Off),
            (String::new(), vec![words.to_owned()])
        );
        assert_eq!(
            delete(queue("b", "a", 0.0), &tree, Feature::Off),
            (String::new(), vec![])
        );
    }

    #[test]
    fn a_protected_parent_stays_while_it_has_children() {
        let delete = |object, queues: &[Value]| delete(object, queues, Feature::On).0;
        assert_eq!(
            delete(queue("a", "", 0.0), &[queue("a", "", 0.0), queue("z", "", 0.0)]),
            ""
        );
        assert_eq!(
            delete(queue("a", "", 0.0), &[queue("c", "a", 0.0), queue("b", "a", 0.0)]),
            "Queue a: spec.parentQueue: the queue has children: b, c; delete them first, or give them another parent"
        );
        let mut stated = queue("a", "", 0.0);
        stated["status"] = json!({"childQueues": ["b"]});
        assert_ne!(delete(stated.clone(), &[]), "");
        assert_eq!(delete(stated, &[queue("b", "other", 0.0)]), "", "the status is behind");
    }

    #[test]
    fn a_ceiling_of_priorities_is_a_whole_number() {
        let mut bounded = queue("q", "", 0.0);
        for (value, message) in [
            ("100", ""),
            ("-5", ""),
            (
                "high",
                "Queue q: metadata.annotations.kai.scheduler/max-priority: \"high\" is not a whole number; write the highest priority \
                 that pod groups may have, as in 100",
            ),
        ] {
            bounded["metadata"]["annotations"] = json!({"kai.scheduler/max-priority": value});
            refused(bounded.clone(), &[], message);
        }
    }

    fn with_violations(quota_violation: QuotaViolation) -> Settings {
        Settings {
            quota_violation,
            ..Settings::default()
        }
    }

    #[test]
    fn quotas_that_do_not_add_up_are_warned_of() {
        let tree = [queue("p", "", 4.0), queue("x", "p", 3.0)];
        let warnings = |object| {
            let (message, warnings) = ask(Operation::Update, object, &tree, Feature::Off);
            assert_eq!(message, "");
            warnings
        };
        assert_eq!(
            warnings(queue("q", "p", 9.0)),
            [
                "GPU quota: it exceeds that of parent queue p",
                "GPU quota: the children of p exceed it together"
            ]
        );
        assert_eq!(
            warnings(queue("q", "p", 4.0)),
            ["GPU quota: the children of p exceed it together"]
        );
        assert_eq!(
            warnings(queue("q", "p", -1.0)),
            ["GPU quota: it exceeds that of parent queue p"]
        );
        assert_eq!(warnings(queue("q", "p", 1.0)), [""; 0]);
        assert_eq!(
            warnings(queue("p", "", 1.0)),
            [
                "GPU quota: child queues exceed it: x",
                "GPU quota: its children exceed it together"
            ]
        );
        assert_eq!(warnings(queue("p", "", -1.0)), [""; 0], "unlimited");
    }

    #[test]
    fn many_children_above_their_parent_are_one_warning() {
        let tree: Vec<Value> = (0..30).map(|at| queue(&format!("c{at:02}"), "p", 9.0)).collect();
        let (_, warnings) = ask(Operation::Update, queue("p", "", 5.0), &tree, Feature::Off);
        assert_eq!(
            warnings[0],
            "GPU quota: child queues exceed it: c00, c01, c02, c03, c04, c05, c06, c07 and 22 more"
        );
        assert_eq!(warnings.len(), 2);
    }

    #[test]
    fn quotas_that_do_not_add_up_are_ignored_or_refused_on_request() {
        let tree = [queue("p", "", 4.0), queue("x", "p", 3.0)];
        let ask = |object, violations| ask_with(Operation::Update, object, &tree, &with_violations(violations));
        assert_eq!(
            ask(queue("q", "p", 9.0), QuotaViolation::None),
            (String::new(), Vec::new())
        );
        let refused =
            "Queue q: spec.resources.gpu.quota: the children of p exceed it together; change one of these quotas";
        assert_eq!(
            ask(queue("q", "p", 2.0), QuotaViolation::Block),
            (refused.to_owned(), Vec::new())
        );
        assert_eq!(
            ask(queue("q", "p", 1.0), QuotaViolation::Block),
            (String::new(), Vec::new())
        );
    }

    #[test]
    fn other_fields_of_a_queue_whose_quota_does_not_add_up_can_be_edited() {
        let old_object = queue("q", "p", 9.0);
        let mut object = old_object.clone();
        object["metadata"]["labels"] = json!({"team": "a"});
        let request = |object| Request {
            operation: Operation::Update,
            name: "q".to_owned(),
            object,
            old_object: old_object.clone(),
            ..Request::default()
        };
        let tree = directory(&[queue("p", "", 4.0)]);
        let verdict = validate(&request(object.clone()), &with_violations(QuotaViolation::Block), &tree);
        assert_eq!((verdict.decision, verdict.warnings.len()), (Decision::Allowed, 2));
        object["spec"]["resources"]["gpu"]["quota"] = json!(8);
        let verdict = validate(&request(object), &with_violations(QuotaViolation::Block), &tree);
        assert!(matches!(verdict.decision, Decision::Denied { .. }));
    }

    #[test]
    fn a_parent_must_exist_on_request() {
        let orphan = || queue("q", "nobody", 1.0);
        let (message, _) = ask(Operation::Create, orphan(), &[], Feature::On);
        assert!(message.contains("queue nobody does not exist"));
        let (message, words) = ask(Operation::Create, orphan(), &[], Feature::Off);
        assert_eq!((message.as_str(), words.len()), ("", 1));
    }

    #[test]
    fn a_quota_above_the_limit_is_warned_of() {
        let odd = json!({"metadata": {"name": "q"}, "spec": {"resources": {"gpu": {"quota": 4, "limit": 2}}}});
        assert_eq!(
            ask(Operation::Create, odd, &[], Feature::Off),
            (
                String::new(),
                vec!["spec.resources.gpu: the quota of 4 can't be used, because the limit is 2".to_owned()]
            )
        );
    }

    #[test]
    fn a_queue_can_be_for_some_namespaces() {
        let mut reserved = queue("q", "", 0.0);
        reserved["metadata"]["annotations"] = json!({"kai.scheduler/allowed-namespaces": "team-a, team-b"});
        let queues = directory(&[reserved, queue("open", "", 0.0)]);
        let access = |queue, namespace| access(&queues, queue, namespace, "f".into()).is_none();
        assert!(access("q", "team-a") && access("q", "team-b") && access("open", "team-c") && access("none", "x"));
        assert!(!access("q", "team-c") && !access("q", "") && !access("q", "team"));
    }

    #[test]
    fn a_queue_that_goes_can_lose_its_finalizers() {
        let going = json!({"metadata": {"name": "q", "deletionTimestamp": "t"}});
        assert_eq!(ask(Operation::Update, going, &[], Feature::On).0, "");
    }
}
