//! The part of kube-controller-manager that turns workloads into pods: Deployment, ReplicaSet, StatefulSet and Job, as far as scheduling is
//! concerned. No rolling updates, no pod disruption: for trying and testing only. Works through the Kubernetes API alone.

mod job;
mod objects;
mod plan;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Object, Resource};
use cluster::{Backoff, Context, Deletion, Error, Feed, Key, Outcome, Part, Patch, Selection, Target, WorkQueue};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::sync::Notify;

use objects::{Deployment, Job, ReplicaSet, StatefulSet, Workload};
use plan::{Owned, Plan};

/// Workloads that are worked on at a time.
const WORKERS_MAX: usize = 8;

/// A workload, by kind and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    Job,
}

/// The controllers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Workloads {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Context,
    deployments: Feed<Deployment>,
    replica_sets: Feed<ReplicaSet>,
    stateful_sets: Feed<StatefulSet>,
    jobs: Feed<Job>,
    queue: WorkQueue<(Kind, Key)>,
    /// Owners of pods and replica sets, to know whom to tell when one is gone. A plain lock: held for look-ups only.
    owners: Mutex<FxHashMap<Key, (Kind, Key)>>,
}

impl Workloads {
    /// Starts to watch workloads. Must be called within a runtime.
    pub fn new(context: &Context) -> Workloads {
        let everything = Selection::default();
        let client = &context.client;
        Workloads {
            inner: Arc::new(Inner {
                deployments: Feed::start(client, &everything),
                replica_sets: Feed::start(client, &everything),
                stateful_sets: Feed::start(client, &everything),
                jobs: Feed::start(client, &everything),
                queue: WorkQueue::new(Backoff {
                    first: Duration::from_millis(200),
                    longest: Duration::from_secs(10),
                }),
                owners: Mutex::default(),
                context: context.clone(),
            }),
        }
    }

    /// Works until dropped.
    pub async fn run(&self) {
        let wake = Arc::new(Notify::new());
        let inner = &self.inner;
        let pods = inner.context.feeds.pods().subscribe(&wake);
        let deployments = inner.deployments.subscribe(&wake);
        let replica_sets = inner.replica_sets.subscribe(&wake);
        let stateful_sets = inner.stateful_sets.subscribe(&wake);
        let jobs = inner.jobs.subscribe(&wake);
        let watch = async {
            loop {
                wake.notified().await;
                deployments
                    .take()
                    .into_iter()
                    .for_each(|(key, _)| inner.queue.add((Kind::Deployment, key)));
                stateful_sets
                    .take()
                    .into_iter()
                    .for_each(|(key, _)| inner.queue.add((Kind::StatefulSet, key)));
                jobs.take()
                    .into_iter()
                    .for_each(|(key, _)| inner.queue.add((Kind::Job, key)));
                for (key, set) in replica_sets.take() {
                    inner.tell_owner(&key, set.as_deref());
                    inner.queue.add((Kind::ReplicaSet, key));
                }
                for (key, pod) in pods.take() {
                    inner.tell_owner(&key, pod.as_deref());
                }
            }
        };
        let shared = Arc::clone(&self.inner);
        let work = inner.queue.run(WORKERS_MAX, move |(kind, key)| {
            let inner = Arc::clone(&shared);
            async move {
                match inner.reconcile(kind, &key).await {
                    Ok(()) => Outcome::Done,
                    Err(error) => {
                        tracing::debug!(?kind, %key, %error, "a workload controller could not write; it tries again");
                        Outcome::Retry
                    }
                }
            }
        });
        tokio::join!(watch, work);
    }
}

