//! The page of a synthetic cluster, served on loopback.

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
        let router = router(PageOptions {
            source: cluster.clone(),
            authorizer: Arc::new(ByToken),
            story: Some(Arc::new(OneStep::default())),
            cluster_name: "synthetic".to_owned(),
        });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        runtime.spawn(async { axum::serve(listener, service).await });
        Page {
            address,
            cluster,
            _runtime: runtime,
        }
    }

    /// The address of a path.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.address)
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

/// Everything without a token; one namespace for the token `vision`; nothing for other tokens.
struct ByToken;

impl Authorizer for ByToken {
    fn authorize(&self, _: IpAddr, token: Option<&str>) -> BoxFuture<'_, Access> {
        let access = match token {
            None => Access::Everything,
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
