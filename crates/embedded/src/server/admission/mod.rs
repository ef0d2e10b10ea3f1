//! Admission of writes: mutating webhooks, then validating admission policies, then validating webhooks. Reads their configuration
//! from the store and never writes to it.

mod call;
mod match_rules;
mod policies;
mod webhooks;

pub use call::Backend;

use serde_json::{Value, json};

use super::Server;
use super::http::User;
use super::kinds::Kind;
use super::object::Object;
use super::selector::Selector;
use super::status_error::StatusError;
use super::store::Store;

const GROUP: &str = "admissionregistration.k8s.io";

/// The operation of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// The attributes of a write, as in Kubernetes' `admission.Attributes`.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a> {
    pub(crate) operation: Operation,
    pub(crate) kind: &'a Kind,
    /// Empty for the object itself.
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) user: &'a User,
    pub(crate) dry_run: bool,
    pub(crate) old: Option<&'a Value>,
    pub(crate) new: Option<Value>,
}

/// The registered webhooks, policies and bindings, read before the write.
struct AdmissionConfig {
    mutating: Vec<Object>,
    validating: Vec<Object>,
    policies: Vec<Object>,
    bindings: Vec<Object>,
    /// The Namespace of the object, or the object itself if it is a Namespace.
    namespace: Value,
}

/// Runs admission and returns the mutated object. Adds warnings for the client to `warnings`.
pub(crate) async fn admit(
    server: &Server,
    attributes: Attributes<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Value>, StatusError> {
    // As in Kubernetes, webhooks and policies never see writes of their own configuration.
    if attributes.kind.group == GROUP {
        return Ok(attributes.new);
    }
    let Some(config) = AdmissionConfig::of(&server.lock(), &attributes) else {
        return Ok(attributes.new);
    };
    let attributes = webhooks::mutate(server, &config, attributes, warnings).await?;
    policies::validate(&config, &attributes, warnings)?;
    webhooks::validate(server, &config, &attributes, warnings).await?;
    Ok(attributes.new)
}

impl AdmissionConfig {
    /// `None` if nothing is registered.
    fn of(store: &Store, attributes: &Attributes<'_>) -> Option<Self> {
        let all = |plural: &str| {
            let kind = store.kinds.get(GROUP, "v1", plural).expect("a built-in kind");
            store.list(&kind, "", &Selector::everything()).objects
        };
        let config = Self {
            mutating: all("mutatingwebhookconfigurations"),
            validating: all("validatingwebhookconfigurations"),
            policies: all("validatingadmissionpolicies"),
            bindings: all("validatingadmissionpolicybindings"),
            namespace: namespace_of(store, attributes),
        };
        let is_empty = config.mutating.is_empty() && config.validating.is_empty() && config.bindings.is_empty();
        (!is_empty).then_some(config)
    }
}

fn namespace_of(store: &Store, attributes: &Attributes<'_>) -> Value {
    if attributes.kind.is("", "namespaces") {
        return attributes
            .new
            .clone()
            .or_else(|| attributes.old.cloned())
            .unwrap_or_default();
    }
    let kind = store.kinds.get("", "v1", "namespaces").expect("a built-in kind");
    let found = store.get(&kind, &super::object::Key::new("", attributes.namespace));
    found.map(|o| o.to_value()).unwrap_or_default()
}

impl Attributes<'_> {
    /// The `request` of an AdmissionReview, without the objects.
    fn request(&self, uid: &str) -> Value {
        let kind = json!({"group": self.kind.group, "version": self.kind.version, "kind": self.kind.kind});
        let kind = match self.subresource {
            "binding" => json!({"group": "", "version": "v1", "kind": "Binding"}),
            "eviction" => json!({"group": "policy", "version": "v1", "kind": "Eviction"}),
            _ => kind,
        };
        let resource = json!({"group": self.kind.group, "version": self.kind.version, "resource": self.kind.plural});
        let mut request = json!({
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": self.name,
            "operation": self.operation.as_str(),
            "userInfo": self.user.json(),
            "dryRun": self.dry_run,
            "options": {},
        });
        if !self.namespace.is_empty() {
            request["namespace"] = json!(self.namespace);
        } else if self.kind.is("", "namespaces") {
            request["namespace"] = json!(self.name);
        }
        if !self.subresource.is_empty() {
            request["subResource"] = json!(self.subresource);
            request["requestSubResource"] = json!(self.subresource);
        }
        request
    }

    fn object(&self) -> &Value {
        self.new.as_ref().unwrap_or(&Value::Null)
    }

    fn old_object(&self) -> &Value {
        self.old.unwrap_or(&Value::Null)
    }
}
