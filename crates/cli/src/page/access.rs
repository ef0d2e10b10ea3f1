//! What a request for the page may see.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use kai_cluster::{ViewAccess, ViewAuthorizer};
use kai_page::{Access, Authorizer, BoxFuture, Source};
use kai_view::ClusterView;
use tokio::runtime::Handle;

/// Requests over loopback see everything, others see nothing: the page of a person's own terminal.
pub(crate) struct LoopbackOnly;

impl Authorizer for LoopbackOnly {
    fn authorize(&self, peer: IpAddr, _: Option<&str>) -> BoxFuture<'_, Access> {
        let access = match peer.to_canonical().is_loopback() {
            true => Access::Everything,
            false => Access::Refused(
                403,
                "this page is for the machine on which it runs, without a proxy".to_owned(),
            ),
        };
        Box::pin(std::future::ready(access))
    }
}

/// Requests over loopback see everything, others what the user of their token may list.
pub(crate) struct RightsOfToken {
    authorizer: ViewAuthorizer,
    source: Arc<dyn Source>,
    /// The runtime that owns the connections to the API server.
    roles: Handle,
}

impl RightsOfToken {
    pub(crate) fn new(authorizer: ViewAuthorizer, source: Arc<dyn Source>, roles: Handle) -> RightsOfToken {
        RightsOfToken {
            authorizer,
            source,
            roles,
        }
    }

    async fn review(&self, peer: IpAddr, token: Option<String>) -> ViewAccess {
        // First who it is: a view is not computed for a stranger, nor for a user that may see everything.
        let access = self.ask(peer, token.clone(), None).await;
        if !matches!(access, ViewAccess::Namespaces(_)) {
            return access;
        }
        let namespaces = self.source.view().await.map(|view| namespaces(&view));
        self.ask(peer, token, namespaces).await
    }

    async fn ask(&self, peer: IpAddr, token: Option<String>, namespaces: Option<BTreeSet<String>>) -> ViewAccess {
        let authorizer = self.authorizer.clone();
        let asked = async move { authorizer.authorize(peer, token.as_deref(), namespaces.as_ref()).await };
        self.roles.spawn(asked).await.unwrap_or(ViewAccess::Unavailable)
    }
}

impl Authorizer for RightsOfToken {
    fn authorize(&self, peer: IpAddr, token: Option<&str>) -> BoxFuture<'_, Access> {
        let token = token.map(str::to_owned);
        Box::pin(async move {
            let access = self.review(peer, token).await;
            match (access.refusal(), access) {
                (Some((code, text)), _) => Access::Refused(code, text.to_owned()),
                (None, ViewAccess::Namespaces(namespaces)) => Access::Namespaces(namespaces),
                (None, _) => Access::Everything,
            }
        })
    }
}

