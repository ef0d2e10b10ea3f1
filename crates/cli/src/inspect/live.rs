//! A cluster that is followed by watches, with the caller's own rights.

use std::sync::Arc;

use kai_cluster::{Client, Clock, Informers};
use kai_engine::Cluster;
use kai_engine::model::{GangKey, Millis};
use kai_engine::remedies::{ExplainBudget, Explanation};
use kai_mirror::{ClusterMirror, ExplanationView};
use kai_view::{ClusterView, Knowledge, List, MissingList, Pod};
use tokio::sync::Notify;

use super::Connection;
use super::events::{self, EventWatch};
use super::load::{Lists, connect, decide, mirror_of, no_cluster, settle};

/// The mirror of a cluster, kept up to date by watches. Each view is the result of a cycle on a copy of the engine, or of no cycle where
/// lists are missing.
pub(crate) struct LiveCluster {
    settings: kai_scheduler::Settings,
    knowledge: Knowledge,
    sources: kai_scheduler::Sources,
    mirror: ClusterMirror,
    engine: Cluster,
    /// The engine of the last view.
    cycled: Cluster,
    wake: Arc<Notify>,
    client: Client,
    /// `None` if decisions are not followed, or the caller may not list Events.
    events: Option<EventWatch>,
}

impl LiveCluster {
    /// Connects, finds out what the caller may list, and starts the watches. `namespace` is watched where all namespaces are refused.
    pub(crate) async fn connect(connection: &Connection, namespace: Option<&str>) -> anyhow::Result<LiveCluster> {
        let client = connect(connection).await?;
        let own = namespace.unwrap_or(client.default_namespace()).to_owned();
        let mut lists = Lists::new(&client, &own);
        if let Err(error) = lists.try_all().await {
            return Err(no_cluster(connection, Some(&client), &error));
        }
        let settings = connection.settings(&client).await?;
        let missing = lists.missing;
        Ok(LiveCluster::watch(settings, &client, Knowledge { missing }).await)
    }

    /// Follows a cluster with all rights in it.
    pub(crate) async fn of_client(client: &Client) -> LiveCluster {
        LiveCluster::watch(kai_scheduler::Settings::default(), client, Knowledge::default()).await
    }

    /// Follows the scheduler's Events, too: views then have decisions. Where Events of all namespaces are refused, those of the namespace
    /// are followed. The error says why there are none.
    pub(crate) async fn with_decisions(
        mut self,
        namespace: Option<&str>,
    ) -> (LiveCluster, Result<(), kai_cluster::Error>) {
        let own = namespace.unwrap_or(self.client.default_namespace()).to_owned();
        let mut refusal = None;
        for namespace in [None, Some(own.as_str())] {
            match events::list(&self.client, namespace).await {
                Ok(_) => {
                    let scheduler = &self.settings.scheduler_name;
                    let events = EventWatch::start(&self.client, namespace, scheduler, &self.wake);
                    events.synced().await;
                    self.events = Some(events);
                    return (self, Ok(()));
                }
                Err(error) => refusal = Some(error),
            }
        }
        (self, refusal.map_or(Ok(()), Err))
    }

    async fn watch(settings: kai_scheduler::Settings, client: &Client, knowledge: Knowledge) -> LiveCluster {
        let informers = Informers::new(client);
        restrict(&informers, &knowledge);
        let wake = Arc::new(Notify::new());
        let sources = kai_scheduler::Sources::new(&informers, &wake, &settings.mirror());
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
            client: client.clone(),
            events: None,
        }
    }

    /// The address of the API server.
    pub(crate) fn address(&self) -> &str {
        self.client.address()
    }

    /// The lists that the caller may not read.
    pub(crate) fn missing(&self) -> &[MissingList] {
        &self.knowledge.missing
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
        decide(&mut self.cycled, &self.knowledge, now, config);
        let mut view = ClusterView::new(kai_view::Sources {
            mirror: &self.mirror,
            engine: &mut self.cycled,
            config,
            now,
            knowledge: self.knowledge.clone(),
        });
        view.decisions = self.events.as_mut().map(|events| events.decisions(&view));
        view
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
                informers.restrict::<kai_api::StorageClass>(None);
                informers.restrict::<kai_api::CsiNode>(None);
            }
            List::ConfigMaps => informers.restrict::<kai_api::ConfigMap>(None),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use kai_embedded::server::{Options, Server};
    use serde_json::json;

    use super::*;
    use crate::inspect::load::tests::{assert_all_wait, client_without, with_config_map, with_waiting_pods};

    /// A cluster where the pod `waits` of the namespace `default` has no node.
    pub(crate) async fn with_a_waiting_pod() -> LiveCluster {
        let server = Server::new(Options::default());
        crate::embedded::install(&server).unwrap();
        let store = server.store();
        let objects = [
            json!({ "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": "q" }, "spec": {} }),
            json!({
                "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": { "name": "pg", "namespace": "default" },
                "spec": { "queue": "q", "minMember": 1 },
            }),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": "waits", "namespace": "default", "annotations": { "pod-group-name": "pg" } },
                "spec": {
                    "schedulerName": "kai-scheduler",
                    "containers": [{ "name": "main", "image": "none", "resources": { "limits": { "nvidia.com/gpu": "1" } } }],
                },
                "status": { "phase": "Pending" },
            }),
        ];
        for object in objects {
            store.put(object).unwrap();
        }
        LiveCluster::of_client(&Client::in_process(crate::embedded::service_of_roles(&server))).await
    }

    async fn live_without(
        server: &Server,
        namespace: &str,
        is_refused: impl Fn(&str) -> bool + Clone + Send + Sync + 'static,
    ) -> LiveCluster {
        let client = client_without(server, is_refused);
        let mut lists = Lists::new(&client, namespace);
        lists.try_all().await.unwrap();
        let missing = lists.missing;
        assert_eq!(missing.len(), 1, "{missing:?}");
        LiveCluster::watch(kai_scheduler::Settings::default(), &client, Knowledge { missing }).await
    }

    #[tokio::test]
    async fn without_lists_no_placement_is_invented() {
        let server = with_waiting_pods(&[json!({})]);
        let mut tenants = live_without(&server, "team", |path| path == "/api/v1/pods").await;
        assert_all_wait(&tenants.view());
        let server = with_waiting_pods(&[with_config_map("settings")]);
        let mut without = live_without(&server, "team", |path| path.contains("/configmaps")).await;
        assert_all_wait(&without.view());
    }
}
