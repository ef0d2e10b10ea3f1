//! Mutating and validating webhooks: who is asked, what the answers mean. Sending is in `call`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::time::Duration;

use super::matching::{Scope, any_rule, selected};
use super::{Attempt, Opinions, call};
use crate::server::Server;
use crate::server::object::Object;
use crate::server::refusal::{Refusal, reason_word};
use crate::server::rules;

/// Waited for a webhook that says nothing about it.
const TIMEOUT_SECONDS: u64 = 10;

/// Asks the mutating webhooks one after the other, each about what the one before made of the object.
pub(super) async fn mutate<'a>(
    server: &Server,
    opinions: &Opinions,
    mut attempt: Attempt<'a>,
    warnings: &mut Vec<String>,
) -> Result<Attempt<'a>, Refusal> {
    for webhook in webhooks(&opinions.mutating) {
        let Some(answer) = ask(server, webhook, opinions, &attempt).await? else {
            continue;
        };
        judge(webhook, &answer, warnings)?;
        let Some(new) = attempt.new.take() else { continue };
        let mut new = patched(webhook, &answer, new)?;
        if attempt.subresource.is_empty() {
            // A patch may leave nulls and fields that the kind does not have, or make something else of the object.
            let decoded = rules::decode(attempt.kind, new).map_err(|problem| bad_patch(webhook, &problem))?;
            new = decoded.value;
            rules::default_object(attempt.kind, &mut new);
        }
        attempt.new = Some(new);
    }
    Ok(attempt)
}

/// Asks the validating webhooks.
pub(super) async fn validate(
    server: &Server,
    opinions: &Opinions,
    attempt: &Attempt<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), Refusal> {
    for webhook in webhooks(&opinions.validating) {
        if let Some(answer) = ask(server, webhook, opinions, attempt).await? {
            judge(webhook, &answer, warnings)?;
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

/// The webhook's answer; `None` if it has no say, or failed and may.
async fn ask(
    server: &Server,
    webhook: &Value,
    opinions: &Opinions,
    attempt: &Attempt<'_>,
) -> Result<Option<Value>, Refusal> {
    if !any_rule(&webhook["rules"], attempt) || !selected(webhook, opinions, attempt) {
        return Ok(None);
    }
    let lenient = webhook["failurePolicy"] == "Ignore";
    match Scope::of(attempt, opinions).conditions_hold(&webhook["matchConditions"]) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(_) if lenient => return Ok(None),
        Err(error) => return Err(Refusal::forbidden(attempt.kind.about(attempt.name), error)),
    }
    let uid = server.lock().new_uid();
    let mut request = attempt.request(&uid);
    request["object"] = attempt.object().clone();
    request["oldObject"] = attempt.old_object().clone();
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let timeout = Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(TIMEOUT_SECONDS));
    let sent = tokio::time::timeout(timeout, call::send(server, &webhook["clientConfig"], &review)).await;
    let answer = match sent {
        Ok(Ok(answer)) if answer["response"]["uid"] == *uid => Ok(answer["response"].clone()),
        Ok(Ok(_)) => Err("the answer is not about this request: its response.uid differs".to_owned()),
        Ok(Err(problem)) => Err(problem),
        Err(_) => Err("context deadline exceeded".to_owned()),
    };
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(problem) if lenient => {
            tracing::debug!(webhook = name_of(webhook), problem, "a webhook failed and may");
            Ok(None)
        }
        Err(problem) => {
            let name = name_of(webhook);
            let message =
                format!("Internal error occurred: failed calling webhook {name:?}: failed to call webhook: {problem}");
            Err(Refusal::of_code(500, message))
        }
    }
}

fn judge(webhook: &Value, answer: &Value, warnings: &mut Vec<String>) -> Result<(), Refusal> {
    warnings.extend(
        answer["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|w| w.as_str().map(str::to_owned)),
    );
    if answer["allowed"] == true {
        return Ok(());
    }
    let status = &answer["status"];
    let given = status["message"].as_str().or_else(|| status["reason"].as_str());
    let name = name_of(webhook);
    let message = match given {
        Some(given) => format!("admission webhook {name:?} denied the request: {given}"),
        None => format!("admission webhook {name:?} denied the request without explanation"),
    };
    // The webhook's own status is what the client gets: what it leaves out is not made up.
    let code = status["code"]
        .as_u64()
        .and_then(|c| u16::try_from(c).ok())
        .filter(|c| *c >= 400)
        .unwrap_or(400);
    Err(Refusal {
        code,
        reason: status["reason"].as_str().map_or("", reason_word),
        message,
        details: Box::new(status["details"].clone()),
    })
}

fn patched(webhook: &Value, answer: &Value, mut object: Value) -> Result<Value, Refusal> {
    let Some(encoded) = answer["patch"].as_str().filter(|p| !p.is_empty()) else {
        return Ok(object);
    };
    let bytes = STANDARD
        .decode(encoded)
        .map_err(|e| bad_patch(webhook, &e.to_string()))?;
    let patch: json_patch::Patch = serde_json::from_slice(&bytes).map_err(|e| bad_patch(webhook, &e.to_string()))?;
    json_patch::patch(&mut object, &patch).map_err(|e| bad_patch(webhook, &e.to_string()))?;
    Ok(object)
}

fn bad_patch(webhook: &Value, why: &str) -> Refusal {
    let name = name_of(webhook);
    Refusal::of_code(
        500,
        format!("Internal error occurred: patch of webhook {name:?}: {why}"),
    )
}
