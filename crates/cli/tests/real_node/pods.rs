//! Pods on the real node: created, awaited, read and deleted. A workload lists its GPUs with NVML and prints them.

use std::collections::BTreeSet;
use std::path::Path;

use kai_api::{Object, Pod, keys};
use kai_cluster::{Deletion, Selection, Target};
use kai_node::podresources;
use serde_json::{Value, json};

use crate::machine::Machine;

/// The command of a workload's container: it lists the GPUs that NVML shows, its device nodes and its environment.
pub(crate) const LOOK: &str = "kai node-agent --dry-run --node-name inside; busybox ls /dev; busybox env; echo seen";

/// The socket of the kubelet's pod-resources API.
pub(crate) const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

/// The GPUs of a container, seen from inside.
#[derive(Debug)]
pub(crate) struct Seen {
    /// UUIDs that NVML shows.
    pub(crate) gpus: BTreeSet<String>,
    /// The whole output of the container.
    pub(crate) text: String,
}

impl Seen {
    /// Parses the output, once it is complete.
    pub(crate) fn in_output(text: String) -> Option<Seen> {
        let gpus = listed(&text);
        text.ends_with("seen\n").then_some(Seen { gpus, text })
    }
}

/// A workload of kai's scheduler without a GPU. It prints its view and keeps running.
pub(crate) fn workload(name: &str) -> Value {
    let look = format!("{LOOK}; exec busybox sleep 1000000");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
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

/// A workload with whole GPUs.
pub(crate) fn whole(name: &str, gpus: u32) -> Value {
    let mut pod = workload(name);
    pod["spec"]["containers"][0]["resources"]["limits"][keys::RESOURCE_GPU] = gpus.to_string().into();
    pod
}

/// A workload with a fraction of a GPU.
pub(crate) fn fraction(name: &str, part: &str) -> Value {
    let mut pod = workload(name);
    pod["metadata"]["annotations"][keys::GPU_FRACTION] = part.into();
    pod
}

/// A workload whose container ends again and again.
pub(crate) fn ending(mut pod: Value) -> Value {
    pod["spec"]["containers"][0]["command"][3] = LOOK.into();
    pod
}

impl Machine {
    /// Waits until the API server calls kai's webhooks, which it does a moment after their registration: a pod with a GPU share that it
    /// creates before is never bound.
    pub(crate) async fn until_admission_reviews(&self) {
        self.until("a webhook of kai refuses a wrong fraction", async || {
            let wrong = fraction("wrong", "nonsense");
            match self.client.create(&Pod::RESOURCE, "default", wrong).await {
                Ok(_) => {
                    let now = Deletion {
                        grace_seconds: Some(0),
                        ..Deletion::default()
                    };
                    let _ = self.client.delete(Target::of::<Pod>("default", "wrong"), &now).await;
                    None
                }
                Err(error) => {
                    let text = error.to_string();
                    (text.contains("webhook") && !text.contains("failed calling")).then_some(())
                }
            }
        })
        .await;
    }

    /// Creates the pod; retries until webhooks and service accounts exist.
    pub(crate) async fn create(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        self.until(&format!("{name} is accepted"), async || {
            match self.client.create(&Pod::RESOURCE, "default", pod.clone()).await {
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

    /// The output of a running workload.
    pub(crate) async fn seen(&self, name: &str) -> Seen {
        self.seen_in(name, 0).await
    }

    /// The output of another run of its container than the first.
    pub(crate) async fn seen_in(&self, name: &str, run: u32) -> Seen {
        self.until(&format!("{name} runs and has looked around"), async || {
            let pod = self.pod("default", name).await?;
            let phase = pod["status"]["phase"].as_str()?;
            assert!(phase != "Failed", "{name} failed: {}", pod["status"]);
            Seen::in_output(self.output(&pod, run)?)
        })
        .await
    }

    /// The output of a run of a pod's only container.
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

    /// The GPUs that the kubelet allocated to a pod.
    pub(crate) async fn held(&self, namespace: &str, pod: &str) -> BTreeSet<String> {
        let holdings = podresources::list(Path::new(POD_RESOURCES)).await.unwrap();
        let own = holdings.into_iter().filter(|holding| {
            holding.namespace == namespace && holding.pod == pod && holding.resource == keys::RESOURCE_GPU
        });
        own.flat_map(|holding| holding.device_ids).collect()
    }

    /// A workload with a GPU share sees the GPU of its reservation pod.
    pub(crate) fn sees_share(&self, seen: &Seen, gpu: &str) {
        let expected = if self.mode == "cdi" {
            BTreeSet::from([gpu.to_owned()])
        } else {
            // Without CDI and NVIDIA's runtime the container gets the UUID in its environment, but no devices.
            assert!(seen.text.contains(gpu), "{}", seen.text);
            BTreeSet::new()
        };
        assert_eq!(seen.gpus, expected, "{}", seen.text);
    }

    /// The containers of the pods `kept` and `shared`, and their restart counts, once the kubelet has reported them.
    pub(crate) async fn running(&self) -> Value {
        let mut found = json!({});
        for name in ["kept", "shared"] {
            if self.pod("default", name).await.is_none() {
                continue;
            }
            found[name] = self
                .until(&format!("{name} is said to run"), async || {
                    let pod = self.pod("default", name).await?;
                    let status = &pod["status"]["containerStatuses"][0];
                    let facts = json!([status["containerID"], status["restartCount"]]);
                    status["state"]["running"].is_object().then_some(facts)
                })
                .await;
        }
        found
    }

    /// The reservation pods.
    pub(crate) async fn reservations(&self) -> Vec<Value> {
        let selection = Selection {
            namespace: Some(keys::RESERVATION.to_owned()),
            ..Selection::default()
        };
        self.client.list_values(&Pod::RESOURCE, &selection).await.unwrap()
    }

    /// The only reservation pod, whose annotation names the GPU that it holds, and that GPU.
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

    /// Deletes the pods and waits until they, and the reservation pods that no pod uses, are deleted.
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

/// A container's log without time, stream and flag at the start of each line.
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
