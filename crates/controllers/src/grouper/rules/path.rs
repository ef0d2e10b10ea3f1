//! Paths in an object, as grouping rules write them: `spec.tasks[name=worker].replicas`. A path selects values; it computes nothing.
//!
//! | step | selects |
//! |---|---|
//! | `name` | a field |
//! | `["a.b/c"]` | a field whose name has dots, slashes or brackets |
//! | `[2]` | an element of a list, from 0 |
//! | `[name=worker]` | the first element of a list whose field has this value |
//! | `[*]` | all elements of a list, or all values of a map |

use std::fmt;

use super::super::field::Field;
use super::super::workload::GroupingError;

/// The longest path. No field of a real kind is deeper.
const BYTES_MAX: usize = 512;
const STEPS_MAX: usize = 32;
/// Values that a path may select in one object: more elements than any list of a workload's parts has.
pub(super) const VALUES_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    text: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    Where { field: String, value: String },
    All,
}

impl Path {
    /// Parses a path. The error is the problem and the remedy.
    pub(super) fn parse(text: &str) -> Result<Path, String> {
        if text.len() > BYTES_MAX {
            return Err(format!(
                "the path has {} bytes; write one of at most {BYTES_MAX}",
                text.len()
            ));
        }
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (step, after) = match rest.strip_prefix('[') {
                Some(bracket) => in_brackets(bracket)?,
                None => field(rest)?,
            };
            steps.push(step);
            rest = match after.strip_prefix('.') {
                Some("") => return Err("the path ends in a dot; leave the dot out".to_owned()),
                Some(after) if after.starts_with(['.', '[']) => {
                    return Err("a dot is followed by no field; write spec.tasks[0].replicas, for instance".to_owned());
                }
                Some(after) => after,
                None if after.is_empty() || after.starts_with('[') => after,
                None => return Err(format!("{after:?} follows a bracket; write a dot between them")),
            };
        }
        match steps.len() {
            0 => Err("the path is empty; write one such as spec.replicas".to_owned()),
            length if length > STEPS_MAX => Err(format!("the path has {length} steps; write at most {STEPS_MAX}")),
            _ => Ok(Path {
                text: text.to_owned(),
                steps,
            }),
        }
    }

    /// Whether the path can select more than one value.
    pub(super) fn selects_many(&self) -> bool {
        self.steps.contains(&Step::All)
    }

    /// The selected values below `root`. A field that does not exist, or is null, selects nothing. Each part of the object is looked at
    /// once.
    pub(super) fn values<'a>(&self, root: &Field<'a>) -> Result<Vec<Field<'a>>, GroupingError> {
        let mut found = vec![root.clone()];
        for step in &self.steps {
            let mut next = Vec::new();
            for field in &found {
                step.select(field, &mut next)?;
                if next.len() > VALUES_MAX {
                    let reason = format!("{self} selects more than {VALUES_MAX} values; use shorter lists");
                    return Err(field.refuse(reason));
                }
            }
            found = next;
        }
        Ok(found)
    }

    /// The first selected value.
    pub(super) fn value<'a>(&self, root: &Field<'a>) -> Result<Option<Field<'a>>, GroupingError> {
        Ok(self.values(root)?.into_iter().next())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Step {
    fn select<'a>(&self, field: &Field<'a>, into: &mut Vec<Field<'a>>) -> Result<(), GroupingError> {
        match self {
            Step::Field(name) => into.extend(Some(field.at(name)).filter(Field::exists)),
            Step::Index(index) => into.extend(field.item(*index)?),
            Step::Where { field: name, value } => {
                let is_it = |item: &Field<'_>| item.at(name).is_scalar(value);
                into.extend(field.items()?.into_iter().find(is_it));
            }
            Step::All if field.is_map() => into.extend(field.entries().into_iter().map(|(_, value)| value)),
            Step::All => into.extend(field.items()?),
        }
        Ok(())
    }
}

