//! Applies a declared rule: the pod group of a workload, by the fields that the rule names. What the rule does not say is as for every
//! kind.

use std::collections::BTreeMap;

use kai_api::crd::{Preemptibility, SubGroup, TopologyConstraint};
use kai_api::{SUB_GROUPS_MAX, keys};
use serde_json::Value;

use super::super::default_rules;
use super::super::desired_pod_group::{DesiredPodGroup, leaf, parent, topology_constraint};
use super::super::field::Field;
use super::super::workload::{GroupingError, ObjectRef, Owner, PodOrigin, Workload};
use super::NamedRule;
use super::rule::{Content, OtherObject, PodMatch, Subgroups, Topology};
use super::values::Scope;

/// The longest name of a subgroup: it becomes the value of a label.
const NAME_BYTES_MAX: usize = 63;
/// Subgroups that a message lists.
const NAMES_TOLD_MAX: usize = 5;

/// Root of paths where no object is read.
static NOTHING: Value = Value::Null;

/// The desired pod group. `owners` are those of the pod up to the workload that the rule is for.
pub(in super::super) fn desired(
    named: &NamedRule,
    workload: &Workload<'_>,
    top: &Owner,
    owners: &[Owner],
) -> Result<DesiredPodGroup, GroupingError> {
    let rule = &named.rule;
    let (base, object, owners) = match &rule.object {
        None => (top.clone(), workload.object(top.reference())?, owners),
        Some(other) => {
            let (base, object) = other_object(named, other, workload, top)?;
            (base, object, &[][..])
        }
    };
    let owners = if owners.is_empty() {
        std::slice::from_ref(&base)
    } else {
        owners
    };
    let root = Field::of(object);
    let scope = Scope {
        workload,
        base: &base,
        root: &root,
    };
    let mut desired = default_rules::desired(workload, &base, owners, keys::DEFAULT_PRIORITY_CLASS);
    desired.origins.rule = named.words();
    desired.clears_sub_group = true;
    set_queue_and_priority(&mut desired, named, scope)?;
    let topology_name = set_topology(&mut desired, &rule.topology, scope)?;
    let minimum = match &rule.minimum {
        Some(minimum) => minimum.count(scope)?,
        None => None,
    };
    let mut tree = Tree::default();
    for list in &rule.subgroups {
        tree.add(list, scope, topology_name.as_deref())?;
    }
    let sum = tree.minimum(&root)?;
    if let Some(minimum) = &minimum {
        desired.min_member(minimum.value, minimum.origin.clone());
    }
    match (tree.leaves.is_empty(), &minimum) {
        (true, _) => {}
        // A gang has a number of pods or parts with numbers of their own; the scheduler has no gang with both.
        (false, Some(minimum)) if minimum.value != sum => {
            desired.origins.sub_groups = format!(
                "none: their minimums sum up to {sum}, and the minimum of all is {}",
                minimum.value
            );
        }
        (false, _) => {
            if minimum.is_none() {
                desired.min_member(sum, "sum of the subgroups' minimums");
            }
            desired.origins.sub_groups = tree.origin();
            desired.sub_group = match (tree.of_pod.take(), workload.pod_origin) {
                (Some(name), _) => Some(name),
                (None, PodOrigin::Template) => None,
                (None, PodOrigin::Pod) => return Err(tree.without_pod(named, workload, &base)),
            };
            desired.spec.sub_groups = tree.into_sub_groups(&root)?;
        }
    }
    Ok(desired)
}

