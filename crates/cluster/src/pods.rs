//! Metadata of single pods, for roles that need no pod specs: watch it, read it, set one annotation.

use std::collections::BTreeMap;

use futures_core::Stream;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{LogParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde_json::json;

use crate::{Client, Error, Target, path};

/// The metadata of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodMeta {
    /// Name of the pod.
    pub name: String,
    /// UID: distinguishes the pod from an earlier pod of the same name.
    pub uid: String,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
}

/// An event of [`Client::watch_pods`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodChange {
    /// A new list begins: forget all pods. `Seen` follows for each existing pod.
    Restarted,
    /// The pod exists, with this metadata.
    Seen(PodMeta),
    /// The pod of this name is deleted.
    Gone(String),
}

impl Client {
    /// Watches the pods of a namespace on one node, for ever. Failures are retried with backoff.
    pub fn watch_pods(&self, namespace: &str, node: &str) -> impl Stream<Item = PodChange> + Send + use<> {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.kube.clone(), namespace);
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let changes = watch(api, config).default_backoff().filter_map(|event| {
            std::future::ready(match event {
                Ok(Event::Init) => Some(PodChange::Restarted),
                Ok(Event::InitApply(pod) | Event::Apply(pod)) => Some(PodChange::Seen(meta(pod))),
                Ok(Event::Delete(pod)) => Some(PodChange::Gone(meta(pod).name)),
                Ok(Event::InitDone) => None,
                Err(error) => {
                    tracing::warn!(%error, "watching reservation pods failed; trying again");
                    None
                }
            })
        });
        changes.boxed()
    }

    /// The metadata of one pod.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<PodMeta, Error> {
        let api: Api<Pod> = Api::namespaced(self.kube.clone(), namespace);
        let found = api.get_metadata(name).await;
        found
            .map(meta)
            .map_err(|error| Error::call(format!("reading pod {namespace}/{name}"), error))
    }

    /// The log of a pod's only container, of at most `bytes_max` bytes from its start.
    pub async fn pod_log(&self, namespace: &str, name: &str, bytes_max: u32) -> Result<String, Error> {
        let attempt = format!("reading the log of pod {namespace}/{name}");
        let limit = LogParams {
            limit_bytes: Some(bytes_max.into()),
            ..LogParams::default()
        };
        let request = path::object(Target::of::<kai_api::Pod>(namespace, name))
            .and_then(|(requests, name)| requests.logs(&name, &limit));
        self.call_text(&attempt, request).await
    }

    /// Evicts a pod through the Eviction API, which respects disruption budgets: a refusal is an error, and may be tried again. The API server
    /// refuses it, too, if the pod with this UID was deleted and another pod has its name.
    pub async fn evict_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        // Not by the client library's eviction: it misspells the field of the preconditions, and the API server ignores unknown fields.
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": name, "namespace": namespace },
            "deleteOptions": { "preconditions": { "uid": uid } },
        });
        let target = Target::of::<kai_api::Pod>(namespace, name);
        self.post_to(target, "eviction", &eviction).await.map(drop)
    }

    /// Sets one annotation of a pod. The API server refuses it if `pod` was deleted and another pod has its name.
    pub async fn annotate_pod(&self, namespace: &str, pod: &PodMeta, key: &str, value: &str) -> Result<(), Error> {
        let name = &pod.name;
        let body = json!({ "metadata": { "uid": pod.uid, "annotations": { key: value } } });
        // Through the status subresource: the account needs no right to change the pod's spec.
        let request = path::object(Target::of::<kai_api::Pod>(namespace, name)).and_then(|(requests, name)| {
            requests.patch_subresource("status", &name, &PatchParams::default(), &Patch::Merge(body))
        });
        self.write_only(format!("annotating pod {namespace}/{name} with {key}"), request)
            .await
    }
}

fn meta(pod: PartialObjectMeta<Pod>) -> PodMeta {
    PodMeta {
        name: pod.metadata.name.unwrap_or_default(),
        uid: pod.metadata.uid.unwrap_or_default(),
        annotations: pod.metadata.annotations.unwrap_or_default(),
    }
}
