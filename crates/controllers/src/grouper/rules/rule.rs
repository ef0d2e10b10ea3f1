//! A declared grouping rule: the schema, which docs/grouping-rules.md describes, and its validation. `group` applies it.

use serde_json::Value;

use super::form::{Form, Mistake};
use super::path::Path;
use super::values::{self, Values};

/// Kinds of one rule.
const KINDS_MAX: usize = 16;
/// Lists of subgroups of one rule.
const SUBGROUP_LISTS_MAX: usize = 16;
/// Ways in which a pod may find its subgroup.
const MATCHES_MAX: usize = 4;

const EXAMPLE_PATH: &str = "spec.replicas";

/// A valid rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The kinds of workloads that the rule groups.
    pub(super) kinds: Kinds,
    /// Whether the rule comes before the code's rule for the kind.
    pub(super) overrides_code: bool,
    /// The object whose fields count; `None` for the workload itself.
    pub(super) object: Option<OtherObject>,
    pub(super) minimum: Option<Values>,
    pub(super) queue: Option<Values>,
    pub(super) priority_class: Option<Values>,
    pub(super) preemptibility: Option<Values>,
    pub(super) topology: Topology,
    pub(super) subgroups: Vec<Subgroups>,
}

/// Kinds of one API group, in one version or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kinds {
    /// The API group; empty for the core group.
    pub(super) group: String,
    /// The version; `None` for all.
    pub(super) version: Option<String>,
    pub(super) names: Vec<String>,
}

/// An object that belongs to the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtherObject {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: Values,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) name: Option<Values>,
    pub(super) required: Option<Values>,
    pub(super) preferred: Option<Values>,
}

/// Subgroups that are described alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subgroups {
    /// Each selected value is a subgroup; `None` for one subgroup, described by the object itself.
    pub(super) list: Option<Path>,
    pub(super) name: Values,
    /// Pods, or of subgroups with `members` the subgroups.
    pub(super) minimum: Option<Values>,
    pub(super) topology: Topology,
    pub(super) content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Pods, which are found by the first way that says something.
    Pods(Vec<PodMatch>),
    /// The names of other subgroups.
    Subgroups(Path),
}

/// How a pod finds its subgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodMatch {
    /// A label of the pod has this value; `None` for the name of the subgroup.
    Label { key: String, equals: Option<Values> },
    /// The same with an annotation.
    Annotation { key: String, equals: Option<Values> },
    /// The pod's name is one of these.
    Names(Path),
}

impl Rule {
    /// Parses a rule.
    pub fn parse(text: &str) -> Result<Rule, Mistake> {
        let value = parse_yaml(text)?;
        Rule::read(&Form::new(&value))
    }

    fn read(form: &Form<'_>) -> Result<Rule, Mistake> {
        let fields = form.fields(&[
            "apiVersion",
            "kind",
            "override",
            "object",
            "minimum",
            "queue",
            "priorityClass",
            "preemptibility",
            "topology",
            "subgroups",
        ])?;
        Ok(Rule {
            kinds: Kinds::read(form)?,
            overrides_code: fields.read("override", Form::flag)?.unwrap_or(false),
            object: fields.read("object", OtherObject::read)?,
            minimum: fields.read("minimum", Values::read)?,
            queue: fields.read("queue", Values::read)?,
            priority_class: fields.read("priorityClass", Values::read)?,
            preemptibility: fields.read("preemptibility", Values::read)?,
            topology: fields.read("topology", Topology::read)?.unwrap_or_default(),
            subgroups: fields
                .read("subgroups", |form| {
                    let lists = form.one_or_more(SUBGROUP_LISTS_MAX)?;
                    lists.iter().map(Subgroups::read).collect()
                })?
                .unwrap_or_default(),
        })
    }
}

/// The kinds of a rule that has other mistakes, if they can be read.
pub(super) fn kinds_of(text: &str) -> Option<Kinds> {
    let value = parse_yaml(text).ok()?;
    Kinds::read(&Form::new(&value)).ok()
}

