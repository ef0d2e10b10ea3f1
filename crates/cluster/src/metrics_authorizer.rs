//! Who may read what a process tells about a cluster: as with Kubernetes' own components, whoever the API server knows by a token and
//! lets `get` that path. Somebody on the same machine, or behind a port-forward, needs no token: both take rights that tenants lack.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::path::requests;
use crate::{Client, Error};
use kai_api::{Resource, Scope};

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
/// How long an answer is good. Kubernetes' own components use the same.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(10);
/// Answers kept. A cluster has a few readers; whoever tries many tokens only makes others be asked about anew.
const ANSWERS_MAX: usize = 64;
/// Tokens are a kilobyte or two; what is longer is none.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// What a reader is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Come in.
    Allowed,
    /// There is no token, or nobody knows it.
    Unauthenticated,
    /// The user may not read this.
    Forbidden,
    /// The API server did not say.
    Unavailable,
}

impl Access {
    /// The HTTP status and a sentence for whoever is kept out.
    pub fn refusal(self) -> Option<(u16, &'static str)> {
        match self {
            Access::Allowed => None,
            Access::Unauthenticated => Some((401, "send the token of an account that may read this\n")),
            Access::Forbidden => Some((403, "bind the account to the ClusterRole kai-metrics-reader\n")),
            Access::Unavailable => Some((503, "the API server does not say whether you may read this\n")),
        }
    }
}

/// Keeps strangers out. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MetricsAuthorizer {
    client: Option<Client>,
    /// Held while the API server is asked, so that it is asked one thing at a time, however many knock.
    answers: Arc<Mutex<Answers>>,
}

type Answers = BTreeMap<(String, String), (Access, Instant)>;

impl MetricsAuthorizer {
    /// Asks with this client; without one only neighbours get in.
    pub fn new(client: Option<Client>) -> MetricsAuthorizer {
        MetricsAuthorizer {
            client,
            answers: Arc::default(),
        }
    }

    /// Whether somebody at `peer` who sent this Authorization header may read this path.
    pub async fn authorize(&self, peer: IpAddr, authorization: Option<&str>, path: &str) -> Access {
        if peer.to_canonical().is_loopback() {
            return Access::Allowed;
        }
        let (Some(client), Some(token)) = (&self.client, bearer(authorization)) else {
            return Access::Unauthenticated;
        };
        let key = (token.to_owned(), path.to_owned());
        let mut answers = self.answers.lock().await;
        answers.retain(|_, (_, since)| since.elapsed() < ANSWER_AGE_MAX);
        if let Some((known, _)) = answers.get(&key) {
            return *known;
        }
        let access = client.review(token, path).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "nobody can be let in to read metrics");
            Access::Unavailable
        });
        if access != Access::Unavailable {
            if answers.len() >= ANSWERS_MAX {
                answers.clear();
            }
            answers.insert(key, (access, Instant::now()));
        }
        access
    }
}

impl Client {
    async fn review(&self, token: &str, path: &str) -> Result<Access, Error> {
        let review = self.ask(&TOKEN_REVIEW, json!({ "token": token })).await?;
        if review["authenticated"] != true {
            return Ok(Access::Unauthenticated);
        }
        let mut spec = json!({ "nonResourceAttributes": { "path": path, "verb": "get" } });
        for (ours, theirs) in [
            ("user", "username"),
            ("uid", "uid"),
            ("groups", "groups"),
            ("extra", "extra"),
        ] {
            if let Some(value) = review["user"].get(theirs) {
                spec[ours] = value.clone();
            }
        }
        let review = self.ask(&ACCESS_REVIEW, spec).await?;
        Ok(match review["allowed"] == true {
            true => Access::Allowed,
            false => Access::Forbidden,
        })
    }

