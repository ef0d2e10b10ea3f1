//! A whole cluster for one scenario: an API server, simulated nodes, all of kai's roles, and a task that checks the invariants
//! after every change. Scenarios do not depend on the kind of API server, which the back end selects.

pub(crate) mod audit;
mod backend;
mod kube;
pub(crate) mod line;
pub(crate) mod manifest;
pub(crate) mod replicas;
pub(crate) mod user;

use std::sync::Arc;
use std::time::Duration;

use kai_api::{Object, ObjectKey, Resource};
use kai_cli::roles::RoleSettings;
use kai_cluster::{Client, Context, Selection, Target};
use kai_embedded::invariants::{PodsToLeave, Watcher};
use kai_embedded::kubelet::{Delays, Kubelets, NodeTemplate};
use kai_embedded::workloads::Workloads;
use kai_engine::model::PodPhase;
use serde_json::Value;
use tokio::task::JoinSet;

use backend::Backend;
pub(crate) use backend::Choice;
pub(crate) use kube::Kube;
pub(crate) use user::User;

/// The time limit for an expected state. Virtual time on the embedded cluster.
const PATIENCE: Duration = Duration::from_secs(120);
/// The interval between two checks of a condition.
const GLANCE: Duration = Duration::from_millis(50);

/// Runs a scenario on a cluster with these nodes. Afterwards the cluster must become stable, and all invariants must hold.
pub(crate) fn scenario(nodes: &[NodeTemplate], story: impl AsyncFnOnce(&Cluster)) {
    scenario_with(RoleSettings::every_role().unwrap(), nodes, story);
}

/// Runs a scenario with other settings of the roles.
pub(crate) fn scenario_with(settings: RoleSettings, nodes: &[NodeTemplate], story: impl AsyncFnOnce(&Cluster)) {
    let choice = Choice::of_environment();
    choice.runtime().block_on(async {
        let cluster = Cluster::start_with(settings, choice.start().await, nodes).await;
        story(&cluster).await;
        cluster.settle().await;
        let found = cluster.found_when_settled();
        assert!(found.is_empty(), "{}\n{}", sentences(&found), cluster.picture());
    });
}

