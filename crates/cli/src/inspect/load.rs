//! Lists the objects of a cluster and computes its view, as the scheduler sees it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kai_api::{ConfigMap, Object, ObjectKey, Pod, PodGroup};
use kai_cluster::{Client, Clock, Error, Selection, Target};
use kai_engine::Cluster;
use kai_engine::model::{Config, GangKey, Millis};
use kai_engine::remedies::ExplainBudget;
use kai_mirror::{ClusterMirror, ExplanationView, ObjectList};
use kai_view::{ClusterView, Knowledge, List, MissingList, Sources};

use super::remote::SchedulerEndpoints;
use super::{Connection, Origin};

/// ConfigMaps that are looked up one by one, each with a request. For more of them one list is cheaper.
const LOOK_UPS_MAX: usize = 64;

/// A cluster as the caller may see it.
pub(super) struct Loaded {
    pub(super) view: ClusterView,
    trials: Trials,
    /// The namespace of the kubeconfig's context.
    pub(super) namespace: String,
}

/// Who finds out what would let a pod start.
enum Trials {
    InMemory(Box<Cycle>),
    Scheduler(SchedulerEndpoints),
}

/// The view: that of the scheduler, if its address is named; else connects, lists and computes. `namespace` is read where the lists of
/// all namespaces are refused.
pub(super) async fn load(origin: &Origin, namespace: Option<&str>) -> anyhow::Result<Loaded> {
    if let Some(scheduler) = origin.scheduler() {
        return Ok(Loaded {
            view: scheduler.view().await?,
            trials: Trials::Scheduler(scheduler),
            namespace: match namespace {
                Some(namespace) => namespace.to_owned(),
                None => origin.connection.namespace().await?,
            },
        });
    }
    let connection = &origin.connection;
    let client = connect(connection).await?;
    let own = namespace.unwrap_or(client.default_namespace()).to_owned();
    let mut lists = Lists::new(&client, &own);
    let objects = match lists.all().await {
        Ok(objects) => objects,
        Err(error) => return Err(no_cluster(connection, Some(&client), &error)),
    };
    let settings = connection.settings(&client).await?;
    let now = Millis(Clock::System.now().as_millisecond());
    let knowledge = Knowledge { missing: lists.missing };
    let (view, cycle) = view(settings, objects, knowledge, now);
    Ok(Loaded {
        view,
        trials: Trials::InMemory(Box::new(cycle)),
        namespace: own,
    })
}

/// Mirror and engine after one cycle in memory.
struct Cycle {
    mirror: ClusterMirror,
    engine: Cluster,
    config: Config,
    scheduler_name: String,
}

impl Loaded {
    /// The `schedulerName` of pods; `None` if the view is that of the scheduler itself.
    pub(super) fn scheduler_name(&self) -> Option<&str> {
        match &self.trials {
            Trials::InMemory(cycle) => Some(&cycle.scheduler_name),
            Trials::Scheduler(_) => None,
        }
    }

    /// What would let the pod start, by trials; `None` if lists are missing or the pod does not wait. Where the scheduler is busy or can't tell,
    /// a warning says so on standard error: everything else about the pod is known.
    pub(super) async fn remedies(&self, pod: &kai_view::Pod) -> Option<ExplanationView> {
        if !self.view.missing.is_empty() || !pod.waits() {
            return None;
        }
        match &self.trials {
            Trials::Scheduler(scheduler) => match scheduler.explain(&pod.namespace, &pod.name).await {
                Ok(explained) => Some(explained),
                Err(error) => {
                    eprintln!("warning: what would help is unknown: {error:#}");
                    None
                }
            },
            Trials::InMemory(cycle) => {
                let Cycle {
                    mirror, engine, config, ..
                } = &**cycle;
                let explained = engine.explain(&pod.uid, config, ExplainBudget::default());
                let name = |gang: &GangKey| mirror.workload(gang);
                explained.map(|explained| ExplanationView::new(&explained, &name))
            }
        }
    }
}

/// A client with the caller's own credentials.
pub(super) async fn connect(connection: &Connection) -> anyhow::Result<Client> {
    let client = Client::connect(&connection.access()).await;
    client.map_err(|error| no_cluster(connection, None, &error))
}

