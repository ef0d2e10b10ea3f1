//! A real API server as back end: kai is installed with its manifests, each role has its own service account with only its
//! permissions, and webhooks are called over TLS. `.ci/kube` starts and stops the server.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kai_api::{Object, Resource, Scope, keys};
use kai_cli::roles::{self, RoleSettings};
use kai_cluster::{
    Candidate, Client, ClientConfig, Clock, Context, Deletion, LeaseTimes, Part, Patch, Selection, Target,
};
use kai_controllers::admission::Endpoint;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

/// The account of the simulated nodes. Policies trust it with the scheduler's keys, but it is none of the accounts of the manifests, which
/// policies restrict. It has the permissions of kubelets because it is an administrator.
const NODES: &str = "system:serviceaccount:kai-scheduler:simulated-nodes";
const ADMINISTRATORS: &str = "system:masters";
/// The field manager of the installation.
const MANAGER: &str = "kai-e2e";
/// The time in which the objects of a scenario must be deleted.
const CLEAN_MAX: Duration = Duration::from_secs(60);
/// The interval between two checks of that.
const GLANCE: Duration = Duration::from_millis(100);

const RBAC: &str = include_str!("../../../../../deploy/rbac.yaml");
const AUTOSCALING: &str = include_str!("../../../../../deploy/autoscaling.yaml");

/// Shorter than usual, because this is real time.
const TIMES: LeaseTimes = LeaseTimes {
    lease: Duration::from_secs(3),
    renew: Duration::from_secs(2),
    retry: Duration::from_millis(500),
};
/// The number of replicas so far; each has its own name.
static REPLICAS: AtomicU64 = AtomicU64::new(0);
/// Initialised once for all scenarios of a process.
static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// The server and the credentials for it.
#[derive(Clone)]
pub(crate) struct Kube {
    pub(super) access: ClientConfig,
    pub(crate) client: Client,
    pub(crate) nodes: Client,
}

impl Kube {
    /// Installs kai, and deletes the objects of earlier scenarios.
    pub(crate) async fn start() -> Kube {
        let path = std::env::var_os("KAI_E2E_KUBECONFIG").expect("KAI_E2E_KUBECONFIG says where the API server is");
        let access = ClientConfig::Kubeconfig(path.into());
        let client = Client::connect(&access).await.unwrap();
        let nodes = Client::as_user(&access, NODES, &[ADMINISTRATORS]).await.unwrap();
        let kube = Kube { access, client, nodes };
        INSTALLED.get_or_init(|| kube.install()).await;
        kube.clean().await;
        kube
    }

