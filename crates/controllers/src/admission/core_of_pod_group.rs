//! The core of a semi-preemptible pod group does not grow: a higher minimum would make pods non-preemptible that run beyond the quota of
//! their queue. Lower minima are allowed, and so is a change of the preemptibility itself.

use std::collections::BTreeMap;

use kai_api::crd::Preemptibility;
use kai_engine::steps;
use serde_json::Value;

use super::review::{FieldError, Operation, Request};
use super::unstructured;

/// The minimum pods of a pod group without `minMember`.
const MIN_MEMBER_DEFAULT: i64 = 1;

/// A minimum that a change of a semi-preemptible pod group raises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RaisedMinimum {
    /// Name of the subgroup; `None` = the pod group itself.
    pub(crate) sub_group: Option<String>,
    pub(crate) kind: MinimumKind,
    /// The minimum before the change, as it was written.
    pub(crate) written: Option<i64>,
    /// The minimum before and after the change.
    pub(crate) from: i64,
    pub(crate) to: i64,
}

/// What a minimum counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MinimumKind {
    Pods,
    SubGroups,
}

impl RaisedMinimum {
    /// Path of the field in the pod group.
    pub(crate) fn field(&self) -> String {
        let name = match self.kind {
            MinimumKind::Pods => "minMember",
            MinimumKind::SubGroups => "minSubGroup",
        };
        match &self.sub_group {
            Some(sub_group) => format!("spec.subGroups[{sub_group}].{name}"),
            None => format!("spec.{name}"),
        }
    }
}

/// The minima that an update raises. The rule is the same for all users: the pod grouper copies minima that tenants write.
pub(super) fn validate(request: &Request) -> Vec<FieldError> {
    let (old, new) = (&request.old_object, &request.object);
    match request.operation {
        Operation::Update if is_semi_preemptible(old) && is_semi_preemptible(new) => {}
        Operation::Create | Operation::Update | Operation::Delete | Operation::Connect => return Vec::new(),
    }
    let error = |raised: RaisedMinimum| {
        let RaisedMinimum { from, to, .. } = raised;
        let text = format!(
            "raising it from {from} to {to} would make elastic pods of a semi-preemptible pod group non-preemptible; keep it at {from} or \
             less, or create the pod group anew"
        );
        FieldError::invalid(raised.field(), text)
    };
    raised_minima(old, new).into_iter().map(error).collect()
}

/// The minima of the semi-preemptible pod group `old` that are higher in `new`.
pub(crate) fn raised_minima(old: &Value, new: &Value) -> Vec<RaisedMinimum> {
    let (old, new) = (Minima::of(old), Minima::of(new));
    let mut all: Vec<RaisedMinimum> = raised(None, old.root, new.root).collect();
    for (name, new) in new.sub_groups {
        if let Some(old) = old.sub_groups.get(name) {
            all.extend(raised(Some(name), *old, new));
        }
    }
    all
}

fn is_semi_preemptible(pod_group: &Value) -> bool {
    unstructured::text(pod_group, "/spec/preemptibility") == Some(Preemptibility::SemiPreemptible.name())
}

/// A minimum in a spec.
#[derive(Clone, Copy, Debug)]
struct Minimum {
    written: Option<i64>,
    /// The minimum that applies if none is written.
    default: i64,
}

impl Minimum {
    fn effective(self) -> i64 {
        self.written.unwrap_or(self.default)
    }
}

/// The minima of a pod group or of one of its subgroups.
#[derive(Clone, Copy, Debug)]
struct OwnMinima {
    /// `None` = pods do not count, because the subgroups have minima of their own.
    member: Option<Minimum>,
    sub_group: Minimum,
}

struct Minima<'a> {
    root: OwnMinima,
    sub_groups: BTreeMap<&'a str, OwnMinima>,
}

