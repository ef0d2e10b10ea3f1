//! ValidatingAdmissionPolicies and their bindings, without parameters.

use http::StatusCode;
use serde_json::Value;

use super::matching::{Scope, any_rule, selected};
use super::{Attempt, Opinions};
use crate::server::expressions;
use crate::server::object::Object;
use crate::server::refusal::Refusal;

/// Refuses what a bound policy denies.
pub(super) fn validate(opinions: &Opinions, attempt: &Attempt<'_>, warnings: &mut Vec<String>) -> Result<(), Refusal> {
    for binding in &opinions.bindings {
        let name = binding["spec"]["policyName"].as_str().unwrap_or("");
        let Some(policy) = opinions.policies.iter().find(|p| p.name() == name) else {
            continue;
        };
        if !applies(policy, binding, opinions, attempt) {
            continue;
        }
        let Err(denial) = judge(policy, opinions, attempt) else {
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
            let mut refusal = Refusal::forbidden(attempt.kind.about(attempt.name), message);
            (refusal.code, refusal.reason) = (denial.code.as_u16(), denial.reason);
            return Err(refusal);
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

fn applies(policy: &Object, binding: &Object, opinions: &Opinions, attempt: &Attempt<'_>) -> bool {
    let constraints = &policy["spec"]["matchConstraints"];
    let narrowed = &binding["spec"]["matchResources"];
    let narrowed_rules = narrowed["resourceRules"]
        .as_array()
        .is_some_and(|rules| !rules.is_empty());
    any_rule(&constraints["resourceRules"], attempt)
        && !any_rule(&constraints["excludeResourceRules"], attempt)
        && selected(constraints, opinions, attempt)
        && (!narrowed_rules || any_rule(&narrowed["resourceRules"], attempt))
        && !any_rule(&narrowed["excludeResourceRules"], attempt)
        && selected(narrowed, opinions, attempt)
}

fn judge(policy: &Object, opinions: &Opinions, attempt: &Attempt<'_>) -> Result<(), Denial> {
    let spec = &policy["spec"];
    let lenient = spec["failurePolicy"] == "Ignore";
    let invalid = |message: String| Denial {
        message,
        code: StatusCode::UNPROCESSABLE_ENTITY,
        reason: "Invalid",
    };
    let mut scope = Scope::of(attempt, opinions);
    match scope.conditions_hold(&spec["matchConditions"]) {
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
        // One that fails is an error only where it is used: there it is missing.
        if let Ok(value) = expressions::value(expression, &scope.names()) {
            scope.variables[name] = value;
        }
    }
    for validation in spec["validations"].as_array().into_iter().flatten() {
        let expression = validation["expression"].as_str().unwrap_or("");
        match expressions::truth(expression, &scope.names()) {
            Ok(true) => {}
            Ok(false) => return Err(denial(validation, expression, &scope)),
            Err(_) if lenient => {}
            Err(error) => return Err(invalid(format!("expression '{expression}' resulted in error: {error}"))),
        }
    }
    Ok(())
}

fn denial(validation: &Value, expression: &str, scope: &Scope) -> Denial {
    let computed = validation["messageExpression"]
        .as_str()
        .and_then(|e| expressions::text(e, &scope.names()).ok());
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
