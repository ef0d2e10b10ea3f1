//! Carries out the plans of workloads: creates, changes and deletes objects, writes statuses, records events.

use std::time::Duration;

use kai_api::{Object, ObjectKey, Resource, Scope};
use kai_cluster::{Deletion, Error, Informer, ObjectEvent, Part, Patch, Selection, Severity, Target};
use serde_json::{Value, json};

use super::objects::{
    Claim, ControllerRevision, CronJob, DaemonSet, Deployment, Job, ReplicaSet, StatefulSet, Workload,
};
use super::pods::OwnedPod;
use super::replica_set::Plan;
use super::revisions::{self, Revisions};
use super::{Inner, Kind, cron_job, daemon_set, deployment, job, replica_set, stateful_set};

const SERVICE_ACCOUNT: Resource = Resource::new("", "v1", "ServiceAccount", "serviceaccounts", Scope::Namespaced);

/// When to reconcile an object again without a change.
pub(super) type RequeueAfter = Option<Duration>;

impl Inner {
    pub(super) async fn reconcile(&self, kind: Kind, key: &ObjectKey) -> Result<RequeueAfter, Error> {
        match kind {
            Kind::Deployment => match live(&self.deployments, key, |object| &object.0) {
                Some(deployment) => self.deployment(key, &deployment).await,
                None => Ok(None),
            },
            Kind::ReplicaSet => match live(&self.replica_sets, key, |object| &object.0) {
                Some(set) => self.replica_set(key, &set).await,
                None => Ok(None),
            },
            Kind::StatefulSet => match live(&self.stateful_sets, key, |object| &object.0) {
                Some(set) => self.stateful_set(key, &set).await,
                None => Ok(None),
            },
            Kind::DaemonSet => match live(&self.daemon_sets, key, |object| &object.0) {
                Some(set) => self.daemon_set(key, &set).await,
                None => Ok(None),
            },
            Kind::Job => match live(&self.jobs, key, |object| &object.0) {
                Some(job) => self.job(key, &job).await,
                None => Ok(None),
            },
            Kind::CronJob => match live(&self.cron_jobs, key, |object| &object.0) {
                Some(cron_job) => self.cron_job(key, &cron_job).await,
                None => Ok(None),
            },
            Kind::Claim => self.claim(key).await,
            Kind::Volume => self.volume(key).await,
            Kind::EphemeralClaims => self.ephemeral_claims(key).await,
            Kind::Namespace => self.namespace(key).await,
            Kind::DeletedNode => self.deleted_node(key).await,
        }
    }

    async fn deployment(&self, key: &ObjectKey, deployment: &Workload) -> Result<RequeueAfter, Error> {
        let sets = self.owned(&ReplicaSet::RESOURCE, key, deployment).await?;
        let plan = deployment::plan(deployment, &sets, self.context.clock.now());
        let client = &self.context.client;
        for (name, change) in plan.change {
            let mut body = json!({});
            if let Some(replicas) = change.replicas {
                body["spec"]["replicas"] = replicas.into();
                let message = format!("Scaled replica set {name} to {replicas}");
                self.emit(deployment, &Deployment::RESOURCE, "ScalingReplicaSet", message)
                    .await;
            }
            if !change.annotations.is_empty() {
                body["metadata"]["annotations"] = change.annotations.into();
            }
            let target = Target::of::<ReplicaSet>(&key.namespace, &name);
            client.patch(target, Part::Object, Patch::Merge(body)).await?;
        }
        if let Some(set) = plan.create {
            let (name, replicas) = (set["metadata"]["name"].clone(), set["spec"]["replicas"].clone());
            match client.create(&ReplicaSet::RESOURCE, &key.namespace, set).await {
                Ok(_) => {
                    let message = format!(
                        "Scaled up replica set {} from 0 to {replicas}",
                        name.as_str().unwrap_or_default()
                    );
                    self.emit(deployment, &Deployment::RESOURCE, "ScalingReplicaSet", message)
                        .await;
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    return Err(self
                        .failed(deployment, &Deployment::RESOURCE, "ReplicaSetCreateError", error)
                        .await);
                }
            }
        }
        for name in plan.delete {
            self.delete::<ReplicaSet>(key, &name).await?;
        }
        let target = Target::of::<Deployment>(&key.namespace, &key.name);
        if !plan.annotations.is_empty() {
            let body = json!({ "metadata": { "annotations": plan.annotations } });
            client.patch(target, Part::Object, Patch::Merge(body)).await?;
        }
        self.write_status(target, deployment, plan.status).await?;
        Ok(plan.requeue_after)
    }