impl<'a> Minima<'a> {
    fn of(pod_group: &'a Value) -> Minima<'a> {
        let list = unstructured::list(pod_group, "/spec/subGroups");
        let mut children: BTreeMap<Option<&str>, i64> = BTreeMap::new();
        for group in list {
            steps::count(1);
            *children.entry(unstructured::text(group, "/parent")).or_default() += 1;
        }
        let own = |at: &Value, name: Option<&str>, pods: i64| {
            let number = |part: &str| at.get(part).and_then(Value::as_i64);
            let children = children.get(&name).copied().unwrap_or(0);
            OwnMinima {
                member: (children == 0).then(|| Minimum {
                    written: number("minMember"),
                    default: pods,
                }),
                sub_group: Minimum {
                    written: number("minSubGroup"),
                    default: children,
                },
            }
        };
        let spec = pod_group.get("spec").unwrap_or(&Value::Null);
        let named = list
            .iter()
            .filter_map(|group| Some((unstructured::text(group, "/name")?, group)));
        Minima {
            root: own(spec, None, MIN_MEMBER_DEFAULT),
            sub_groups: named.map(|(name, group)| (name, own(group, Some(name), 0))).collect(),
        }
    }
}

fn raised(sub_group: Option<&str>, old: OwnMinima, new: OwnMinima) -> impl Iterator<Item = RaisedMinimum> {
    let member = old
        .member
        .zip(new.member)
        .map(|(old, new)| (MinimumKind::Pods, old, new));
    let minima = member
        .into_iter()
        .chain([(MinimumKind::SubGroups, old.sub_group, new.sub_group)]);
    let is_raised = |(_, old, new): &(MinimumKind, Minimum, Minimum)| {
        // Without a written minimum, more subgroups need more of them: that is no change of the minimum.
        (old.written, new.written) != (None, None) && old.effective() < new.effective()
    };
    minima.filter(is_raised).map(move |(kind, old, new)| RaisedMinimum {
        sub_group: sub_group.map(str::to_owned),
        kind,
        written: old.written,
        from: old.effective(),
        to: new.effective(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn semi(mut spec: Value) -> Value {
        spec["preemptibility"] = json!("semi-preemptible");
        spec
    }

    /// The fields and the raised numbers that the update is refused for.
    fn refused(operation: Operation, old: Value, new: Value) -> Vec<String> {
        let request = Request {
            operation,
            object: json!({ "metadata": { "name": "g" }, "spec": new }),
            old_object: json!({ "metadata": { "name": "g" }, "spec": old }),
            ..Request::default()
        };
        let text = |error: FieldError| {
            let end = error.text.find(" would").expect("the text says what would happen");
            format!("{}: {}", error.field, &error.text[..end])
        };
        validate(&request).into_iter().map(text).collect()
    }

    #[track_caller]
    fn check(old: Value, new: Value, expect: &[&str]) {
        assert_eq!(refused(Operation::Update, semi(old), semi(new)), expect);
    }

    #[test]
    fn minima_of_pods_may_fall_and_not_rise() {
        check(json!({ "minMember": 2 }), json!({ "minMember": 2 }), &[]);
        check(json!({ "minMember": 2 }), json!({ "minMember": 0 }), &[]);
        check(json!({ "minMember": 2 }), json!({}), &[]);
        check(json!({}), json!({ "minMember": 1 }), &[]);
        check(
            json!({ "minMember": 2 }),
            json!({ "minMember": 3 }),
            &["spec.minMember: raising it from 2 to 3"],
        );
        check(
            json!({}),
            json!({ "minMember": 3 }),
            &["spec.minMember: raising it from 1 to 3"],
        );
        check(
            json!({ "minMember": 0 }),
            json!({}),
            &["spec.minMember: raising it from 0 to 1"],
        );
    }

    #[test]
    fn minima_of_subgroups_may_fall_and_not_rise() {
        let tree = |root: Value, a: Value, leaf: u32, more: &[Value]| {
            let mut groups = vec![
                json!({ "name": "a", "minSubGroup": a }),
                json!({ "name": "a1", "parent": "a", "minMember": leaf }),
                json!({ "name": "a2", "parent": "a" }),
                json!({ "name": "b", "minMember": 1 }),
            ];
            groups.extend(more.iter().cloned());
            json!({ "minSubGroup": root, "subGroups": groups })
        };
        let unset = Value::Null;
        let base = || tree(json!(1), json!(1), 2, &[]);
        check(base(), base(), &[]);
        check(base(), tree(json!(0), json!(0), 1, &[]), &[]);
        check(
            base(),
            tree(json!(2), json!(2), 3, &[]),
            &[
                "spec.minSubGroup: raising it from 1 to 2",
                "spec.subGroups[a].minSubGroup: raising it from 1 to 2",
                "spec.subGroups[a1].minMember: raising it from 2 to 3",
            ],
        );
        // Unset means all of them.
        check(
            base(),
            tree(unset.clone(), json!(1), 2, &[]),
            &["spec.minSubGroup: raising it from 1 to 2"],
        );
        let all = || tree(unset.clone(), unset.clone(), 2, &[]);
        check(all(), tree(json!(2), json!(1), 2, &[]), &[]);
        check(
            all(),
            tree(json!(3), unset.clone(), 2, &[]),
            &["spec.minSubGroup: raising it from 2 to 3"],
        );
        // A new subgroup changes no minimum.
        let new = [json!({ "name": "c", "minMember": 8 })];
        check(all(), tree(unset.clone(), unset.clone(), 2, &new), &[]);
        check(base(), tree(json!(1), json!(1), 2, &new), &[]);
        check(
            json!({ "subGroups": [{ "name": "a" }] }),
            json!({ "subGroups": [{ "name": "a", "minMember": 1 }] }),
            &["spec.subGroups[a].minMember: raising it from 0 to 1"],
        );
    }

    #[test]
    fn other_pod_groups_may_raise_their_minimum() {
        let of = |preemptibility: &str, min: u32| json!({ "preemptibility": preemptibility, "minMember": min });
        for (old, new) in [
            ("preemptible", "preemptible"),
            ("preemptible", "semi-preemptible"),
            ("semi-preemptible", "non-preemptible"),
            ("non-preemptible", "non-preemptible"),
        ] {
            assert_eq!(refused(Operation::Update, of(old, 1), of(new, 2)), Vec::<String>::new());
        }
        let (old, new) = (of("semi-preemptible", 1), of("semi-preemptible", 2));
        assert_eq!(
            refused(Operation::Create, Value::Null, new.clone()),
            Vec::<String>::new()
        );
        assert_eq!(refused(Operation::Update, old, new).len(), 1);
    }
}