/// The namespaces of all names in a view.
fn namespaces(view: &ClusterView) -> BTreeSet<String> {
    let nodes = view.nodes.iter().flatten();
    let users = nodes.flat_map(|node| {
        let of_slices = node.slices.iter().flat_map(|slices| &slices.pods);
        node.gpus.iter().flat_map(|gpu| &gpu.pods).chain(of_slices)
    });
    let decisions = view.decisions.iter().flatten();
    let names = users
        .map(|user| user.namespace.as_str())
        .chain(view.pods.iter().flatten().map(|pod| pod.namespace.as_str()))
        .chain(view.gangs.iter().flatten().map(|gang| gang.namespace.as_str()))
        .chain(decisions.map(|decision| decision.namespace.as_str()));
    let mut namespaces = BTreeSet::new();
    for name in names {
        if !namespaces.contains(name) {
            namespaces.insert(name.to_owned());
        }
    }
    namespaces
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::Json;
    use axum::extract::ConnectInfo;
    use axum::routing::post;
    use kai_cluster::Client;
    use kai_view::Text;
    use serde_json::{Value, json};

    use super::*;
    use crate::page::Page;

    /// An API server that lets `admin` list all pods and `tenant` those of the namespace `team`.
    fn api_server() -> Client {
        let token_review = |Json(review): Json<Value>| async move {
            let known = ["admin", "tenant", "nobody"]
                .into_iter()
                .find(|name| review["spec"]["token"] == *name);
            let status = known.map(|name| json!({ "authenticated": true, "user": { "username": name } }));
            Json(json!({ "status": status.unwrap_or_default() }))
        };
        let access_review = |Json(review): Json<Value>| async move {
            let spec = &review["spec"];
            let namespace = &spec["resourceAttributes"]["namespace"];
            let allowed = spec["user"] == "admin" || (spec["user"] == "tenant" && *namespace == "team");
            Json(json!({ "status": { "allowed": allowed } }))
        };
        Client::in_process(
            axum::Router::new()
                .route("/apis/authentication.k8s.io/v1/tokenreviews", post(token_review))
                .route(
                    "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                    post(access_review),
                ),
        )
    }

    /// A cluster with work of the namespaces `team` and `rival`, and how often its view was asked for.
    struct Cluster(Arc<ClusterView>, AtomicU32);

    impl Source for Cluster {
        fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Some(Arc::clone(&self.0))))
        }

        fn explain(&self, _: &str, _: &str) -> BoxFuture<'_, Option<kai_view::ExplanationView>> {
            Box::pin(std::future::ready(None))
        }
    }

    /// The example of docs/view.md, with a second namespace.
    fn view() -> ClusterView {
        let docs = include_str!("../../../../docs/view.md");
        let text = docs
            .split("```json\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .unwrap();
        let mut view: ClusterView = serde_json::from_str(text).unwrap();
        let hide = |namespace: &mut Text, names: Vec<&mut Text>| {
            if names.iter().any(|name| name.contains("train")) {
                *namespace = "rival".into();
                names
                    .into_iter()
                    .for_each(|name| *name = name.replace("train", "secret").into());
            }
        };
        for pod in view.pods.iter_mut().flatten() {
            hide(&mut pod.namespace, vec![&mut pod.name, pod.pod_group.as_mut().unwrap()]);
        }
        for gang in view.gangs.iter_mut().flatten() {
            hide(&mut gang.namespace, vec![&mut gang.pod_group, &mut gang.workload_name]);
        }
        for user in view
            .nodes
            .iter_mut()
            .flatten()
            .flat_map(|node| &mut node.gpus)
            .flat_map(|gpu| &mut gpu.pods)
        {
            hide(&mut user.namespace, vec![&mut user.name]);
        }
        let gangs = view.gangs.iter_mut().flatten().filter_map(|gang| gang.reason.as_mut());
        let pods = view.pods.iter_mut().flatten().filter_map(|pod| pod.reason.as_mut());
        gangs
            .chain(pods)
            .for_each(|reason| *reason = reason.replace("team/train", "rival/secret").into());
        view
    }

    fn get(address: SocketAddr, path: &str, token: Option<&str>) -> (u16, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        let token = token
            .map(|token| format!("authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: kai-ui\r\nconnection: close\r\n{token}\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_tenants_token_sees_no_names_of_others() {
        let cluster = Arc::new(Cluster(Arc::new(view()), AtomicU32::new(0)));
        let source: Arc<dyn Source> = cluster.clone();
        let authorizer = ViewAuthorizer::new(Some(api_server()));
        let page = Page {
            authorizer: Arc::new(RightsOfToken::new(authorizer, source.clone(), Handle::current())),
            source,
            story: None,
            cluster_name: "test".to_owned(),
            forwarder: None,
        };
        // As if all requests came from another machine.
        let remote = ConnectInfo(SocketAddr::from(([10, 0, 0, 7], 1)));
        let router = page.router().layer(axum::Extension(remote));
        let served = crate::roles::serve_page("127.0.0.1:0", router, "--ui-address").unwrap();
        let address = served.address().unwrap();
        let check = move || {
            assert_eq!(get(address, "/view.json", None).0, 401);
            assert_eq!(get(address, "/view.json", Some("stranger")).0, 401);
            assert_eq!(cluster.1.load(Ordering::Relaxed), 0, "strangers cost no view");
            let (status, text) = get(address, "/view.json", Some("nobody"));
            assert_eq!(status, 403);
            assert!(text.contains("bind it to the ClusterRole view"), "{text}");
            assert!(get(address, "/view.json", Some("admin")).1.contains("secret"));
            for path in [
                "/view.json",
                "/",
                "/gpus",
                "/queues",
                "/waiting",
                "/gangs",
                "/decisions",
                "/nodes",
                "/nodes/h100-1",
            ] {
                let (status, text) = get(address, path, Some("tenant"));
                assert_eq!(status, 200, "{path}: {text}");
                assert!(!text.contains("secret") && !text.contains("rival"), "{path}: {text}");
            }
            assert!(get(address, "/gpus", Some("tenant")).1.contains("llm-0"));
            assert_eq!(
                get(address, "/pods/rival/secret-0", Some("tenant")).0,
                get(address, "/pods/rival/none", Some("tenant")).0
            );
        };
        tokio::task::spawn_blocking(check).await.unwrap();
    }
}