fn set_queue_and_priority(
    desired: &mut DesiredPodGroup,
    named: &NamedRule,
    scope: Scope<'_, '_>,
) -> Result<(), GroupingError> {
    let rule = &named.rule;
    if let Some(queue) = &rule.queue
        && let Some(found) = queue.text(scope)?
    {
        desired.origins.queue = found.origin;
        desired.spec.queue = Some(found.value);
    }
    // As for every kind, a class that does not exist counts as not named.
    let exists = |class: &str| scope.workload.cluster.has_priority_class(class);
    if let Some(class) = &rule.priority_class
        && let Some(found) = class.first(scope, exists)?
    {
        desired.origins.priority_class = found.origin;
        desired.spec.priority_class_name = Some(found.value);
    }
    if let Some(preemptibility) = &rule.preemptibility
        && let Some(found) = preemptibility.text(scope)?
    {
        let Some(value) = Preemptibility::parse(&found.value) else {
            let reason = format!(
                "{:?} is neither preemptible, semi-preemptible nor non-preemptible; write one of them",
                kai_yaml::shortened(&found.value, NAME_BYTES_MAX)
            );
            return Err(found.refuse(reason));
        };
        desired.origins.preemptibility = found.origin;
        desired.spec.preemptibility = Some(value);
    }
    Ok(())
}

/// Sets the topology constraint of the gang. Returns the name of the topology, which the subgroups share.
fn set_topology(
    desired: &mut DesiredPodGroup,
    topology: &Topology,
    scope: Scope<'_, '_>,
) -> Result<Option<String>, GroupingError> {
    let named = match &topology.name {
        Some(name) => name.text(scope)?.map(|found| found.value),
        None => None,
    };
    let name = named.or_else(|| scope.base.annotations.get(keys::TOPOLOGY).cloned());
    if let Some((constraint, origin)) = constraint(topology, scope, name.as_deref())? {
        desired.spec.topology_constraint = Some(constraint);
        desired.origins.topology = origin;
    }
    Ok(name)
}

/// The constraint and its origin; `None` if the object names no level.
fn constraint(
    topology: &Topology,
    scope: Scope<'_, '_>,
    name: Option<&str>,
) -> Result<Option<(TopologyConstraint, String)>, GroupingError> {
    let level = |values: &Option<super::values::Values>| match values {
        Some(values) => values.text(scope),
        None => Ok(None),
    };
    let (required, preferred) = (level(&topology.required)?, level(&topology.preferred)?);
    let Some(first) = required.as_ref().or(preferred.as_ref()) else {
        return Ok(None);
    };
    if name.is_none_or(str::is_empty) {
        return Err(first.refuse(format!(
            "a topology level needs the name of the topology; annotate {} {} with {}",
            scope.base.kind,
            scope.base.name,
            keys::TOPOLOGY
        )));
    }
    let origins: Vec<&str> = [&required, &preferred]
        .into_iter()
        .flatten()
        .map(|found| found.origin.as_str())
        .collect();
    let origin = origins.join(", ");
    let value = |found: &Option<super::values::Found<String>>| found.as_ref().map(|found| found.value.clone());
    let made = topology_constraint(name, value(&required).as_deref(), value(&preferred).as_deref());
    Ok(made.map(|constraint| (constraint, origin)))
}