fn sentences(of: &[impl ToString]) -> String {
    let lines: Vec<String> = of.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The cluster of a scenario.
pub(crate) struct Cluster {
    /// A user with all rights.
    pub(crate) client: Client,
    /// The simulated nodes.
    pub(crate) kubelets: Kubelets,
    context: Context,
    watcher: Watcher,
    backend: Backend,
    settings: RoleSettings,
    roles: parking_lot::Mutex<JoinSet<()>>,
    /// Errors of roles that ended unexpectedly.
    ended: Arc<parking_lot::Mutex<Vec<String>>>,
    standby: parking_lot::Mutex<JoinSet<()>>,
    _world: JoinSet<()>,
}

impl Cluster {
    /// A cluster with these nodes and all roles. Call it within the back end's runtime.
    pub(crate) async fn start(backend: Backend, nodes: &[NodeTemplate]) -> Cluster {
        Cluster::start_with(RoleSettings::every_role().unwrap(), backend, nodes).await
    }

    async fn start_with(settings: RoleSettings, backend: Backend, nodes: &[NodeTemplate]) -> Cluster {
        let (makes_queues, guards) = (settings.controllers.is_some(), settings.admission.is_some());
        let cluster = Cluster::prepare(settings, backend, nodes).await;
        cluster.start_roles();
        if makes_queues {
            cluster.until_queues().await;
        }
        if guards {
            cluster.until_guarded().await;
        }
        cluster
    }

    /// A cluster with these nodes, without kai. Call it within the back end's runtime.
    pub(crate) async fn without_roles(backend: Backend, nodes: &[NodeTemplate]) -> Cluster {
        Cluster::prepare(RoleSettings::every_role().unwrap(), backend, nodes).await
    }

    async fn prepare(settings: RoleSettings, backend: Backend, nodes: &[NodeTemplate]) -> Cluster {
        let client = backend.client();
        let context = Context::new(client.clone(), backend.clock());
        let reservation_pods = settings.binder.as_ref().map(|binder| &binder.identity.reservation_pods);
        let kubelets = Kubelets::with_reservation_pods(
            &context.with_client(backend.client_of_nodes()),
            Delays::default(),
            reservation_pods.cloned().unwrap_or_default(),
        );
        for node in nodes {
            kubelets.add(node).await.unwrap();
        }
        let watcher = Watcher::start(&context, &kubelets);
        let mut world = JoinSet::new();
        let running = kubelets.clone();
        world.spawn(async move { running.run().await });
        if backend.lacks_controller_manager() {
            let workloads = Workloads::new(&context);
            world.spawn(async move { workloads.run().await });
        }
        Cluster {
            client,
            kubelets,
            context,
            watcher,
            backend,
            settings,
            roles: parking_lot::Mutex::default(),
            ended: Arc::default(),
            standby: parking_lot::Mutex::default(),
            _world: world,
        }
    }

    /// Waits until the roles have created the objects that every scenario needs.
    pub(crate) async fn until_installed(&self) {
        self.until_queues().await;
        self.until_guarded().await;
    }

    /// Waits until the default queues exist.
    pub(crate) async fn until_queues(&self) {
        self.until("default queues", |cluster| {
            cluster.context.informers.queues().len() >= 2
        })
        .await;
    }

    /// Waits until webhooks and policies take effect.
    pub(crate) async fn until_guarded(&self) {
        self.backend.until_guarded().await;
    }

    /// A user by this name.
    pub(crate) async fn user(&self, name: &str) -> User {
        User(self.backend.client_of(name).await)
    }

    /// A service account with the token that a kubelet mounts into this pod.
    pub(crate) async fn account_in_pod(&self, account: &str, pod: &kai_api::Pod) -> User {
        User(self.backend.client_in_pod(account, pod).await)
    }

    /// A service account with a token that is not bound to a pod.
    pub(crate) async fn account_unbound(&self, account: &str) -> User {
        User(match self.backend.kube() {
            Some(kube) => kube.client_with_token(account, &[]).await,
            None => self.backend.client_of(account).await,
        })
    }

    /// A service account with all rights in RBAC.
    pub(crate) async fn account_beyond_rbac(&self, account: &str) -> User {
        User(self.backend.client_beyond_rbac(account).await)
    }

    /// A user with all rights.
    pub(crate) fn admin(&self) -> User {
        User(self.client.clone())
    }

    /// The real API server, or `None` on the embedded one.
    pub(crate) fn kube(&self) -> Option<&Kube> {
        self.backend.kube()
    }

    /// Starts all roles in one process, with their own watches.
    pub(crate) fn start_roles(&self) {
        let (backend, ended, settings) = (self.backend.clone(), Arc::clone(&self.ended), self.settings.clone());
        self.roles.lock().spawn(async move {
            let error = backend.run_roles(settings).await;
            ended.lock().push(format!("the roles ended: {error:?}"));
        });
    }

    /// Starts another replica of the roles that have a leader, which [`Cluster::kill_roles`] does not kill. Returns false if roles run
    /// without leader election; then there is no other replica.
    pub(crate) fn start_standby(&self) -> bool {
        let Some(standby) = self.backend.standby() else {
            return false;
        };
        self.standby.lock().spawn(async move {
            let error = standby.await;
            panic!("the standby ended: {error:?}");
        });
        true
    }

    /// Kills all roles, as if the process had died.
    pub(crate) async fn kill_roles(&self) {
        let mut roles = std::mem::take(&mut *self.roles.lock());
        roles.shutdown().await;
    }

    /// Errors of roles that ended unexpectedly.
    pub(crate) fn ended(&self) -> Vec<String> {
        self.ended.lock().clone()
    }

    /// Pods whose deletion the scheduler has sent, for the invariants.
    pub(crate) fn pods_to_leave(&self) -> PodsToLeave {
        self.watcher.pods_to_leave()
    }

    /// Broken invariants, in a stable cluster, and those that were broken before.
    pub(crate) fn found_when_settled(&self) -> Vec<String> {
        let found = self.watcher.found_when_settled().into_iter();
        found
            .map(|violation| violation.to_string())
            .chain(self.ended())
            .collect()
    }

    /// Broken invariants of those that hold at every moment.
    pub(crate) fn found(&self) -> Vec<String> {
        let found = self.watcher.found().into_iter();
        found
            .map(|violation| violation.to_string())
            .chain(self.ended())
            .collect()
    }

    /// The time of day in the cluster.
    pub(crate) fn clock(&self) -> kai_cluster::Clock {
        self.context.clock
    }

    /// The embedded API server, or `None` on a real one.
    pub(crate) fn server(&self) -> Option<&kai_embedded::server::Server> {
        self.backend.server()
    }

    /// Creates an object.
    pub(crate) async fn create(&self, object: Value) {
        self.try_create(object).await.unwrap();
    }

    /// Creates an object as soon as that is possible: a server applies the registration of webhooks after a moment.
    pub(crate) async fn create_soon(&self, object: Value) {
        let created = async {
            while let Err(error) = self.try_create(object.clone()).await {
                assert!(!error.is_conflict(), "{error}");
                tokio::time::sleep(GLANCE).await;
            }
        };
        let created = tokio::time::timeout(PATIENCE, created).await;
        created.unwrap_or_else(|_| panic!("it is refused for ever: {object}"));
    }

    /// Waits until the server serves a custom resource whose definition was just created.
    pub(crate) async fn until_served(&self, version: &str, kind: &str) {
        let served = async {
            loop {
                let found = self.client.resource_of(version, kind).await.unwrap();
                if let Some(resource) = found
                    && self.client.list_values(&resource, &Selection::default()).await.is_ok()
                {
                    return;
                }
                tokio::time::sleep(GLANCE).await;
            }
        };
        let served = tokio::time::timeout(PATIENCE, served).await;
        served.unwrap_or_else(|_| panic!("{kind} of {version} is not served"));
    }

    /// Tries to create an object.
    pub(crate) async fn try_create(&self, object: Value) -> Result<Value, kai_cluster::Error> {
        self.admin().create(object).await
    }

    /// Changes an object.
    pub(crate) async fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        change: Value,
    ) -> Result<Value, kai_cluster::Error> {
        let target = Target {
            resource,
            namespace,
            name,
        };
        self.admin().patch(target, change).await
    }

    /// Deletes an object.
    pub(crate) async fn delete<T: Object>(&self, namespace: &str, name: &str) -> Result<(), kai_cluster::Error> {
        self.admin().delete::<T>(namespace, name).await
    }

    /// The pods of kai's scheduler in namespace `default`, by name.
    pub(crate) fn pods(&self) -> Vec<Arc<kai_api::Pod>> {
        let all = self.context.informers.pods().all().into_iter();
        all.filter(|pod| pod.metadata.namespace() == "default").collect()
    }

    /// A pod of namespace `default`.
    pub(crate) fn pod(&self, name: &str) -> Option<Arc<kai_api::Pod>> {
        self.context.informers.pods().get(&ObjectKey::new("default", name))
    }

    /// The watches of the scenario.
    pub(crate) fn informers(&self) -> &kai_cluster::Informers {
        &self.context.informers
    }

    /// Whether the pod runs.
    pub(crate) fn runs(&self, name: &str) -> bool {
        self.pod(name).is_some_and(|pod| is_running(&pod))
    }

    /// Names of the pods that run, sorted.
    pub(crate) fn running(&self) -> Vec<String> {
        let running = self.pods().into_iter().filter(|pod| is_running(pod));
        running.map(|pod| pod.metadata.plain_name().to_owned()).collect()
    }

    /// The node of a pod.
    pub(crate) fn node_of(&self, name: &str) -> Option<String> {
        self.pod(name).and_then(|pod| pod.node_name().map(str::to_owned))
    }

    /// The reason why a pod waits, from its condition.
    pub(crate) fn reason(&self, name: &str) -> Option<String> {
        let pod = self.pod(name)?;
        let condition = pod.condition(kai_api::PodCondition::SCHEDULED)?;
        let waits = condition.status == kai_api::ConditionStatus::False;
        condition.message.as_deref().filter(|_| waits).map(str::to_owned)
    }

    /// Waits until these pods run, and no others of namespace `default`.
    pub(crate) async fn until_only_running(&self, names: &[&str]) {
        let mut names = names.to_vec();
        names.sort_unstable();
        let what = format!("only {names:?} run");
        self.until(&what, |cluster| cluster.running() == names).await;
    }

    /// Waits until this many pods run.
    pub(crate) async fn until_running(&self, count: usize) {
        self.until(&format!("{count} pods run"), |cluster| cluster.running().len() == count)
            .await;
    }

    /// Waits until the condition of a pod has a reason why it waits.
    pub(crate) async fn until_waiting(&self, name: &str, why: &str) {
        let what = format!("{name} waits because of {why:?}");
        self.until(&what, |cluster| {
            cluster.reason(name).is_some_and(|reason| reason.contains(why))
        })
        .await;
    }

    /// Waits for a condition; prints the state of the cluster if it does not become true in time.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Cluster) -> bool) {
        self.until_async(what, async || holds(self)).await;
    }

    /// Waits for an asynchronous condition.
    pub(crate) async fn until_async(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let waited = async {
            while !holds().await {
                tokio::time::sleep(GLANCE).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waited).await.is_err() {
            panic!("never: {what}\n{}", self.picture());
        }
    }

    /// Waits until the cluster is stable.
    pub(crate) async fn settle(&self) {
        let state = || {
            let informers = &self.context.informers;
            let version =
                |metadata: &kai_api::Metadata| metadata.resource_version.as_deref().unwrap_or_default().to_owned();
            let pods = informers.pods().all().into_iter().map(|pod| version(&pod.metadata));
            let requests = informers
                .bind_requests()
                .all()
                .into_iter()
                .map(|request| version(&request.metadata));
            // The status of queues is written last.
            let queues = informers
                .queues()
                .all()
                .into_iter()
                .map(|queue| version(&queue.metadata));
            pods.chain(requests).chain(queues).collect::<Vec<_>>()
        };
        let settled = async {
            loop {
                let before = state();
                tokio::time::sleep(self.backend.quiet()).await;
                if state() == before {
                    return;
                }
            }
        };
        if tokio::time::timeout(PATIENCE, settled).await.is_err() {
            panic!("the cluster does not settle\n{}", self.picture());
        }
    }

    /// A summary of the cluster for error messages.
    pub(crate) fn picture(&self) -> String {
        let mut lines = Vec::new();
        for pod in self.context.informers.pods().all() {
            let condition = pod.condition(kai_api::PodCondition::SCHEDULED);
            let reason = condition
                .and_then(|condition| condition.message.as_deref())
                .unwrap_or_default();
            let name = pod.metadata.qualified_name();
            let node = pod.node_name().unwrap_or("-");
            let leaves = if pod.is_terminating() { " (leaving)" } else { "" };
            lines.push(format!(
                "{name}: {:?}{leaves} on {node} {:?} {reason}",
                pod.phase(),
                pod.gpu_groups()
            ));
        }
        for request in self.context.informers.bind_requests().all() {
            lines.push(format!(
                "bind request {}: {:?} {}",
                request.metadata.qualified_name(),
                request.phase(),
                request.reason()
            ));
        }
        for group in self.context.informers.pod_groups().all() {
            lines.push(format!(
                "pod group {} in queue {}",
                group.metadata.qualified_name(),
                group.queue()
            ));
        }
        lines.join("\n")
    }
}

fn is_running(pod: &kai_api::Pod) -> bool {
    pod.phase() == PodPhase::Running && !pod.is_terminating()
}
