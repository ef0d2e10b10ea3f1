//! Pods with volumes in a plan, what goes wrong with volumes, and their laws. They come from random numbers of their own, so that the
//! other steps of a seed stay as they are.

use std::collections::BTreeMap;
use std::time::Duration;

use kai_api::keys;
use kai_embedded::kubelet::NodeTemplate;
use kai_embedded::server::{Selector, StoreHandle};
use kai_embedded::workloads::VOLUME_PROVISIONER;
use serde_json::{Value, json};

use crate::harness::manifest::{PodManifest, pod_group};
use crate::plan::Step;
use crate::random::SeededRandom;

/// In this part of the plans, in percent, pods have volumes.
const PLANS: u64 = 60;
/// Most steps about volumes in a plan.
const STEPS_MAX: u64 = 10;
/// Distinguishes these random numbers from those of the other steps.
const SALT: u64 = 0x0076_6f6c_756d_6573;
/// A bind waits this long for its volumes. The faults of a plan last longer.
pub(crate) const BINDING_TIMEOUT: Duration = Duration::from_secs(20);

/// The class of disks that exist.
const DISKS: &str = "disks";
/// The class whose provisioner makes a volume on the node of the pod.
const MADE: &str = "made";
/// The class whose provisioner never answers.
const NEVER: &str = "never";

/// Puts pods with volumes and faults of volumes between the steps.
pub(crate) fn insert(seed: u64, nodes: &[NodeTemplate], steps: &mut Vec<(Step, u64)>) {
    let mut random = SeededRandom::new(seed ^ SALT);
    if !random.percent(PLANS) {
        return;
    }
    for number in 0..=random.roll(STEPS_MAX) {
        let step = match random.roll(5) {
            0 => Step::TakeVolume(random.roll(1000)),
            _ => pods(&mut random, number, nodes),
        };
        let at = usize::try_from(random.roll(steps.len() as u64 + 1)).unwrap();
        steps.insert(at, (step, random.roll(2) * random.roll(3000)));
    }
    let classes = [
        class(DISKS, "kubernetes.io/no-provisioner", json!({})),
        class(
            MADE,
            VOLUME_PROVISIONER,
            json!({ "topologyKey": "kubernetes.io/hostname" }),
        ),
        class(NEVER, VOLUME_PROVISIONER, json!({ "neverAnswers": "true" })),
    ];
    let create = Step::Create {
        words: "classes of volumes".to_owned(),
        objects: classes.into(),
    };
    steps.insert(0, (create, 0));
}

fn pods(random: &mut SeededRandom, number: u64, nodes: &[NodeTemplate]) -> Step {
    let name = format!("v{number:02}");
    let mut objects = Vec::new();
    let disks = |random: &mut SeededRandom, count: u64| {
        let node = |random: &mut SeededRandom| random.of(nodes).name;
        let made: Vec<Value> = (0..count)
            .map(|at| disk(&format!("disk-{name}-{at}"), &node(random)))
            .collect();
        made
    };
    let words = match random.roll(12) {
        0..4 => {
            let count = random.roll(3);
            objects.extend(disks(random, count));
            objects.push(claim(&name, DISKS, "ReadWriteOnce"));
            objects.push(pod(random, &name, &name).build());
            format!("{count} disks, and a pod that needs one")
        }
        4..7 => {
            objects.push(claim(&name, MADE, "ReadWriteOnce"));
            objects.push(pod(random, &name, &name).build());
            "a pod with a new volume".to_owned()
        }
        7 => {
            objects.push(claim(&name, NEVER, "ReadWriteOnce"));
            objects.push(pod(random, &name, &name).build());
            "a pod whose volume is never made".to_owned()
        }
        8 | 9 => {
            objects.extend(disks(random, 2));
            objects.push(pod_group(&name, "a", 2));
            for member in ["0", "1"] {
                let member = format!("{name}-{member}");
                objects.push(claim(&member, DISKS, "ReadWriteOnce"));
                objects.push(pod(random, &member, &member).queue("a").member_of(&name).build());
            }
            "two disks, and a gang whose pods need one each".to_owned()
        }
        _ => {
            objects.push(claim(&name, MADE, "ReadWriteOncePod"));
            for user in ["0", "1"] {
                objects.push(pod(random, &format!("{name}-{user}"), &name).build());
            }
            "two pods with a claim that one of them can use".to_owned()
        }
    };
    Step::Create {
        words: format!("{name}: {words}"),
        objects,
    }
}

fn pod(random: &mut SeededRandom, name: &str, claim: &str) -> PodManifest {
    let pod = PodManifest::new(name);
    let pod = match random.roll(4) {
        0 | 1 => pod.fraction("0.5"),
        2 => pod.gpus(1),
        _ => pod,
    };
    pod.volumes(json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]))
}

fn class(name: &str, provisioner: &str, parameters: Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": provisioner, "parameters": parameters, "volumeBindingMode": "WaitForFirstConsumer",
    })
}

fn claim(name: &str, class: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": { "accessModes": [mode], "storageClassName": class, "resources": { "requests": { "storage": "1Gi" } } },
    })
}

fn volume(name: &str, class: &str, rest: Value) -> Value {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "persistentVolumeReclaimPolicy": "Retain", "local": { "path": "/disk" },
        },
    });
    for (field, value) in rest.as_object().into_iter().flatten() {
        volume["spec"][field] = value.clone();
    }
    volume
}

/// A disk of the node.
fn disk(name: &str, node: &str) -> Value {
    volume(name, DISKS, json!({ "nodeAffinity": on_node(node) }))
}