fn field(text: &str) -> Result<(Step, &str), String> {
    let end = text.find(['.', '[', ']', '"']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() || name.contains(char::is_whitespace) || rest.starts_with([']', '"']) {
        return Err(format!(
            "no field begins at {text:?}; write names with dots between them, and [\"NAME\"] for a name with other characters"
        ));
    }
    Ok((Step::Field(name.to_owned()), rest))
}

/// A step after its opening bracket.
fn in_brackets(text: &str) -> Result<(Step, &str), String> {
    if let Some(quoted) = text.strip_prefix('"') {
        let (name, rest) = quoted.split_once("\"]").ok_or_else(|| unclosed(text))?;
        return match name.is_empty() {
            true => Err("a name in brackets is empty; write the name of a field".to_owned()),
            false => Ok((Step::Field(name.to_owned()), rest)),
        };
    }
    let (inside, rest) = text.split_once(']').ok_or_else(|| unclosed(text))?;
    let step = match inside.split_once('=') {
        _ if inside == "*" => Step::All,
        Some((field, value)) if !field.is_empty() && !value.is_empty() => Step::Where {
            field: field.to_owned(),
            value: value.to_owned(),
        },
        Some(_) | None => Step::Index(inside.parse().map_err(|_| {
            format!("[{inside}] selects nothing; write [*], [0], [name=worker] or [\"name with.dots\"]")
        })?),
    };
    Ok((step, rest))
}

fn unclosed(text: &str) -> String {
    format!("the bracket before {text:?} is not closed; write ] after it")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn select(path: &str, object: &Value) -> Result<Vec<Value>, String> {
        let path = Path::parse(path)?;
        match path.values(&Field::of(object)) {
            Ok(found) => Ok(found.iter().filter_map(Field::json).cloned().collect()),
            Err(GroupingError::Refused(refusal)) => Err(refusal.to_string()),
            Err(GroupingError::NeedsObject(_)) => Err("a path needs no object".to_owned()),
        }
    }

    #[test]
    fn steps() {
        let object = json!({
            "kind": "Farm", "metadata": { "name": "f", "namespace": "a", "annotations": { "a.b/c": "7" } },
            "spec": { "size": 3, "none": null, "workers": [{ "name": "x", "replicas": 1 }, { "name": "y", "replicas": 2 }],
                      "roles": { "a": { "n": 1 }, "b": { "n": 2 } }, "nested": [[1, 2], [3]] },
        });
        let check = |path: &str, expect: Value| {
            assert_eq!(select(path, &object).map(Value::from), Ok(expect), "{path}");
        };
        check("spec.size", json!([3]));
        check("spec.none", json!([]));
        check("spec.missing.deeper", json!([]));
        check("metadata.annotations[\"a.b/c\"]", json!(["7"]));
        check("spec.workers[1].replicas", json!([2]));
        check("spec.workers[7].replicas", json!([]));
        check("spec.workers[name=y].replicas", json!([2]));
        check("spec.workers[replicas=1].name", json!(["x"]));
        check("spec.workers[*].replicas", json!([1, 2]));
        check("spec.roles[*].n", json!([1, 2]));
        check("spec.nested[*][*]", json!([1, 2, 3]));
        let wrong = select("spec.size[*]", &object).unwrap_err();
        assert_eq!(wrong, "Farm a/f: spec.size: it is not a list");
    }

    #[test]
    fn mistakes_are_told_with_a_remedy() {
        for (path, words) in [
            ("", "is empty"),
            ("spec.", "ends in a dot"),
            ("spec..x", "followed by no field"),
            (".spec", "no field begins"),
            ("spec[", "is not closed"),
            ("spec[\"x", "is not closed"),
            ("spec[x]", "selects nothing"),
            ("spec[*]x", "write a dot"),
            ("spec x", "no field begins"),
            ("a]", "no field begins"),
        ] {
            let told = Path::parse(path).unwrap_err();
            assert!(told.contains(words), "{path:?}: {told}");
        }
        assert!(Path::parse(&"a.".repeat(300)).unwrap_err().contains("bytes"));
        assert!(Path::parse(&vec!["a"; 40].join(".")).unwrap_err().contains("steps"));
    }

    #[test]
    fn a_list_without_end_is_refused() {
        let object = json!({ "kind": "Farm", "metadata": { "name": "f" }, "list": vec![1; VALUES_MAX + 1] });
        let told = select("list[*]", &object).unwrap_err();
        assert!(told.contains("more than 10000 values"), "{told}");
    }
}
