//! Mutating and validating webhooks: which ones are called and what their responses mean. `call` sends the reviews.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::time::Duration;

use super::match_rules::{CelVariables, any_rule, selected};
use super::{AdmissionConfig, Attributes, call};
use crate::server::Server;
use crate::server::object::Object;
use crate::server::rules;
use crate::server::status_error::{StatusError, reason_word};

/// The timeout of webhooks without `timeoutSeconds`.
const TIMEOUT_SECONDS: u64 = 10;

/// Calls the mutating webhooks in turn. Each gets the object as the previous one left it.
pub(super) async fn mutate<'a>(
    server: &Server,
    config: &AdmissionConfig,
    mut attributes: Attributes<'a>,
    warnings: &mut Vec<String>,
) -> Result<Attributes<'a>, StatusError> {
    for webhook in webhooks(&config.mutating) {
        let Some(response) = call_webhook(server, webhook, config, &attributes).await? else {
            continue;
        };
        check_verdict(webhook, &response, warnings)?;
        let Some(new) = attributes.new.take() else { continue };
        let mut new = patched(webhook, &response, new)?;
        if attributes.subresource.is_empty() {
            // The patched object may have nulls, unknown fields or a wrong type.
            let decoded = rules::decode(attributes.kind, new).map_err(|problem| bad_patch(webhook, &problem))?;
            new = decoded.value;
            rules::default_object(attributes.kind, &mut new);
        }
        attributes.new = Some(new);
    }
    Ok(attributes)
}

/// Calls the validating webhooks.
pub(super) async fn validate(
    server: &Server,
    config: &AdmissionConfig,
    attributes: &Attributes<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), StatusError> {
    for webhook in webhooks(&config.validating) {
        if let Some(response) = call_webhook(server, webhook, config, attributes).await? {
            check_verdict(webhook, &response, warnings)?;
        }
    }
    Ok(())
}

fn webhooks(configurations: &[Object]) -> impl Iterator<Item = &Value> {
    configurations
        .iter()
        .flat_map(|c| c["webhooks"].as_array().into_iter().flatten())
}

fn name_of(webhook: &Value) -> &str {
    webhook["name"].as_str().unwrap_or("")
}

/// The response of the webhook; `None` if the webhook does not match, or failed and its failurePolicy is `Ignore`.
async fn call_webhook(
    server: &Server,
    webhook: &Value,
    config: &AdmissionConfig,
    attributes: &Attributes<'_>,
) -> Result<Option<Value>, StatusError> {
    if !any_rule(&webhook["rules"], attributes) || !selected(webhook, config, attributes) {
        return Ok(None);
    }
    let lenient = webhook["failurePolicy"] == "Ignore";
    match CelVariables::of(attributes, config).conditions_hold(&webhook["matchConditions"]) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(_) if lenient => return Ok(None),
        Err(error) => {
            return Err(StatusError::forbidden(
                attributes.kind.object_ref(attributes.name),
                error,
            ));
        }
    }
    let uid = server.lock().new_uid();
    let mut request = attributes.request(&uid);
    request["object"] = attributes.object().clone();
    request["oldObject"] = attributes.old_object().clone();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let timeout = Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(TIMEOUT_SECONDS));
    let sent = tokio::time::timeout(timeout, call::send(server, &webhook["clientConfig"], &review)).await;
    let response = match sent {
        Ok(Ok(answer)) if answer["response"]["uid"] == *uid => Ok(answer["response"].clone()),
        Ok(Ok(_)) => Err("the answer is not about this request: its response.uid differs".to_owned()),
        Ok(Err(problem)) => Err(problem),
        Err(_) => Err("context deadline exceeded".to_owned()),
    };
    match response {
        Ok(response) => Ok(Some(response)),
        Err(problem) if lenient => {
            tracing::debug!(
                webhook = name_of(webhook),
                problem,
                "a webhook with failurePolicy Ignore failed"
            );
            Ok(None)
        }
        Err(problem) => {
            let name = name_of(webhook);
            let message =
                format!("Internal error occurred: failed calling webhook {name:?}: failed to call webhook: {problem}");
            Err(StatusError::of_code(500, message))
        }
    }
}

fn check_verdict(webhook: &Value, response: &Value, warnings: &mut Vec<String>) -> Result<(), StatusError> {
    warnings.extend(
        response["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|w| w.as_str().map(str::to_owned)),
    );
    if response["allowed"] == true {
        return Ok(());
    }
    let status = &response["status"];
    let given = status["message"].as_str().or_else(|| status["reason"].as_str());
    let name = name_of(webhook);
    let message = match given {
        Some(given) => format!("admission webhook {name:?} denied the request: {given}"),
        None => format!("admission webhook {name:?} denied the request without explanation"),
    };
    // The client gets the status of the webhook, without additions.
    let code = status["code"]
        .as_u64()
        .and_then(|c| u16::try_from(c).ok())
        .filter(|c| *c >= 400)
        .unwrap_or(400);
    Err(StatusError {
        code,
        reason: status["reason"].as_str().map_or("", reason_word),
        message,
        details: Box::new(status["details"].clone()),
    })
}

fn patched(webhook: &Value, response: &Value, mut object: Value) -> Result<Value, StatusError> {
    let Some(encoded) = response["patch"].as_str().filter(|p| !p.is_empty()) else {
        return Ok(object);
    };
    let bytes = STANDARD
        .decode(encoded)
        .map_err(|e| bad_patch(webhook, &e.to_string()))?;
    let patch: json_patch::Patch = serde_json::from_slice(&bytes).map_err(|e| bad_patch(webhook, &e.to_string()))?;
    json_patch::patch(&mut object, &patch).map_err(|e| bad_patch(webhook, &e.to_string()))?;
    Ok(object)
}

fn bad_patch(webhook: &Value, why: &str) -> StatusError {
    let name = name_of(webhook);
    StatusError::of_code(
        500,
        format!("Internal error occurred: patch of webhook {name:?}: {why}"),
    )
}