    async fn replica_set(&self, key: &ObjectKey, set: &Workload) -> Result<RequeueAfter, Error> {
        let owned = self.owned_pods(key, set).await?;
        let mut plan = replica_set::plan(set, &owned, self.context.clock.now());
        let (status, requeue_after) = (plan.status.take(), plan.requeue_after);
        let done = self.apply_plan(key, &ReplicaSet::RESOURCE, set, plan).await;
        let failed = done.as_ref().err().map(server_message);
        let mut status = status;
        status["conditions"] = replica_set::failure(set, failed, &self.context.clock.now_text());
        self.write_status(Target::of::<ReplicaSet>(&key.namespace, &key.name), set, status)
            .await?;
        done.map(|()| requeue_after)
    }

    async fn stateful_set(&self, key: &ObjectKey, set: &Workload) -> Result<RequeueAfter, Error> {
        let owned = self.owned_pods(key, set).await?;
        let revisions = self.revisions(key, &StatefulSet::RESOURCE, set, &owned).await?;
        let plan = stateful_set::plan(set, &owned, &revisions, self.context.clock.now());
        for pod in &plan.create {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            for claim in stateful_set::claims(set, name) {
                ignore_conflict(
                    self.context
                        .client
                        .create(&Claim::RESOURCE, &key.namespace, claim)
                        .await,
                )?;
            }
        }
        self.apply_plan_and_status(key, &StatefulSet::RESOURCE, set, plan).await
    }

    async fn daemon_set(&self, key: &ObjectKey, set: &Workload) -> Result<RequeueAfter, Error> {
        let owned = self.owned_pods(key, set).await?;
        let client = &self.context.client;
        let nodes = client
            .list_values(&kai_api::Node::RESOURCE, &Selection::default())
            .await?;
        let revisions = self.revisions(key, &DaemonSet::RESOURCE, set, &owned).await?;
        let plan = daemon_set::plan(set, &nodes, &owned, &revisions, self.context.clock.now());
        self.apply_plan_and_status(key, &DaemonSet::RESOURCE, set, plan).await
    }

    async fn job(&self, key: &ObjectKey, job: &Workload) -> Result<RequeueAfter, Error> {
        let owned = self.owned_pods(key, job).await?;
        match job::plan(job, &owned, self.context.clock.now()) {
            job::Step::Apply(plan) => self.apply_plan_and_status(key, &Job::RESOURCE, job, plan).await,
            job::Step::Delete => self.delete::<Job>(key, &key.name).await.map(|()| None),
            job::Step::Wait(requeue_after) => Ok(requeue_after),
        }
    }

