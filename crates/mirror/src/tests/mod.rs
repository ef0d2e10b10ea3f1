//! Tests of the mirror with an engine behind it: objects in, decisions and reasons out. One file per topic.

use std::sync::Arc;

use kai_api::{Object, ObjectKey};
use kai_engine::Cluster;
use kai_engine::model::{BindInFlight, Config, Event, Millis};
use kai_engine::report::{Decision, Status};
use serde_json::{Value, json};

use super::*;

mod bind_requests;
mod binding;
mod config_maps;
mod gangs;
mod gpu_sharing;
mod large_cluster;
mod nodes;
mod queue_rules;
mod queues;
mod reservations;
mod sizes;
mod volumes;

/// A mirror and the engine that it informers. Tests play the API server and the writers.
struct World {
    mirror: ClusterMirror,
    engine: Cluster,
    now: Millis,
}

impl World {
    fn new() -> World {
        World::with(&MirrorSettings::default())
    }

    fn with(settings: &MirrorSettings) -> World {
        let mut mirror = ClusterMirror::new(settings);
        mirror.mark_synced();
        let now = Millis::seconds(1_000_000);
        mirror.tick(now);
        let mut world = World {
            mirror,
            engine: Cluster::new(),
            now,
        };
        world.queue("top", json!({}));
        world.queue("q", json!({ "parentQueue": "top" }));
        world
    }

    fn queue(&mut self, name: &str, spec: Value) {
        self.queue_with(name, spec, &json!({}));
    }

    fn queue_with(&mut self, name: &str, mut spec: Value, annotations: &Value) {
        let free = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
        spec["resources"] = json!({ "gpu": free, "cpu": free, "memory": free });
        self.mirror.apply_queue(&slim(
            json!({ "metadata": { "name": name, "uid": name, "annotations": annotations }, "spec": spec }),
        ));
    }

    fn node(&mut self, name: &str, labels: Value) {
        self.mirror.apply_node(&slim(json!({
            "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": labels },
            "status": {
                "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })));
    }

    fn group(&mut self, name: &str, rest: Value) {
        let group: Arc<kai_api::PodGroup> = Arc::new(slim(merged(
            json!({ "metadata": { "name": name, "namespace": "a", "uid": format!("uid-{name}") }, "spec": { "queue": "q" } }),
            rest,
        )));
        self.mirror.apply_pod_group(&ObjectKey::of(&*group), &group);
    }

    fn pod(&mut self, name: &str, rest: Value) {
        let pod: Arc<kai_api::Pod> = Arc::new(pod(name, rest));
        self.mirror.apply_pod(&ObjectKey::of(&*pod), &pod);
    }

    fn request(&mut self, pod: &str, owner: &str, node: &str, status: Value) {
        self.share_request(pod, owner, (node, &[]), status);
    }

    /// Applies a bind request of the pod with these GPU groups.
    fn share_request(&mut self, pod: &str, owner: &str, (node, groups): (&str, &[&str]), status: Value) {
        let request: Arc<BindRequest> = Arc::new(slim(json!({
            "metadata": { "name": pod, "namespace": "a", "uid": "br",
                          "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": owner }] },
            "spec": { "podName": pod, "selectedNode": node, "selectedGPUGroups": groups },
            "status": status,
        })));
        self.mirror.apply_bind_request(&ObjectKey::of(&*request), &request);
    }

    /// Advances the time and runs a cycle. Returns its decisions as `bind POD NODE` and `evict POD`.
    fn after(&mut self, seconds: i64) -> Vec<String> {
        self.now = self.now + Millis::seconds(seconds);
        self.mirror.tick(self.now);
        self.sync();
        let report = self.engine.cycle(self.now, &Config::default());
        let mut lines = Vec::new();
        for decision in report.decisions {
            match decision {
                Decision::Bind(placed) => {
                    let volumes = placed.volumes.iter();
                    let volumes = volumes
                        .map(|chosen| format!(" {}={}", chosen.claim, chosen.volume.as_deref().unwrap_or("new")));
                    let volumes: String = volumes.collect();
                    lines.push(format!("bind {} {}{volumes}", placed.pod, placed.node));
                    let bind = BindInFlight {
                        node: placed.node.to_string(),
                        gpu_groups: placed.gpu_groups,
                        volumes: placed.volumes,
                    };
                    self.mirror.assume(&placed.pod, Assumed::Bound(bind));
                }
                Decision::Evict { pod, .. } => {
                    lines.push(format!("evict {pod}"));
                    self.mirror.assume(&pod, Assumed::Evicting(self.now));
                }
                Decision::Pipeline(_)
                | Decision::Started(_)
                | Decision::Evicted(_)
                | Decision::Stale { .. }
                | Decision::Recovered(_) => {}
            }
        }
        lines
    }

    /// Runs a cycle without advancing the time.
    fn decide(&mut self) -> Vec<String> {
        self.after(0)
    }

    /// Applies all events to the engine. Returns the rest of the outbox.
    fn sync(&mut self) -> Outbox {
        let mut outbox = self.mirror.take_outbox();
        for event in std::mem::take(&mut outbox.events) {
            self.engine.apply(event);
        }
        outbox
    }

    fn status(&mut self, uid: &str) -> Option<Status> {
        self.sync();
        self.engine.pods_of([uid]).first().map(|view| view.status)
    }

    fn reason(&self, uid: &str) -> String {
        let views = self.engine.pods_of([uid]);
        views
            .first()
            .and_then(|view| view.reason.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default()
    }
}

/// Parses JSON as a slim type.
fn slim<T: Object>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn pod(name: &str, rest: Value) -> kai_api::Pod {
    slim(merged(
        json!({
            "metadata": { "name": name, "namespace": "a", "uid": format!("uid-{name}"), "annotations": { "pod-group-name": "g" } },
            "spec": { "schedulerName": "kai-scheduler",
                      "containers": [{ "resources": { "limits": { "nvidia.com/gpu": "1" }, "requests": { "cpu": "1" } } }] },
            "status": { "phase": "Pending" },
        }),
        rest,
    ))
}

/// The reservation pod of a GPU group on node `n`.
fn reservation(gpu_group: &str) -> Arc<kai_api::Pod> {
    let whole = json!({ "resources": { "requests": { "nvidia.com/gpu": "1" }, "limits": { "nvidia.com/gpu": "1" } }, "name": "c" });
    Arc::new(slim(json!({
        "metadata": { "name": "r", "namespace": "kai-resource-reservation", "uid": "uid-r",
                      "labels": { "app": "kai-resource-reservation", "runai-gpu-group": gpu_group } },
        "spec": { "nodeName": "n", "containers": [whole] }, "status": { "phase": "Running" },
    })))
}

/// Merges `patch` into `base`, field by field.
fn merged(mut base: Value, patch: Value) -> Value {
    match (base.as_object_mut(), patch) {
        (Some(fields), Value::Object(patch)) => {
            for (key, value) in patch {
                let before = fields.remove(&key).unwrap_or(Value::Null);
                fields.insert(key, merged(before, value));
            }
            base
        }
        (_, patch) => patch,
    }
}

fn a_node_a_gang_and_a_pod() -> World {
    let mut world = World::new();
    world.node("n1", json!({}));
    world.group("g", json!({}));
    world.pod("p", json!({}));
    world
}
