//! Validation of pod groups. The subgroups must form a tree. Senseless minima are denied at creation; on updates of objects that
//! running workloads may have, some of them are warnings. A minimum above the number of subgroups is a warning of `kai_api`.

use std::collections::BTreeMap;

use kai_api::{SUB_GROUP_DEPTH_MAX, SUB_GROUPS_MAX};
use kai_engine::steps;
use serde_json::Value;

use super::args::Settings;
use super::queue_lister::QueueLister;
use super::review::{FieldError, Operation, Request, Verdict};
use super::{core_of_pod_group, ignored_values, priority_class, protected_keys, queue, unstructured};

/// Reviews a pod group.
pub(super) fn validate(request: &Request, settings: &Settings, queues: &dyn QueueLister) -> Verdict {
    let is_being_deleted = unstructured::text(&request.object, "/metadata/deletionTimestamp").is_some();
    match request.operation {
        Operation::Delete | Operation::Connect => return Verdict::default(),
        Operation::Update if is_being_deleted => return Verdict::default(),
        Operation::Create | Operation::Update => {}
    }
    let mut errors = if settings.trusts(&request.user_info) {
        Vec::new()
    } else {
        protected_keys::validate_pod_group(request)
    };
    errors.extend(validate_queue(request, queues));
    errors.extend(priority_class::validate_pod_group(request, queues));
    errors.extend(core_of_pod_group::validate(request));
    let mut warnings = ignored_values::pod_group(&request.object, &queues.priority_classes());
    let size = match check_size(request) {
        SizeCheck::WithinBound => None,
        // The object is older than the bound. Updates of other fields are admitted; the scheduler starts none of the group's pods.
        SizeCheck::AboveBoundUnchanged(error) => {
            warnings.push(format!("{}: {}", error.field, error.text));
            return Verdict::of(&request.object_name("PodGroup"), &errors).with_warnings(warnings);
        }
        SizeCheck::AboveBound(error) => Some(error),
    };
    match size.map_or_else(|| check(&request.object), Err) {
        Err(structural) => errors.push(structural),
        Ok(problems) => {
            for problem in problems {
                match problem.severity(request.operation) {
                    Severity::Refused => errors.push(problem.error()),
                    Severity::Warned => {
                        let error = problem.error();
                        warnings.push(format!("{}: {}", error.field, error.text));
                    }
                }
            }
        }
    }
    Verdict::of(&request.object_name("PodGroup"), &errors).with_warnings(warnings)
}

fn validate_queue(request: &Request, queues: &dyn QueueLister) -> Option<FieldError> {
    let queue = unstructured::text(&request.object, "/spec/queue")?;
    // Applies to trusted users too: the pod grouper copies the queue that a tenant wrote.
    if unstructured::text(&request.old_object, "/spec/queue") == Some(queue) {
        return None;
    }
    queue::access(queues, queue, &request.namespace, "spec.queue".to_owned())
}

/// The number of subgroups against `SUB_GROUPS_MAX`.
enum SizeCheck {
    WithinBound,
    /// The object exceeds the bound, and the update leaves its subgroups unchanged.
    AboveBoundUnchanged(FieldError),
    AboveBound(FieldError),
}

fn check_size(request: &Request) -> SizeCheck {
    const LIST: &str = "/spec/subGroups";
    let list = unstructured::list(&request.object, LIST);
    if list.len() <= SUB_GROUPS_MAX {
        return SizeCheck::WithinBound;
    }
    let text = format!(
        "{} subgroups are more than the {SUB_GROUPS_MAX} that a pod group may have; join some of them, or make several pod groups",
        list.len()
    );
    let error = FieldError::invalid("spec.subGroups", text);
    match request.operation {
        Operation::Update if list == unstructured::list(&request.old_object, LIST) => {
            SizeCheck::AboveBoundUnchanged(error)
        }
        Operation::Create | Operation::Update | Operation::Delete | Operation::Connect => SizeCheck::AboveBound(error),
    }
}