    /// A review is created to be answered and never kept, so a replica that does not lead asks, too.
    async fn ask(&self, resource: &Resource, spec: Value) -> Result<Value, Error> {
        let body = json!({ "apiVersion": resource.api_version(), "kind": &*resource.kind, "spec": spec });
        let request =
            requests(resource, "").and_then(|requests| requests.create(&Default::default(), body.to_string().into()));
        let answer: Value = self.call(&format!("asking for a {}", resource.kind), request).await?;
        Ok(answer["status"].clone())
    }
}

fn bearer(authorization: Option<&str>) -> Option<&str> {
    let (scheme, token) = authorization?.split_once(' ')?;
    let token = token.trim();
    let plausible = !token.is_empty() && token.len() <= TOKEN_BYTES_MAX;
    (scheme.eq_ignore_ascii_case("bearer") && plausible).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::Json;
    use axum::routing::post;

    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    /// An API server that knows two tokens, and how often it was asked.
    fn authorizer() -> (MetricsAuthorizer, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let token_review = move |Json(review): Json<Value>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let known = ["reader", "tenant"]
                .iter()
                .find(|name| review["spec"]["token"] == **name);
            let status = known.map_or(
                json!({}),
                |name| json!({ "authenticated": true, "user": { "username": name, "groups": ["g"] } }),
            );
            async move { Json(json!({ "status": status })) }
        };
        let access_review = |Json(review): Json<Value>| async move {
            let spec = &review["spec"];
            assert_eq!(spec["groups"], json!(["g"]));
            let allowed = spec["user"] == "reader" && spec["nonResourceAttributes"]["path"] == "/metrics";
            Json(json!({ "status": { "allowed": allowed } }))
        };
        let router = axum::Router::new()
            .route("/apis/authentication.k8s.io/v1/tokenreviews", post(token_review))
            .route(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                post(access_review),
            );
        (MetricsAuthorizer::new(Some(Client::in_process(router))), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_need_a_token_that_may() {
        let (authorizer, asked) = authorizer();
        let authorize = async |header: Option<&str>| authorizer.authorize(REMOTE, header, "/metrics").await;
        assert_eq!(authorize(None).await, Access::Unauthenticated);
        assert_eq!(authorize(Some("Basic reader")).await, Access::Unauthenticated);
        assert_eq!(authorize(Some("Bearer ")).await, Access::Unauthenticated);
        assert_eq!(asked.load(Ordering::Relaxed), 0, "nobody is asked about nothing");
        assert_eq!(authorize(Some("Bearer nobody")).await, Access::Unauthenticated);
        assert_eq!(authorize(Some("Bearer tenant")).await, Access::Forbidden);
        assert_eq!(authorize(Some("Bearer reader")).await, Access::Allowed);
        assert_eq!(authorize(Some("bearer reader")).await, Access::Allowed);
        assert_eq!(asked.load(Ordering::Relaxed), 3, "an answer is good for a while");
        assert_eq!(
            authorizer.authorize(REMOTE, Some("Bearer reader"), "/debug").await,
            Access::Forbidden
        );
        tokio::time::sleep(ANSWER_AGE_MAX).await;
        assert_eq!(authorize(Some("Bearer reader")).await, Access::Allowed);
        assert_eq!(asked.load(Ordering::Relaxed), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn neighbours_come_in_and_without_a_cluster_nobody_else() {
        let authorizer = MetricsAuthorizer::new(None);
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let access = authorizer.authorize(local.parse().unwrap(), None, "/metrics").await;
            assert_eq!(access, Access::Allowed, "{local}");
        }
        let access = authorizer.authorize(REMOTE, Some("Bearer reader"), "/metrics").await;
        assert_eq!(access, Access::Unauthenticated);
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_nobody_comes_in_and_the_next_asks_again() {
        let authorizer = MetricsAuthorizer::new(Some(Client::in_process(axum::Router::new())));
        for _ in 0..2 {
            let access = authorizer.authorize(REMOTE, Some("Bearer reader"), "/metrics").await;
            assert_eq!(access, Access::Unavailable);
        }
    }
}
