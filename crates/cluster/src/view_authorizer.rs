//! Decides what a request for the page may see: the names of pods in the namespaces whose pods its user may list. As for metrics, a
//! TokenReview authenticates the token; SubjectAccessReviews find the namespaces. Requests over loopback see everything.
//!
//! The right to list pods is the only one that counts: whoever has it can see the same names by `kubectl`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::reviews::{Operation, User, is_plausible};
use crate::{Client, Error};

/// How long rights are cached.
const RIGHTS_AGE_MAX: Duration = Duration::from_secs(60);
/// Cached users. The page has a few readers; a client that tries many tokens only empties the cache.
const USERS_MAX: usize = 64;
/// Namespaces that are reviewed for one user. The pods of further ones are shown without names.
const NAMESPACES_MAX: usize = 512;
/// Reviews at a time.
const REVIEWS_AT_ONCE: usize = 8;

/// What a request may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewAccess {
    /// Every namespace.
    Everything,
    /// Names of pods in these namespaces.
    Namespaces(Arc<BTreeSet<String>>),
    /// The request has no token, or the API server does not accept it.
    Unauthenticated,
    /// The user may list pods in none of the namespaces that have some.
    Forbidden,
    /// The API server did not answer.
    Unavailable,
}

impl ViewAccess {
    /// HTTP status and text of the refusal; `None` if there is something to see.
    pub fn refusal(&self) -> Option<(u16, &'static str)> {
        match self {
            ViewAccess::Everything | ViewAccess::Namespaces(_) => None,
            ViewAccess::Unauthenticated => Some((
                401,
                "send the token of an account that may list pods, as from `kubectl create token ACCOUNT`",
            )),
            ViewAccess::Forbidden => Some((
                403,
                "the account may list pods in none of the namespaces that have some; bind it to the ClusterRole view, in a \
                 namespace or for all",
            )),
            ViewAccess::Unavailable => Some((503, "the API server does not say what you may see; try again")),
        }
    }
}

/// Decides what requests may see. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ViewAuthorizer {
    client: Option<Client>,
    /// Rights by token. The lock is held during reviews, so that many requests at once cause the reviews of one user at a time.
    users: Arc<Mutex<BTreeMap<String, Rights>>>,
}

/// The rights of a token's user, as far as they have been reviewed.
#[derive(Debug)]
struct Rights {
    since: Instant,
    /// `None` if the API server does not accept the token.
    user: Option<User>,
    lists_all_pods: bool,
    /// Whether the user may list the pods of a namespace.
    namespaces: BTreeMap<String, bool>,
}

impl ViewAuthorizer {
    /// Reviews tokens with this client; without a client only loopback requests see something.
    pub fn new(client: Option<Client>) -> ViewAuthorizer {
        ViewAuthorizer {
            client,
            users: Arc::default(),
        }
    }

    /// What a request from `peer` with this token may see of a view with pods in these namespaces; `None` if there is no view at present.
    pub async fn authorize(
        &self,
        peer: IpAddr,
        token: Option<&str>,
        namespaces: Option<&BTreeSet<String>>,
    ) -> ViewAccess {
        if peer.to_canonical().is_loopback() {
            return ViewAccess::Everything;
        }
        let (Some(client), Some(token)) = (&self.client, token.filter(|token| is_plausible(token))) else {
            return ViewAccess::Unauthenticated;
        };
        let mut users = self.users.lock().await;
        users.retain(|_, rights| rights.since.elapsed() < RIGHTS_AGE_MAX);
        if !users.contains_key(token) && users.len() >= USERS_MAX {
            users.clear();
        }
        let known = users.remove(token);
        match review(client, token, known, namespaces).await {
            Ok(rights) => {
                let access = rights.access(namespaces);
                users.insert(token.to_owned(), rights);
                access
            }
            Err(error) => {
                tracing::warn!(%error, "a request for the page can't be authorized");
                ViewAccess::Unavailable
            }
        }
    }
}

