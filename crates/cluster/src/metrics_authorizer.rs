//! Authorization of metrics requests, as in Kubernetes' own components: a TokenReview authenticates the bearer token, and a
//! SubjectAccessReview checks that its user may `get` the path. Requests over loopback, which includes port-forwards, need no token:
//! both take rights that tenants lack.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::reviews::{Operation, bearer};
use crate::{Client, Error};

/// How long a decision is cached, as in Kubernetes' own components.
const DECISION_AGE_MAX: Duration = Duration::from_secs(10);
/// Cached decisions. A cluster has a few readers of metrics; a client that tries many tokens only evicts the cache.
const DECISIONS_MAX: usize = 64;

/// Whether a request may read the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The request may read the path.
    Allowed,
    /// The request has no token, or the API server does not accept it.
    Unauthenticated,
    /// The user may not read the path.
    Forbidden,
    /// The API server did not answer.
    Unavailable,
}

impl Access {
    /// HTTP status and body of the refusal; `None` if access is allowed.
    pub fn refusal(self) -> Option<(u16, &'static str)> {
        match self {
            Access::Allowed => None,
            Access::Unauthenticated => Some((401, "send the token of an account that may read this\n")),
            Access::Forbidden => Some((403, "bind the account to the ClusterRole kai-metrics-reader\n")),
            Access::Unavailable => Some((503, "the API server does not say whether you may read this\n")),
        }
    }
}

/// Decides which requests may read the metrics of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MetricsAuthorizer {
    client: Option<Client>,
    /// Cached decisions. The lock is held during a review, so that many requests at once cause one review at a time.
    decisions: Arc<Mutex<Decisions>>,
}

type Decisions = BTreeMap<(String, String), (Access, Instant)>;

impl MetricsAuthorizer {
    /// Reviews tokens with this client; without a client only loopback requests are allowed.
    pub fn new(client: Option<Client>) -> MetricsAuthorizer {
        MetricsAuthorizer {
            client,
            decisions: Arc::default(),
        }
    }

    /// Whether a request from `peer` with this Authorization header may read this path.
    pub async fn authorize(&self, peer: IpAddr, authorization: Option<&str>, path: &str) -> Access {
        if peer.to_canonical().is_loopback() {
            return Access::Allowed;
        }
        let (Some(client), Some(token)) = (&self.client, bearer(authorization)) else {
            return Access::Unauthenticated;
        };
        let key = (token.to_owned(), path.to_owned());
        let mut decisions = self.decisions.lock().await;
        decisions.retain(|_, (_, since)| since.elapsed() < DECISION_AGE_MAX);
        if let Some((known, _)) = decisions.get(&key) {
            return *known;
        }
        let access = review(client, token, path).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "a request for metrics can't be authorized");
            Access::Unavailable
        });
        if access != Access::Unavailable {
            if decisions.len() >= DECISIONS_MAX {
                decisions.clear();
            }
            decisions.insert(key, (access, Instant::now()));
        }
        access
    }
}

/// Asks the API server whether the token's user may read the path.
async fn review(client: &Client, token: &str, path: &str) -> Result<Access, Error> {
    let Some(user) = client.authenticate(token).await? else {
        return Ok(Access::Unauthenticated);
    };
    Ok(match client.is_allowed(&user, Operation::GetPath(path)).await? {
        true => Access::Allowed,
        false => Access::Forbidden,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::Json;
    use axum::routing::post;
    use serde_json::{Value, json};

    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    /// An API server that knows two tokens, and the number of its TokenReviews.
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
        assert_eq!(asked.load(Ordering::Relaxed), 0, "no token, no review");
        assert_eq!(authorize(Some("Bearer nobody")).await, Access::Unauthenticated);
        assert_eq!(authorize(Some("Bearer tenant")).await, Access::Forbidden);
        assert_eq!(authorize(Some("Bearer reader")).await, Access::Allowed);
        assert_eq!(authorize(Some("bearer reader")).await, Access::Allowed);
        assert_eq!(asked.load(Ordering::Relaxed), 3, "a decision is cached");
        assert_eq!(
            authorizer.authorize(REMOTE, Some("Bearer reader"), "/debug").await,
            Access::Forbidden
        );
        tokio::time::sleep(DECISION_AGE_MAX).await;
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
