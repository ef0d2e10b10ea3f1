//! Reviews by the API server: who sent a token (TokenReview), and what that user may do (SubjectAccessReview). The API server stores no
//! review, so replicas that do not lead create them, too.

use kai_api::{Resource, Scope};
use serde_json::{Value, json};

use crate::path::requests;
use crate::{Client, Error};

const TOKEN_REVIEW: Resource = Resource::new(
    "authentication.k8s.io",
    "v1",
    "TokenReview",
    "tokenreviews",
    Scope::Cluster,
);
const ACCESS_REVIEW: Resource = Resource::new(
    "authorization.k8s.io",
    "v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
    Scope::Cluster,
);
/// Tokens have a kilobyte or two; a longer one is not sent to the API server.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// A user whom the API server has authenticated: the fields of a SubjectAccessReview that name the user.
#[derive(Clone, Debug)]
pub(crate) struct User(Value);

impl User {
    /// The namespace of a service account.
    pub(crate) fn namespace(&self) -> Option<&str> {
        let account = self.0["user"].as_str()?.strip_prefix("system:serviceaccount:")?;
        account.split_once(':').map(|(namespace, _)| namespace)
    }
}

/// What a user wants to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation<'a> {
    /// `get` this non-resource path.
    GetPath(&'a str),
    /// List the pods of all namespaces.
    ListAllPods,
    /// List the pods of this namespace.
    ListPodsIn(&'a str),
}

impl Client {
    /// The user of the token; `None` if the API server does not accept it.
    pub(crate) async fn authenticate(&self, token: &str) -> Result<Option<User>, Error> {
        let review = self.review(&TOKEN_REVIEW, json!({ "token": token })).await?;
        if review["authenticated"] != true {
            return Ok(None);
        }
        let mut user = json!({});
        for (ours, theirs) in [
            ("user", "username"),
            ("uid", "uid"),
            ("groups", "groups"),
            ("extra", "extra"),
        ] {
            if let Some(value) = review["user"].get(theirs) {
                user[ours] = value.clone();
            }
        }
        Ok(Some(User(user)))
    }

    /// Whether the user may do this.
    pub(crate) async fn is_allowed(&self, user: &User, operation: Operation<'_>) -> Result<bool, Error> {
        let User(mut spec) = user.clone();
        let pods =
            |namespace: &str| json!({ "verb": "list", "version": "v1", "resource": "pods", "namespace": namespace });
        match operation {
            Operation::GetPath(path) => spec["nonResourceAttributes"] = json!({ "path": path, "verb": "get" }),
            // No namespace means all.
            Operation::ListAllPods => spec["resourceAttributes"] = pods(""),
            Operation::ListPodsIn(namespace) => spec["resourceAttributes"] = pods(namespace),
        }
        let review = self.review(&ACCESS_REVIEW, spec).await?;
        Ok(review["allowed"] == true)
    }

    /// Creates a review and returns its status.
    async fn review(&self, resource: &Resource, spec: Value) -> Result<Value, Error> {
        let body = json!({ "apiVersion": resource.api_version(), "kind": &*resource.kind, "spec": spec });
        let request =
            requests(resource, "").and_then(|requests| requests.create(&Default::default(), body.to_string().into()));
        let answer: Value = self.call(&format!("asking for a {}", resource.kind), request).await?;
        Ok(answer["status"].clone())
    }
}

/// The token of an Authorization header.
pub(crate) fn bearer(authorization: Option<&str>) -> Option<&str> {
    let (scheme, token) = authorization?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && is_plausible(token)).then_some(token)
}

/// Whether the token is worth a review.
pub(crate) fn is_plausible(token: &str) -> bool {
    !token.is_empty() && token.len() <= TOKEN_BYTES_MAX
}