    async fn cron_job(&self, key: &ObjectKey, cron_job: &Workload) -> Result<RequeueAfter, Error> {
        let jobs = self.owned(&Job::RESOURCE, key, cron_job).await?;
        let plan = cron_job::plan(cron_job, &jobs, self.context.clock.now());
        if let Some((reason, message)) = plan.warning {
            self.record(cron_job, &CronJob::RESOURCE, Severity::Warning, reason, message)
                .await;
        }
        for name in &plan.delete {
            self.delete::<Job>(key, name).await?;
        }
        if let Some(job) = plan.create {
            match self.context.client.create(&Job::RESOURCE, &key.namespace, job).await {
                Ok(job) => {
                    let message = format!("Created job {}", job["metadata"]["name"].as_str().unwrap_or_default());
                    self.emit(cron_job, &CronJob::RESOURCE, "SuccessfulCreate", message)
                        .await;
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(self.failed(cron_job, &CronJob::RESOURCE, "FailedCreate", error).await),
            }
        }
        let target = Target::of::<CronJob>(&key.namespace, &key.name);
        self.write_status(target, cron_job, plan.status).await?;
        Ok(plan.requeue_after)
    }

    /// Creates the service account `default` of a namespace.
    async fn namespace(&self, key: &ObjectKey) -> Result<RequeueAfter, Error> {
        let live = self
            .namespaces
            .get(key)
            .filter(|namespace| !namespace.metadata.is_terminating());
        if live.is_none() {
            return Ok(None);
        }
        let account = json!({ "metadata": { "name": "default" } });
        let created = self.context.client.create(&SERVICE_ACCOUNT, &key.name, account).await;
        ignore_conflict(created).map(|()| None)
    }

    /// Creates and deletes pods, then writes the status.
    async fn apply_plan_and_status(
        &self,
        key: &ObjectKey,
        resource: &Resource,
        workload: &Workload,
        mut plan: Plan,
    ) -> Result<RequeueAfter, Error> {
        let (status, requeue_after) = (plan.status.take(), plan.requeue_after);
        let done = self.apply_plan(key, resource, workload, plan).await;
        let target = Target {
            resource,
            namespace: &key.namespace,
            name: &key.name,
        };
        self.write_status(target, workload, status).await?;
        done.map(|()| requeue_after)
    }

    async fn apply_plan(
        &self,
        key: &ObjectKey,
        resource: &Resource,
        workload: &Workload,
        plan: Plan,
    ) -> Result<(), Error> {
        let client = &self.context.client;
        for name in plan.delete {
            self.delete::<kai_api::Pod>(key, &name).await?;
            self.emit(workload, resource, "SuccessfulDelete", format!("Deleted pod: {name}"))
                .await;
        }
        for pod in plan.create {
            match client.create(&kai_api::Pod::RESOURCE, &key.namespace, pod).await {
                Ok(pod) => {
                    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                    self.emit(workload, resource, "SuccessfulCreate", format!("Created pod: {name}"))
                        .await;
                }
                // An earlier attempt created the pod.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(self.failed(workload, resource, "FailedCreate", error).await),
            }
        }
        Ok(())
    }

    /// Plans the revisions of a workload and writes them.
    async fn revisions(
        &self,
        key: &ObjectKey,
        resource: &Resource,
        workload: &Workload,
        owned: &[OwnedPod],
    ) -> Result<Revisions, Error> {
        let client = &self.context.client;
        let selection = in_namespace(key);
        let mut known = client.list_values(&ControllerRevision::RESOURCE, &selection).await?;
        known.retain(|revision| owns(workload, revision));
        let in_use: Vec<&str> = owned.iter().map(|pod| pod.revision.as_str()).collect();
        let mut plan = revisions::plan(workload, resource, &known, &in_use);
        if let Some(revision) = plan.create.take() {
            ignore_conflict(
                client
                    .create(&ControllerRevision::RESOURCE, &key.namespace, revision)
                    .await,
            )?;
        }
        if let Some((name, number)) = &plan.renumber {
            let body = json!({ "revision": number });
            let target = Target::of::<ControllerRevision>(&key.namespace, name);
            client.patch(target, Part::Object, Patch::Merge(body)).await?;
        }
        for name in &plan.delete {
            self.delete::<ControllerRevision>(key, name).await?;
        }
        Ok(plan)
    }

    pub(super) async fn write_status(&self, target: Target<'_>, object: &Workload, status: Value) -> Result<(), Error> {
        let Some(fields) = status.as_object() else {
            return Ok(());
        };
        if fields.iter().all(|(field, value)| same(&object.status[field], value)) {
            return Ok(());
        }
        let body = Patch::Merge(json!({ "status": status }));
        let written = self.context.client.patch(target, Part::Status, body).await;
        written.map(drop)
    }

    /// The pods of a workload, including terminal ones.
    async fn owned_pods(&self, key: &ObjectKey, workload: &Workload) -> Result<Vec<OwnedPod>, Error> {
        let selection = Selection {
            labels: selector_text(&workload.spec["selector"]),
            ..in_namespace(key)
        };
        let pods = self
            .context
            .client
            .list_values(&kai_api::Pod::RESOURCE, &selection)
            .await?;
        let own = pods.iter().filter(|pod| owns(workload, pod));
        Ok(own.map(OwnedPod::of).collect())
    }

    async fn owned(&self, resource: &Resource, key: &ObjectKey, owner: &Workload) -> Result<Vec<Workload>, Error> {
        let objects = self.context.client.list_values(resource, &in_namespace(key)).await?;
        let live = objects
            .into_iter()
            .filter(|object| object["metadata"]["deletionTimestamp"].is_null());
        Ok(live
            .filter_map(Workload::of)
            .filter(|object| object.is_owned_by(owner))
            .collect())
    }

    async fn delete<T: Object>(&self, key: &ObjectKey, name: &str) -> Result<(), Error> {
        let target = Target::of::<T>(&key.namespace, name);
        self.context.client.delete(target, &Deletion::default()).await
    }

    /// Records the event of a failed creation, and returns the error for the retry.
    pub(super) async fn failed(
        &self,
        about: &Workload,
        resource: &Resource,
        reason: &'static str,
        error: Error,
    ) -> Error {
        let message = format!("Error creating: {}", server_message(&error));
        self.record(about, resource, Severity::Warning, reason, message).await;
        error
    }

    pub(super) async fn emit(&self, about: &Workload, resource: &Resource, reason: &'static str, message: String) {
        self.record(about, resource, Severity::Normal, reason, message).await;
    }

    pub(super) async fn record(
        &self,
        about: &Workload,
        resource: &Resource,
        severity: Severity,
        reason: &'static str,
        message: String,
    ) {
        let note = ObjectEvent {
            about: about.about(resource),
            severity,
            reason,
            message,
            annotations: Vec::new(),
        };
        self.events.record(note).await;
    }
}

/// The object, unless it is gone or terminating.
fn live<T: Object>(informer: &Informer<T>, key: &ObjectKey, workload: impl Fn(&T) -> &Workload) -> Option<Workload> {
    let object = informer.get(key)?;
    let workload = workload(&object);
    workload.metadata.deletion_timestamp.is_none().then(|| workload.clone())
}

fn owns(workload: &Workload, object: &Value) -> bool {
    let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| owner["uid"] == workload.uid())
}

fn in_namespace(key: &ObjectKey) -> Selection {
    Selection {
        namespace: Some(key.namespace.to_string()),
        ..Selection::default()
    }
}

/// The `matchLabels` of a selector as text. Expressions are left out: the owner references decide.
fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let pairs = labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    pairs.collect::<Vec<_>>().join(",")
}

/// The server's message alone.
fn server_message(error: &Error) -> String {
    match error {
        Error::Call { message, .. } => message.clone(),
        Error::Connect { .. } | Error::NotLeader { .. } => error.to_string(),
    }
}

/// Ignores that another replica or an earlier attempt created the object.
pub(super) fn ignore_conflict(created: Result<Value, Error>) -> Result<(), Error> {
    match created {
        Err(error) if !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

/// Whether a status field has this value already. API servers omit empty values.
fn same(present: &Value, wanted: &Value) -> bool {
    let empty = [json!([]), json!(0), json!("")];
    present == wanted || present.is_null() && empty.contains(wanted)
}
