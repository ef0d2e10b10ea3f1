//! ValidatingAdmissionPolicies and their bindings, without parameters.

use http::StatusCode;
use serde_json::Value;

use super::match_rules::{CelVariables, any_rule, selected};
use super::{AdmissionConfig, Attributes};
use crate::server::expressions;
use crate::server::object::Object;
use crate::server::status_error::StatusError;

/// Rejects the write if a bound policy denies it.
pub(super) fn validate(
    config: &AdmissionConfig,
    attributes: &Attributes<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), StatusError> {
    for binding in &config.bindings {
        let name = binding["spec"]["policyName"].as_str().unwrap_or("");
        let Some(policy) = config.policies.iter().find(|p| p.name() == name) else {
            continue;
        };
        if !applies(policy, binding, config, attributes) {
            continue;
        }
        let Err(denial) = evaluate(policy, config, attributes) else {
            continue;
        };
        let message = format!(
            "ValidatingAdmissionPolicy '{name}' with binding '{}' denied request: {}",
            binding.name(),
            denial.message
        );
        let actions = binding["spec"]["validationActions"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        if actions.iter().any(|a| a == "Deny") || actions.is_empty() {
            let mut error = StatusError::forbidden(attributes.kind.object_ref(attributes.name), message);
            (error.code, error.reason) = (denial.code.as_u16(), denial.reason);
            return Err(error);
        }
        if actions.iter().any(|a| a == "Warn") {
            warnings.push(format!("Validation failed for {message}"));
        }
    }
    Ok(())
}

struct Denial {
    message: String,
    code: StatusCode,
    reason: &'static str,
}

fn applies(policy: &Object, binding: &Object, config: &AdmissionConfig, attributes: &Attributes<'_>) -> bool {
    let constraints = &policy["spec"]["matchConstraints"];
    let narrowed = &binding["spec"]["matchResources"];
    let narrowed_rules = narrowed["resourceRules"]
        .as_array()
        .is_some_and(|rules| !rules.is_empty());
    any_rule(&constraints["resourceRules"], attributes)
        && !any_rule(&constraints["excludeResourceRules"], attributes)
        && selected(constraints, config, attributes)
        && (!narrowed_rules || any_rule(&narrowed["resourceRules"], attributes))
        && !any_rule(&narrowed["excludeResourceRules"], attributes)
        && selected(narrowed, config, attributes)
}

fn evaluate(policy: &Object, config: &AdmissionConfig, attributes: &Attributes<'_>) -> Result<(), Denial> {
    let spec = &policy["spec"];
    let lenient = spec["failurePolicy"] == "Ignore";
    let invalid = |message: String| Denial {
        message,
        code: StatusCode::UNPROCESSABLE_ENTITY,
        reason: "Invalid",
    };
    let mut cel = CelVariables::of(attributes, config);
    match cel.conditions_hold(&spec["matchConditions"]) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(_) if lenient => return Ok(()),
        Err(error) => return Err(invalid(error)),
    }
    for variable in spec["variables"].as_array().into_iter().flatten() {
        let (name, expression) = (
            variable["name"].as_str().unwrap_or(""),
            variable["expression"].as_str().unwrap_or(""),
        );
        // A variable that fails is an error only where an expression uses it: it is missing there.
        if let Ok(value) = expressions::value(expression, &cel.names()) {
            cel.variables[name] = value;
        }
    }
    for validation in spec["validations"].as_array().into_iter().flatten() {
        let expression = validation["expression"].as_str().unwrap_or("");
        match expressions::truth(expression, &cel.names()) {
            Ok(true) => {}
            Ok(false) => return Err(denial(validation, expression, &cel)),
            Err(_) if lenient => {}
            Err(error) => return Err(invalid(format!("expression '{expression}' resulted in error: {error}"))),
        }
    }
    Ok(())
}

fn denial(validation: &Value, expression: &str, cel: &CelVariables) -> Denial {
    let computed = validation["messageExpression"]
        .as_str()
        .and_then(|e| expressions::text(e, &cel.names()).ok());
    let fixed = || validation["message"].as_str().map(str::to_owned);
    let message = computed
        .or_else(fixed)
        .unwrap_or_else(|| format!("failed expression: {}", expression.trim()));
    let (code, reason) = match validation["reason"].as_str() {
        Some("Unauthorized") => (StatusCode::UNAUTHORIZED, "Unauthorized"),
        Some("Forbidden") => (StatusCode::FORBIDDEN, "Forbidden"),
        Some("RequestEntityTooLarge") => (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge"),
        _ => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
    };
    Denial { message, code, reason }
}
