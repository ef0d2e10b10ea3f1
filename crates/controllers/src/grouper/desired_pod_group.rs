//! The desired state of a pod's pod group, and the pod's subgroup. A value: `reconcile` writes it.

use std::collections::BTreeMap;
use std::fmt;

use kai_api::crd::{PodGroupSpec, SubGroup, TopologyConstraint};

/// The pod group that a pod should have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredPodGroup {
    /// Namespace of the pod and of the pod group.
    pub namespace: String,
    /// Name of the pod group.
    pub name: String,
    /// The owner of the pod group; the garbage collector deletes the pod group with it.
    pub owner: OwnerRef,
    /// Labels of the pod group.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod group.
    pub annotations: BTreeMap<String, String>,
    /// Spec of the pod group.
    pub spec: PodGroupSpec,
    /// The pod's subgroup, if the pod group has subgroups.
    pub sub_group: Option<String>,
    /// Whether a pod without subgroup loses the label of one: its rule may have changed.
    pub clears_sub_group: bool,
    /// Where the values come from.
    pub origins: Origins,
}

/// Where the values of a pod group come from, for people. An empty text means that nothing gave a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// The grouping rule.
    pub rule: String,
    /// The number of pods or subgroups that start together.
    pub minimum: String,
    /// The queue.
    pub queue: String,
    /// The priority class.
    pub priority_class: String,
    /// The preemptibility.
    pub preemptibility: String,
    /// The topology constraint of the whole gang.
    pub topology: String,
    /// The subgroups, and how a pod finds its own.
    pub sub_groups: String,
}

/// The owner reference of a pod group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Unique id.
    pub uid: String,
}

impl DesiredPodGroup {
    /// Sets the number of pods that start together.
    pub(super) fn min_member(&mut self, min: i32, origin: impl Into<String>) {
        self.spec.min_member = Some(min);
        self.spec.min_sub_group = None;
        self.origins.minimum = origin.into();
    }

    /// Sets the number of subgroups that start together.
    pub(super) fn min_sub_group(&mut self, min: i32, origin: impl Into<String>) {
        self.spec.min_sub_group = Some(min);
        self.spec.min_member = None;
        self.origins.minimum = origin.into();
    }
}

/// A subgroup with pods.
pub(super) fn leaf(name: impl Into<String>, min_member: i32) -> SubGroup {
    SubGroup {
        name: name.into(),
        min_member: Some(min_member),
        ..SubGroup::default()
    }
}

/// A subgroup of subgroups.
pub(super) fn parent(name: impl Into<String>, min_sub_group: i32) -> SubGroup {
    SubGroup {
        name: name.into(),
        min_sub_group: Some(min_sub_group),
        ..SubGroup::default()
    }
}

/// The topology constraint; `None` if no part of it is given.
pub(super) fn topology_constraint(
    topology: Option<&str>,
    required: Option<&str>,
    preferred: Option<&str>,
) -> Option<TopologyConstraint> {
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    let constraint = TopologyConstraint {
        topology: given(topology),
        required_topology_level: given(required),
        preferred_topology_level: given(preferred),
    };
    (constraint != TopologyConstraint::default()).then_some(constraint)
}

/// A line for logs and tests.
impl fmt::Display for DesiredPodGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = &self.spec;
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        write!(f, "{} of {}/{}", self.name, self.owner.kind, self.owner.name)?;
        write!(
            f,
            " queue={} priority={}",
            text(&spec.queue),
            text(&spec.priority_class_name)
        )?;
        if let Some(min) = spec.min_member {
            write!(f, " min={min}")?;
        }
        if let Some(min) = spec.min_sub_group {
            write!(f, " minSubGroup={min}")?;
        }
        if let Some(topology) = &spec.topology_constraint {
            write!(f, " {}", ConstraintText(topology))?;
        }
        if !spec.sub_groups.is_empty() {
            let groups: Vec<String> = spec.sub_groups.iter().map(sub_group_text).collect();
            write!(f, " [{}]", groups.join(", "))?;
        }
        match &self.sub_group {
            Some(name) => write!(f, " -> {name}"),
            None => Ok(()),
        }
    }
}

struct ConstraintText<'a>(&'a TopologyConstraint);

impl fmt::Display for ConstraintText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (required, preferred) = (&self.0.required_topology_level, &self.0.preferred_topology_level);
        write!(f, "{}({}/{})", text(&self.0.topology), text(required), text(preferred))
    }
}

fn sub_group_text(group: &SubGroup) -> String {
    let mut text = match &group.parent {
        Some(parent) => format!("{parent}/{}", group.name),
        None => group.name.clone(),
    };
    if let Some(min) = group.min_member {
        text += &format!(":{min}");
    }
    if let Some(min) = group.min_sub_group {
        text += &format!("={min}");
    }
    if let Some(topology) = &group.topology_constraint {
        text += &format!(" {}", ConstraintText(topology));
    }
    text
}
