//! Which webhooks and policies apply to a write: resource rules, selectors, match conditions. Pure.

use serde_json::Value;

use super::{AdmissionConfig, Attributes};
use crate::server::expressions;
use crate::server::selector::Selector;

/// Whether a rule of the list matches the write.
pub(super) fn any_rule(rules: &Value, attributes: &Attributes<'_>) -> bool {
    rules
        .as_array()
        .into_iter()
        .flatten()
        .any(|rule| rule_covers(rule, attributes))
}

fn rule_covers(rule: &Value, attributes: &Attributes<'_>) -> bool {
    let lists = |field: &str, word: &str| {
        rule[field]
            .as_array()
            .into_iter()
            .flatten()
            .any(|v| v == "*" || v == word)
    };
    let scope = match rule["scope"].as_str() {
        Some("Cluster") => !attributes.kind.namespaced(),
        Some("Namespaced") => attributes.kind.namespaced(),
        _ => true,
    };
    let names = rule["resourceNames"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = names.is_empty() || names.iter().any(|n| n == attributes.name);
    scope
        && named
        && lists("operations", attributes.operation.as_str())
        && lists("apiGroups", &attributes.kind.group)
        && lists("apiVersions", &attributes.kind.version)
        && rule["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|r| resource_covers(r.as_str().unwrap_or(""), attributes))
}

fn resource_covers(pattern: &str, attributes: &Attributes<'_>) -> bool {
    let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    let resource_fits = resource == "*" || resource == attributes.kind.plural;
    resource_fits && (sub == attributes.subresource || sub == "*")
}

/// Whether `matcher`'s namespaceSelector and objectSelector select the write.
pub(super) fn selected(matcher: &Value, config: &AdmissionConfig, attributes: &Attributes<'_>) -> bool {
    let fits = |selector: &Value, object: &Value| {
        selector.is_null()
            || Selector::of_object(selector).is_some_and(|s| s.matches_labels(&object["metadata"]["labels"]))
    };
    let in_namespace = attributes.kind.namespaced() || attributes.kind.is("", "namespaces");
    let namespace_fits = !in_namespace || fits(&matcher["namespaceSelector"], &config.namespace);
    let object_selector = &matcher["objectSelector"];
    let exists = |value: &Value| !value.is_null();
    let object_fits = object_selector.is_null()
        || (exists(attributes.object()) && fits(object_selector, attributes.object()))
        || (exists(attributes.old_object()) && fits(object_selector, attributes.old_object()));
    namespace_fits && object_fits
}

/// The variables of CEL expressions.
pub(super) struct CelVariables {
    request: Value,
    object: Value,
    old: Value,
    namespace: Value,
    pub(super) variables: Value,
}

impl CelVariables {
    pub(super) fn of(attributes: &Attributes<'_>, config: &AdmissionConfig) -> Self {
        Self {
            request: attributes.request(""),
            object: as_typed(attributes, attributes.object()),
            old: as_typed(attributes, attributes.old_object()),
            namespace: config.namespace.clone(),
            variables: Value::Object(serde_json::Map::new()),
        }
    }

    pub(super) fn names(&self) -> [(&str, &Value); 6] {
        [
            ("object", &self.object),
            ("oldObject", &self.old),
            ("request", &self.request),
            ("namespaceObject", &self.namespace),
            ("variables", &self.variables),
            ("params", &Value::Null),
        ]
    }

    /// Whether all conditions are true. A false condition outweighs an error of another one, as in Kubernetes.
    pub(super) fn conditions_hold(&self, conditions: &Value) -> Result<bool, String> {
        let mut problem = None;
        for condition in conditions.as_array().into_iter().flatten() {
            let expression = condition["expression"].as_str().unwrap_or("");
            match expressions::truth(expression, &self.names()) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => problem = Some(format!("expression '{expression}' resulted in error: {error}")),
            }
        }
        problem.map_or(Ok(true), Err)
    }
}

/// The object as CEL expressions see it. Null fields of built-in kinds are absent, because the real server decodes these kinds into
/// structs. Custom resources keep null fields.
fn as_typed(attributes: &Attributes<'_>, object: &Value) -> Value {
    match &attributes.kind.custom {
        None => without_nulls(object),
        Some(_) => object.clone(),
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let present = fields.iter().filter(|(_, value)| !value.is_null());
            present
                .map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_fields_are_absent_for_expressions() {
        let object =
            json!({ "metadata": { "name": "a", "annotations": null }, "spec": { "list": [{ "x": null, "y": 1 }] } });
        let seen = without_nulls(&object);
        assert_eq!(
            seen,
            json!({ "metadata": { "name": "a" }, "spec": { "list": [{ "y": 1 }] } })
        );
        let absent = expressions::truth("!has(object.metadata.annotations)", &[("object", &seen)]);
        assert_eq!(absent, Ok(true));
    }
}
