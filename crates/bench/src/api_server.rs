//! A real API server: installs kai's CustomResourceDefinitions and creates nodes and pods. `.ci/bench` starts and stops the server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use kai_api::{Object, Resource, keys};
use kai_cluster::{Client, ClientConfig, Clock, Context, Deletion, Part, Patch, Selection, Target};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Concurrent calls, as many as the scheduler makes.
pub(crate) const IN_FLIGHT: usize = 64;
/// The field manager of the installation.
const FIELD_MANAGER: &str = "kai-bench";
/// The pause between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest wait for a condition.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// The namespace of all pods.
pub(crate) const NAMESPACE: &str = "default";

/// The server and its credentials.
pub(crate) struct ApiServer {
    /// The client of the benchmark, with all rights.
    pub(crate) client: Client,
    /// The kubeconfig of `kai`: its service account, in a group that is exempt from API priority and fairness.
    pub(crate) kubeconfig: tempfile::NamedTempFile,
}

impl ApiServer {
    /// Installs kai's CustomResourceDefinitions.
    pub(crate) async fn install(path: PathBuf) -> anyhow::Result<ApiServer> {
        let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
        let client = Client::connect(&ClientConfig::Kubeconfig(path)).await?;
        for user in config["users"].as_array_mut().context("users")? {
            user["user"]["as"] = "system:serviceaccount:kai-scheduler:kai".into();
            user["user"]["as-groups"] = json!(["system:masters"]);
        }
        let kubeconfig = tempfile::NamedTempFile::new()?;
        std::fs::write(kubeconfig.path(), config.to_string())?;
        let server = ApiServer { client, kubeconfig };
        let namespaces = [keys::SYSTEM_NAMESPACE, keys::RESERVATION]
            .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
        for object in namespaces.into_iter().chain(kai_api::crd::crds()) {
            server.apply(object).await?;
        }
        for resource in [
            kai_api::Queue::RESOURCE,
            kai_api::PodGroup::RESOURCE,
            kai_api::BindRequest::RESOURCE,
            kai_api::Topology::RESOURCE,
        ] {
            let selection = Selection::default();
            until("the definitions to be served", async || {
                server.client.list_values(&resource, &selection).await.is_ok()
            })
            .await?;
        }
        Ok(server)
    }

