//! Access and token reviews. All users may do everything, because the server has no RBAC. Reviews are not stored.

use http::{Method, Response, StatusCode};
use serde_json::json;

use super::request::ApiRequest;
use super::route::Target;
use super::{Body, json_response};
use crate::server::object::metadata_mut;
use crate::server::status_error::StatusError;

/// The review resources, for discovery: group, plural, kind, namespaced.
pub(super) const REVIEWS: [(&str, &str, &str, bool); 6] = [
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        false,
    ),
    (
        "authorization.k8s.io",
        "subjectaccessreviews",
        "SubjectAccessReview",
        false,
    ),
    (
        "authorization.k8s.io",
        "localsubjectaccessreviews",
        "LocalSubjectAccessReview",
        true,
    ),
    (
        "authorization.k8s.io",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        false,
    ),
    ("authentication.k8s.io", "tokenreviews", "TokenReview", false),
    (
        "authentication.k8s.io",
        "selfsubjectreviews",
        "SelfSubjectReview",
        false,
    ),
];

/// The response, if the request is a review.
pub(super) fn respond(request: &ApiRequest, target: &Target) -> Result<Option<Response<Body>>, StatusError> {
    let known = REVIEWS
        .iter()
        .any(|(group, plural, ..)| *group == target.group && *plural == target.plural);
    if !known || target.version != "v1" {
        return Ok(None);
    }
    if request.method != Method::POST {
        return Err(StatusError::no_such_method());
    }
    let mut review = request.value()?;
    metadata_mut(&mut review);
    review["status"] = match target.plural.as_str() {
        "selfsubjectrulesreviews" => json!({
            "incomplete": false,
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        }),
        "selfsubjectreviews" => json!({"userInfo": request.user.json()}),
        "tokenreviews" => {
            let token = review["spec"]["token"].as_str().unwrap_or("");
            let known = token.starts_with("system:");
            let user = super::request::User::named(if known { token } else { "system:admin" });
            json!({"authenticated": true, "user": user.json()})
        }
        _ => json!({"allowed": true}),
    };
    Ok(Some(json_response(StatusCode::CREATED, review.to_string())))
}
