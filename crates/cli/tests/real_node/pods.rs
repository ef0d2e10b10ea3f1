//! Pods on the real node: made, awaited, read and ended. A workload looks with NVML at what it was given and says so.

use std::collections::BTreeSet;
use std::path::Path;

use kai_api::{Object, Pod, keys};
use kai_cluster::{Deletion, Selection, Target};
use kai_node::podresources;
use serde_json::{Value, json};

use crate::machine::Machine;

/// What a workload's container runs: it lists what NVML shows, its device nodes and its environment.
pub(crate) const LOOK: &str = "kai node-agent --dry-run --node-name inside; busybox ls /dev; busybox env; echo seen";

/// Where the kubelet says who holds what.
const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// What a container was given, from inside.
#[derive(Debug)]
pub(crate) struct Seen {
    /// UUIDs that NVML shows.
    pub(crate) gpus: BTreeSet<String>,
    /// All that it said.
    pub(crate) text: String,
}

impl Seen {
    /// Once all of it was said.
    pub(crate) fn in_output(text: String) -> Option<Seen> {
        let gpus = listed(&text);
        text.ends_with("seen\n").then_some(Seen { gpus, text })
    }
}

/// A workload of our scheduler without any GPU. It looks around and goes on.
pub(crate) fn workload(name: &str) -> Value {
    let look = format!("{LOOK}; exec busybox sleep 1000000");
    json!({
        "metadata": { "name": name, "labels": { keys::QUEUE: "default-queue" }, "annotations": {} },
        "spec": {
            "schedulerName": keys::SCHEDULER_NAME,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "localhost/workload:test", "imagePullPolicy": "Never",
                "command": ["/usr/bin/busybox", "sh", "-c", look],
                "resources": { "limits": {} },
            }],
        },
    })
}

/// One that asks for whole GPUs.
pub(crate) fn whole(name: &str, gpus: u32) -> Value {
    let mut pod = workload(name);
    pod["spec"]["containers"][0]["resources"]["limits"][keys::RESOURCE_GPU] = gpus.to_string().into();
    pod
}

/// One that asks for part of a GPU.
pub(crate) fn fraction(name: &str, part: &str) -> Value {
    let mut pod = workload(name);
    pod["metadata"]["annotations"][keys::GPU_FRACTION] = part.into();
    pod
}

/// One whose container ends again and again.
pub(crate) fn ending(mut pod: Value) -> Value {
    pod["spec"]["containers"][0]["command"][3] = LOOK.into();
    pod
}

impl Machine {
    /// Creates the pod; tried again until webhooks and service accounts are there.
    pub(crate) async fn create(&self, pod: &Value) {
        self.create_in("default", pod).await;
    }

    pub(crate) async fn create_in(&self, namespace: &str, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        self.until(&format!("{name} is accepted"), async || {
            match self.client.create(&Pod::RESOURCE, namespace, pod.clone()).await {
                Ok(_) => Some(()),
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        text.contains("failed calling webhook") || text.contains("service account"),
                        "{text}"
                    );
                    None
                }
            }
        })
        .await;
    }

    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.client
            .get_value(Target::of::<Pod>(namespace, name))
            .await
            .unwrap_or_default()
    }

    /// What a running workload said it sees.
    pub(crate) async fn seen(&self, name: &str) -> Seen {
        self.seen_in(name, 0).await
    }

    /// The same for another run of its container than the first.
    pub(crate) async fn seen_in(&self, name: &str, run: u32) -> Seen {
        self.until(&format!("{name} runs and has looked around"), async || {
            let pod = self.pod("default", name).await?;
            let phase = pod["status"]["phase"].as_str()?;
            assert!(phase != "Failed", "{name} failed: {}", pod["status"]);
            Seen::in_output(self.output(&pod, run)?)
        })
        .await
    }

    /// What a run of a pod's only container has printed.
    pub(crate) fn output(&self, pod: &Value, run: u32) -> Option<String> {
        let of = |part: &str| pod["metadata"][part].as_str();
        let container = pod["spec"]["containers"][0]["name"].as_str()?;
        let log = format!(
            "pods/{}_{}_{}/{container}/{run}.log",
            of("namespace")?,
            of("name")?,
            of("uid")?
        );
        Some(plain(&std::fs::read_to_string(self.directory.join(log)).ok()?))
    }

    /// The GPUs that the kubelet says a pod holds.
    pub(crate) async fn held(&self, namespace: &str, pod: &str) -> BTreeSet<String> {
        let holdings = podresources::list(Path::new(POD_RESOURCES)).await.unwrap();
        let own = holdings.into_iter().filter(|holding| {
            holding.namespace == namespace && holding.pod == pod && holding.resource == keys::RESOURCE_GPU
        });
        own.flat_map(|holding| holding.device_ids).collect()
    }

    /// The reservation pods.
    pub(crate) async fn reservations(&self) -> Vec<Value> {
        let selection = Selection {
            namespace: Some(keys::RESERVATION.to_owned()),
            ..Selection::default()
        };
        self.client.list_values(&Pod::RESOURCE, &selection).await.unwrap()
    }

    /// The only reservation pod, which holds the GPU that its annotation names, and that GPU.
    pub(crate) async fn reservation(&self) -> (Value, String) {
        let mut reservations = self.reservations().await;
        assert_eq!(reservations.len(), 1, "{reservations:#?}");
        let pod = reservations.remove(0);
        let gpu = pod["metadata"]["annotations"][keys::RESERVED_GPU]
            .as_str()
            .unwrap()
            .to_owned();
        let name = pod["metadata"]["name"].as_str().unwrap();
        assert_eq!(self.held(keys::RESERVATION, name).await, BTreeSet::from([gpu.clone()]));
        (pod, gpu)
    }

    pub(crate) async fn delete_reservation(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let target = Target::of::<Pod>(keys::RESERVATION, name);
        self.client.delete(target, &Deletion::default()).await.unwrap();
    }

    /// Deletes the pods and waits until all of them, and reservations that nobody needs any more, are gone.
    pub(crate) async fn delete(&mut self, names: &[&str], reservations: usize) {
        for name in names {
            let target = Target::of::<Pod>("default", name);
            self.client.delete(target, &Deletion::default()).await.unwrap();
        }
        self.until(&format!("{names:?} are gone"), async || {
            for name in names {
                if self.pod("default", name).await.is_some() {
                    return None;
                }
            }
            (self.reservations().await.len() == reservations).then_some(())
        })
        .await;
        self.check();
    }
}

/// A container's log without time, stream and flag before each line.
pub(crate) fn plain(log: &str) -> String {
    let words = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    words.map(|words| format!("{words}\n")).collect()
}

/// The devices in the list that `--dry-run` prints.
fn listed(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.trim().split_once(" Healthy"))
        .filter(|(id, _)| id.starts_with("GPU-"))
        .map(|(id, _)| id.to_owned())
        .collect()
}