/// A minimum that does not fit the subgroup tree.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SubGroupProblem {
    LeafWithMinSubGroup { name: String },
    LeafWithoutMinMember { name: String },
    ParentWithMinMember { name: String },
}

enum Severity {
    Refused,
    Warned,
}

impl SubGroupProblem {
    fn severity(&self, operation: Operation) -> Severity {
        match (self, operation) {
            (SubGroupProblem::ParentWithMinMember { .. }, Operation::Update) => Severity::Warned,
            (
                SubGroupProblem::LeafWithMinSubGroup { .. }
                | SubGroupProblem::LeafWithoutMinMember { .. }
                | SubGroupProblem::ParentWithMinMember { .. },
                _,
            ) => Severity::Refused,
        }
    }

    fn error(&self) -> FieldError {
        let field = |name: &str, part: &str| format!("spec.subGroups[{name}].{part}");
        match self {
            SubGroupProblem::LeafWithMinSubGroup { name } => FieldError::invalid(
                field(name, "minSubGroup"),
                "the subgroup has no subgroups of its own; write minMember instead",
            ),
            SubGroupProblem::LeafWithoutMinMember { name } => FieldError::invalid(
                field(name, "minMember"),
                "it is missing; write how many pods of the subgroup have to start together",
            ),
            SubGroupProblem::ParentWithMinMember { name } => FieldError::invalid(
                field(name, "minMember"),
                "the subgroup has subgroups of its own; write minSubGroup instead",
            ),
        }
    }
}

struct SubGroup<'a> {
    parent: Option<&'a str>,
    min_member: Option<i64>,
    min_sub_group: Option<i64>,
}

fn check(pod_group: &Value) -> Result<Vec<SubGroupProblem>, FieldError> {
    let spec = pod_group.get("spec").unwrap_or(&Value::Null);
    let (min_member, min_sub_group) = minima(spec, "spec")?;
    if min_member.is_some() && min_sub_group.is_some() {
        return Err(exclusive_minima("spec".to_owned()));
    }
    let groups = tree(unstructured::list(spec, "/subGroups"))?;
    let mut children: BTreeMap<&str, usize> = BTreeMap::new();
    for group in groups.values() {
        if let Some(parent) = group.parent {
            *children.entry(parent).or_default() += 1;
        }
    }
    let mut problems = Vec::new();
    for (name, group) in &groups {
        if group.min_member.is_some() && group.min_sub_group.is_some() {
            return Err(exclusive_minima(format!("spec.subGroups[{name}]")));
        }
        problems.extend(problems_of(name, group, children.get(name).copied().unwrap_or(0)));
    }
    Ok(problems)
}

fn problems_of(name: &str, group: &SubGroup, children: usize) -> Vec<SubGroupProblem> {
    let name = || name.to_owned();
    let mut problems = Vec::new();
    if children == 0 {
        problems.extend(
            group
                .min_sub_group
                .map(|_| SubGroupProblem::LeafWithMinSubGroup { name: name() }),
        );
        if group.min_member.is_none() {
            problems.push(SubGroupProblem::LeafWithoutMinMember { name: name() });
        }
    } else {
        problems.extend(
            group
                .min_member
                .map(|_| SubGroupProblem::ParentWithMinMember { name: name() }),
        );
    }
    problems
}

