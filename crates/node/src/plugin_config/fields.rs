//! Reads the fields of a YAML tree one by one, so that every problem names the field. Names match in any case, as in NVIDIA's device
//! plugin.

use serde_json::{Map, Value};

/// The longest excerpt of a value in a message.
const VALUE_CHARS_MAX: usize = 40;

/// A field with a wrong value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldProblem {
    /// Path of the field, such as `sharing.timeSlicing.resources[0].replicas`; empty for the whole file.
    pub field: String,
    /// What is wrong, and the remedy.
    pub problem: String,
}

impl FieldProblem {
    pub(super) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

/// A mapping of the file with its path. An absent or empty mapping has no fields.
pub(super) struct Section<'a> {
    path: String,
    fields: Option<&'a Map<String, Value>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(path: String, value: &'a Value) -> Result<Self, FieldProblem> {
        let fields = match value {
            Value::Null => None,
            Value::Object(fields) => Some(fields),
            other => {
                let problem = format!("{} is no mapping; write fields with values", shown(other));
                return Err(FieldProblem::new(path, problem));
            }
        };
        Ok(Self { path, fields })
    }

    /// The path of a field.
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// The value of a field; a null is no value.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        let fields = self.fields?;
        let same = |(key, value): (&String, &'a Value)| key.eq_ignore_ascii_case(name).then_some(value);
        let value = fields.get(name).or_else(|| fields.iter().find_map(same));
        value.filter(|value| !value.is_null())
    }

    pub(super) fn section(&self, name: &str) -> Result<Section<'a>, FieldProblem> {
        Section::new(self.path_of(name), self.get(name).unwrap_or(&Value::Null))
    }

    pub(super) fn bool(&self, name: &str) -> Result<bool, FieldProblem> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(self.wrong(name, other, "true or false")),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, FieldProblem> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, other, "text")),
        }
    }

    /// The entries of a list.
    pub(super) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, FieldProblem> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(entries)) => Ok(Some(entries)),
            Some(other) => Err(self.wrong(name, other, "a list")),
        }
    }

    /// The value of a field with a fixed set of words.
    pub(super) fn one_of<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, FieldProblem> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
        let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let wrong = || self.wrong(name, value, &all.join(" or "));
        found.map(|(_, meaning)| Some(*meaning)).ok_or_else(wrong)
    }

    /// Names of fields with a value that are not in `known`.
    pub(super) fn others(&self, known: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
        let is_known = |key: &str| known.iter().any(|known| known.eq_ignore_ascii_case(key));
        let fields = self.fields.into_iter().flatten();
        fields
            .filter(move |(key, value)| !value.is_null() && !is_known(key))
            .map(|(key, _)| key.as_str())
    }

    /// Refuses fields that are not in `known`: a misspelt name would silently change what the node offers.
    pub(super) fn only(&self, known: &'a [&'a str]) -> Result<(), FieldProblem> {
        self.others(known)
            .next()
            .map_or(Ok(()), |name| Err(self.unknown(name, known)))
    }

    pub(super) fn unknown(&self, name: &str, known: &[&str]) -> FieldProblem {
        let name = kai_yaml::shortened(name, VALUE_CHARS_MAX);
        let suggestion = kai_yaml::suggestion(&name, known.iter().copied());
        let problem = format!(
            "there is no such field{suggestion}; the fields are {}",
            known.join(", ")
        );
        FieldProblem::new(self.path_of(&name), problem)
    }

    fn wrong(&self, name: &str, value: &Value, expected: &str) -> FieldProblem {
        FieldProblem::new(
            self.path_of(name),
            format!("{} is not right; write {expected}", shown(value)),
        )
    }
}

/// A value in a message.
pub(super) fn shown(value: &Value) -> String {
    kai_yaml::shortened(&value.to_string(), VALUE_CHARS_MAX)
}