impl Inner {
    /// Something owned changed: its owner has to look.
    fn tell_owner<T: Object>(&self, key: &Key, owned: Option<&T>) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = match owned {
            Some(owned) => {
                let references = &owned.metadata().owner_references;
                let owner = references.iter().find_map(|owner| {
                    let kind = match &*owner.kind {
                        "Deployment" => Kind::Deployment,
                        "ReplicaSet" => Kind::ReplicaSet,
                        "StatefulSet" => Kind::StatefulSet,
                        "Job" => Kind::Job,
                        _ => return None,
                    };
                    Some((kind, Key::new(&key.namespace, &owner.name)))
                });
                if let Some(owner) = &owner {
                    owners.insert(key.clone(), owner.clone());
                }
                owner
            }
            None => owners.remove(key),
        };
        drop(owners);
        if let Some(owner) = owner {
            self.queue.add(owner);
        }
    }

    async fn reconcile(&self, kind: Kind, key: &Key) -> Result<(), Error> {
        match kind {
            Kind::Deployment => match self.deployments.get(key) {
                Some(deployment) if deployment.is_live() => self.deployment(key, &deployment.0).await,
                _ => Ok(()),
            },
            Kind::ReplicaSet => match self.replica_sets.get(key) {
                Some(set) if set.is_live() => {
                    let owned = self.owned_pods(key, &set.0);
                    self.carry_out(key, &ReplicaSet::RESOURCE, &set.0, plan::replica_set(&set.0, &owned))
                        .await
                }
                _ => Ok(()),
            },
            Kind::StatefulSet => match self.stateful_sets.get(key) {
                Some(set) if set.is_live() => {
                    let owned = self.owned_pods(key, &set.0);
                    self.carry_out(key, &StatefulSet::RESOURCE, &set.0, plan::stateful_set(&set.0, &owned))
                        .await
                }
                _ => Ok(()),
            },
            Kind::Job => match self.jobs.get(key) {
                Some(job) if job.is_live() => self.job(key, &job.0).await,
                _ => Ok(()),
            },
        }
    }

    async fn deployment(&self, key: &Key, deployment: &Workload) -> Result<(), Error> {
        let sets = self.replica_sets.all();
        let own: Vec<_> = sets.iter().filter(|set| set.0.is_owned_by(deployment)).collect();
        let wanted = plan::replica_set_of(deployment);
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let client = &self.context.client;
        for set in &own {
            let other = set.0.metadata.name.as_deref().unwrap_or_default();
            let replicas = if other == name { deployment.replicas() } else { 0 };
            if set.0.replicas() != replicas {
                let target = Target::of::<ReplicaSet>(&key.namespace, other);
                let scale = json!({ "spec": { "replicas": replicas } });
                client.patch(target, Part::Object, Patch::Merge(scale)).await?;
            }
        }
        if !own.iter().any(|set| set.0.metadata.name.as_deref() == Some(&name)) {
            ignore_conflict(client.create(&ReplicaSet::RESOURCE, &key.namespace, wanted).await)?;
        }
        let sum = |field: &str| {
            own.iter()
                .map(|set| set.0.status[field].as_i64().unwrap_or(0))
                .sum::<i64>()
        };
        let status = plan::status(deployment, sum("replicas"), sum("readyReplicas"));
        self.write_status(Target::of::<Deployment>(&key.namespace, &key.name), deployment, status)
            .await
    }

    /// Creates and deletes pods, then writes the status.
    async fn carry_out(&self, key: &Key, resource: &Resource, workload: &Workload, plan: Plan) -> Result<(), Error> {
        let client = &self.context.client;
        for pod in plan.create {
            ignore_conflict(client.create(&api::Pod::RESOURCE, &key.namespace, pod).await)?;
        }
        for name in plan.delete {
            client
                .delete(Target::of::<api::Pod>(&key.namespace, &name), &Deletion::default())
                .await?;
        }
        let target = Target {
            resource,
            namespace: &key.namespace,
            name: &key.name,
        };
        self.write_status(target, workload, plan.status).await
    }

    async fn write_status(&self, target: Target<'_>, workload: &Workload, status: Value) -> Result<(), Error> {
        let Some(fields) = status.as_object() else {
            return Ok(());
        };
        if fields.iter().all(|(field, value)| workload.status[field] == *value) {
            return Ok(());
        }
        let body = json!({ "status": status });
        let written = self
            .context
            .client
            .patch(target, Part::Status, Patch::Merge(body))
            .await;
        written.map(drop)
    }

    /// Pods of the workload that have not ended.
    fn owned_pods(&self, key: &Key, workload: &Workload) -> Vec<Owned> {
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        let pods = self.context.feeds.pods().all().into_iter();
        let own = pods.filter(|pod| pod.metadata.namespace.as_deref() == Some(&*key.namespace));
        own.filter(|pod| pod.metadata.owner_references.iter().any(|owner| &*owner.uid == uid))
            .map(|pod| Owned {
                name: pod.metadata.name.as_deref().unwrap_or_default().to_owned(),
                runs: pod.phase() == engine::model::PodPhase::Running,
                leaves: pod.metadata.deletion_timestamp.is_some(),
            })
            .collect()
    }
}

/// What another replica of ours, or an earlier try, has created is created.
fn ignore_conflict(created: Result<Value, Error>) -> Result<(), Error> {
    match created {
        Err(error) if !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}