/// Reviews what is not known yet.
async fn review(
    client: &Client,
    token: &str,
    known: Option<Rights>,
    namespaces: Option<&BTreeSet<String>>,
) -> Result<Rights, Error> {
    let mut rights = match known {
        Some(rights) => rights,
        None => {
            let user = client.authenticate(token).await?;
            let lists_all_pods = match &user {
                Some(user) => client.is_allowed(user, Operation::ListAllPods).await?,
                None => false,
            };
            Rights {
                since: Instant::now(),
                user,
                lists_all_pods,
                namespaces: BTreeMap::new(),
            }
        }
    };
    let Some(user) = rights.user.as_ref().filter(|_| !rights.lists_all_pods) else {
        return Ok(rights);
    };
    // The account's own namespace first: it counts even if it has no pods yet, and however many others there are.
    let own = user.namespace().map(str::to_owned).into_iter();
    let others = namespaces.into_iter().flatten().cloned();
    let mut unknown: Vec<String> = Vec::new();
    for namespace in own.chain(others) {
        let is_known = rights.namespaces.contains_key(&namespace) || unknown.first() == Some(&namespace);
        if !is_known && rights.namespaces.len() + unknown.len() < NAMESPACES_MAX {
            unknown.push(namespace);
        }
    }
    let reviews = unknown.into_iter().map(|namespace| async move {
        let allowed = client.is_allowed(user, Operation::ListPodsIn(&namespace)).await?;
        Ok((namespace, allowed))
    });
    let reviewed: Vec<Result<(String, bool), Error>> = futures_util::stream::iter(reviews)
        .buffer_unordered(REVIEWS_AT_ONCE)
        .collect()
        .await;
    for answer in reviewed {
        let (namespace, allowed) = answer?;
        rights.namespaces.insert(namespace, allowed);
    }
    Ok(rights)
}

