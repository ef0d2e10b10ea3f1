//! A rule as a person wrote it: typed access to its fields. A problem names the field and the remedy.

use serde_json::Value;

/// A mistake in a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", prefix(field))]
pub struct Mistake {
    /// The path of the field; empty for the rule as a whole.
    pub field: String,
    /// The problem and the remedy.
    pub problem: String,
}

fn prefix(field: &str) -> String {
    match field {
        "" => String::new(),
        field => format!("{field}: "),
    }
}

/// A value in a rule, with its path.
#[derive(Clone, Debug)]
pub(super) struct Form<'a> {
    path: String,
    pub(super) value: &'a Value,
}

impl<'a> Form<'a> {
    pub(super) fn new(value: &'a Value) -> Form<'a> {
        Form {
            path: String::new(),
            value,
        }
    }

    pub(super) fn wrong(&self, problem: impl Into<String>) -> Mistake {
        Mistake {
            field: self.path.clone(),
            problem: problem.into(),
        }
    }

    /// The field of a map; `None` if it is absent or null, or if this is no map.
    pub(super) fn get(&self, key: &str) -> Option<Form<'a>> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Form {
            path: joined(&self.path, key),
            value,
        })
    }

    /// The fields of a map that has no others than these.
    pub(super) fn fields(&self, known: &[&str]) -> Result<Fields<'a>, Mistake> {
        let Value::Object(map) = self.value else {
            return Err(self.wrong(format!("it has no fields; write some of {}", known.join(", "))));
        };
        let unknown = map.keys().find(|key| !known.contains(&key.as_str()));
        match unknown {
            None => Ok(Fields(self.clone())),
            Some(key) => {
                let near = kai_yaml::suggestion(key, known.iter().copied());
                let problem = format!("there is no such field here{near}; known are {}", known.join(", "));
                Err(Mistake {
                    field: joined(&self.path, key),
                    problem,
                })
            }
        }
    }

    /// The elements of a list, or the value itself.
    pub(super) fn one_or_more(&self, most: usize) -> Result<Vec<Form<'a>>, Mistake> {
        let Value::Array(items) = self.value else {
            return Ok(vec![self.clone()]);
        };
        if items.is_empty() {
            return Err(self.wrong("the list is empty; write an element, or leave the field out"));
        }
        if items.len() > most {
            return Err(self.wrong(format!("it has {} elements; write at most {most}", items.len())));
        }
        let items = items.iter().enumerate();
        Ok(items
            .map(|(index, value)| Form {
                path: format!("{}[{index}]", self.path),
                value,
            })
            .collect())
    }

    /// A text that is not empty.
    pub(super) fn text(&self) -> Result<&'a str, Mistake> {
        match self.value {
            Value::String(text) if !text.is_empty() => Ok(text),
            Value::String(_) => Err(self.wrong("it is empty; write a text, or leave the field out")),
            other => Err(self.wrong(format!("{} is not a text; quote it", shortened(other)))),
        }
    }

    pub(super) fn flag(&self) -> Result<bool, Mistake> {
        self.value
            .as_bool()
            .ok_or_else(|| self.wrong(format!("{} is neither true nor false", shortened(self.value))))
    }
}

/// The fields of a map in a rule, all of which are known.
pub(super) struct Fields<'a>(Form<'a>);

impl<'a> Fields<'a> {
    /// The field; `None` if it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<Form<'a>> {
        self.0.get(key)
    }

    /// The field, read by `read`.
    pub(super) fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Form<'a>) -> Result<T, Mistake>,
    ) -> Result<Option<T>, Mistake> {
        self.get(key).map(|form| read(&form)).transpose()
    }

    /// The mandatory field.
    pub(super) fn required(&self, key: &str, example: &str) -> Result<Form<'a>, Mistake> {
        self.get(key).ok_or_else(|| Mistake {
            field: joined(&self.0.path, key),
            problem: format!("it is missing; write one such as {example}"),
        })
    }
}

fn joined(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

fn shortened(value: &Value) -> String {
    kai_yaml::shortened(&value.to_string(), 60)
}