fn on_node(node: &str) -> Value {
    let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] });
    json!({ "required": { "nodeSelectorTerms": [term] } })
}

/// Volumes that an administrator makes for the claims whose provisioner never answers, once the faults are over. Any node can use them.
pub(crate) fn by_hand(store: &StoreHandle) -> Vec<Value> {
    let claims = list(store, "persistentvolumeclaims").into_iter();
    let waits = claims.filter(|claim| claim["spec"]["storageClassName"] == NEVER && !is_bound(claim));
    let made = waits.map(|claim| {
        let name = text(&claim["metadata"]["name"]);
        let host = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "Exists" }] }] } });
        let of_claim = json!({ "claimRef": { "namespace": "default", "name": name }, "nodeAffinity": host });
        volume(&format!("by-hand-{name}"), NEVER, of_claim)
    });
    made.collect()
}

/// The name of a volume that no claim has.
pub(crate) fn free(store: &StoreHandle, pick: u64) -> Option<String> {
    let volumes = list(store, "persistentvolumes").into_iter();
    let free = volumes.filter(|volume| volume["spec"]["claimRef"].is_null());
    let mut names: Vec<String> = free.map(|volume| text(&volume["metadata"]["name"])).collect();
    names.sort();
    let at = pick.checked_rem(names.len() as u64)?;
    Some(names.swap_remove(usize::try_from(at).unwrap()))
}

/// The change by which somebody else takes a volume.
pub(crate) fn taken() -> Value {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "elsewhere", "name": "data", "uid": "uid-of-somebody-else",
    });
    json!({ "spec": { "claimRef": claim } })
}

/// Broken laws of those that hold at every moment: a volume has one claim, a claim with `ReadWriteOncePod` one pod, and a pod with a
/// node can use all its volumes there.
pub(crate) fn found(store: &StoreHandle) -> Vec<String> {
    let claims = by_name(list(store, "persistentvolumeclaims"));
    if claims.is_empty() {
        return Vec::new();
    }
    let volumes = by_name(list(store, "persistentvolumes"));
    let mut found = Vec::new();
    let mut claim_of: BTreeMap<String, &str> = BTreeMap::new();
    for (name, claim) in claims.iter().filter(|(_, claim)| is_bound(claim)) {
        let volume = text(&claim["spec"]["volumeName"]);
        let uid = volumes.get(&volume).map(|volume| &volume["spec"]["claimRef"]["uid"]);
        if uid != Some(&claim["metadata"]["uid"]) {
            found.push(format!(
                "claim {name} is bound to volume {volume}, which has another claim"
            ));
        }
        if let Some(other) = claim_of.insert(volume.clone(), name) {
            found.push(format!("volume {volume} has the claims {other} and {name}"));
        }
    }
    let mut user_of: BTreeMap<String, String> = BTreeMap::new();
    for pod in list(store, "pods") {
        let (name, node) = (text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]));
        let has_ended = ["Succeeded", "Failed"]
            .iter()
            .any(|phase| pod["status"]["phase"] == *phase);
        if node.is_empty() || has_ended {
            continue;
        }
        let volumes_of_pod = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let names = volumes_of_pod.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
        for claim_name in names {
            let claim = &claims[claim_name];
            let volume = volumes.get(&text(&claim["spec"]["volumeName"]));
            let affinity = volume.map(|volume| volume["spec"]["nodeAffinity"].clone());
            let values = affinity
                .map(|affinity| affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"].clone());
            let reaches = values.is_some_and(|values| values.is_null() || values == json!([node]));
            if !is_bound(claim) || !reaches {
                found.push(format!(
                    "pod {name} is on node {node} without the volume of claim {claim_name}"
                ));
            }
            let one_pod = claim["spec"]["accessModes"] == json!(["ReadWriteOncePod"]);
            if one_pod && let Some(other) = user_of.insert(claim_name.to_owned(), name.clone()) {
                found.push(format!("the pods {other} and {name} use claim {claim_name}"));
            }
        }
    }
    found
}

/// Broken laws of those that hold in a stable cluster: nothing is left of binds that failed.
pub(crate) fn left_behind(store: &StoreHandle) -> Vec<String> {
    let claims = by_name(list(store, "persistentvolumeclaims"));
    let waiting = |name: &str| claims.get(name).is_some_and(|claim| !is_bound(claim));
    let asked = claims.iter().filter(|(name, claim)| {
        waiting(name) && !claim["metadata"]["annotations"][keys::VOLUME_SELECTED_NODE].is_null()
    });
    let asked = asked.map(|(name, _)| format!("claim {name} still has the node of a bind that failed"));
    let volumes = list(store, "persistentvolumes").into_iter();
    let reserved = volumes.filter(|volume| {
        let by_binder = !volume["metadata"]["annotations"][keys::VOLUME_BOUND_BY_CONTROLLER].is_null();
        by_binder && waiting(&text(&volume["spec"]["claimRef"]["name"]))
    });
    let reserved = reserved.map(|volume| {
        let name = text(&volume["metadata"]["name"]);
        format!("volume {name} still has the claim of a bind that failed")
    });
    asked.chain(reserved).collect()
}

fn is_bound(claim: &Value) -> bool {
    claim["status"]["phase"] == "Bound"
}

fn list(store: &StoreHandle, resource: &str) -> Vec<Value> {
    let page = store.list(resource, "", &Selector::everything()).unwrap();
    page.objects.iter().map(|object| object.to_value()).collect()
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let named = objects
        .into_iter()
        .map(|object| (text(&object["metadata"]["name"]), object));
    named.collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