    /// Creates namespaces, definitions and permissions.
    pub(crate) async fn install(&self) {
        let namespaces = ["kai-scheduler", keys::RESERVATION]
            .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        // The GPU operator creates this class; pods that share GPUs name it.
        let runtime_class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": keys::RUNTIME_CLASS }, "handler": "nvidia",
        });
        let permissions = [RBAC, AUTOSCALING].map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap());
        let objects = namespaces
            .into_iter()
            .chain([runtime_class])
            .chain(kai_api::crd::crds())
            .chain(permissions.into_iter().flatten());
        for object in objects.filter(|object| !object.is_null()) {
            self.apply(object).await;
        }
        for resource in [
            kai_api::Queue::RESOURCE,
            kai_api::PodGroup::RESOURCE,
            kai_api::BindRequest::RESOURCE,
            kai_api::Topology::RESOURCE,
        ] {
            // The server serves a custom resource a moment after it accepted the definition.
            let served = async {
                while self.client.list_values(&resource, &Selection::default()).await.is_err() {
                    tokio::time::sleep(GLANCE).await;
                }
            };
            let served = tokio::time::timeout(CLEAN_MAX, served).await;
            served.unwrap_or_else(|_| panic!("{} are not served", resource.plural));
        }
    }

    pub(crate) async fn apply(&self, object: Value) {
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let resource = self.client.resource_of(version, kind).await.unwrap().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let target = Target {
            resource: &resource,
            namespace: &namespace,
            name: &name,
        };
        let patch = Patch::Apply {
            manager: MANAGER,
            fields: object.clone(),
        };
        let applied = self.client.patch(target, Part::Object, patch).await;
        applied.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    /// Deletes all objects of scenarios, in an order in which no controller creates them again.
    async fn clean(&self) {
        kai_controllers::admission::uninstall(&self.client).await.unwrap();
        let apps =
            |plural: &'static str, kind: &'static str| Resource::new("apps", "v1", kind, plural, Scope::Namespaced);
        let kinds = [
            Resource::new(
                "apiextensions.k8s.io",
                "v1",
                "CustomResourceDefinition",
                "customresourcedefinitions",
                Scope::Cluster,
            ),
            apps("deployments", "Deployment"),
            apps("replicasets", "ReplicaSet"),
            apps("statefulsets", "StatefulSet"),
            Resource::new("batch", "v1", "Job", "jobs", Scope::Namespaced),
            kai_api::Pod::RESOURCE,
            kai_api::PersistentVolumeClaim::RESOURCE,
            kai_api::PersistentVolume::RESOURCE,
            kai_api::StorageClass::RESOURCE,
            kai_api::CsiNode::RESOURCE,
            kai_api::BindRequest::RESOURCE,
            kai_api::PodGroup::RESOURCE,
            kai_api::Topology::RESOURCE,
            kai_api::Node::RESOURCE,
            kai_api::PriorityClass::RESOURCE,
            Resource::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced),
            kai_api::Queue::RESOURCE,
            kai_api::Config::RESOURCE,
            kai_api::SchedulingShard::RESOURCE,
            Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced),
        ];
        let cleaned = async {
            for resource in &kinds {
                while self.delete_all(resource).await > 0 {
                    tokio::time::sleep(GLANCE).await;
                }
            }
        };
        let cleaned = tokio::time::timeout(CLEAN_MAX, cleaned).await;
        cleaned.expect("the remains of the scenario before go");
    }

    /// Deletes all objects of a kind except those of the server and kai's definitions. Returns their number.
    async fn delete_all(&self, resource: &Resource) -> usize {
        let found = self
            .client
            .list_values(resource, &Selection::default())
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let mut count = 0;
        for object in found {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            let of_server = name.starts_with("system-") || name == "kube-root-ca.crt" || namespace.starts_with("kube-");
            let of_kai = name.ends_with(".scheduling.run.ai") || name.ends_with(".kai.scheduler");
            if of_server || of_kai {
                continue;
            }
            count += 1;
            let target = Target {
                resource,
                namespace,
                name,
            };
            let now = Deletion {
                grace_seconds: Some(0),
                ..Deletion::default()
            };
            // The next list shows whether the deletion worked.
            let _ = self.client.delete(target, &now).await;
        }
        count
    }

    /// Runs each role with its own account and its own watches, until one fails.
    pub(crate) async fn run_roles(&self, mut settings: RoleSettings) -> anyhow::Error {
        let webhooks = settings.admission.take();
        let mut roles = self.elected(settings, TIMES).await;
        if let Some(mut webhooks) = webhooks {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            webhooks.endpoint = Endpoint::Url(format!("https://{address}"));
            let context = self.context_of("admission").await;
            roles.spawn(async move {
                let ended = kai_controllers::admission::serve(context, webhooks, listener).await;
                ended.map(|never| match never {}).map_err(anyhow::Error::from)
            });
        }
        first_end(roles).await
    }

    /// Runs a second replica of each role that has a leader.
    pub(crate) async fn run_standby(&self) -> anyhow::Error {
        first_end(self.elected(RoleSettings::every_role().unwrap(), TIMES).await).await
    }

    /// The kubeconfig with the address of the server, for programs.
    pub(crate) fn kubeconfig(&self) -> &std::path::Path {
        match &self.access {
            ClientConfig::Kubeconfig(path) => path,
            ClientConfig::Infer | ClientConfig::User { .. } | ClientConfig::Url(_) => {
                unreachable!("scenarios are given a kubeconfig")
            }
        }
    }

    /// The kubeconfig with other credentials: `change` is applied to its user.
    pub(crate) fn kubeconfig_with(&self, change: &Value) -> tempfile::NamedTempFile {
        let text = std::fs::read_to_string(self.kubeconfig()).unwrap();
        let mut config: Value = serde_saphyr::from_str(&text).unwrap();
        for user in config["users"].as_array_mut().unwrap() {
            for (field, value) in change.as_object().unwrap() {
                user["user"][field] = value.clone();
            }
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        // JSON is valid YAML.
        std::fs::write(file.path(), config.to_string()).unwrap();
        file
    }

    /// A client with a token that is bound to a pod, as a kubelet requests it.
    pub(crate) async fn client_in_pod(&self, account: &str, pod: &kai_api::Pod) -> Client {
        let uid = pod.metadata.uid.as_deref().unwrap();
        let bound = [
            "--bound-object-kind=Pod",
            &format!("--bound-object-name={}", pod.metadata.plain_name()),
            &format!("--bound-object-uid={uid}"),
        ];
        self.client_with_token(account, &bound).await
    }

    /// A client with a token of this account, created by `kubectl create token` with these flags.
    pub(crate) async fn client_with_token(&self, account: &str, flags: &[&str]) -> Client {
        let config = self.kubeconfig_with(&json!({ "token": self.token(account, flags) }));
        let access = ClientConfig::Kubeconfig(config.path().to_owned());
        Client::connect(&access).await.unwrap()
    }

    /// A token of this account, created by `kubectl create token` with these flags.
    pub(crate) fn token(&self, account: &str, flags: &[&str]) -> String {
        let account = account.strip_prefix("system:serviceaccount:").unwrap();
        let (namespace, name) = account.split_once(':').unwrap();
        let kubectl = std::env::var_os("KUBECTL").expect("KUBECTL says where kubectl is");
        let made = std::process::Command::new(kubectl)
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["create", "token", name, "--namespace", namespace])
            .args(flags)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let token = String::from_utf8(made.stdout).unwrap();
        token.trim().to_owned()
    }

    /// A client of this account with the rights of an administrator.
    pub(crate) async fn client_beyond_rbac(&self, account: &str) -> Client {
        Client::as_user(&self.access, account, &[ADMINISTRATORS]).await.unwrap()
    }

    /// A client with the rights of this user.
    pub(crate) async fn client_of(&self, user: &str) -> Client {
        Client::as_user(&self.access, user, &[]).await.unwrap()
    }

    /// The roles that elect a leader.
    pub(super) async fn elected(&self, settings: RoleSettings, times: LeaseTimes) -> JoinSet<anyhow::Result<()>> {
        let RoleSettings {
            scheduler,
            binder,
            controllers,
            admission: _,
            debug_address,
            page,
        } = settings;
        let one = RoleSettings::default;
        let alone = [
            (
                "scheduler",
                scheduler.is_some(),
                RoleSettings {
                    scheduler,
                    debug_address,
                    page,
                    ..one()
                },
            ),
            ("binder", binder.is_some(), RoleSettings { binder, ..one() }),
            (
                "controllers",
                controllers.is_some(),
                RoleSettings { controllers, ..one() },
            ),
        ];
        let replica = REPLICAS.fetch_add(1, Ordering::Relaxed);
        let mut roles = JoinSet::new();
        for (role, _, settings) in alone.into_iter().filter(|(_, wanted, _)| *wanted) {
            let context = self.context_of(role).await;
            let candidate = Candidate {
                namespace: "kai-scheduler".to_owned(),
                name: format!("kai-{role}"),
                identity: format!("{role}-{}-{replica}", std::process::id()),
                times,
                clock: Clock::System,
            };
            roles.spawn(async move {
                loop {
                    let lead = |leadership| roles::run(context.guarded(&leadership), settings.clone());
                    // A role that loses its lease ends, and is restarted.
                    if let Some(ended) = context.client.while_leading(candidate.clone(), lead).await {
                        return ended.map(|never| match never {});
                    }
                }
            });
        }
        roles
    }

    pub(crate) async fn context_of(&self, role: &str) -> Context {
        let account = format!("system:serviceaccount:kai-scheduler:{role}");
        Context::new(self.client_of(&account).await, Clock::System)
    }

    /// Waits until the server calls kai's webhooks and applies its policies: both take effect a moment after their registration.
    pub(crate) async fn until_guarded(&self) {
        let probe = |label: Option<&str>, fraction: &str| {
            let mut pod = super::manifest::PodManifest::new("probe").annotation(keys::GPU_FRACTION, fraction);
            if let Some(value) = label {
                pod = pod.label(keys::GPU_GROUP, value).scheduler("nobody");
            }
            pod.build()
        };
        let guarded = async {
            for (pod, by) in [
                (probe(None, "nonsense"), "webhook"),
                (probe(Some("forged"), "0.5"), "kai-pods"),
            ] {
                loop {
                    match self
                        .client
                        .create(&kai_api::Pod::RESOURCE, "default", pod.clone())
                        .await
                    {
                        Err(error)
                            if error.to_string().contains(by) && !error.to_string().contains("failed calling") =>
                        {
                            break;
                        }
                        Err(_) => {}
                        Ok(_) => {
                            let now = Deletion {
                                grace_seconds: Some(0),
                                ..Deletion::default()
                            };
                            let target = Target::of::<kai_api::Pod>("default", "probe");
                            let _ = self.client.delete(target, &now).await;
                        }
                    }
                    tokio::time::sleep(GLANCE).await;
                }
            }
            self.until_last_policy().await;
        };
        let guarded = tokio::time::timeout(CLEAN_MAX, guarded).await;
        guarded.expect("webhooks and policies take effect");
    }

    /// Waits until the policy that admission applies last takes effect: it refuses every change of a pod by this account without the
    /// pod's token.
    async fn until_last_policy(&self) {
        let account = format!("system:serviceaccount:{0}:{0}", keys::RESERVATION);
        let reservation_pod = self.client_beyond_rbac(&account).await;
        let pod = super::manifest::PodManifest::new("probe").scheduler("nobody").build();
        let target = Target::of::<kai_api::Pod>("default", "probe");
        let mut change = 0;
        loop {
            // The pod may exist already, or its deletion may not have ended.
            let _ = self
                .client
                .create(&kai_api::Pod::RESOURCE, "default", pod.clone())
                .await;
            change += 1;
            let annotations = json!({ "example.com/probe": change.to_string() });
            let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
            match reservation_pod.patch(target, Part::Object, patch).await {
                Err(error) if error.to_string().contains("kai-reservation-pods") => break,
                Err(_) | Ok(_) => tokio::time::sleep(GLANCE).await,
            }
        }
        let now = Deletion {
            grace_seconds: Some(0),
            ..Deletion::default()
        };
        let _ = self.client.delete(target, &now).await;
    }
}

/// The first role that ends, and its error.
pub(super) async fn first_end(mut roles: JoinSet<anyhow::Result<()>>) -> anyhow::Error {
    match roles.join_next().await {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => anyhow::anyhow!("a role died: {error}"),
        Some(Ok(Ok(()))) | None => anyhow::anyhow!("a role ended by itself"),
    }
}