/// What to do where there is no cluster, or none that answers.
pub(super) fn no_cluster(connection: &Connection, client: Option<&Client>, error: &Error) -> anyhow::Error {
    let tried = connection.tried();
    let cause = match error {
        Error::Connect { message } => format!("no cluster: {message}"),
        Error::Call {
            code: Some(401),
            message,
            ..
        } => format!("the cluster does not accept your credentials: {message}"),
        Error::Call { attempt, message, .. } => {
            let address = client.map_or("", Client::address);
            format!("the cluster at {address} does not answer: {attempt}: {message}")
        }
        Error::NotLeader { .. } => error.to_string(),
    };
    anyhow::anyhow!(
        "{cause}\n  tried the kubeconfig {tried}; name another one with --kubeconfig or a context with --context\n  \
         without a cluster: `kai playground` starts one in this process, and writes kai-playground.kubeconfig"
    )
}

/// The lists of a caller.
pub(super) struct Lists<'a> {
    client: &'a Client,
    namespace: &'a str,
    /// What was refused so far.
    pub(super) missing: Vec<MissingList>,
}

#[derive(Default)]
struct Objects {
    nodes: Vec<kai_api::Node>,
    queues: Vec<kai_api::Queue>,
    topologies: Vec<kai_api::Topology>,
    classes: Vec<kai_api::PriorityClass>,
    pod_groups: Vec<PodGroup>,
    bind_requests: Vec<kai_api::BindRequest>,
    pods: Vec<Pod>,
    volumes: Vec<kai_api::PersistentVolume>,
    claims: Vec<kai_api::PersistentVolumeClaim>,
    storage_classes: Vec<kai_api::StorageClass>,
    csi_nodes: Vec<kai_api::CsiNode>,
    /// ConfigMaps of pending pods that exist.
    config_maps: Vec<ObjectKey>,
}