fn parse_yaml(text: &str) -> Result<Value, Mistake> {
    kai_yaml::from_str(text).map_err(|problem| Mistake {
        field: String::new(),
        problem,
    })
}

impl Kinds {
    fn read(form: &Form<'_>) -> Result<Kinds, Mistake> {
        let missing = |field: &str, example: &str| Mistake {
            field: field.to_owned(),
            problem: format!("it is missing; write one such as {example}"),
        };
        let api_version = form
            .get("apiVersion")
            .ok_or_else(|| missing("apiVersion", "example.com/v1"))?;
        let kind = form.get("kind").ok_or_else(|| missing("kind", "TrainingJob"))?;
        let text = api_version.text()?;
        let (group, version) = text.split_once('/').unwrap_or(("", text));
        if version.is_empty() || version.contains('/') || group == "*" {
            return Err(api_version.wrong(format!(
                "{text:?} is no group and version; write one such as example.com/v1, or example.com/* for all versions"
            )));
        }
        let names = kind.one_or_more(KINDS_MAX)?;
        let names: Result<Vec<String>, Mistake> = names.iter().map(|form| form.text().map(str::to_owned)).collect();
        Ok(Kinds {
            group: group.to_owned(),
            version: Some(version.to_owned()).filter(|version| version != "*"),
            names: names?,
        })
    }

    /// Group and version, as in a rule.
    pub(super) fn api_version(&self) -> String {
        let version = self.version.as_deref().unwrap_or("*");
        match self.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }
}

impl OtherObject {
    fn read(form: &Form<'_>) -> Result<OtherObject, Mistake> {
        let fields = form.fields(&["apiVersion", "kind", "name"])?;
        Ok(OtherObject {
            api_version: fields.required("apiVersion", "example.com/v1")?.text()?.to_owned(),
            kind: fields.required("kind", "Gang")?.text()?.to_owned(),
            name: Values::read(&fields.required("name", "{podLabel: example.com/gang}")?)?,
        })
    }
}

impl Topology {
    fn read(form: &Form<'_>) -> Result<Topology, Mistake> {
        let fields = form.fields(&["name", "required", "preferred"])?;
        Ok(Topology {
            name: fields.read("name", Values::read)?,
            required: fields.read("required", Values::read)?,
            preferred: fields.read("preferred", Values::read)?,
        })
    }
}

impl Subgroups {
    fn read(form: &Form<'_>) -> Result<Subgroups, Mistake> {
        let fields = form.fields(&["list", "name", "minimum", "topology", "pods", "members"])?;
        let content = match (fields.get("pods"), fields.get("members")) {
            (Some(pods), None) => {
                let ways = pods.one_or_more(MATCHES_MAX)?;
                Content::Pods(ways.iter().map(PodMatch::read).collect::<Result<_, _>>()?)
            }
            (None, Some(members)) => Content::Subgroups(values::path(&members)?),
            (None, None) | (Some(_), Some(_)) => {
                return Err(form.wrong(
                    "a subgroup has either pods, such as {label: example.com/role}, or members, a path to names of other subgroups; write one of them",
                ));
            }
        };
        let minimum = fields.read("minimum", Values::read)?;
        if minimum.is_none() && matches!(content, Content::Pods(_)) {
            fields.required("minimum", EXAMPLE_PATH)?;
        }
        Ok(Subgroups {
            list: fields.read("list", values::path)?,
            name: Values::read(&fields.required("name", "name")?)?,
            minimum,
            topology: fields.read("topology", Topology::read)?.unwrap_or_default(),
            content,
        })
    }
}

impl PodMatch {
    fn read(form: &Form<'_>) -> Result<PodMatch, Mistake> {
        let fields = form.fields(&["label", "annotation", "equals", "names"])?;
        let equals = fields.read("equals", Values::read)?;
        let key = |form: Form<'_>| form.text().map(str::to_owned);
        match (fields.get("label"), fields.get("annotation"), fields.get("names")) {
            (Some(label), None, None) => Ok(PodMatch::Label {
                key: key(label)?,
                equals,
            }),
            (None, Some(annotation), None) => Ok(PodMatch::Annotation {
                key: key(annotation)?,
                equals,
            }),
            (None, None, Some(names)) if equals.is_none() => Ok(PodMatch::Names(values::path(&names)?)),
            _ => Err(form.wrong(
                "write one of label and annotation, and equals if its value is not the subgroup's name, or names alone",
            )),
        }
    }

