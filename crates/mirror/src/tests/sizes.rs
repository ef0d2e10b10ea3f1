//! The number of steps that mirror and engine take for the largest objects.

#![cfg(debug_assertions)]

use std::sync::Arc;

use kai_api::ObjectKey;
use kai_embedded::large_objects::{List, check_growth, lengths};
use kai_engine::Cluster;
use kai_engine::model::{Config, Millis};
use kai_engine::report::Decision;
use serde_json::{Value, json};

use crate::{ClusterMirror, MirrorSettings};

const NODES: usize = 4;

/// The steps to add the object to a cluster, change it, place its pods and explain one of them.
fn steps(list: List, length: usize) -> u64 {
    let object = list.object(length);
    let mut world = World::new();
    let ((), steps) = kai_engine::steps::of(move || match object["kind"].as_str() {
        Some("Pod") => {
            world.group(json!({}));
            world.pod(&object);
            world.cycle();
            // Now the engine places a second pod like it next to the running one.
            world.pod(&named(&object, "other"));
            let mut running = object;
            running["spec"]["nodeName"] = "node-0".into();
            running["status"] = json!({"phase": "Running"});
            world.pod(&running);
            world.cycle();
            world.engine.pods_of(["other"]);
        }
        Some("PodGroup") => {
            world
                .mirror
                .apply_pod_group(&ObjectKey::new("a", "g"), &Arc::new(slim(&object)));
            for at in 0..8 {
                let mut pod = List::Labels.object(0);
                pod["metadata"]["labels"] = json!({"kai.scheduler/subgroup-name": format!("n{at}")});
                world.pod(&named(&pod, &format!("p{at}")));
            }
            world.cycle();
            world
                .mirror
                .apply_pod_group(&ObjectKey::new("a", "g"), &Arc::new(slim(&changed(&object))));
            world.cycle();
            world.engine.pods_of(["p0"]);
        }
        Some("Topology") => {
            world.mirror.apply_topology(&slim(&object));
            let constraint = json!({"topology": "t", "requiredTopologyLevel": "n0"});
            world.group(json!({"topologyConstraint": constraint}));
            world.pod(&List::Labels.object(0));
            world.cycle();
        }
        other => panic!("{other:?} is not a kind that the mirror reads"),
    });
    steps
}

struct World {
    mirror: ClusterMirror,
    engine: Cluster,
    now: Millis,
}

impl World {
    fn new() -> World {
        let mut mirror = ClusterMirror::new(&MirrorSettings::default());
        mirror.mark_synced();
        let free = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
        let resources = json!({ "gpu": free, "cpu": free, "memory": free });
        for (name, parent) in [("top", Value::Null), ("q", json!("top"))] {
            let spec = json!({ "parentQueue": parent, "resources": resources });
            mirror.apply_queue(&slim(
                &json!({ "metadata": { "name": name, "uid": name }, "spec": spec }),
            ));
        }
        for at in 0..NODES {
            let name = format!("node-{at}");
            let mut taints = json!([{ "key": "n1", "effect": "PreferNoSchedule" }]);
            if at == NODES - 1 {
                taints[0]["effect"] = "NoSchedule".into();
            }
            mirror.apply_node(&slim(&json!({
                "metadata": { "name": name, "uid": name, "labels": { "rack": format!("r{at}"), "nvidia.com/gpu.memory": "81920" } },
                "spec": { "taints": taints },
                "status": {
                    "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1" },
                    "conditions": [{ "type": "Ready", "status": "True" }],
                },
            })));
        }
        let claim = json!({
            "metadata": { "name": "claim", "namespace": "a", "uid": "c" },
            "spec": { "volumeName": "volume" }, "status": { "phase": "Bound" },
        });
        mirror.apply_volume_claim(&ObjectKey::new("a", "claim"), &Arc::new(slim(&claim)));
        let racks = json!([{ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["r0", "r1"] }] }]);
        let volume = json!({
            "metadata": { "name": "volume", "uid": "v" },
            "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": racks } } },
        });
        mirror.apply_volume(&Arc::new(slim(&volume)));
        World {
            mirror,
            engine: Cluster::new(),
            now: Millis::seconds(1_000_000),
        }
    }

    fn group(&mut self, mut spec: Value) {
        spec["queue"] = "q".into();
        let group = json!({ "metadata": { "name": "g", "namespace": "a", "uid": "g" }, "spec": spec });
        self.mirror
            .apply_pod_group(&ObjectKey::new("a", "g"), &Arc::new(slim(&group)));
    }

    fn pod(&mut self, object: &Value) {
        let pod: Arc<kai_api::Pod> = Arc::new(slim(object));
        self.mirror.apply_pod(&ObjectKey::of(&*pod), &pod);
    }

    fn cycle(&mut self) -> Vec<Decision> {
        self.now = self.now + Millis::seconds(1);
        self.mirror.tick(self.now);
        for event in self.mirror.take_outbox().events {
            self.engine.apply(event);
        }
        self.engine.cycle(self.now, &Config::default()).decisions
    }
}

fn slim<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

fn named(object: &Value, name: &str) -> Value {
    let mut object = object.clone();
    object["metadata"]["name"] = name.into();
    object["metadata"]["uid"] = name.into();
    object
}

fn changed(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["annotations"]["changed"] = "yes".into();
    object
}

#[test]
fn a_pod_with_short_lists_is_placed_here() {
    let mut world = World::new();
    world.group(json!({}));
    world.pod(&List::Tolerations.object(2));
    let decisions = world.cycle();
    assert!(
        decisions.iter().any(|decision| matches!(decision, Decision::Bind(_))),
        "{decisions:?}"
    );
}

#[test]
fn a_pod_group_stored_before_there_was_a_bound_is_read_and_its_pods_say_why_they_wait() {
    let mut world = World::new();
    let object = List::SubGroups.object(kai_api::SUB_GROUPS_MAX + 1);
    world
        .mirror
        .apply_pod_group(&ObjectKey::new("a", "g"), &Arc::new(slim(&object)));
    world.pod(&List::Labels.object(0));
    world.cycle();
    let reason = world.engine.pods_of(["p"]).pop().and_then(|view| view.reason);
    let text = reason.map(|reason| reason.to_string()).unwrap_or_default();
    assert!(text.contains("4097 subgroups are more than the 4096"), "{text}");
}

#[test]
fn the_largest_objects_take_steps_by_their_length_through_mirror_and_engine() {
    for list in List::ALL {
        for length in lengths(list) {
            let checked = check_growth(length, |length| steps(list, length));
            assert_eq!(checked, Ok(()), "{list:?}");
        }
    }
}

/// The steps to place a pod where each node has a pod with the same host ports at other addresses.
fn steps_beside_ports(length: usize) -> u64 {
    let mut world = World::new();
    world.group(json!({}));
    for at in 0..NODES {
        let mut running = named(&List::HostPorts.object(length), &format!("r{at}"));
        running["spec"]["nodeName"] = format!("node-{at}").into();
        running["status"] = json!({"phase": "Running"});
        world.pod(&running);
    }
    world.cycle();
    let mut waiting = List::HostPorts.object(length);
    for port in waiting["spec"]["containers"][0]["ports"].as_array_mut().unwrap() {
        port["hostIP"] = format!("other {}", port["hostIP"]).into();
    }
    let ((), steps) = kai_engine::steps::of(|| {
        world.pod(&waiting);
        world.cycle();
    });
    steps
}

#[test]
fn host_ports_are_not_compared_in_pairs() {
    for length in [64, 256] {
        assert_eq!(check_growth(length, steps_beside_ports), Ok(()));
    }
}
