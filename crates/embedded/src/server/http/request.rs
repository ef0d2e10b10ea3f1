//! A parsed request: user, route, query, headers and body.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, header};
use serde_json::{Value, json};

use super::format::Format;
use super::json::{self, Parsed};
use super::protobuf;
use super::query::Query;
use super::route::{Route, Target};
use crate::server::faults::RequestInfo;
use crate::server::patch::apply::MANAGER_LEN_MAX;
use crate::server::status_error::{Cause, StatusError};

/// The user of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    /// `userInfo.extra`, e.g. the claims of a token.
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub(crate) fn named(name: &str) -> Self {
        let mut groups = vec!["system:authenticated".to_owned()];
        if let Some(account) = name.strip_prefix("system:serviceaccount:") {
            groups.push("system:serviceaccounts".to_owned());
            let namespace = account.split(':').next().unwrap_or("");
            groups.push(format!("system:serviceaccounts:{namespace}"));
        } else if name == "system:admin" {
            groups.push("system:masters".to_owned());
        }
        if let Some(_node) = name.strip_prefix("system:node:") {
            groups.push("system:nodes".to_owned());
        }
        Self {
            name: name.to_owned(),
            groups,
            extra: BTreeMap::new(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        let mut user = serde_json::json!({"username": self.name, "groups": self.groups});
        if !self.extra.is_empty() {
            user["extra"] = serde_json::json!(self.extra);
        }
        user
    }
}

/// The length of the body's excerpt in error messages.
const EXCERPT_BYTES: usize = 30;

/// The error of a body that is no JSON.
fn unrecognized(kind: &str, body: &[u8], problem: &serde_json::Error) -> StatusError {
    let problem = if problem.is_eof() {
        "unexpected end of JSON input".to_owned()
    } else {
        problem.to_string()
    };
    let shown = shown(body);
    StatusError::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: \
         {problem} ({shown})"
    ))
}

/// The beginning of a body, for error messages.
pub(super) fn shown(body: &[u8]) -> String {
    match std::str::from_utf8(body) {
        Ok("") => "<empty>".to_owned(),
        Ok(text) if text.chars().count() > EXCERPT_BYTES => {
            format!("{} ...", text.chars().take(EXCERPT_BYTES).collect::<String>())
        }
        Ok(text) => text.to_owned(),
        Err(_) => "binary".to_owned(),
    }
}

/// A parsed request.
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) route: Route,
    pub(super) query: Query,
    pub(super) accept: String,
    pub(super) content_type: String,
    pub(super) user_agent: String,
    pub(super) user: User,
    pub(super) body: Bytes,
}

impl ApiRequest {
    pub(super) fn new(parts: &Parts, user: User, body: Bytes) -> Self {
        let header_text = |name| {
            parts
                .headers
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or("")
                .to_owned()
        };
        Self {
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            route: Route::of(parts.uri.path()),
            query: Query::parse(parts.uri.query().unwrap_or("")),
            accept: header_text(header::ACCEPT),
            content_type: header_text(header::CONTENT_TYPE),
            user_agent: header_text(header::USER_AGENT),
            user,
            body,
        }
    }

    /// The requested form of objects in the response.
    pub(super) fn format(&self) -> Result<Format, StatusError> {
        Format::of_request(&self.accept, self.query.text("includeObject"))
    }

    /// The Kubernetes verb.
    pub(super) fn verb(&self) -> String {
        let Route::Resource(target) = &self.route else {
            return self.method.as_str().to_lowercase();
        };
        let one = !target.name.is_empty();
        let verb = match self.method {
            Method::GET | Method::HEAD if self.query.flag("watch") => "watch",
            Method::GET | Method::HEAD if one => "get",
            Method::GET | Method::HEAD => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if one => "delete",
            Method::DELETE => "deletecollection",
            _ => "",
        };
        verb.to_owned()
    }

    pub(super) fn info(&self) -> RequestInfo {
        let target = match &self.route {
            Route::Resource(target) => target.clone(),
            _ => Target::default(),
        };
        RequestInfo {
            verb: self.verb(),
            path: self.path.clone(),
            group: target.group,
            version: target.version,
            resource: target.plural,
            namespace: target.namespace,
            name: target.name,
            subresource: target.subresource,
            user: self.user.name.clone(),
        }
    }

    /// The body as JSON.
    pub(super) fn value(&self) -> Result<Value, StatusError> {
        self.parsed().map(|parsed| parsed.value)
    }

    /// The body as JSON, with its duplicate fields. The content type may be YAML.
    pub(super) fn parsed(&self) -> Result<Parsed, StatusError> {
        self.parsed_as("Status")
    }

    /// The same, for a body of this kind.
    pub(super) fn parsed_as(&self, kind: &str) -> Result<Parsed, StatusError> {
        let once = |value| Parsed {
            value,
            duplicates: Vec::new(),
        };
        if self.content_type.contains("protobuf") {
            return protobuf::decode(&self.body).map(once);
        }
        let problem = match json::parse(&self.body) {
            Ok(parsed) => return Ok(parsed),
            Err(problem) => problem,
        };
        if !self.content_type.contains("yaml") {
            return Err(unrecognized(kind, &self.body, &problem));
        }
        let text = std::str::from_utf8(&self.body).map_err(|e| StatusError::bad_request(e.to_string()))?;
        // The first line has the problem, the others have an excerpt of the source.
        let first_line = |e: serde_saphyr::Error| {
            let message = e.to_string();
            let line = message.lines().next().unwrap_or("");
            line.split(", set ")
                .next()
                .unwrap_or("")
                .trim_start_matches("error: ")
                .to_owned()
        };
        serde_saphyr::from_str(text)
            .map(once)
            .map_err(|e| StatusError::bad_request(format!("error decoding YAML: {}", first_line(e))))
    }

    /// The field manager of a write.
    pub(super) fn manager(&self) -> String {
        let named = self.query.text("fieldManager");
        if !named.is_empty() {
            return named.to_owned();
        }
        let agent = self.user_agent.split('/').next().unwrap_or("");
        if agent.is_empty() {
            "unknown".to_owned()
        } else {
            agent.to_owned()
        }
    }

    pub(super) fn dry_run(&self) -> Result<bool, StatusError> {
        match self.query.text("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(self.bad_option(Cause::unsupported("dryRun", &json!([other]), &["All"]))),
        }
    }

    /// The error of an invalid option of this request.
    pub(super) fn bad_option(&self, cause: Cause) -> StatusError {
        let options = match self.method {
            Method::POST => "CreateOptions",
            Method::PUT => "UpdateOptions",
            Method::PATCH => "PatchOptions",
            Method::DELETE => "DeleteOptions",
            _ => "ListOptions",
        };
        StatusError::invalid_options(options, cause)
    }

    /// Rejects invalid options of a write.
    pub(super) fn check_write_options(&self) -> Result<(), StatusError> {
        let applies = self.content_type.starts_with("application/apply-patch");
        let manager = self.query.text("fieldManager");
        let cause = if manager.len() > MANAGER_LEN_MAX {
            Cause::too_long("fieldManager", MANAGER_LEN_MAX)
        } else if !applies && self.query.flag("force") {
            Cause::forbidden("force", "may not be specified for non-apply patch")
        } else {
            return self.dry_run().map(|_| ());
        };
        Err(self.bad_option(cause))
    }
}
