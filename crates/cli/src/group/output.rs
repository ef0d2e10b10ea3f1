//! The output of `kai group`, for a person and for programs.

use kai_api::crd::{SubGroup, TopologyConstraint};
use kai_controllers::grouper::rules::RuleProblem;
use kai_controllers::grouper::{DesiredPodGroup, PodOrigin};
use serde_json::{Map, Value, json};

use super::Output;
use crate::grid::{Align, Cell, Grid, Screen, printable};

/// Pods that the output for a person names.
const MEMBERS_SHOWN_MAX: usize = 4;

/// What was found.
#[derive(Default)]
pub(super) struct Report {
    pub(super) groups: Vec<Group>,
    /// Pods that are not grouped on purpose.
    pub(super) skipped: Vec<Skipped>,
    /// Pods that can't be grouped.
    pub(super) refused: Vec<Skipped>,
    pub(super) rule_problems: Vec<RuleProblem>,
    /// The rules of `--check`.
    pub(super) rules_checked: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// A pod without pod group.
pub(super) struct Skipped {
    pub(super) object: String,
    pub(super) reason: String,
}

/// A pod group.
pub(super) struct Group {
    desired: DesiredPodGroup,
    pods: Vec<Member>,
    templates: Vec<Member>,
}

struct Member {
    name: String,
    subgroup: Option<String>,
}

/// A value of a pod group and its origin.
struct Line<'g> {
    key: &'static str,
    label: &'static str,
    value: Value,
    text: String,
    origin: &'g str,
}

impl Group {
    pub(super) fn new(desired: &DesiredPodGroup) -> Group {
        Group {
            desired: desired.clone(),
            pods: Vec::new(),
            templates: Vec::new(),
        }
    }

    pub(super) fn add_member(&mut self, subgroup: Option<&str>, origin: PodOrigin, name: String) {
        let members = match origin {
            PodOrigin::Pod => &mut self.pods,
            PodOrigin::Template => &mut self.templates,
        };
        members.push(Member {
            name,
            subgroup: subgroup.map(str::to_owned),
        });
    }

    fn lines(&self) -> [Line<'_>; 5] {
        let DesiredPodGroup { spec, origins, .. } = &self.desired;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let preemptibility = spec.preemptibility.map(|value| value.name());
        let (minimum, words) = match (spec.min_sub_group, spec.min_member) {
            (Some(count), _) => (json!({ "subgroups": count }), counted(count, "subgroup")),
            (None, count) => {
                let count = count.unwrap_or(1);
                (json!({ "pods": count }), counted(count, "pod"))
            }
        };
        let line = |key, label, value: Value, text: String, origin| Line {
            key,
            label,
            value,
            text,
            origin,
        };
        [
            line("minimum", "minimum", minimum, words, &origins.minimum),
            line("queue", "queue", json!(spec.queue), text(&spec.queue), &origins.queue),
            line(
                "priorityClass",
                "priority class",
                json!(spec.priority_class_name),
                text(&spec.priority_class_name),
                &origins.priority_class,
            ),
            line(
                "preemptibility",
                "preemptibility",
                json!(preemptibility),
                preemptibility.unwrap_or("by priority").to_owned(),
                &origins.preemptibility,
            ),
            line(
                "topology",
                "topology",
                json!(spec.topology_constraint),
                spec.topology_constraint
                    .as_ref()
                    .map_or_else(|| "none".to_owned(), topology),
                &origins.topology,
            ),
        ]
    }

