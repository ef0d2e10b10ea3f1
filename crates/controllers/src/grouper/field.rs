//! Typed access to fields of untyped objects. An error names the object and the path of the field.

use serde_json::Value;

use super::workload::{GroupingError, Refusal};

/// A path in an object, whether or not the field exists.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    object: String,
    path: String,
    value: Option<&'a Value>,
}

impl<'a> Field<'a> {
    /// The whole object.
    pub(super) fn of(object: &'a Value) -> Field<'a> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        Field {
            object: format!(
                "{} {}/{}",
                text(&object["kind"]),
                text(&metadata["namespace"]),
                text(&metadata["name"])
            ),
            path: String::new(),
            value: Some(object),
        }
    }

    /// A field of this one.
    pub(super) fn at(&self, key: &str) -> Field<'a> {
        let path = match &*self.path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        Field {
            object: self.object.clone(),
            path,
            value: self
                .value
                .and_then(|value| value.get(key))
                .filter(|value| !value.is_null()),
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.value.is_some()
    }

    /// Kind, namespace and name of the object.
    pub(super) fn object(&self) -> &str {
        &self.object
    }

    /// The path of the field in the object.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The field as text, if it is a text, a number or a truth value; an empty text counts as absent.
    pub(super) fn scalar(&self) -> Result<Option<String>, GroupingError> {
        match self.value {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(Some(value.to_string())),
            Some(Value::Array(_)) => {
                Err(self.refuse("it is a list and not one value; the grouping rule has to select an element"))
            }
            Some(Value::Object(_)) => {
                Err(self.refuse("it has fields and is not one value; the grouping rule has to name one"))
            }
        }
    }

    /// The value as it is.
    pub(super) fn json(&self) -> Option<&'a Value> {
        self.value
    }

    pub(super) fn is_map(&self) -> bool {
        self.value.is_some_and(Value::is_object)
    }

    /// Whether it is this text, or a number or truth value that is written so.
    pub(super) fn is_scalar(&self, text: &str) -> bool {
        match self.value {
            Some(Value::String(value)) => value == text,
            Some(value @ (Value::Number(_) | Value::Bool(_))) => {
                let written = value.to_string();
                written == text
            }
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => false,
        }
    }

    /// The element of the list; `None` beyond its end.
    pub(super) fn item(&self, index: usize) -> Result<Option<Field<'a>>, GroupingError> {
        match self.value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(items.get(index).map(|item| self.element(index, item))),
            Some(_) => Err(self.refuse("it is not a list")),
        }
    }

    /// The field as a count: a whole number of zero or more.
    pub(super) fn count(&self) -> Result<Option<i32>, GroupingError> {
        let Some(value) = self.value else { return Ok(None) };
        match value.as_i64().and_then(|number| i32::try_from(number).ok()) {
            Some(count) if count >= 0 => Ok(Some(count)),
            _ => Err(self.refuse(format!(
                "{value} is not a number of pods; write a whole number of zero or more"
            ))),
        }
    }

    /// The field as a string; an empty one counts as absent.
    pub(super) fn text(&self) -> Result<Option<&'a str>, GroupingError> {
        match self.value {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(value) => Err(self.refuse(format!("{value} is not a text; quote it"))),
        }
    }

    pub(super) fn flag(&self) -> Result<bool, GroupingError> {
        match self.value {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.refuse(format!("{value} is neither true nor false"))),
        }
    }

    /// The elements of the list; none if the field is absent.
    pub(super) fn items(&self) -> Result<Vec<Field<'a>>, GroupingError> {
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items
                .iter()
                .enumerate()
                .map(|(index, item)| self.element(index, item))
                .collect()),
            Some(_) => Err(self.refuse("it is not a list")),
        }
    }

    /// The entries of the map by key.
    pub(super) fn entries(&self) -> Vec<(&'a str, Field<'a>)> {
        let map = self.value.and_then(Value::as_object);
        map.into_iter()
            .flat_map(|map| map.keys())
            .map(|key| (key.as_str(), self.at(key)))
            .collect()
    }

    fn element(&self, index: usize, item: &'a Value) -> Field<'a> {
        Field {
            object: self.object.clone(),
            path: format!("{}[{index}]", self.path),
            value: Some(item),
        }
    }

    pub(super) fn refuse(&self, reason: impl Into<String>) -> GroupingError {
        GroupingError::Refused(Refusal {
            object: self.object.clone(),
            field: self.path.clone(),
            reason: reason.into(),
        })
    }
}