impl Rights {
    fn access(&self, namespaces: Option<&BTreeSet<String>>) -> ViewAccess {
        if self.user.is_none() {
            return ViewAccess::Unauthenticated;
        }
        if self.lists_all_pods {
            return ViewAccess::Everything;
        }
        let allowed = self.namespaces.iter().filter(|(_, allowed)| **allowed);
        let allowed: BTreeSet<String> = allowed.map(|(namespace, _)| namespace.clone()).collect();
        match allowed.is_empty() && namespaces.is_some() {
            true => ViewAccess::Forbidden,
            // Without a view there is nothing to hide: the page only says so.
            false => ViewAccess::Namespaces(Arc::new(allowed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::Json;
    use axum::routing::post;
    use serde_json::{Value, json};

    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    /// An API server where `admin` lists all pods, `ann` those of `red` and an account of `blue` those of `blue`; and the number of its
    /// reviews.
    fn authorizer() -> (ViewAuthorizer, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let token_review = |Json(review): Json<Value>| async move {
            let users = ["admin", "ann", "nobody", "system:serviceaccount:blue:bot"];
            let known = users.into_iter().find(|name| review["spec"]["token"] == *name);
            let status = known.map_or(
                json!({}),
                |name| json!({ "authenticated": true, "user": { "username": name, "groups": ["g"] } }),
            );
            Json(json!({ "status": status }))
        };
        let access_review = move |Json(review): Json<Value>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let spec = &review["spec"];
            assert_eq!(spec["groups"], json!(["g"]));
            let attributes = &spec["resourceAttributes"];
            assert_eq!(
                (&attributes["verb"], &attributes["resource"]),
                (&json!("list"), &json!("pods"))
            );
            let asked = (
                spec["user"].as_str().unwrap(),
                attributes["namespace"].as_str().unwrap(),
            );
            let allowed = matches!(
                asked,
                ("admin", _) | ("ann", "red") | ("system:serviceaccount:blue:bot", "blue")
            );
            async move { Json(json!({ "status": { "allowed": allowed } })) }
        };
        let router = axum::Router::new()
            .route("/apis/authentication.k8s.io/v1/tokenreviews", post(token_review))
            .route(
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                post(access_review),
            );
        (ViewAuthorizer::new(Some(Client::in_process(router))), asked)
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn only(names: &[&str]) -> ViewAccess {
        ViewAccess::Namespaces(Arc::new(set(names)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_sees_the_namespaces_whose_pods_it_may_list() {
        let (authorizer, asked) = authorizer();
        let namespaces = set(&["blue", "green", "red"]);
        let authorize = async |token: Option<&str>| authorizer.authorize(REMOTE, token, Some(&namespaces)).await;
        assert_eq!(authorize(None).await, ViewAccess::Unauthenticated);
        assert_eq!(authorize(Some("")).await, ViewAccess::Unauthenticated);
        assert_eq!(authorize(Some("stranger")).await, ViewAccess::Unauthenticated);
        assert_eq!(
            asked.load(Ordering::Relaxed),
            0,
            "unknown users have no rights to review"
        );
        assert_eq!(authorize(Some("admin")).await, ViewAccess::Everything);
        assert_eq!(asked.load(Ordering::Relaxed), 1, "one right is enough");
        assert_eq!(authorize(Some("ann")).await, only(&["red"]));
        assert_eq!(authorize(Some("nobody")).await, ViewAccess::Forbidden);
        assert_eq!(asked.load(Ordering::Relaxed), 1 + 4 + 4);
        assert_eq!(authorize(Some("ann")).await, only(&["red"]));
        assert_eq!(asked.load(Ordering::Relaxed), 9, "rights are cached");
        tokio::time::sleep(RIGHTS_AGE_MAX).await;
        assert_eq!(authorize(Some("ann")).await, only(&["red"]));
        assert_eq!(asked.load(Ordering::Relaxed), 13);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_namespace_is_reviewed_and_the_others_are_not_reviewed_again() {
        let (authorizer, asked) = authorizer();
        let few = set(&["green"]);
        let access = authorizer.authorize(REMOTE, Some("ann"), Some(&few)).await;
        assert_eq!(access, ViewAccess::Forbidden);
        let more = set(&["green", "red"]);
        let access = authorizer.authorize(REMOTE, Some("ann"), Some(&more)).await;
        assert_eq!(access, only(&["red"]));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_accounts_own_namespace_counts_though_it_is_empty_or_one_of_many() {
        let (authorizer, asked) = authorizer();
        let token = Some("system:serviceaccount:blue:bot");
        let many = (0..2 * NAMESPACES_MAX).map(|at| format!("a{at}")).collect();
        let access = authorizer.authorize(REMOTE, token, Some(&many)).await;
        assert_eq!(access, only(&["blue"]));
        assert_eq!(asked.load(Ordering::Relaxed) as usize, 1 + NAMESPACES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_view_an_authenticated_user_is_let_in() {
        let (authorizer, _) = authorizer();
        assert_eq!(authorizer.authorize(REMOTE, Some("nobody"), None).await, only(&[]));
        let stranger = authorizer.authorize(REMOTE, Some("stranger"), None).await;
        assert_eq!(stranger, ViewAccess::Unauthenticated);
    }

    #[tokio::test(start_paused = true)]
    async fn neighbours_see_everything_and_without_an_answer_nobody_else_sees_anything() {
        let nowhere = ViewAuthorizer::new(Some(Client::in_process(axum::Router::new())));
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let access = nowhere.authorize(local.parse().unwrap(), None, None).await;
            assert_eq!(access, ViewAccess::Everything, "{local}");
        }
        for _ in 0..2 {
            let access = nowhere.authorize(REMOTE, Some("ann"), None).await;
            assert_eq!(access, ViewAccess::Unavailable);
        }
        let alone = ViewAuthorizer::new(None);
        let access = alone.authorize(REMOTE, Some("ann"), None).await;
        assert_eq!(access, ViewAccess::Unauthenticated);
    }
}
