//! Volume claims of pending pods.

use super::*;

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
        .mirror
        .apply_volume_claim(&ObjectKey::new("a", "c"), &claim("Pending", ""));
    assert_eq!(world.decide(), [""; 0]);
    assert!(world.reason("uid-p").contains("is not bound"));
    world
        .mirror
        .apply_volume_claim(&ObjectKey::new("a", "c"), &claim("Bound", "v"));
    assert_eq!(world.decide(), [""; 0], "its volume is not known yet");
    let term = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["b"] }] });
    world.mirror.apply_volume(&Arc::new(slim(json!({
        "metadata": { "name": "v" },
        "spec": { "claimRef": { "namespace": "a", "name": "c" }, "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } } },
    }))));
    assert_eq!(world.decide(), ["bind uid-p n2"]);
}

#[test]
fn without_a_list_of_volumes_claims_restrict_no_pod() {
    let mut world = World::with(&MirrorSettings {
        volume_list: ObjectList::Unknown,
        ..MirrorSettings::default()
    });
    world.node("n1", json!({}));
    world.group("g", json!({}));
    world.pod(
        "p",
        json!({ "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "c" } }] } }),
    );
    assert_eq!(world.decide(), ["bind uid-p n1"]);
}

#[test]
fn without_volumes_a_pod_with_a_claim_keeps_the_schedulers_words() {
    let mut world = World::with(&MirrorSettings {
        volume_list: ObjectList::ByCondition,
        ..MirrorSettings::default()
    });
    world.node("n1", json!({}));
    world.group("g", json!({}));
    let condition = json!({ "type": "PodScheduled", "status": "False", "message": "as the scheduler wrote" });
    let status = json!({ "conditions": [condition] });
    world.pod(
        "p",
        json!({ "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "c" } }] }, "status": status }),
    );
    assert_eq!(world.decide(), [""; 0]);
    assert_eq!(world.reason("uid-p"), "as the scheduler wrote");
    world.pod("q", json!({ "status": status }));
    assert_eq!(world.decide(), ["bind uid-q n1"], "it names no claim");
}
