//! A small kube-controller-manager: pods of Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs, volumes of claims,
//! service accounts of namespaces, and the deletion of pods on deleted nodes. Uses the Kubernetes API alone.
//!
//! A pure function per kind (`replica_set::plan` and so on) decides from the object and a fresh list of its owned objects; `reconcile`
//! carries the plan out. A fresh list, because a watch that lags behind the controller's own writes would make it create the same pods
//! twice. [`expansion`] uses the same functions to simulate manifests without a cluster.

mod conditions;
mod cron_job;
mod daemon_set;
mod deleted_nodes;
mod deployment;
pub mod expansion;
mod job;
mod node_matching;
mod objects;
mod other_schedulers;
mod pods;
mod reconcile;
mod replica_set;
mod revisions;
mod stateful_set;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kai_api::{Backoff, Object, ObjectKey, VolumeClaim};
use kai_cluster::{Context, EventRecorder, Informer, Selection, Subscription, WorkQueue, WorkResult};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use objects::{Claim, CronJob, DaemonSet, Deployment, Job, ReplicaSet, StatefulSet, Volume};
pub use other_schedulers::OtherSchedulers;
pub use volumes::PROVISIONER as VOLUME_PROVISIONER;

/// Objects that are reconciled at a time.
const WORKERS_MAX: usize = 8;

/// The kinds of work items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    Claim,
    Volume,
    /// A pod with ephemeral volumes.
    EphemeralClaims,
    Namespace,
    /// A node that has pods and does not exist.
    DeletedNode,
}

impl Kind {
    /// The work item kind of an owner of pods, ReplicaSets or Jobs.
    fn of_owner(kind: &str) -> Option<Kind> {
        match kind {
            "Deployment" => Some(Kind::Deployment),
            "ReplicaSet" => Some(Kind::ReplicaSet),
            "StatefulSet" => Some(Kind::StatefulSet),
            "DaemonSet" => Some(Kind::DaemonSet),
            "Job" => Some(Kind::Job),
            "CronJob" => Some(Kind::CronJob),
            _ => None,
        }
    }
}

/// Owners of objects, by the objects' plural and key.
type Owners = FxHashMap<(&'static str, ObjectKey), (Kind, ObjectKey)>;

/// The controllers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Workloads {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    events: EventRecorder,
    deployments: Informer<Deployment>,
    replica_sets: Informer<ReplicaSet>,
    stateful_sets: Informer<StatefulSet>,
    daemon_sets: Informer<DaemonSet>,
    jobs: Informer<Job>,
    cron_jobs: Informer<CronJob>,
    claims: Informer<Claim>,
    volumes: Informer<Volume>,
    classes: Informer<kai_api::StorageClass>,
    namespaces: Informer<kai_api::Namespace>,
    queue: WorkQueue<(Kind, ObjectKey)>,
    /// The owners to reconcile when an owned object is gone. Held for lookups only.
    owners: Mutex<Owners>,
}

impl Workloads {
    /// Starts the watches. Must be called within a runtime.
    pub fn new(context: &Context) -> Workloads {
        let everything = Selection::default();
        let client = &context.client;
        Workloads {
            inner: Arc::new(Inner {
                events: EventRecorder::new(client, "kai-controller-manager", context.clock),
                deployments: Informer::start(client, &everything),
                replica_sets: Informer::start(client, &everything),
                stateful_sets: Informer::start(client, &everything),
                daemon_sets: Informer::start(client, &everything),
                jobs: Informer::start(client, &everything),
                cron_jobs: Informer::start(client, &everything),
                claims: Informer::start(client, &everything),
                volumes: Informer::start(client, &everything),
                classes: Informer::start(client, &everything),
                namespaces: Informer::start(client, &everything),
                queue: WorkQueue::new(Backoff {
                    first: Duration::from_millis(200),
                    longest: Duration::from_secs(10),
                }),
                owners: Mutex::default(),
                context: context.clone(),
            }),
        }
    }

    /// Runs the controllers until dropped.
    pub fn run(&self) -> BoxFuture<'_, ()> {
        // Boxed, so that this crate compiles it, and not every crate that awaits it.
        Box::pin(self.reconcile_workloads())
    }

    async fn reconcile_workloads(&self) {
        let shared = Arc::clone(&self.inner);
        let work = self.inner.queue.run(WORKERS_MAX, move |(kind, key)| {
            let inner = Arc::clone(&shared);
            async move {
                match inner.reconcile(kind, &key).await {
                    Ok(None) => WorkResult::Done,
                    Ok(Some(pause)) => WorkResult::RequeueAfter(pause),
                    Err(error) => {
                        tracing::debug!(?kind, %key, %error, "a workload controller could not write; it retries");
                        WorkResult::Retry
                    }
                }
            }
        });
        tokio::join!(self.inner.watch(), work);
    }
}