impl Lists<'_> {
    /// `namespace` is read where the lists of all namespaces are refused.
    pub(super) fn new<'a>(client: &'a Client, namespace: &'a str) -> Lists<'a> {
        Lists {
            client,
            namespace,
            missing: Vec::new(),
        }
    }

    /// Finds out which lists are refused, for watches.
    pub(super) async fn try_all(&mut self) -> Result<(), Error> {
        self.objects().await?;
        match self.all_config_maps(&Selection::default()).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_forbidden() => {
                self.config_maps_missing(plain(&error));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Lists every kind. Fails if the cluster does not answer; a list that is refused is missing.
    async fn all(&mut self) -> Result<Objects, Error> {
        let mut objects = self.objects().await?;
        objects.config_maps = self.config_maps(&objects.pods).await?;
        Ok(objects)
    }

    /// Every kind but ConfigMaps.
    async fn objects(&mut self) -> Result<Objects, Error> {
        let all = Selection::default();
        let client = self.client;
        let (
            nodes,
            queues,
            topologies,
            classes,
            pod_groups,
            bind_requests,
            pods,
            volumes,
            claims,
            storage_classes,
            csi_nodes,
        ) = tokio::join!(
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
            client.list(&all),
        );
        let objects = Objects {
            nodes: self.note(List::Nodes, nodes)?,
            queues: self.note(List::Queues, queues)?,
            topologies: self.note(List::Topologies, topologies)?,
            classes: self.note(List::PriorityClasses, classes)?,
            pod_groups: self.or_of_namespace(List::PodGroups, pod_groups).await?,
            bind_requests: self.or_of_namespace(List::BindRequests, bind_requests).await?,
            pods: self.or_of_namespace(List::Pods, pods).await?,
            volumes: self.note(List::Volumes, volumes)?,
            claims: self.or_of_namespace(List::Volumes, claims).await?,
            storage_classes: self.note(List::Volumes, storage_classes)?,
            csi_nodes: self.note(List::Volumes, csi_nodes)?,
            config_maps: Vec::new(),
        };
        self.missing.sort_by_key(|missing| missing.list);
        self.missing.dedup_by_key(|missing| missing.list);
        Ok(objects)
    }

    /// The list, or none if it is refused or the cluster does not have the kind.
    fn note<T: Object>(&mut self, list: List, listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
        let message = match listed {
            Ok(objects) => return Ok(objects),
            Err(error) if error.is_forbidden() => plain(&error),
            Err(error) if error.is_not_found() => {
                format!(
                    "the cluster has no {} of group {}; is kai installed?",
                    T::RESOURCE.plural,
                    T::RESOURCE.group
                )
            }
            Err(error) => return Err(error),
        };
        self.missing.push(MissingList {
            list,
            only_namespace: None,
            message,
        });
        Ok(Vec::new())
    }

    /// The list; if it is refused, that of the namespace.
    async fn or_of_namespace<T: Object>(&mut self, list: List, listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
        let error = match listed {
            Err(error) if error.is_forbidden() => error,
            other => return self.note(list, other),
        };
        let selection = Selection {
            namespace: Some(self.namespace.to_owned()),
            ..Selection::default()
        };
        match self.client.list(&selection).await {
            Ok(objects) => {
                self.missing.push(MissingList {
                    list,
                    only_namespace: Some(self.namespace.to_owned()),
                    message: plain(&error),
                });
                Ok(objects)
            }
            Err(_) => self.note(list, Err(error)),
        }
    }

    /// The ConfigMaps of pending pods that exist: few are looked up by name, for many the metadata of all are listed.
    async fn config_maps(&mut self, pods: &[Pod]) -> Result<Vec<ObjectKey>, Error> {
        let pending = pods.iter().filter(|pod| pod.node_name().is_none());
        let named = pending.flat_map(|pod| {
            let namespace = pod.metadata.namespace();
            pod.config_maps().map(move |name| (namespace, name))
        });
        let named: BTreeSet<(&str, &str)> = named.collect();
        let looked_up = match named.len() <= LOOK_UPS_MAX {
            true => self.config_maps_named(&named).await,
            false => {
                let first = named.first().map(|(namespace, _)| *namespace);
                let only_namespace = first.filter(|first| named.iter().all(|(namespace, _)| namespace == first));
                let selection = Selection {
                    namespace: only_namespace.map(str::to_owned),
                    ..Selection::default()
                };
                self.all_config_maps(&selection).await
            }
        };
        match looked_up {
            Err(error) if error.is_forbidden() => {
                self.config_maps_missing(plain(&error));
                Ok(Vec::new())
            }
            other => other,
        }
    }

    async fn config_maps_named(&self, named: &BTreeSet<(&str, &str)>) -> Result<Vec<ObjectKey>, Error> {
        let mut found = Vec::new();
        for (namespace, name) in named {
            let target = Target::of::<ConfigMap>(namespace, name);
            if self.client.get_metadata(target).await?.is_some() {
                found.push(ObjectKey::new(namespace, name));
            }
        }
        Ok(found)
    }

    /// By their metadata: a list of the objects would have the content of all.
    async fn all_config_maps(&self, selection: &Selection) -> Result<Vec<ObjectKey>, Error> {
        let listed = self.client.list_metadata(&ConfigMap::RESOURCE, selection).await?;
        let keys = listed.iter().map(|object| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            ObjectKey::new(text("namespace"), text("name"))
        });
        Ok(keys.collect())
    }

    fn config_maps_missing(&mut self, message: String) {
        self.missing.push(MissingList {
            list: List::ConfigMaps,
            only_namespace: None,
            message,
        });
    }
}

/// The API server's words, without the remedy for roles.
pub(super) fn plain(error: &Error) -> String {
    match error {
        Error::Call { message, .. } => message.clone(),
        Error::Connect { .. } | Error::NotLeader { .. } => error.to_string(),
    }
}