/// The object that the rule names, with the labels and annotations of the workload that it lacks.
fn other_object<'a>(
    named: &NamedRule,
    other: &OtherObject,
    workload: &Workload<'a>,
    top: &Owner,
) -> Result<(Owner, &'a Value), GroupingError> {
    let root = match other.name.reads_object() {
        true => Field::of(workload.object(top.reference())?),
        false => Field::of(&NOTHING),
    };
    let scope = Scope {
        workload,
        base: top,
        root: &root,
    };
    let Some(name) = other.name.text(scope)? else {
        let reason = format!(
            "{} takes the name of its {} from {}, and there is none (yet); check that the operator of {} runs",
            named.title(),
            other.kind,
            other.name.words(),
            top.kind
        );
        return Err(workload.refuse_pod("metadata".to_owned(), reason));
    };
    let object = workload.object(ObjectRef {
        api_version: other.api_version.clone(),
        kind: other.kind.clone(),
        name: name.value,
    })?;
    let metadata = object
        .get("metadata")
        .and_then(|metadata| serde_json::from_value(metadata.clone()).ok());
    let Some(metadata) = metadata else {
        return Err(Field::of(object).at("metadata").refuse("it can't be read"));
    };
    let mut base = Owner::new(&other.api_version, &other.kind, &metadata);
    for (own, inherited) in [
        (&mut base.labels, &top.labels),
        (&mut base.annotations, &top.annotations),
    ] {
        for (key, value) in inherited {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    Ok((base, object))
}

/// The subgroups of a gang.
#[derive(Default)]
struct Tree {
    leaves: Vec<SubGroup>,
    parents: Vec<SubGroup>,
    /// Subgroups by name: the index of the leaf, or `None` for a parent.
    by_name: BTreeMap<String, Option<usize>>,
    /// Names of members, with the index of their parent.
    members: Vec<(String, usize)>,
    /// The subgroup of the pod.
    of_pod: Option<String>,
    /// Where the lists are, and how pods find their subgroup.
    lists: Vec<String>,
    matches: Vec<String>,
}

impl Tree {
    fn add(&mut self, list: &Subgroups, scope: Scope<'_, '_>, topology: Option<&str>) -> Result<(), GroupingError> {
        let items = match &list.list {
            Some(path) => path.values(scope.root)?,
            None => vec![scope.root.clone()],
        };
        // A path to a list means its elements.
        let items = match (list.list.as_ref(), items.as_slice()) {
            (Some(path), [only]) if !path.selects_many() && only.json().is_some_and(Value::is_array) => only.items()?,
            _ => items,
        };
        self.lists.push(
            list.list
                .as_ref()
                .map_or_else(|| "the object".to_owned(), ToString::to_string),
        );
        if let Content::Pods(ways) = &list.content {
            self.matches.extend(ways.iter().map(PodMatch::words));
        }
        for item in &items {
            let scope = Scope { root: item, ..scope };
            self.add_one(list, scope, topology)?;
            if self.by_name.len() > SUB_GROUPS_MAX {
                let reason = format!("a gang may have {SUB_GROUPS_MAX} subgroups; use fewer");
                return Err(item.refuse(reason));
            }
        }
        Ok(())
    }

    fn add_one(&mut self, list: &Subgroups, scope: Scope<'_, '_>, topology: Option<&str>) -> Result<(), GroupingError> {
        let item = scope.root;
        let Some(name) = list.name.text(scope)? else {
            return Err(item.refuse(format!(
                "it has no name for a subgroup: {} is missing",
                list.name.words()
            )));
        };
        if !is_label(&name.value) {
            let reason = format!(
                "{:?} is no name of a subgroup; use up to {NAME_BYTES_MAX} lower-case letters, digits and dashes",
                kai_yaml::shortened(&name.value, NAME_BYTES_MAX)
            );
            return Err(name.refuse(reason));
        }
        let topology_name = match &list.topology.name {
            Some(own) => own.text(scope)?.map(|found| found.value),
            None => topology.map(str::to_owned),
        };
        let topology_constraint =
            constraint(&list.topology, scope, topology_name.as_deref())?.map(|(constraint, _)| constraint);
        let minimum = match &list.minimum {
            Some(minimum) => minimum.count(scope)?.map(|found| found.value),
            None => None,
        };
        let entry = match &list.content {
            Content::Pods(ways) => {
                let Some(minimum) = minimum else {
                    let words = list
                        .minimum
                        .as_ref()
                        .map(super::values::Values::words)
                        .unwrap_or_default();
                    return Err(item.refuse(format!("it has no minimum: {words} is missing")));
                };
                if self.of_pod.is_none() && has_pod(ways, scope, &name.value)? {
                    self.of_pod = Some(name.value.clone());
                }
                self.leaves.push(SubGroup {
                    topology_constraint,
                    ..leaf(name.value.clone(), minimum)
                });
                Some(self.leaves.len() - 1)
            }
            Content::Subgroups(path) => {
                let mut members = Vec::new();
                for member in path.values(item)? {
                    members.extend(member.scalar()?);
                }
                // A subgroup of nothing would never be complete.
                let Ok(count @ 1..) = i32::try_from(members.len()) else {
                    return Ok(());
                };
                let at = self.parents.len();
                self.members.extend(members.into_iter().map(|member| (member, at)));
                self.parents.push(SubGroup {
                    topology_constraint,
                    ..parent(name.value.clone(), minimum.unwrap_or(count))
                });
                None
            }
        };
        match self.by_name.insert(name.value.clone(), entry) {
            None => Ok(()),
            Some(_) => Err(name.refuse(format!("two subgroups have the name {}; rename one", name.value))),
        }
    }

    /// The sum of the minimums.
    fn minimum(&self, root: &Field<'_>) -> Result<i32, GroupingError> {
        let total: i64 = self
            .leaves
            .iter()
            .filter_map(|leaf| leaf.min_member)
            .map(i64::from)
            .sum();
        i32::try_from(total).map_err(|_| root.refuse("so many pods are no workload"))
    }

    fn origin(&self) -> String {
        format!("{}; pods by {}", self.lists.join(", "), self.matches.join(", else "))
    }

    fn without_pod(&self, named: &NamedRule, workload: &Workload<'_>, base: &Owner) -> GroupingError {
        let mut names: Vec<&str> = self
            .leaves
            .iter()
            .take(NAMES_TOLD_MAX)
            .map(|leaf| leaf.name.as_str())
            .collect();
        if self.leaves.len() > NAMES_TOLD_MAX {
            names.push("...");
        }
        let reason = format!(
            "it is in no subgroup of {} {} ({}); {} looks for {}",
            base.kind,
            base.name,
            names.join(", "),
            named.title(),
            self.matches.join(", else ")
        );
        workload.refuse_pod("metadata".to_owned(), reason)
    }

    /// Parents first, with their members.
    fn into_sub_groups(mut self, root: &Field<'_>) -> Result<Vec<SubGroup>, GroupingError> {
        for (member, at) in &self.members {
            let parent = &self.parents[*at].name;
            let Some(Some(leaf)) = self.by_name.get(member) else {
                let member = kai_yaml::shortened(member, NAME_BYTES_MAX);
                let reason = format!("subgroup {parent} has the member {member:?}, which is no subgroup with pods");
                return Err(root.refuse(reason));
            };
            let leaf = &mut self.leaves[*leaf];
            if let Some(other) = &leaf.parent {
                return Err(root.refuse(format!(
                    "subgroup {member} is a member of {other} and of {parent}; leave one"
                )));
            }
            leaf.parent = Some(parent.clone());
        }
        let mut all = self.parents;
        all.append(&mut self.leaves);
        Ok(all)
    }
}

fn has_pod(ways: &[PodMatch], scope: Scope<'_, '_>, name: &str) -> Result<bool, GroupingError> {
    let Scope { workload, root, .. } = scope;
    for way in ways {
        let (of_pod, equals) = match way {
            PodMatch::Label { key, equals } => (workload.label(key), equals),
            PodMatch::Annotation { key, equals } => (workload.annotation(key), equals),
            PodMatch::Names(path) => {
                let pod = workload.pod_name();
                if path.values(root)?.iter().any(|name| name.is_scalar(pod)) {
                    return Ok(true);
                }
                continue;
            }
        };
        let expected = match equals {
            Some(values) => values.text(scope)?.map(|found| found.value),
            None => Some(name.to_owned()),
        };
        if of_pod.is_some() && of_pod == expected.as_deref() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether this is a label of RFC 1123, as the PodGroup API requires.
fn is_label(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let ends = bytes.first().is_some_and(|byte| plain(*byte)) && bytes.last().is_some_and(|byte| plain(*byte));
    ends && bytes.len() <= NAME_BYTES_MAX && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
}