/// The subgroups by name; an error if they do not form a forest.
fn tree(list: &[Value]) -> Result<BTreeMap<&str, SubGroup<'_>>, FieldError> {
    let mut groups = BTreeMap::new();
    for (index, group) in list.iter().enumerate() {
        let Some(name) = unstructured::text(group, "/name") else {
            return Err(FieldError::invalid(
                format!("spec.subGroups[{index}].name"),
                "it is missing or empty; give it a name",
            ));
        };
        let (min_member, min_sub_group) = minima(group, &format!("spec.subGroups[{name}]"))?;
        let parent = unstructured::text(group, "/parent");
        let group = SubGroup {
            parent,
            min_member,
            min_sub_group,
        };
        if groups.insert(name, group).is_some() {
            let text = format!("two subgroups are called {name}; rename one of them");
            return Err(FieldError::invalid("spec.subGroups", text));
        }
    }
    for (name, group) in &groups {
        if let Some(parent) = group.parent.filter(|parent| !groups.contains_key(parent)) {
            let text = format!("there is no subgroup {parent}; add it, or choose another parent");
            return Err(FieldError::invalid(format!("spec.subGroups[{name}].parent"), text));
        }
    }
    check_ancestors(&groups)?;
    Ok(groups)
}

/// Denies cycles and trees deeper than `SUB_GROUP_DEPTH_MAX`. Each walk to the root stops at a subgroup that was checked before, so
/// every subgroup is visited twice.
fn check_ancestors(groups: &BTreeMap<&str, SubGroup<'_>>) -> Result<(), FieldError> {
    #[derive(Clone, Copy)]
    enum Visit {
        /// On the path of the current walk.
        OnPath,
        /// Checked; the number of its ancestors.
        Checked(usize),
    }
    let mut seen: BTreeMap<&str, Visit> = BTreeMap::new();
    for name in groups.keys() {
        let refuse = |name: &str, text: String| FieldError::invalid(format!("spec.subGroups[{name}].parent"), text);
        let mut path = Vec::new();
        let mut next = Some(*name);
        let mut above = 0;
        while let Some(at) = next {
            steps::count(1);
            match seen.get(at) {
                Some(Visit::OnPath) => {
                    let text = format!("subgroup {at} would be its own ancestor; choose another parent");
                    return Err(refuse(name, text));
                }
                Some(Visit::Checked(ancestors)) => {
                    above = ancestors + 1;
                    break;
                }
                None => {}
            }
            seen.insert(at, Visit::OnPath);
            path.push(at);
            next = groups.get(at).and_then(|group| group.parent);
        }
        for at in path.into_iter().rev() {
            if above >= SUB_GROUP_DEPTH_MAX {
                let text =
                    format!("subgroups are nested more than {SUB_GROUP_DEPTH_MAX} levels deep; leave out levels");
                return Err(refuse(at, text));
            }
            seen.insert(at, Visit::Checked(above));
            above += 1;
        }
    }
    Ok(())
}

/// `minMember` and `minSubGroup`. The schema denies values of other types too; without it they would count as absent.
fn minima(group: &Value, field: &str) -> Result<(Option<i64>, Option<i64>), FieldError> {
    let number = |part: &str| match group.get(part) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value
            .as_i64()
            .filter(|number| (0..=i64::from(i32::MAX)).contains(number))
        {
            Some(number) => Ok(Some(number)),
            None => Err(FieldError::invalid(
                format!("{field}.{part}"),
                format!("{value} is no count; write a whole number from 0 to {}", i32::MAX),
            )),
        },
    };
    Ok((number("minMember")?, number("minSubGroup")?))
}

