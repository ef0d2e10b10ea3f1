//! A request after reading: who, what, how, with which body. Built from HTTP parts; knows no store.

use bytes::Bytes;
use http::request::Parts;
use http::{Method, header};
use serde_json::Value;

use super::format::Format;
use super::query::Query;
use super::route::{Route, Target};
use crate::server::faults::RequestInfo;
use crate::server::refusal::Refusal;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
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
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::json!({"username": self.name, "groups": self.groups})
    }
}

/// A request that has been read.
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) route: Route,
    pub(super) query: Query,
    pub(super) format: Format,
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
            format: Format::of_accept(&header_text(header::ACCEPT)),
            content_type: header_text(header::CONTENT_TYPE),
            user_agent: header_text(header::USER_AGENT),
            user,
            body,
        }
    }

    /// The verb in Kubernetes' words.
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

    /// The body as JSON. YAML is read too, whatever the content type says: it is a superset.
    pub(super) fn value(&self) -> Result<Value, Refusal> {
        if self.content_type.contains("protobuf") {
            return Err(Refusal::of_code(415, "this server reads JSON and YAML only"));
        }
        if let Ok(value) = serde_json::from_slice(&self.body) {
            return Ok(value);
        }
        let yaml = self.content_type.contains("yaml");
        let text = std::str::from_utf8(&self.body).map_err(|e| Refusal::bad_request(e.to_string()))?;
        if !yaml {
            let problem = serde_json::from_str::<Value>(text)
                .err()
                .map_or_else(String::new, |e| e.to_string());
            return Err(Refusal::bad_request(format!(
                "the object provided is unrecognized: {problem}"
            )));
        }
        serde_saphyr::from_str(text).map_err(|e| Refusal::bad_request(format!("error decoding YAML: {e}")))
    }

    /// The name under which a write is booked.
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

    pub(super) fn dry_run(&self) -> Result<bool, Refusal> {
        match self.query.text("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(Refusal::bad_request(format!(
                "dryRun: Unsupported value: {other:?}: supported values: \"All\""
            ))),
        }
    }
}
