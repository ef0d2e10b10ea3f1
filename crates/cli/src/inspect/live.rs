//! A cluster that is followed by watches, with the caller's own rights.

use std::sync::Arc;

use kai_cluster::{Client, Clock, Informers};
use kai_engine::Cluster;
use kai_engine::model::{GangKey, Millis};
use kai_engine::remedies::{ExplainBudget, Explanation};
use kai_mirror::{ClusterMirror, ExplanationView};
use kai_view::{ClusterView, Knowledge, List, Pod};
use tokio::sync::Notify;

use super::Connection;
use super::load::{Lists, connect, mirror_of, no_cluster, settle};

/// The mirror of a cluster, kept up to date by watches. Each view is the result of a cycle on a copy of the engine.
pub(crate) struct LiveCluster {
    settings: kai_scheduler::Settings,
    knowledge: Knowledge,
    sources: kai_scheduler::Sources,
    mirror: ClusterMirror,
    engine: Cluster,
    /// The engine after the last cycle.
    cycled: Cluster,
    wake: Arc<Notify>,
    address: String,
}

impl LiveCluster {
    /// Connects, finds out what the caller may list, and starts the watches. `namespace` is watched where all namespaces are refused.
    pub(crate) async fn connect(connection: &Connection, namespace: Option<&str>) -> anyhow::Result<LiveCluster> {
        let settings = connection.settings()?;
        let client = connect(connection).await?;
        let own = namespace.unwrap_or(client.default_namespace()).to_owned();
        let mut lists = Lists::new(&client, &own);
        if let Err(error) = lists.try_all().await {
            return Err(no_cluster(connection, Some(&client), &error));
        }
        let missing = lists.missing;
        Ok(LiveCluster::watch(settings, &client, Knowledge { missing }).await)
    }

    async fn watch(settings: kai_scheduler::Settings, client: &Client, knowledge: Knowledge) -> LiveCluster {
        let informers = Informers::new(client);
        restrict(&informers, &knowledge);
        let wake = Arc::new(Notify::new());
        let sources = kai_scheduler::Sources::new(&informers, &wake);
        informers.synced().await;
        informers.config_maps().synced().await;
        LiveCluster {
            mirror: mirror_of(&settings, &knowledge),
            settings,
            knowledge,
            sources,
            engine: Cluster::new(),
            cycled: Cluster::new(),
            wake,
            address: client.address().to_owned(),
        }
    }

    /// The address of the API server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Is notified when an object has changed.
    pub(crate) fn changes(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// The view at present.
    pub(crate) fn view(&mut self) -> ClusterView {
        let now = Millis(Clock::System.now().as_millisecond());
        self.mirror.tick(now);
        self.sources.apply_changes(&mut self.mirror, &mut self.engine);
        self.mirror.mark_synced();
        settle(&mut self.mirror, &mut self.engine);
        let config = &self.settings.config;
        self.cycled = self.engine.clone();
        self.cycled.cycle(now, config);
        ClusterView::new(kai_view::Sources {
            mirror: &self.mirror,
            engine: &mut self.cycled,
            config,
            now,
            knowledge: self.knowledge.clone(),
        })
    }

    /// Finds out what would let a pod start, on copies of the last cycle; `None` if lists are missing or the pod does not wait. The
    /// function takes long on a large cluster.
    pub(crate) fn trials(&self, pod: &Pod) -> Option<impl FnOnce() -> Option<Explanation> + Send + use<>> {
        if !self.knowledge.missing.is_empty() || !pod.waits() {
            return None;
        }
        let (engine, config, uid) = (self.cycled.clone(), self.settings.config.clone(), pod.uid.clone());
        Some(move || engine.explain(&uid, &config, ExplainBudget::default()))
    }

    /// The explanation with the names of workloads.
    pub(crate) fn named(&self, explanation: &Explanation) -> ExplanationView {
        ExplanationView::new(explanation, &|gang: &GangKey| self.mirror.workload(gang))
    }
}

/// Restricts the informers to the lists that the caller has.
fn restrict(informers: &Informers, knowledge: &Knowledge) {
    for missing in &knowledge.missing {
        let namespace = missing.only_namespace.as_deref();
        match missing.list {
            List::Nodes => informers.restrict::<kai_api::Node>(None),
            List::Pods => informers.restrict::<kai_api::Pod>(namespace),
            List::Queues => informers.restrict::<kai_api::Queue>(None),
            List::PodGroups => informers.restrict::<kai_api::PodGroup>(namespace),
            List::BindRequests => informers.restrict::<kai_api::BindRequest>(namespace),
            List::Topologies => informers.restrict::<kai_api::Topology>(None),
            List::PriorityClasses => informers.restrict::<kai_api::PriorityClass>(None),
            List::Volumes => {
                informers.restrict::<kai_api::PersistentVolume>(None);
                informers.restrict::<kai_api::PersistentVolumeClaim>(None);
            }
            List::ConfigMaps => informers.restrict::<kai_api::ConfigMap>(None),
        }
    }
}
