//! Pod groups: the gangs of the engine.

use std::collections::BTreeMap;

use kai_engine::model::{self, GangKey, GangSpec, Millis, SubGroupSpec, TopologyConstraint};
use kai_engine::steps;
use serde::Deserialize;

use crate::crd::{PodCounts, PodGroupSpec, Preemptibility, ResourcesStatus, SchedulingCondition};
use crate::duration::parse_duration;
use crate::error::FieldError;
use crate::metadata::Metadata;
use crate::priority_class::{PriorityClasses, preemptibility_by_priority};
use crate::resources::RawResources;
use crate::text::{Text, null_as_default};
use crate::time::parse_time;
use crate::workload_values::{IGNORED, PLACED_ANYWHERE, wrong_preemptibility};
use crate::{Error, Problem, Read, keys};

const SKIPPED: &str = "the pod group is skipped";
const WAITS: &str = "the workload waits until there are enough";
/// Default of `spec.minMember`.
const MIN_MEMBER_DEFAULT: i32 = 1;
/// `spec.schedulingBackoff`: no limit, the scheduler tries in every cycle.
const NO_BACKOFF: i32 = -1;

/// A PodGroup.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: Status,
}

crate::object::object!(
    PodGroup,
    "scheduling.run.ai",
    "v2alpha2",
    "PodGroup",
    "podgroups",
    Namespaced
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    min_member: Option<i32>,
    min_sub_group: Option<i32>,
    queue: Option<Text>,
    priority_class_name: Option<Text>,
    preemptibility: Option<Text>,
    topology_constraint: Option<RawConstraint>,
    #[serde(deserialize_with = "null_as_default")]
    sub_groups: Vec<SubGroup>,
    mark_unschedulable: Option<bool>,
    scheduling_backoff: Option<i32>,
    preemption_delay: Option<Text>,
    staleness_grace_period: Option<Text>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SubGroup {
    name: Option<Text>,
    parent: Option<Text>,
    min_member: Option<i32>,
    min_sub_group: Option<i32>,
    topology_constraint: Option<RawConstraint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawConstraint {
    topology: Option<Text>,
    required_topology_level: Option<Text>,
    preferred_topology_level: Option<Text>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    /// All conditions in full, because a merge patch replaces the whole list. Running pod groups have none.
    #[serde(deserialize_with = "null_as_default")]
    scheduling_conditions: Vec<SchedulingCondition>,
    resources_status: Option<Box<RawResourcesStatus>>,
    phase: Option<Text>,
    running: Option<i32>,
    pending: Option<i32>,
}

/// A tenth of the size of the CRD type with its three maps.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawResourcesStatus {
    allocated: RawResources,
    allocated_non_preemptible: RawResources,
    requested: RawResources,
}

impl PodGroup {
    /// The queue in the spec.
    pub fn queue(&self) -> &str {
        self.spec.queue.as_deref().unwrap_or_default()
    }

    /// Whether unschedulable pods get a condition.
    pub fn marks_unschedulable(&self) -> bool {
        self.spec.mark_unschedulable.unwrap_or(true)
    }

    /// Whether the scheduler tries the pod group only once per node pool.
    pub fn backs_off(&self) -> bool {
        self.spec.scheduling_backoff.unwrap_or(NO_BACKOFF) != NO_BACKOFF
    }

    /// The priority and the preemptibility.
    pub fn rank(&self, classes: &PriorityClasses) -> (i32, model::Preemptibility) {
        let priority = classes.priority(self.priority_class());
        (priority, self.preemptibility_at(priority))
    }

    /// The priority class in the spec.
    pub fn priority_class(&self) -> Option<&str> {
        self.spec.priority_class_name.as_deref().filter(|name| !name.is_empty())
    }

    /// The preemptibility of the pod group, if it has this priority.
    pub fn preemptibility_at(&self, priority: i32) -> model::Preemptibility {
        self.preemptibility_in_spec()
            .map_or_else(|| preemptibility_by_priority(priority), Into::into)
    }

    fn preemptibility_in_spec(&self) -> Option<Preemptibility> {
        Preemptibility::parse(self.spec.preemptibility.as_deref()?)
    }

    /// The node pool of the pod group, as in conditions.
    pub fn node_pool(&self) -> &str {
        self.metadata.node_pool().unwrap_or(keys::DEFAULT_SHARD)
    }

    /// The spec in the form of the CRD type.
    pub fn as_written(&self) -> PodGroupSpec {
        let text = |text: &Option<Text>| text.as_deref().map(str::to_owned);
        let constraint = |raw: &RawConstraint| crate::crd::TopologyConstraint {
            topology: text(&raw.topology),
            required_topology_level: text(&raw.required_topology_level),
            preferred_topology_level: text(&raw.preferred_topology_level),
        };
        PodGroupSpec {
            min_member: self.spec.min_member,
            min_sub_group: self.spec.min_sub_group,
            queue: text(&self.spec.queue),
            priority_class_name: text(&self.spec.priority_class_name),
            preemptibility: self.preemptibility_in_spec(),
            topology_constraint: self.spec.topology_constraint.as_ref().map(constraint),
            sub_groups: self
                .spec
                .sub_groups
                .iter()
                .map(|group| crate::crd::SubGroup {
                    name: text(&group.name).unwrap_or_default(),
                    min_member: group.min_member,
                    min_sub_group: group.min_sub_group,
                    parent: text(&group.parent),
                    topology_constraint: group.topology_constraint.as_ref().map(constraint),
                })
                .collect(),
            mark_unschedulable: self.spec.mark_unschedulable,
            scheduling_backoff: self.spec.scheduling_backoff,
            preemption_delay: text(&self.spec.preemption_delay),
            staleness_grace_period: text(&self.spec.staleness_grace_period),
        }
    }

    /// The scheduling conditions in the status.
    pub fn scheduling_conditions(&self) -> &[SchedulingCondition] {
        &self.status.scheduling_conditions
    }

    /// The counts of pods in the status.
    pub fn pod_counts(&self) -> PodCounts {
        PodCounts {
            running: self.status.running,
            pending: self.status.pending,
            phase: self.status.phase.as_deref().map(str::to_owned),
        }
    }

    /// The resources in the status.
    pub fn resources_status(&self) -> Option<ResourcesStatus> {
        let raw = self.status.resources_status.as_deref()?;
        Some(ResourcesStatus {
            allocated: raw.allocated.to_resource_list(),
            allocated_non_preemptible: raw.allocated_non_preemptible.to_resource_list(),
            requested: raw.requested.to_resource_list(),
        })
    }

    /// The engine's type; `Err` if the engine can't take the pod group. `now` is the creation time of pod groups without one.
    pub fn read(&self, classes: &PriorityClasses, now: Millis) -> Result<Read<GangSpec>, Problem> {
        let object = || format!("PodGroup {}", self.metadata.qualified_name());
        let mut problems = Vec::new();
        let value = self.spec(classes, now, |error, effect| problems.push(error.of(object(), effect)));
        Ok(Read {
            value: value.map_err(|error| error.of(object(), SKIPPED))?,
            problems,
        })
    }

    fn spec(
        &self,
        classes: &PriorityClasses,
        now: Millis,
        mut report: impl FnMut(FieldError, &'static str),
    ) -> Result<GangSpec, FieldError> {
        let key = GangKey {
            namespace: self.metadata.namespace().to_owned(),
            name: self.metadata.required_name()?.to_owned(),
        };
        let (priority, preemptibility) = self.rank(classes);
        let mut ignore = |error| report(error, IGNORED);
        let is_ignored = |class: &&str| !classes.contains(class) && self.priority_claim().system_class().is_none();
        if let Some(class) = self.priority_class().filter(is_ignored) {
            let error = Error::NoPriorityClass(class.to_owned());
            ignore(FieldError::new("spec.priorityClassName", error));
        }
        let written = self.spec.preemptibility.as_deref().filter(|text| !text.is_empty());
        if let Some(error) = written.and_then(wrong_preemptibility) {
            ignore(FieldError::new("spec.preemptibility", error));
        }
        let mut annotated = |annotation: &str| {
            let parsed = parse_time(self.metadata.annotations.text(annotation)?);
            let error = |error| ignore(FieldError::new(format!("metadata.annotations.{annotation}"), error));
            parsed.map_err(error).ok()
        };
        let last_start = annotated(keys::LAST_START);
        let last_eviction = annotated(keys::LAST_EVICTION);
        let stale_since = annotated(keys::STALE_SINCE);
        let mut duration = |text: &Option<Text>, field: &str| {
            let parsed = parse_duration(text.as_deref()?);
            parsed.map_err(|error| ignore(FieldError::new(field, error))).ok()
        };
        let preemption_delay = duration(&self.spec.preemption_delay, "spec.preemptionDelay");
        let staleness_grace = duration(&self.spec.staleness_grace_period, "spec.stalenessGracePeriod");
        if preemption_delay.is_some_and(|delay| delay.0 < 0) {
            let text = self.spec.preemption_delay.as_deref().unwrap_or_default();
            ignore(FieldError::new(
                "spec.preemptionDelay",
                Error::NegativeDuration(text.to_owned()),
            ));
        }
        let topology = constraint(&self.spec.topology_constraint, "spec", &mut report);
        let sub_groups = self.sub_groups(&mut report)?;
        self.too_few_sub_groups(&sub_groups, |error| report(error, WAITS));
        Ok(GangSpec {
            uid: self.metadata.uid_or(|| key.to_string()),
            key,
            created: self.metadata.created(now)?,
            queue: self.queue().to_owned(),
            priority,
            preemptibility,
            min_member: count(self.spec.min_member.unwrap_or(MIN_MEMBER_DEFAULT), "spec.minMember")?,
            min_sub_group: self
                .spec
                .min_sub_group
                .map(|min| count(min, "spec.minSubGroup"))
                .transpose()?,
            topology,
            sub_groups,
            last_start,
            last_eviction,
            stale_since,
            preemption_delay: preemption_delay.unwrap_or_default().max(Millis(0)),
            staleness_grace: staleness_grace.map(|grace| (grace.0 >= 0).then_some(grace)),
            schedulable: !self.backed_off(),
            refused: None,
        })
    }

    fn sub_groups(&self, report: &mut impl FnMut(FieldError, &'static str)) -> Result<Vec<SubGroupSpec>, FieldError> {
        let read = |(at, group): (usize, &SubGroup)| {
            steps::count(1);
            let field = |part: &str| format!("spec.subGroups[{at}].{part}");
            let min = |min: Option<i32>, part: &str| min.map(|min| count(min, &field(part))).transpose();
            let Some(name) = group.name.as_deref().filter(|name| !name.is_empty()) else {
                return Err(FieldError::new(field("name"), Error::Missing));
            };
            Ok(SubGroupSpec {
                name: name.to_owned(),
                // The schema allows lower-case names only; KAI accepts capitals in references to them.
                parent: group
                    .parent
                    .as_deref()
                    .filter(|parent| !parent.is_empty())
                    .map(str::to_lowercase),
                min_member: min(group.min_member, "minMember")?,
                min_sub_group: min(group.min_sub_group, "minSubGroup")?,
                topology: constraint(&group.topology_constraint, &format!("spec.subGroups[{at}]"), report),
            })
        };
        self.spec.sub_groups.iter().enumerate().map(read).collect()
    }

    /// Adds an error for each minimum above the number of subgroups. A subgroup without subgroups counts pods, and so does a parent
    /// with `minMember`.
    fn too_few_sub_groups(&self, sub_groups: &[SubGroupSpec], mut report: impl FnMut(FieldError)) {
        let mut children: BTreeMap<&str, usize> = BTreeMap::new();
        for parent in sub_groups.iter().filter_map(|group| group.parent.as_deref()) {
            *children.entry(parent).or_default() += 1;
        }
        for (at, group) in sub_groups.iter().enumerate() {
            let children = children.get(group.name.as_str()).copied().unwrap_or(0);
            if children > 0 && group.min_member.is_none() {
                let field = format!("spec.subGroups[{at}].minSubGroup");
                let error = too_few(Some(&group.name), group.min_sub_group, children);
                error
                    .into_iter()
                    .for_each(|error| report(FieldError::new(field.as_str(), error)));
            }
        }
        if self.spec.min_member.is_none() {
            let wanted = self.spec.min_sub_group.and_then(|min| u32::try_from(min).ok());
            let roots = sub_groups.iter().filter(|group| group.parent.is_none()).count();
            let error = too_few(None, wanted, roots);
            error
                .into_iter()
                .for_each(|error| report(FieldError::new("spec.minSubGroup", error)));
        }
    }

    /// Whether the scheduler has tried a pod group that it tries once per node pool: the newest condition is of this node pool.
    fn backed_off(&self) -> bool {
        let newest = self.status.scheduling_conditions.last();
        self.backs_off() && newest.is_some_and(|condition| condition.node_pool == self.node_pool())
    }
}

fn count(value: i32, field: &str) -> Result<u32, FieldError> {
    u32::try_from(value).map_err(|_| FieldError::new(field, Error::Negative(value.to_string())))
}

fn too_few(sub_group: Option<&str>, wanted: Option<u32>, children: usize) -> Option<Error> {
    let wanted = wanted.filter(|wanted| usize::try_from(*wanted).is_ok_and(|wanted| wanted > children))?;
    Some(Error::TooFewSubGroups {
        sub_group: sub_group.map(str::to_owned),
        wanted,
        children,
    })
}

/// A constraint without a topology has no effect, and one without a level restricts no pod, as in KAI. Adds an error.
fn constraint(
    raw: &Option<RawConstraint>,
    parent: &str,
    report: &mut impl FnMut(FieldError, &'static str),
) -> Option<TopologyConstraint> {
    let given = |text: &Option<Text>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
    let raw = raw.as_ref()?;
    let levels = (
        given(&raw.required_topology_level),
        given(&raw.preferred_topology_level),
    );
    let mut wrong = |error, effect| report(FieldError::new(format!("{parent}.topologyConstraint"), error), effect);
    let (topology, (required_level, preferred_level)) = match (given(&raw.topology), levels) {
        (None, (None, None)) => return None,
        (None, _) => {
            wrong(Error::LevelWithoutTopology, IGNORED);
            return None;
        }
        (Some(topology), (None, None)) => {
            wrong(Error::TopologyWithoutLevel, PLACED_ANYWHERE);
            (topology, (None, None))
        }
        (Some(topology), levels) => (topology, levels),
    };
    Some(TopologyConstraint {
        topology,
        required_level,
        preferred_level,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rest: &str) -> Result<Read<GangSpec>, String> {
        let text = format!(r#"{{"metadata":{{"name":"g","namespace":"ns"}},{rest}}}"#);
        let group: PodGroup = serde_json::from_str(&text).unwrap();
        group
            .read(&PriorityClasses::installed(), Millis(0))
            .map_err(|problem| problem.to_string())
    }

    #[test]
    fn priority_decides_preemptibility_unless_stated() {
        let of = |spec: &str| {
            let gang = group(&format!(r#""spec":{spec}"#)).unwrap().value;
            (gang.priority, gang.preemptibility)
        };
        let (preemptible, non_preemptible) = (
            model::Preemptibility::Preemptible,
            model::Preemptibility::NonPreemptible,
        );
        assert_eq!(of(r#"{}"#), (50, preemptible));
        assert_eq!(of(r#"{"priorityClassName":"build"}"#), (100, non_preemptible));
        assert_eq!(
            of(r#"{"priorityClassName":"build","preemptibility":"preemptible"}"#),
            (100, preemptible)
        );
        assert_eq!(of(r#"{"preemptibility":"non-preemptible"}"#), (50, non_preemptible));
        for spec in [
            r#"{"preemptibility":"semi-preemptible"}"#,
            r#"{"priorityClassName":"build","preemptibility":"semi-preemptible"}"#,
        ] {
            assert_eq!(of(spec).1, model::Preemptibility::SemiPreemptible);
        }
    }

    #[test]
    fn minimums() {
        assert_eq!(group(r#""spec":{}"#).unwrap().value.min_member, 1);
        assert_eq!(group(r#""spec":{"minMember":0}"#).unwrap().value.min_member, 0);
        assert_eq!(
            group(r#""spec":{"minMember":-2}"#).unwrap_err(),
            "PodGroup ns/g: spec.minMember: \"-2\" is negative; write an amount of zero or more (the pod group is skipped)"
        );
    }

    #[test]
    fn durations_and_backoff() {
        let gang = group(r#""spec":{"stalenessGracePeriod":"-1s","preemptionDelay":"600s"}"#)
            .unwrap()
            .value;
        assert_eq!(
            (gang.staleness_grace, gang.preemption_delay),
            (Some(None), Millis::seconds(600))
        );
        let held = r#""spec":{"schedulingBackoff":1},"status":{"schedulingConditions":[{"nodePool":"default"}]}"#;
        assert!(!group(held).unwrap().value.schedulable);
        assert!(group(r#""spec":{"schedulingBackoff":1}"#).unwrap().value.schedulable);
    }

    #[test]
    fn values_without_effect_are_told() {
        for (spec, expect) in [
            (
                r#"{"topologyConstraint":{"requiredTopologyLevel":"rack"}}"#,
                "spec.topologyConstraint: a level is named without a topology; name the topology beside it",
            ),
            (
                r#"{"subGroups":[{"name":"a","topologyConstraint":{"topology":"t"}}]}"#,
                "spec.subGroups[0].topologyConstraint: a topology is named without a level; name a required or a preferred level beside \
                 it",
            ),
            (
                r#"{"priorityClassName":"hgih"}"#,
                "spec.priorityClassName: there is no priority class \"hgih\"; create it, or name one that exists",
            ),
            (
                r#"{"preemptibility":"maybe"}"#,
                "spec.preemptibility: \"maybe\" is unknown; known are preemptible, semi-preemptible and non-preemptible",
            ),
            (
                r#"{"preemptionDelay":"soon"}"#,
                "spec.preemptionDelay: \"soon\" is not a duration; write it as in 90s, 5m or 1h30m",
            ),
            (
                r#"{"preemptionDelay":"-5m"}"#,
                "spec.preemptionDelay: \"-5m\" is negative; write a duration of zero or more, as in 5m",
            ),
            (
                r#"{"stalenessGracePeriod":"later"}"#,
                "spec.stalenessGracePeriod: \"later\" is not a duration; write it as in 90s, 5m or 1h30m",
            ),
        ] {
            let problems = group(&format!(r#""spec":{spec}"#)).unwrap().problems;
            let told: Vec<String> = problems.iter().map(Problem::to_string).collect();
            let effect = match spec.contains(r#""topology":"#) {
                true => "the pods are placed anywhere, and wait if the topology does not exist",
                false => "the value is ignored",
            };
            assert_eq!(told, [format!("PodGroup ns/g: {expect} ({effect})")]);
        }
        let whole = r#""spec":{"priorityClassName":"train","preemptibility":"","topologyConstraint":{}}"#;
        assert_eq!(group(whole).unwrap().problems, []);
    }

    #[test]
    fn a_system_class_that_is_refused_is_not_called_ignored() {
        for class in ["system-cluster-critical", "system-node-critical", "system-anything"] {
            let problems = group(&format!(r#""spec":{{"priorityClassName":"{class}"}}"#))
                .unwrap()
                .problems;
            assert_eq!(problems, [], "{class}");
        }
    }

    #[test]
    fn a_minimum_above_the_number_of_subgroups_is_told() {
        let told = |spec: &str| -> Vec<String> {
            let problems = group(&format!(r#""spec":{spec}"#)).unwrap().problems;
            problems.iter().map(Problem::to_string).collect()
        };
        let rest = "add subgroups, or lower it (the workload waits until there are enough)";
        assert_eq!(
            told(
                r#"{"minSubGroup":2,"subGroups":[{"name":"p","minSubGroup":3},{"name":"a","minMember":1,"parent":"P"}]}"#
            ),
            [
                format!(
                    "PodGroup ns/g: spec.subGroups[0].minSubGroup: subgroup \"p\": minSubGroup (3) exceeds the number of direct child \
                     SubGroups (1); {rest}"
                ),
                format!(
                    "PodGroup ns/g: spec.minSubGroup: minSubGroup (2) exceeds the number of direct child SubGroups (1); {rest}"
                ),
            ]
        );
        for fine in [
            r#"{"minSubGroup":0}"#,
            r#"{"minMember":1,"minSubGroup":1}"#,
            r#"{"minSubGroup":1,"subGroups":[{"name":"a","minSubGroup":7}]}"#,
            r#"{"subGroups":[{"name":"p","minSubGroup":1},{"name":"a","minMember":1,"parent":"p"}]}"#,
        ] {
            assert_eq!(told(fine), [""; 0]);
        }
    }

    #[test]
    fn a_constraint_without_a_topology_is_none() {
        let gang = group(r#""spec":{"topologyConstraint":{"requiredTopologyLevel":"rack"}}"#)
            .unwrap()
            .value;
        assert_eq!(gang.topology, None);
    }
}
