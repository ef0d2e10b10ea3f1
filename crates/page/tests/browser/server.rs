//! The page of a synthetic cluster, served on all addresses of the machine.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kai_page::{Access, Authorizer, BoxFuture, PageOptions, Source, StoryStep, StorySteps, router};
use kai_view::{ClusterView, ExplanationView};
use parking_lot::Mutex;
use serde_json::json;

use crate::synthetic::Simulation;

/// A served page. It ends with its owner.
pub(crate) struct Page {
    pub(crate) address: String,
    port: u16,
    is_away: Arc<AtomicBool>,
    cluster: Arc<SyntheticCluster>,
    _runtime: tokio::runtime::Runtime,
}

impl Page {
    pub(crate) fn serve(simulation: Simulation) -> Page {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let cluster = Arc::new(SyntheticCluster {
            view: Mutex::new(Arc::new(simulation.view())),
            simulation: Mutex::new(simulation),
        });
        let is_away = Arc::new(AtomicBool::new(false));
        let router = router(PageOptions {
            source: cluster.clone(),
            authorizer: Arc::new(ByToken(is_away.clone())),
            story: Some(Arc::new(OneStep::default())),
            cluster_name: "synthetic".to_owned(),
        });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("0.0.0.0:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        runtime.spawn(async { axum::serve(listener, service).await });
        Page {
            address: format!("http://127.0.0.1:{port}"),
            port,
            is_away,
            cluster,
            _runtime: runtime,
        }
    }

    /// The address of a path.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// The address of a path as other machines see it, over plain HTTP; `None` if this machine has no address but loopback.
    pub(crate) fn at_from_elsewhere(&self, path: &str) -> Option<String> {
        // Nothing is sent: the system only chooses the address.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        let address = socket.local_addr().ok()?.ip();
        let is_own = !address.is_loopback() && !address.is_unspecified();
        is_own.then(|| format!("http://{address}:{}{path}", self.port))
    }

    /// Whether nobody can say what a reader may see, as while the API server does not answer.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Lets the cluster go on for some seconds.
    pub(crate) fn advance(&self, seconds: i64) {
        let mut simulation = self.cluster.simulation.lock();
        simulation.step(seconds * 1_000);
        *self.cluster.view.lock() = Arc::new(simulation.view());
    }

    /// Shows a changed view, until the cluster goes on.
    pub(crate) fn change(&self, change: impl FnOnce(&mut ClusterView)) {
        let mut view = ClusterView::clone(&self.view());
        change(&mut view);
        *self.cluster.view.lock() = Arc::new(view);
    }

    /// The cluster at present.
    pub(crate) fn view(&self) -> Arc<ClusterView> {
        self.cluster.view.lock().clone()
    }
}

struct SyntheticCluster {
    view: Mutex<Arc<ClusterView>>,
    simulation: Mutex<Simulation>,
}

impl Source for SyntheticCluster {
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
        let view = self.view.lock().clone();
        Box::pin(async { Some(view) })
    }

    fn explain(&self, _: &str, _: &str) -> BoxFuture<'_, Option<ExplanationView>> {
        let text = "end Job team-vision/nightly";
        let explanation = json!({
            "position": { "beforeInQueue": 0, "beforeInOtherQueues": 2, "text": "first in its queue; two gangs of other queues come before" },
            "needs": "4 GPUs on one node; h100-1 has 2 free, 2 more are held by Job team-vision/nightly",
            "nearestNodes": [], "cut": false, "trials": 3,
            "remedies": [{ "text": text, "tried": true, "steps": [{ "kind": "end", "text": text, "podGroup": "team-vision/nightly" }] }],
        });
        Box::pin(async { serde_json::from_value(explanation).ok() })
    }
}

/// Everything without a token on loopback; one namespace for the token `vision`; nothing for other tokens.
struct ByToken(Arc<AtomicBool>);

impl Authorizer for ByToken {
    fn authorize(&self, peer: IpAddr, token: Option<&str>) -> BoxFuture<'_, Access> {
        let access = match token {
            _ if self.0.load(Ordering::Relaxed) => Access::Refused(503, "nobody can say".to_owned()),
            None if peer.is_loopback() => Access::Everything,
            None => Access::Refused(401, "a token is needed".to_owned()),
            Some("vision") => Access::Namespaces(Arc::new(["team-vision".to_owned()].into())),
            Some(_) => Access::Refused(401, "the token is not valid".to_owned()),
        };
        Box::pin(async { access })
    }
}

#[derive(Default)]
struct OneStep(AtomicBool);

impl StorySteps for OneStep {
    fn steps(&self) -> Vec<StoryStep> {
        vec![StoryStep {
            title: "A team asks for its share".to_owned(),
            submitted: self.0.load(Ordering::Relaxed),
        }]
    }

    fn submit(&self, _: usize) -> BoxFuture<'_, Result<(), String>> {
        self.0.store(true, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }
}