impl Inner {
    /// Turns changes of objects into work items.
    async fn watch(&self) {
        let wake = Arc::new(Notify::new());
        let pods = self.context.informers.pods().subscribe(&wake);
        let nodes = self.context.informers.nodes().subscribe(&wake);
        let deployments = self.deployments.subscribe(&wake);
        let replica_sets = self.replica_sets.subscribe(&wake);
        let stateful_sets = self.stateful_sets.subscribe(&wake);
        let daemon_sets = self.daemon_sets.subscribe(&wake);
        let jobs = self.jobs.subscribe(&wake);
        let cron_jobs = self.cron_jobs.subscribe(&wake);
        let claims = self.claims.subscribe(&wake);
        let volumes = self.volumes.subscribe(&wake);
        let classes = self.classes.subscribe(&wake);
        let namespaces = self.namespaces.subscribe(&wake);
        loop {
            wake.notified().await;
            self.enqueue_changed(&deployments, Kind::Deployment);
            self.enqueue_changed(&replica_sets, Kind::ReplicaSet);
            self.enqueue_changed(&stateful_sets, Kind::StatefulSet);
            self.enqueue_changed(&daemon_sets, Kind::DaemonSet);
            self.enqueue_changed(&jobs, Kind::Job);
            self.enqueue_changed(&cron_jobs, Kind::CronJob);
            self.enqueue_changed(&claims, Kind::Claim);
            self.enqueue_changed(&namespaces, Kind::Namespace);
            for (key, pod) in pods.take() {
                self.enqueue_owner(&key, pod.as_deref());
                let is_ephemeral = |claim: &VolumeClaim| matches!(claim, VolumeClaim::Ephemeral { .. });
                let waiting = pod.as_deref().filter(|pod| pod.node_name().is_none());
                if waiting.is_some_and(|pod| pod.volume_claims().iter().any(is_ephemeral)) {
                    self.queue.add((Kind::EphemeralClaims, key.clone()));
                }
                if let Some(node) = pod.as_deref().and_then(kai_api::Pod::node_name) {
                    self.enqueue_if_node_is_missing(node);
                }
            }
            if !nodes.take().is_empty() {
                self.enqueue_all(&self.daemon_sets, Kind::DaemonSet);
                for pod in self.context.informers.pods().all() {
                    pod.node_name()
                        .into_iter()
                        .for_each(|node| self.enqueue_if_node_is_missing(node));
                }
            }
            if self.enqueue_changed(&volumes, Kind::Volume) | !classes.take().is_empty() {
                self.enqueue_all(&self.claims, Kind::Claim);
            }
        }
    }

    /// Enqueues changed objects and their owners. Returns whether there were any.
    fn enqueue_changed<T: Object>(&self, changed: &Subscription<T>, kind: Kind) -> bool {
        let changed = changed.take();
        for (key, object) in &changed {
            self.enqueue_owner(key, object.as_deref());
            self.queue.add((kind, key.clone()));
        }
        !changed.is_empty()
    }

    fn enqueue_all<T: Object>(&self, informer: &Informer<T>, kind: Kind) {
        for object in informer.all() {
            self.queue.add((kind, ObjectKey::of(&*object)));
        }
    }

    /// Enqueues the owner of a changed object.
    fn enqueue_owner<T: Object>(&self, key: &ObjectKey, owned: Option<&T>) {
        let plural = match &T::RESOURCE.plural {
            std::borrow::Cow::Borrowed(plural) => *plural,
            std::borrow::Cow::Owned(_) => return,
        };
        let place = (plural, key.clone());
        let mut owners = self.owners.lock();
        let owner = match owned {
            Some(owned) => {
                let references = &owned.metadata().owner_references;
                let owner = references.iter().find_map(|owner| {
                    let kind = Kind::of_owner(&owner.kind)?;
                    Some((kind, ObjectKey::new(&key.namespace, &owner.name)))
                });
                if let Some(owner) = &owner {
                    owners.insert(place, owner.clone());
                }
                owner
            }
            None => owners.remove(&place),
        };
        drop(owners);
        if let Some(owner) = owner {
            self.queue.add(owner);
        }
    }
}