fn exclusive_minima(field: String) -> FieldError {
    let text = "minMember and minSubGroup exclude each other; write minMember to count pods, or minSubGroup to count subgroups";
    FieldError::invalid(field, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::review::Decision;
    use super::*;

    fn ask(operation: Operation, spec: Value) -> (String, Vec<String>) {
        let request = Request {
            operation,
            namespace: "a".into(),
            name: "g".into(),
            object: json!({"metadata": {"name": "g", "namespace": "a"}, "spec": spec}),
            ..Request::default()
        };
        let verdict = validate(&request, &Settings::default(), &Vec::new());
        match verdict.decision {
            Decision::Denied { message, .. } => (message.replace("PodGroup a/g: ", ""), verdict.warnings),
            Decision::Allowed => (String::new(), verdict.warnings),
            Decision::Patched(_) => panic!("validation changes nothing"),
        }
    }

    /// The denial starts with `expect`; there is none if `expect` is empty.
    fn check(operation: Operation, spec: Value, expect: &str, warnings: usize) {
        let (message, words) = ask(operation, spec.clone());
        assert_eq!(
            (message.is_empty(), words.len()),
            (expect.is_empty(), warnings),
            "{spec}: {message} {words:?}"
        );
        assert!(message.starts_with(expect), "{spec}: {message}");
    }

    #[test]
    fn groups_that_are_fine() {
        for spec in [
            json!({}),
            json!({"minMember": 0}),
            json!({"minSubGroup": 0}),
            json!({"minMember": 3, "queue": "q", "subGroups": []}),
            json!({"subGroups": [{"name": "a", "minMember": 1}]}),
            json!({"minSubGroup": 1, "subGroups": [
                {"name": "top", "minSubGroup": 2}, {"name": "a", "minMember": 1, "parent": "top"},
                {"name": "b", "minMember": 1, "parent": "top"}]}),
        ] {
            check(Operation::Create, spec.clone(), "", 0);
            check(Operation::Update, spec, "", 0);
        }
    }

    #[test]
    fn structure_is_refused_always() {
        for operation in [Operation::Create, Operation::Update] {
            let refused = |spec, expect| check(operation, spec, expect, 0);
            refused(
                json!({"minMember": 1, "minSubGroup": 1}),
                "spec: minMember and minSubGroup exclude",
            );
            refused(
                json!({"subGroups": [{"name": "a", "minMember": 1}, {"name": "a", "minMember": 1}]}),
                "spec.subGroups: two subgroups are called a",
            );
            refused(
                json!({"subGroups": [{"name": "a", "minMember": 1, "parent": "x"}]}),
                "spec.subGroups[a].parent: there is no subgroup x",
            );
            refused(
                json!({"subGroups": [{"name": "a", "minMember": 1, "parent": "a"}]}),
                "spec.subGroups[a].parent: subgroup a would be its own ancestor",
            );
            refused(
                json!({"subGroups": [{"name": "a", "minMember": 1, "parent": "b"}, {"name": "b", "minMember": 1, "parent": "a"}]}),
                "spec.subGroups[a].parent: subgroup a would",
            );
            refused(
                json!({"subGroups": [{"name": "a", "minMember": 1, "minSubGroup": 1}]}),
                "spec.subGroups[a]: minMember and minSubGroup exclude",
            );
            for odd in [json!(-1), json!(1.5), json!("1"), json!(3_000_000_000_u64)] {
                refused(json!({"minMember": odd}), "spec.minMember: ");
            }
            refused(json!({"subGroups": [3]}), "spec.subGroups[0].name: ");
        }
    }

    fn chain(count: usize) -> Value {
        let sub_group = |at: usize| match at {
            0 => json!({"name": "s0", "minSubGroup": 1}),
            _ if at + 1 == count => json!({"name": format!("s{at}"), "parent": format!("s{}", at - 1), "minMember": 1}),
            _ => json!({"name": format!("s{at}"), "parent": format!("s{}", at - 1), "minSubGroup": 1}),
        };
        json!({"subGroups": (0..count).map(sub_group).collect::<Vec<Value>>()})
    }

    fn flat(count: usize) -> Value {
        let sub_group = |at: usize| json!({"name": format!("s{at}"), "minMember": 1});
        json!({"subGroups": (0..count).map(sub_group).collect::<Vec<Value>>()})
    }

    #[test]
    fn more_subgroups_or_levels_than_are_scheduled_are_refused() {
        for operation in [Operation::Create, Operation::Update] {
            check(operation, flat(SUB_GROUPS_MAX), "", 0);
            check(
                operation,
                flat(SUB_GROUPS_MAX + 1),
                "spec.subGroups: 4097 subgroups are more than the 4096",
                0,
            );
            check(operation, chain(SUB_GROUP_DEPTH_MAX), "", 0);
            for depth in [SUB_GROUP_DEPTH_MAX + 1, 3_000] {
                check(
                    operation,
                    chain(depth),
                    "spec.subGroups[s16].parent: subgroups are nested more than 16 levels deep",
                    0,
                );
            }
        }
    }

    #[test]
    fn a_pod_group_that_was_larger_before_there_was_a_bound_can_still_be_edited() {
        let object = json!({"metadata": {"name": "g"}, "spec": flat(SUB_GROUPS_MAX + 1)});
        let request = Request {
            operation: Operation::Update,
            object: object.clone(),
            old_object: object,
            ..Request::default()
        };
        let verdict = validate(&request, &Settings::default(), &Vec::new());
        assert_eq!((verdict.decision, verdict.warnings.len()), (Decision::Allowed, 1));
    }

    #[test]
    fn numbers_are_refused_or_warned_of() {
        for operation in [Operation::Create, Operation::Update] {
            let leaf = "spec.subGroups[a].minSubGroup: the subgroup has no subgroups";
            check(
                operation,
                json!({"subGroups": [{"name": "a", "minSubGroup": 1}]}),
                leaf,
                0,
            );
            check(
                operation,
                json!({"subGroups": [{"name": "a"}]}),
                "spec.subGroups[a].minMember: it is missing",
                0,
            );
            check(
                operation,
                json!({"minSubGroup": 2, "subGroups": [{"name": "a", "minMember": 1}]}),
                "",
                1,
            );
            let nested =
                json!({"subGroups": [{"name": "a", "minMember": 1, "parent": "p"}, {"name": "p", "minSubGroup": 2}]});
            check(operation, nested, "", 1);
        }
        let parent =
            json!({"subGroups": [{"name": "a", "minMember": 1, "parent": "p"}, {"name": "p", "minMember": 2}]});
        check(
            Operation::Create,
            parent.clone(),
            "spec.subGroups[p].minMember: the subgroup has subgroups",
            0,
        );
        check(Operation::Update, parent, "", 1);
        // All of them, in order of names.
        let (message, _) = ask(
            Operation::Create,
            json!({"subGroups": [{"name": "b"}, {"name": "a", "minSubGroup": 1}]}),
        );
        let fields: Vec<&str> = message
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(field, _)| field)
            .collect();
        assert_eq!(
            fields,
            [
                "spec.subGroups[a].minSubGroup",
                "spec.subGroups[a].minMember",
                "spec.subGroups[b].minMember"
            ]
        );
    }

    #[test]
    fn too_few_subgroups_are_warned_of_in_words_that_are_known_from_kai() {
        let spec = json!({"minSubGroup": 2, "subGroups": [
            {"name": "p", "minSubGroup": 3}, {"name": "a", "minMember": 1, "parent": "p"}]});
        let (_, warnings) = ask(Operation::Create, spec);
        let rest = "add subgroups, or lower it (the workload waits until there are enough)";
        assert_eq!(
            warnings,
            [
                format!(
                    "spec.subGroups[0].minSubGroup: subgroup \"p\": minSubGroup (3) exceeds the number of direct child SubGroups \
                     (1); {rest}"
                ),
                format!("spec.minSubGroup: minSubGroup (2) exceeds the number of direct child SubGroups (1); {rest}"),
            ]
        );
    }

    #[test]
    fn a_group_that_goes_or_is_deleted_is_left_alone() {
        let request = |operation, object| Request {
            operation,
            object,
            ..Request::default()
        };
        let bad = json!({"metadata": {"deletionTimestamp": "t"}, "spec": {"minMember": -1}});
        for request in [request(Operation::Update, bad), request(Operation::Delete, Value::Null)] {
            assert_eq!(
                validate(&request, &Settings::default(), &Vec::new()),
                Verdict::default()
            );
        }
    }
}
