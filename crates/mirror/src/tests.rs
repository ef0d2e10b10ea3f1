//! The mirror by example: objects in, what the engine makes of them out.

use std::sync::Arc;

use kai_api::{Object, ObjectKey};
use kai_engine::Cluster;
use kai_engine::model::{BindInFlight, Config, Event, Millis};
use kai_engine::report::{Decision, Status};
use serde_json::{Value, json};

use super::*;

mod config_maps;
mod queue_rules;

/// An index with an engine behind it.
pub(super) struct World {
    pub(super) index: ClusterMirror,
    pub(super) engine: Cluster,
    now: Millis,
}

impl World {
    pub(super) fn new() -> World {
        World::with(&MirrorSettings::default())
    }

    fn with(settings: &MirrorSettings) -> World {
        let mut index = ClusterMirror::new(settings);
        index.complete();
        let now = Millis::seconds(1_000_000);
        index.tick(now);
        let mut world = World {
            index,
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
        self.index.apply_queue(&slim(
            json!({ "metadata": { "name": name, "uid": name, "annotations": annotations }, "spec": spec }),
        ));
    }

    pub(super) fn node(&mut self, name: &str, labels: Value) {
        self.index.apply_node(&slim(json!({
            "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": labels },
            "status": {
                "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        })));
    }

    pub(super) fn group(&mut self, name: &str, rest: Value) {
        let group: Arc<kai_api::PodGroup> = Arc::new(slim(merged(
            json!({ "metadata": { "name": name, "namespace": "a", "uid": format!("uid-{name}") }, "spec": { "queue": "q" } }),
            rest,
        )));
        self.index.apply_group(&ObjectKey::of(&*group), &group);
    }

    pub(super) fn pod(&mut self, name: &str, rest: Value) {
        let pod: Arc<kai_api::Pod> = Arc::new(pod(name, rest));
        self.index.apply_pod(&ObjectKey::of(&*pod), &pod);
    }

    fn request(&mut self, pod: &str, owner: &str, node: &str, status: Value) {
        self.share_request(pod, owner, (node, &[]), status);
    }

    pub(super) fn share_request(&mut self, pod: &str, owner: &str, (node, groups): (&str, &[&str]), status: Value) {
        let request: Arc<BindRequest> = Arc::new(slim(json!({
            "metadata": { "name": pod, "namespace": "a", "uid": "br",
                          "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": owner }] },
            "spec": { "podName": pod, "selectedNode": node, "selectedGPUGroups": groups },
            "status": status,
        })));
        self.index.apply_bind_request(&ObjectKey::of(&*request), &request);
    }

    /// Time passes, then a cycle; what it decided, as `bind pod node` and the like.
    pub(super) fn after(&mut self, seconds: i64) -> Vec<String> {
        self.now = self.now + Millis::seconds(seconds);
        self.index.tick(self.now);
        self.sync();
        let report = self.engine.cycle(self.now, &Config::default());
        let mut lines = Vec::new();
        for decision in report.decisions {
            match decision {
                Decision::Bind(placed) => {
                    lines.push(format!("bind {} {}", placed.pod, placed.node));
                    let bind = BindInFlight {
                        node: placed.node.to_string(),
                        gpu_groups: placed.gpu_groups,
                    };
                    self.index.assume(&placed.pod, Assumed::Bound(bind));
                }
                Decision::Evict { pod, .. } => {
                    lines.push(format!("evict {pod}"));
                    self.index.assume(&pod, Assumed::Leaving(self.now));
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

    pub(super) fn decide(&mut self) -> Vec<String> {
        self.after(0)
    }

    pub(super) fn sync(&mut self) -> Outbox {
        let mut outbox = self.index.take_outbox();
        for event in std::mem::take(&mut outbox.events) {
            self.engine.apply(event);
        }
        outbox
    }

    pub(super) fn status(&mut self, uid: &str) -> Option<Status> {
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

pub(super) fn slim<T: Object>(object: Value) -> T {
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

pub(super) fn reservation(group: &str) -> Arc<kai_api::Pod> {
    let whole = json!({ "resources": { "requests": { "nvidia.com/gpu": "1" }, "limits": { "nvidia.com/gpu": "1" } }, "name": "c" });
    Arc::new(slim(json!({
        "metadata": { "name": "r", "namespace": "kai-resource-reservation", "uid": "uid-r",
                      "labels": { "app": "kai-resource-reservation", "runai-gpu-group": group } },
        "spec": { "nodeName": "n", "containers": [whole] }, "status": { "phase": "Running" },
    })))
}

pub(super) fn merged(mut base: Value, patch: Value) -> Value {
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

#[test]
fn a_pod_is_placed_once() {
    let mut world = a_node_a_gang_and_a_pod();
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    assert_eq!(world.decide(), [""; 0]);
    // Something about the pod changes before the binding is to be seen.
    world.pod("p", json!({ "metadata": { "labels": { "touched": "yes" } } }));
    assert_eq!(world.decide(), [""; 0], "it is still assumed bound");
    assert_eq!(world.status("uid-p"), Some(Status::Binding));
    world.pod("p", json!({ "spec": { "nodeName": "n1" } }));
    assert_eq!(world.status("uid-p"), Some(Status::Bound));
    assert_eq!(world.index.assumed(), 0);
}

#[test]
fn a_binding_that_is_never_seen_is_undone() {
    let mut world = a_node_a_gang_and_a_pod();
    world.decide();
    world.index.written("uid-p");
    assert_eq!(world.after(59), [""; 0]);
    assert_eq!(world.after(1), [""; 0], "held back for a moment");
    assert!(
        world.reason("uid-p").starts_with("binding to node n1 failed"),
        "{}",
        world.reason("uid-p")
    );
    assert_eq!(world.after(1), [""; 0], "the node is left out for as long again");
    assert_eq!(world.after(1), ["bind uid-p n1"]);
}

#[test]
fn a_doomed_pod_makes_room_for_others() {
    let mut world = a_node_a_gang_and_a_pod();
    world.group("h", json!({}));
    world.pod(
        "other",
        json!({ "metadata": { "annotations": { "pod-group-name": "h" } } }),
    );
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    world.index.failed("uid-p", Some(("n1", "no".to_owned())));
    assert_eq!(world.decide(), ["bind uid-other n1"]);
}

#[test]
fn a_pod_avoids_the_node_that_failed_it() {
    let mut world = a_node_a_gang_and_a_pod();
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    world.node("n2", json!({}));
    world.index.failed("uid-p", Some(("n1", "no".to_owned())));
    assert_eq!(world.decide(), [""; 0]);
    assert_eq!(world.after(1), ["bind uid-p n2"]);
}

#[test]
fn a_bind_request_counts_until_it_failed() {
    let mut world = a_node_a_gang_and_a_pod();
    world.request("p", "uid-p", "n1", json!({}));
    assert_eq!(world.decide(), [""; 0]);
    assert_eq!(world.status("uid-p"), Some(Status::Binding));
    world.request(
        "p",
        "uid-p",
        "n1",
        json!({ "phase": "Failed", "reason": "no reservation" }),
    );
    let outbox = world.sync();
    assert_eq!(
        outbox.to_delete.iter().map(|stale| stale.why).collect::<Vec<_>>(),
        ["it failed"]
    );
    assert_eq!(world.decide(), [""; 0]);
    assert!(world.reason("uid-p").ends_with("no reservation"));
    world.request(
        "p",
        "uid-p",
        "n1",
        json!({ "phase": "Failed", "reason": "no reservation", "failedAttempts": 2 }),
    );
    assert!(world.sync().to_delete.is_empty(), "once is enough");
    world.index.clean_up_failed(&outbox.to_delete[0]);
    world.index.tick(world.now + Millis::seconds(5));
    assert_eq!(world.sync().to_delete.len(), 1, "unless it did not work");
    world.index.remove_bind_request(&ObjectKey::new("a", "p"));
    assert_eq!(world.after(7), ["bind uid-p n1"]);
}

#[test]
fn a_bind_request_of_an_earlier_pod_does_not_count() {
    let mut world = a_node_a_gang_and_a_pod();
    world.request("p", "uid-of-the-first", "n1", json!({}));
    let outbox = world.sync();
    assert_eq!(outbox.to_delete.len(), 1);
    assert_eq!(world.decide(), ["bind uid-p n1"]);
}

#[test]
fn a_bind_request_to_a_node_that_left_is_cleaned_up() {
    let mut world = a_node_a_gang_and_a_pod();
    world.request("p", "uid-p", "n1", json!({}));
    assert!(world.sync().to_delete.is_empty());
    world.index.remove_node("n1");
    assert_eq!(world.sync().to_delete.len(), 1);
    world.request("p", "uid-p", "n1", json!({ "phase": "Succeeded" }));
    assert!(world.sync().to_delete.is_empty(), "done is done");
}

#[test]
fn a_pod_made_anew_under_its_old_name_is_another_pod() {
    let mut world = a_node_a_gang_and_a_pod();
    world.pod(
        "p",
        json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }),
    );
    assert_eq!(world.status("uid-p"), Some(Status::Running));
    world.pod("p", json!({ "metadata": { "uid": "second" } }));
    assert_eq!(world.decide(), ["bind second n1"]);
    assert_eq!(world.status("uid-p"), None);
}

#[test]
fn an_eviction_is_assumed_until_it_shows() {
    let mut world = a_node_a_gang_and_a_pod();
    world.pod(
        "p",
        json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" } }),
    );
    world.sync();
    world.index.assume("uid-p", Assumed::Leaving(world.now));
    world.pod("p", json!({ "spec": { "nodeName": "n1" }, "status": { "phase": "Running" }, "metadata": { "labels": { "x": "y" } } }));
    assert_eq!(world.status("uid-p"), Some(Status::Releasing));
    world.index.failed("uid-p", None);
    assert_eq!(world.status("uid-p"), Some(Status::Running), "the write failed");
}

#[test]
fn only_the_partition_is_scheduled() {
    let settings = MirrorSettings {
        partition: Partition::new("kai.scheduler/node-pool", "big"),
        ..MirrorSettings::default()
    };
    let mut world = World::with(&settings);
    let label = json!({ "kai.scheduler/node-pool": "big" });
    world.node("small", json!({}));
    let free = json!({ "quota": -1, "limit": -1 });
    world
        .index
        .apply_queue(&slim(json!({ "metadata": { "name": "q", "uid": "q", "labels": label },
                                          "spec": { "resources": { "gpu": free, "cpu": free, "memory": free } } })));
    world.group("g", json!({ "metadata": { "labels": label } }));
    world.group("h", json!({}));
    world.pod("p", json!({}));
    world.pod(
        "stranger",
        json!({ "metadata": { "annotations": { "pod-group-name": "h" } } }),
    );
    assert_eq!(world.decide(), [""; 0]);
    world.node("n1", label);
    assert_eq!(world.decide(), ["bind uid-p n1"]);
    let stranger = pod("stranger", json!({}));
    assert!(
        !world.index.answers_for(&stranger, Some(&ObjectKey::new("a", "h"))),
        "its group is another partition's"
    );
}

#[test]
fn a_node_that_leaves_the_partition_is_gone() {
    let mut world = a_node_a_gang_and_a_pod();
    world.node("n1", json!({ "kai.scheduler/node-pool": "other" }));
    assert_eq!(world.decide(), [""; 0]);
    assert!(world.engine.nodes().is_empty());
}

#[test]
fn a_change_of_a_priority_class_reaches_its_gangs() {
    let mut world = World::new();
    world.group("g", json!({ "spec": { "priorityClassName": "high" } }));
    world.group("h", json!({}));
    world.sync();
    let class = Arc::new(slim(json!({ "metadata": { "name": "high" }, "value": 200 })));
    world.index.apply_priority_class(&class);
    let events = world.index.take_outbox().events;
    let [Event::Gang(gang)] = events.as_slice() else {
        panic!("one gang is affected: {events:?}")
    };
    assert_eq!((gang.priority, gang.preemptible), (200, false));
    world.index.apply_priority_class(&class);
    assert!(world.index.take_outbox().events.is_empty(), "nothing changed");
}

#[test]
fn times_of_a_gang_are_kept_until_they_are_written() {
    let mut world = World::new();
    world.group("g", json!({}));
    world.sync();
    let key = ObjectKey::new("a", "g");
    assert!(world.index.note(&key, Mark::Started(Millis(2_000_500))));
    assert!(world.index.note(&key, Mark::Stale(Some(Millis(3_000)))));
    assert!(
        !world.index.note(&key, Mark::Stale(Some(Millis(3_400)))),
        "the same second"
    );
    let mut times = |annotations: Value| {
        world.group("g", json!({ "metadata": { "annotations": annotations } }));
        match world.index.take_outbox().events.as_slice() {
            [Event::Gang(gang)] => (gang.last_start.map(|at| at.0), gang.stale_since.map(|at| at.0)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(times(json!({})), (Some(2_000_500), Some(3_000)));
    let written = json!({ "kai.scheduler/last-start-timestamp": "1970-01-01T00:33:20Z",
                          "kai.scheduler/stale-podgroup-timestamp": "1970-01-01T00:00:03Z" });
    assert_eq!(times(written), (Some(2_000_000), Some(3_000)));
    assert_eq!(times(json!({})), (None, None), "what was written and removed is gone");
}

#[test]
fn a_problem_is_told_once_and_is_the_reason() {
    let mut world = a_node_a_gang_and_a_pod();
    let bad = json!({ "metadata": { "annotations": { "gpu-fraction": "lots" } } });
    world.pod("p", bad.clone());
    assert_eq!(world.sync().problems.len(), 1);
    world.pod("p", bad);
    assert_eq!(world.sync().problems.len(), 0);
    world.decide();
    assert!(
        world.reason("uid-p").contains("gpu-fraction: it can't be combined"),
        "{}",
        world.reason("uid-p")
    );
}

#[test]
fn claims_decide_where_a_pod_can_run() {
    let mut world = World::new();
    world.node("n1", json!({ "zone": "a" }));
    world.node("n2", json!({ "zone": "b" }));
    world.group("g", json!({}));
    world.pod(
        "p",
        json!({ "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "c" } }] } }),
    );
    assert_eq!(world.decide(), [""; 0]);
    assert_eq!(world.reason("uid-p"), "persistent volume claim c does not exist");
    let claim = |phase: &str, volume: &str| -> Arc<kai_api::PersistentVolumeClaim> {
        Arc::new(slim(
            json!({ "metadata": { "name": "c", "namespace": "a" }, "spec": { "volumeName": volume },
                              "status": { "phase": phase } }),
        ))
    };
    world
        .index
        .apply_volume_claim(&ObjectKey::new("a", "c"), &claim("Pending", ""));
    assert_eq!(world.decide(), [""; 0]);
    assert!(world.reason("uid-p").contains("is not bound"));
    world
        .index
        .apply_volume_claim(&ObjectKey::new("a", "c"), &claim("Bound", "v"));
    assert_eq!(world.decide(), [""; 0], "its volume is not known yet");
    let term = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["b"] }] });
    world.index.apply_volume(&Arc::new(slim(json!({
        "metadata": { "name": "v" },
        "spec": { "claimRef": { "namespace": "a", "name": "c" }, "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } } },
    }))));
    assert_eq!(world.decide(), ["bind uid-p n2"]);
}

#[test]
fn gpu_pods_stay_on_gpu_workers() {
    let settings = MirrorSettings {
        restrict_nodes: Some(WorkerLabels {
            gpu: "gpu-worker".to_owned(),
            cpu: "cpu-worker".to_owned(),
        }),
        ..MirrorSettings::default()
    };
    let mut world = World::with(&settings);
    world.node("neither", json!({}));
    world.node("for-cpu", json!({ "cpu-worker": "" }));
    world.group("g", json!({}));
    world.pod("p", json!({}));
    assert_eq!(world.decide(), [""; 0]);
    world.node("for-gpu", json!({ "gpu-worker": "" }));
    assert_eq!(world.decide(), ["bind uid-p for-gpu"]);
}

#[test]
fn without_the_tree_leaves_are_equals() {
    let settings = MirrorSettings {
        full_hierarchy_fairness: false,
        ..MirrorSettings::default()
    };
    let mut world = World::with(&settings);
    world.sync();
    let report = world.engine.cycle(world.now, &Config::default());
    assert!(report.decisions.is_empty());
    let queues: Vec<_> = world
        .engine
        .queues()
        .iter()
        .map(|queue| (queue.name, queue.parent))
        .collect();
    assert_eq!(queues, [("(root)", None), ("q", Some("(root)"))]);
}

#[test]
fn a_gpu_is_free_when_its_reservation_pod_is_gone() {
    let mut world = World::new();
    world.node("n", json!({ "nvidia.com/gpu.memory": "80000" }));
    world.group("g", json!({}));
    let on_gpu = |more: Value| {
        merged(
            json!({ "spec": { "nodeName": "n" }, "status": { "phase": "Running" } }),
            more,
        )
    };
    world.pod(
        "half",
        on_gpu(
            json!({ "metadata": { "annotations": { "gpu-fraction": "0.5" }, "labels": { "runai-gpu-group": "x" } } }),
        ),
    );
    let reservation = reservation("x");
    let held = ObjectKey::of(&*reservation);
    world.index.apply_pod(&held, &reservation);
    world.pod("next", json!({}));
    assert!(world.decide().is_empty(), "the GPU is shared");
    world.index.remove_pod(&ObjectKey::new("a", "half"));
    assert!(world.decide().is_empty(), "the reservation pod still has it");
    assert_eq!(world.status("uid-next"), Some(Status::Pipelined));
    world.index.remove_pod(&held);
    assert_eq!(world.decide(), ["bind uid-next n"]);
}

/// A share of the only GPU is being bound, and somebody waits for a whole one.
fn a_share_on_its_way() -> World {
    let mut world = World::new();
    world.node("n", json!({ "nvidia.com/gpu.memory": "80000" }));
    world.group("g", json!({}));
    let share = json!({ "metadata": { "annotations": { "gpu-fraction": "0.5" } }, "spec": { "containers": [{}] } });
    world.pod("half", share);
    world.share_request("half", "uid-half", ("n", &["x"]), json!({}));
    world.pod("next", json!({}));
    assert_eq!(world.decide(), [""; 0], "the GPU is promised");
    world
}

#[test]
fn a_reservation_that_a_lagging_watch_does_not_show_yet_has_its_gpu() {
    let mut world = a_share_on_its_way();
    let failed = json!({ "phase": "Failed", "reason": "refused" });
    world.share_request("half", "uid-half", ("n", &["x"]), failed);
    assert_eq!(world.decide(), [""; 0], "the bind may have reserved it");
    world.index.remove_bind_request(&ObjectKey::new("a", "half"));
    let reservation = reservation("x");
    let held = ObjectKey::of(&*reservation);
    world.index.apply_pod(&held, &reservation);
    world.pod(
        "half",
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
    );
    assert_eq!(world.after(60), [""; 0], "it has");
    world.index.remove_pod(&held);
    assert_eq!(world.decide(), ["bind uid-next n"]);
}

#[test]
fn a_bind_that_was_cut_short_may_have_reserved_its_gpu() {
    for pod_goes_first in [true, false] {
        let mut world = a_share_on_its_way();
        let (pod, request) = (ObjectKey::new("a", "half"), ObjectKey::new("a", "half"));
        if pod_goes_first {
            world.index.remove_pod(&pod);
            assert_eq!(world.decide(), [""; 0], "it may have");
        }
        world.index.remove_bind_request(&request);
        world.index.remove_pod(&pod);
        assert_eq!(world.decide(), [""; 0], "still");
        assert_eq!(world.after(10), ["bind uid-next n"], "no reservation came of it");
    }
}

#[test]
fn a_gang_is_settled_when_nothing_of_it_waits() {
    let mut world = a_node_a_gang_and_a_pod();
    let gang = ObjectKey::new("a", "g");
    assert!(!world.index.is_settled(&gang));
    world.decide();
    assert!(
        world.index.is_active(&gang) && !world.index.is_settled(&gang),
        "on its way"
    );
    world.pod("p", json!({ "spec": { "nodeName": "n1" } }));
    assert!(world.index.is_active(&gang) && world.index.is_settled(&gang));
    world.index.remove_pod(&ObjectKey::new("a", "p"));
    assert!(!world.index.is_active(&gang) && world.index.members.is_empty());
}

#[test]
fn a_binding_that_failed_after_its_pod_had_gone_is_not_remembered() {
    let mut world = a_node_a_gang_and_a_pod();
    world.decide();
    world.index.remove_pod(&ObjectKey::new("a", "p"));
    world.index.failed("uid-p", Some(("n1", "it is gone".to_owned())));
    assert!(world.index.assumptions.is_empty());
}

/// `cargo test -p kai-scheduler --release --lib -- --ignored --nocapture large`
#[test]
#[ignore = "takes long without optimisation, and only prints"]
fn changes_in_a_large_cluster_are_cheap() {
    const NODES: usize = 4_000;
    const PODS_PER_NODE: usize = 35;
    const CHANGED: usize = 1_000;
    const ROUNDS: usize = 20;
    let mut world = World::new();
    (0..NODES).for_each(|at| world.node(&format!("n{at}"), json!({})));
    let in_phase = |at: usize, phase: &str| {
        json!({ "metadata": { "annotations": { "pod-group-name": format!("g{at}") } },
                "spec": { "nodeName": format!("n{}", at % NODES), "containers": [{ "resources": { "requests": { "cpu": "100m" } } }] },
                "status": { "phase": phase } })
    };
    for at in 0..NODES * PODS_PER_NODE {
        world.group(&format!("g{at}"), json!({}));
        world.pod(&format!("p{at}"), in_phase(at, "Running"));
    }
    world.decide();
    let changed = |phase: &str| -> Vec<Arc<kai_api::Pod>> {
        let pods = (0..CHANGED).map(|at| pod(&format!("p{at}"), in_phase(at, phase)));
        pods.map(Arc::new).collect()
    };
    let changed = [changed("Pending"), changed("Running")];
    let (mut taken_in, mut decided) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let start = std::time::Instant::now();
        for pod in &changed[round % 2] {
            world.index.apply_pod(&ObjectKey::of(&**pod), pod);
            world.index.hand_over(|event| world.engine.apply(event));
        }
        world.sync();
        let applied = std::time::Instant::now();
        let report = world.engine.cycle(world.now, &Config::default());
        assert!(report.decisions.is_empty());
        taken_in.push(applied - start);
        decided.push(applied.elapsed());
    }
    for (name, mut times) in [("taken in", taken_in), ("decided", decided)] {
        times.sort();
        println!("{name}: median {:?}", times[ROUNDS / 2]);
    }
}