/// The view after one cycle in memory.
fn view(
    settings: kai_scheduler::Settings,
    objects: Objects,
    knowledge: Knowledge,
    now: Millis,
) -> (ClusterView, Cycle) {
    let mut mirror = mirror_of(&settings, &knowledge);
    let mut engine = Cluster::new();
    mirror.tick(now);
    apply(&mut mirror, &mut engine, objects, !lacks(&knowledge, List::ConfigMaps));
    mirror.mark_synced();
    settle(&mut mirror, &mut engine);
    decide(&mut engine, &knowledge, now, &settings.config);
    let config = settings.config;
    let view = ClusterView::new(Sources {
        mirror: &mirror,
        engine: &mut engine,
        config: &config,
        now,
        knowledge,
    });
    let cycle = Cycle {
        mirror,
        engine,
        config,
        scheduler_name: settings.scheduler_name,
    };
    (view, cycle)
}

/// Runs a cycle if the engine knows what the scheduler knows. A cycle on a part of the cluster would invent placements: a pod that waits
/// in the cluster would be shown as being bound.
pub(super) fn decide(engine: &mut Cluster, knowledge: &Knowledge, now: Millis, config: &Config) {
    if knowledge.is_complete() {
        engine.cycle(now, config);
    }
}

fn lacks(knowledge: &Knowledge, list: List) -> bool {
    knowledge.missing.iter().any(|missing| missing.list == list)
}

/// An empty mirror for a caller with these lists.
pub(super) fn mirror_of(settings: &kai_scheduler::Settings, knowledge: &Knowledge) -> ClusterMirror {
    let unless_known = |list: List, otherwise: ObjectList| match lacks(knowledge, list) {
        true => otherwise,
        false => ObjectList::Complete,
    };
    let mut mirror_settings = settings.mirror();
    mirror_settings.reservation_pod_list = unless_known(List::Pods, ObjectList::Unknown);
    mirror_settings.volume_list = unless_known(List::Volumes, ObjectList::ByCondition);
    mirror_settings.config_map_list = unless_known(List::ConfigMaps, ObjectList::ByCondition);
    ClusterMirror::new(&mirror_settings)
}

/// Passes the events of the mirror on to the engine.
pub(super) fn settle(mirror: &mut ClusterMirror, engine: &mut Cluster) {
    loop {
        let outbox = mirror.take_outbox();
        outbox.events.into_iter().for_each(|event| engine.apply(event));
        // The scheduler deletes these; here they only no longer count.
        if outbox.stale_bind_requests.is_empty() {
            return;
        }
        for request in outbox.stale_bind_requests {
            mirror.remove_bind_request(&request.key);
        }
    }
}

/// Applies all objects, referenced objects before those that refer to them, as the scheduler does with the first lists of its watches.
fn apply(mirror: &mut ClusterMirror, engine: &mut Cluster, objects: Objects, config_maps_known: bool) {
    objects
        .classes
        .into_iter()
        .for_each(|class| mirror.apply_priority_class(&Arc::new(class)));
    objects
        .topologies
        .iter()
        .for_each(|topology| mirror.apply_topology(topology));
    objects.queues.iter().for_each(|queue| mirror.apply_queue(queue));
    for node in &objects.nodes {
        mirror.apply_node(node);
        mirror.drain_event_batch(|event| engine.apply(event));
    }
    objects
        .volumes
        .into_iter()
        .for_each(|volume| mirror.apply_volume(&Arc::new(volume)));
    for claim in objects.claims {
        mirror.apply_volume_claim(&ObjectKey::of(&claim), &Arc::new(claim));
    }
    for class in objects.storage_classes {
        mirror.apply_storage_class(&Arc::new(class));
    }
    objects.csi_nodes.iter().for_each(|node| mirror.apply_csi_node(node));
    objects.config_maps.iter().for_each(|key| mirror.apply_config_map(key));
    if config_maps_known {
        mirror.config_maps_synced();
    }
    for group in objects.pod_groups {
        mirror.apply_pod_group(&ObjectKey::of(&group), &Arc::new(group));
        mirror.drain_event_batch(|event| engine.apply(event));
    }
    for request in objects.bind_requests {
        mirror.apply_bind_request(&ObjectKey::of(&request), &Arc::new(request));
    }
    for pod in objects.pods {
        mirror.apply_pod(&ObjectKey::of(&pod), &Arc::new(pod));
        mirror.drain_event_batch(|event| engine.apply(event));
    }
}

#[cfg(test)]
pub(super) mod tests;