    async fn apply(&self, object: Value) -> anyhow::Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let resource = self
            .client
            .resource_of(&version, &kind)
            .await?
            .context("a known kind")?;
        let name = text(&object["metadata"]["name"]);
        let target = Target {
            resource: &resource,
            namespace: "",
            name: &name,
        };
        let patch = Patch::Apply {
            manager: FIELD_MANAGER,
            fields: object,
        };
        self.client.patch(target, Part::Object, patch).await?;
        Ok(())
    }

    /// New watches for the benchmark itself.
    pub(crate) fn context(&self) -> Context {
        Context::new(self.client.clone(), Clock::System)
    }

    /// Adds nodes with these GPUs, without running kubelets.
    pub(crate) async fn add_nodes(&self, name: &str, count: usize, gpus: &str) -> anyhow::Result<()> {
        let kubelets = kai_embedded::kubelet::Kubelets::new(&self.context(), kai_embedded::kubelet::Delays::default());
        let (name, gpus) = (name.to_owned(), gpus.to_owned());
        run_in_parallel(count, move |at| {
            let (kubelets, template) = (kubelets.clone(), NodeTemplate::new(&format!("{name}-{at}"), &gpus));
            async move { kubelets.add(&template).await.map_err(anyhow::Error::msg) }
        })
        .await
    }

    /// Deletes all objects of these kinds, and waits until they are gone.
    pub(crate) async fn clear(&self, kinds: &[Resource]) -> anyhow::Result<()> {
        for resource in kinds {
            let of_server = |object: &Value| {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                name.starts_with("system-")
            };
            loop {
                let mut found = self.client.list_values(resource, &Selection::default()).await?;
                found.retain(|object| !of_server(object));
                if found.is_empty() {
                    break;
                }
                let (client, resource, found) = (self.client.clone(), resource.clone(), Arc::new(found));
                run_in_parallel(found.len(), move |at| {
                    let (client, resource, found) = (client.clone(), resource.clone(), Arc::clone(&found));
                    async move {
                        let metadata = &found[at]["metadata"];
                        let target = Target {
                            resource: &resource,
                            namespace: metadata["namespace"].as_str().unwrap_or_default(),
                            name: metadata["name"].as_str().unwrap_or_default(),
                        };
                        let now = Deletion {
                            grace_seconds: Some(0),
                            ..Deletion::default()
                        };
                        Ok(client.delete(target, &now).await?)
                    }
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Removes kai's webhooks and the objects of a part.
    pub(crate) async fn clean(&self) -> anyhow::Result<()> {
        kai_controllers::admission::uninstall(&self.client).await?;
        let kinds = [
            kai_api::Pod::RESOURCE,
            kai_api::BindRequest::RESOURCE,
            kai_api::PodGroup::RESOURCE,
            kai_api::Node::RESOURCE,
        ];
        self.clear(&kinds).await
    }

    /// Creates one-GPU pods `name-0` and so on.
    pub(crate) async fn create_pods(&self, name: &str, count: usize, scheduler: &str) -> anyhow::Result<()> {
        let (client, name, scheduler) = (self.client.clone(), name.to_owned(), scheduler.to_owned());
        run_in_parallel(count, move |at| {
            let (client, body) = (client.clone(), one_gpu_pod(&format!("{name}-{at}"), &scheduler));
            async move {
                Ok(client
                    .create(&kai_api::Pod::RESOURCE, NAMESPACE, body)
                    .await
                    .map(drop)?)
            }
        })
        .await
    }
}

/// A pod like that of a training job.
pub(crate) fn one_gpu_pod(name: &str, scheduler: &str) -> Value {
    let amounts = json!({ "cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "1" });
    json!({
        "metadata": {
            "name": name,
            "labels": { keys::QUEUE: keys::DEFAULT_QUEUE, "app": "train" },
        },
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": "registry.example/train:1",
                "command": ["python", "train.py", "--epochs", "10"],
                "env": [{ "name": "DATA", "value": "/data" }, { "name": "NAME", "value": name }],
                "resources": { "requests": amounts, "limits": amounts },
            }],
        },
    })
}

/// Runs `work` `count` times, [`IN_FLIGHT`] at a time. The first error ends it.
pub(crate) async fn run_in_parallel<F>(
    count: usize,
    work: impl Fn(usize) -> F + Send + Sync + 'static,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let (next, work) = (Arc::new(AtomicUsize::new(0)), Arc::new(work));
    let mut workers: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (next, work) = (Arc::clone(&next), Arc::clone(&work));
        workers.spawn(async move {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return Ok(());
                }
                work(at).await?;
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.context("a worker")??;
    }
    Ok(())
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> anyhow::Result<()> {
    let waited = async {
        while !holds().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, waited)
        .await
        .with_context(|| format!("waiting for {what}"))
}

/// The length of the server's audit log; 0 without a log.
pub(crate) fn audit_log_len() -> u64 {
    let path = std::env::var_os("KAI_KUBE_AUDIT");
    let metadata = path.and_then(|path| std::fs::metadata(path).ok());
    metadata.map_or(0, |metadata| metadata.len())
}

/// The writes in the audit log after this offset, by verb and resource.
pub(crate) fn writes_since(offset: u64) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    let Some(path) = std::env::var_os("KAI_KUBE_AUDIT") else {
        return Ok(counts);
    };
    let mut log = std::fs::File::open(path)?;
    log.seek(SeekFrom::Start(offset))?;
    for line in BufReader::new(log).lines() {
        // The last line may be incomplete.
        let Ok(event) = serde_json::from_str::<AuditEvent>(&line?) else {
            continue;
        };
        if !["create", "update", "patch", "delete"].contains(&&*event.verb) {
            continue;
        }
        let mut what = format!("{} {}", event.verb, event.object.resource);
        if let Some(part) = &event.object.subresource {
            what.push('/');
            what.push_str(part);
        }
        *counts.entry(what).or_insert(0) += 1;
    }
    Ok(counts)
}

/// An event of the audit log.
#[derive(serde::Deserialize)]
struct AuditEvent {
    verb: String,
    #[serde(rename = "objectRef", default)]
    object: ObjectReference,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct ObjectReference {
    resource: String,
    subresource: Option<String>,
}