    /// For people.
    pub(super) fn words(&self) -> String {
        match self {
            PodMatch::Label { key, .. } => format!("label {key}"),
            PodMatch::Annotation { key, .. } => format!("annotation {key}"),
            PodMatch::Names(path) => format!("name in {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> String {
        Rule::parse(text).unwrap_err().to_string()
    }

    const HEAD: &str = "apiVersion: example.com/v1\nkind: Farm\n";

    #[test]
    fn a_mistake_names_the_field_and_the_remedy() {
        for (rest, words) in [
            (
                "minimun: 1",
                "minimun: there is no such field here; did you mean minimum?",
            ),
            ("minimum: spec..x", "minimum: a dot is followed by no field"),
            ("minimum: spec.x[*]", "minimum: spec.x[*] selects several values"),
            (
                "minimum: {pth: a}",
                "minimum.pth: there is no such field here; did you mean path?",
            ),
            (
                "minimum: {path: a, value: 1}",
                "minimum: a source has exactly one of path, value",
            ),
            ("minimum: {path: a, of: b}", "minimum: of is for sum only"),
            ("minimum: {}", "minimum: a source has exactly one of"),
            ("minimum: true", "minimum: it has no fields"),
            ("minimum: []", "minimum: the list is empty"),
            ("minimum: [a, {sum: 3}]", "minimum[1].sum: 3 is not a text"),
            (
                "override: yes please",
                "override: \"yes please\" is neither true nor false",
            ),
            (
                "object: {kind: Gang}",
                "object.apiVersion: it is missing; write one such as",
            ),
            (
                "subgroups: {name: n, minimum: 1}",
                "subgroups: a subgroup has either pods",
            ),
            (
                "subgroups: {name: n, pods: {label: x}}",
                "subgroups.minimum: it is missing",
            ),
            (
                "subgroups: [{minimum: 1, pods: {label: x}}]",
                "subgroups[0].name: it is missing",
            ),
            (
                "subgroups: {name: n, minimum: 1, pods: {}}",
                "subgroups.pods: write one of label",
            ),
            (
                "subgroups: {name: n, minimum: 1, pods: {names: a, equals: b}}",
                "subgroups.pods: write one of label",
            ),
            ("topology: {level: x}", "topology.level: there is no such field here"),
            ("kind: [", "line"),
        ] {
            let text = format!("{HEAD}{rest}\n");
            assert!(told(&text).contains(words), "{rest}: {}", told(&text));
        }
        assert!(told("kind: Farm").starts_with("apiVersion: it is missing"));
        assert!(told("apiVersion: a/v1").starts_with("kind: it is missing"));
        assert!(told("apiVersion: a/\nkind: Farm").contains("is no group and version"));
        assert!(told("[1]").contains("it has no fields"));
        assert!(told(&format!("{HEAD}minimum: [a, b, c, d, e, f, g, h, i]")).contains("at most 8"));
    }

    #[test]
    fn sums_in_sums_are_bounded() {
        let mut source = "a".to_owned();
        for _ in 0..5 {
            source = format!("{{sum: x, of: {source}}}");
        }
        assert!(told(&format!("{HEAD}minimum: {source}")).contains("nested more than"));
    }

    #[test]
    fn the_kinds_of_a_rule_with_mistakes_are_known() {
        let kinds = kinds_of(&format!("{HEAD}nonsense: 1\n")).unwrap();
        assert_eq!(
            (kinds.api_version().as_str(), kinds.names.as_slice()),
            ("example.com/v1", &["Farm".to_owned()][..])
        );
        assert_eq!(kinds_of("nonsense: 1"), None);
    }
}