    fn value(&self) -> Value {
        let desired = &self.desired;
        let mut value = Map::new();
        value.insert("namespace".to_owned(), desired.namespace.as_str().into());
        value.insert("name".to_owned(), desired.name.as_str().into());
        let owner = &desired.owner;
        value.insert(
            "owner".to_owned(),
            json!({ "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name }),
        );
        value.insert("rule".to_owned(), desired.origins.rule.as_str().into());
        for line in self.lines() {
            value.insert(line.key.to_owned(), json!({ "value": line.value, "from": line.origin }));
        }
        let subgroups = &desired.spec.sub_groups;
        value.insert(
            "subgroups".to_owned(),
            json!({ "value": subgroups, "from": desired.origins.sub_groups }),
        );
        for (key, members) in [("pods", &self.pods), ("templates", &self.templates)] {
            let members: Vec<Value> = members
                .iter()
                .map(|member| json!({ "name": member.name, "subgroup": member.subgroup }))
                .collect();
            value.insert(key.to_owned(), members.into());
        }
        Value::Object(value)
    }

    fn text(&self, screen: Screen) -> Vec<String> {
        let desired = &self.desired;
        let mut head = Grid::new(&[("", Align::Left), ("", Align::Left)]);
        let mut add = |label: &str, text: &str| head.row(vec![plain(label), plain(text)]);
        add("pod group", &format!("{}/{}", desired.namespace, desired.name));
        let owner = &desired.owner;
        add(
            "owner",
            &format!("{} {} ({})", owner.kind, owner.name, owner.api_version),
        );
        add("rule", &desired.origins.rule);
        for (label, members) in [("pods", &self.pods), ("templates", &self.templates)] {
            if !members.is_empty() {
                add(label, &names(members));
            }
        }
        let mut lines = unheaded(head.lines(screen));
        lines.push(String::new());
        let mut grid = Grid::new(&[("FIELD", Align::Left), ("VALUE", Align::Left), ("FROM", Align::Left)]);
        for line in self.lines() {
            let origin = if line.origin.is_empty() { "-" } else { line.origin };
            grid.row(vec![plain(line.label), plain(&line.text), plain(origin)]);
        }
        let origin = &desired.origins.sub_groups;
        if !origin.is_empty() {
            let count = desired.spec.sub_groups.len();
            grid.row(vec![plain("subgroups"), plain(&count.to_string()), plain(origin)]);
        }
        lines.extend(grid.lines(screen));
        if !desired.spec.sub_groups.is_empty() {
            lines.push(String::new());
            lines.extend(self.subgroups(screen));
        }
        lines
    }

    fn subgroups(&self, screen: Screen) -> Vec<String> {
        let mut grid = Grid::new(&[
            ("SUBGROUP", Align::Left),
            ("PARENT", Align::Left),
            ("MINIMUM", Align::Right),
            ("TOPOLOGY", Align::Left),
            ("PODS", Align::Right),
        ]);
        for group in &self.desired.spec.sub_groups {
            let SubGroup {
                name,
                parent,
                min_member,
                min_sub_group,
                topology_constraint,
            } = group;
            let minimum = match (min_sub_group, min_member) {
                (Some(count), _) => counted(*count, "subgroup"),
                (None, count) => counted(count.unwrap_or(0), "pod"),
            };
            let pods = self.pods.iter().filter(|pod| pod.subgroup.as_ref() == Some(name));
            // A template does not say how many pods there are.
            let pods = match self.pods.is_empty() {
                true => "-".to_owned(),
                false => pods.count().to_string(),
            };
            grid.row(vec![
                plain(name),
                plain(parent.as_deref().unwrap_or("-")),
                plain(&minimum),
                plain(&topology_constraint.as_ref().map_or_else(|| "-".to_owned(), topology)),
                plain(&pods),
            ]);
        }
        grid.lines(screen)
    }
}

impl Report {
    pub(super) fn skip(&mut self, object: String, reason: &str) {
        self.skipped.push(Skipped {
            object,
            reason: reason.to_owned(),
        });
    }

    /// Whether the exit code is 1.
    pub(super) fn has_problems(&self) -> bool {
        !self.refused.is_empty() || !self.rule_problems.is_empty()
    }

    pub(super) fn print(&self, output: Output) -> anyhow::Result<()> {
        let text = match output {
            Output::Text => {
                for warning in &self.warnings {
                    eprintln!("warning: {}", printable(warning));
                }
                self.text(Screen::of_standard_output()).join("\n") + "\n"
            }
            Output::Json => serde_json::to_string_pretty(&self.value())? + "\n",
            Output::Yaml => serde_saphyr::to_string(&self.value())?,
        };
        Ok(crate::print(&text)?)
    }

    fn value(&self) -> Value {
        let pods = |of: &[Skipped]| -> Vec<Value> {
            of.iter()
                .map(|skipped| json!({ "object": skipped.object, "reason": skipped.reason }))
                .collect()
        };
        let problems = self.rule_problems.iter();
        let problems =
            problems.map(|problem| json!({ "rule": problem.rule, "field": problem.field, "problem": problem.problem }));
        json!({
            "groups": self.groups.iter().map(Group::value).collect::<Vec<_>>(),
            "notGrouped": pods(&self.skipped),
            "refused": pods(&self.refused),
            "ruleProblems": problems.collect::<Vec<_>>(),
            "warnings": self.warnings,
        })
    }

    fn text(&self, screen: Screen) -> Vec<String> {
        let mut lines = Vec::new();
        for group in &self.groups {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.extend(group.text(screen));
        }
        let sentence = |text: String| screen.lines(&plain(&text));
        let mut sentences: Vec<String> = Vec::new();
        for problem in &self.rule_problems {
            sentences.extend(sentence(problem.to_string()));
        }
        for refused in &self.refused {
            sentences.extend(sentence(format!(
                "{}: can't be grouped: {}",
                refused.object, refused.reason
            )));
        }
        for skipped in &self.skipped {
            sentences.extend(sentence(format!("{}: not grouped: {}", skipped.object, skipped.reason)));
        }
        let checked = self.rules_checked.len();
        if checked > 0 {
            let wrong = self.rule_problems.len();
            sentences.push(format!(
                "{} checked, {wrong} with a mistake",
                counted(checked as i32, "rule")
            ));
        } else if self.groups.is_empty() && sentences.is_empty() {
            sentences.push("there are no pods and no workloads with templates of pods in the files".to_owned());
        }
        if !lines.is_empty() && !sentences.is_empty() {
            lines.push(String::new());
        }
        lines.extend(sentences);
        lines
    }
}

fn plain(text: &str) -> Cell {
    let mut cell = Cell::default();
    cell.push(text, None);
    cell
}

/// A grid without titles has an empty line in their place.
fn unheaded(mut lines: Vec<String>) -> Vec<String> {
    if lines.first().is_some_and(|line| line.trim().is_empty()) {
        lines.remove(0);
    }
    lines
}

fn counted(count: i32, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

fn topology(constraint: &TopologyConstraint) -> String {
    let level = |what: &str, level: &Option<String>| level.as_ref().map(|level| format!("{what} {level}"));
    let levels = [
        level("required", &constraint.required_topology_level),
        level("preferred", &constraint.preferred_topology_level),
    ];
    let levels: Vec<String> = levels.into_iter().flatten().collect();
    format!(
        "{}: {}",
        constraint.topology.as_deref().unwrap_or("(no name)"),
        levels.join(", ")
    )
}

fn names(members: &[Member]) -> String {
    let shown: Vec<&str> = members
        .iter()
        .take(MEMBERS_SHOWN_MAX)
        .map(|member| member.name.as_str())
        .collect();
    let more = members.len().saturating_sub(MEMBERS_SHOWN_MAX);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
