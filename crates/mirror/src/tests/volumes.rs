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
    assert!(
        world
            .reason("uid-p")
            .starts_with("persistentvolumeclaim \"c\" not found; ")
    );
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
    assert!(
        world
            .reason("uid-p")
            .starts_with("pod has unbound immediate PersistentVolumeClaims: c; ")
    );
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

/// A claim of 5 GiB.
fn claim(world: &mut World, name: &str, rest: Value) {
    let claim: Arc<kai_api::PersistentVolumeClaim> = Arc::new(slim(merged(
        json!({
            "metadata": { "name": name, "namespace": "a", "uid": format!("uid-{name}") },
            "spec": { "storageClassName": "late", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "5Gi" } } },
            "status": { "phase": "Pending" },
        }),
        rest,
    )));
    world.mirror.apply_volume_claim(&ObjectKey::new("a", name), &claim);
}

/// A free volume on the nodes of a zone.
fn volume(world: &mut World, name: &str, zone: &str, rest: Value) {
    let term = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": [zone] }] });
    world.mirror.apply_volume(&Arc::new(slim(merged(
        json!({
            "metadata": { "name": name, "uid": format!("uid-{name}") },
            "spec": { "storageClassName": "late", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "10Gi" },
                      "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } } },
            "status": { "phase": "Available" },
        }),
        rest,
    ))));
}

fn class(world: &mut World, provisioner: &str, rest: Value) {
    world.mirror.apply_storage_class(&Arc::new(slim(merged(
        json!({ "metadata": { "name": "late" }, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer" }),
        rest,
    ))));
}

fn user(world: &mut World, name: &str, claims: &[&str]) {
    let volumes = claims
        .iter()
        .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }));
    world.pod(name, json!({ "spec": { "volumes": volumes.collect::<Value>() } }));
}

/// Nodes n1 and n2 in the zones a and b, and the pod p with the claim c.
fn a_pod_that_its_claim_waits_for(provisioner: &str, rest: Value) -> World {
    let mut world = World::new();
    world.node("n1", json!({ "zone": "a" }));
    world.node("n2", json!({ "zone": "b" }));
    world.group("g", json!({}));
    class(&mut world, provisioner, rest);
    claim(&mut world, "c", json!({}));
    user(&mut world, "p", &["c"]);
    world
}

const BY_HAND: &str = "kubernetes.io/no-provisioner";

#[test]
fn a_new_volume_is_made_where_the_class_allows_it() {
    let zone_b = json!({ "allowedTopologies": [{ "matchLabelExpressions": [{ "key": "zone", "values": ["b"] }] }] });
    let mut world = a_pod_that_its_claim_waits_for("csi.example", zone_b);
    assert_eq!(world.decide(), ["bind uid-p n2 a/c=new"]);
    let zone_c = json!({ "allowedTopologies": [{ "matchLabelExpressions": [{ "key": "zone", "values": ["c"] }] }] });
    let mut world = a_pod_that_its_claim_waits_for("csi.example", zone_c);
    assert_eq!(world.decide(), [""; 0]);
    let reason = world.reason("uid-p");
    assert!(
        reason.contains("2 node(s) didn't find available persistent volumes to bind; create a PersistentVolume"),
        "{reason}"
    );
    class(&mut world, "csi.example", json!({}));
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=new"]);
}

#[test]
fn a_volume_that_exists_must_suit_the_claim() {
    let mut world = a_pod_that_its_claim_waits_for(BY_HAND, json!({}));
    volume(
        &mut world,
        "small",
        "a",
        json!({ "spec": { "capacity": { "storage": "4Gi" } } }),
    );
    volume(
        &mut world,
        "read",
        "a",
        json!({ "spec": { "accessModes": ["ReadOnlyMany"] } }),
    );
    volume(&mut world, "raw", "a", json!({ "spec": { "volumeMode": "Block" } }));
    volume(
        &mut world,
        "other",
        "a",
        json!({ "spec": { "storageClassName": "fast" } }),
    );
    volume(&mut world, "used", "a", json!({ "status": { "phase": "Released" } }));
    volume(
        &mut world,
        "kept",
        "a",
        json!({ "spec": { "claimRef": { "namespace": "a", "name": "d" } } }),
    );
    assert_eq!(world.decide(), [""; 0]);
    volume(
        &mut world,
        "large",
        "b",
        json!({ "spec": { "capacity": { "storage": "20Gi" } } }),
    );
    volume(
        &mut world,
        "fits",
        "b",
        json!({ "metadata": { "labels": { "disk": "ssd" } } }),
    );
    let selector = json!({ "spec": { "selector": { "matchLabels": { "disk": "hdd" } } } });
    claim(&mut world, "c", selector);
    assert_eq!(world.decide(), [""; 0]);
    claim(&mut world, "c", json!({}));
    assert_eq!(world.decide(), ["bind uid-p n2 a/c=fits"]);
}

#[test]
fn two_pods_never_get_one_volume() {
    let mut world = a_pod_that_its_claim_waits_for(BY_HAND, json!({}));
    claim(&mut world, "d", json!({}));
    world.group("h", json!({}));
    world.pod(
        "q",
        json!({ "metadata": { "annotations": { "pod-group-name": "h" } },
                "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }] } }),
    );
    volume(&mut world, "v", "b", json!({}));
    assert_eq!(world.decide(), ["bind uid-p n2 a/c=v"]);
    assert_eq!(
        world.decide(),
        [""; 0],
        "the first pod is not bound yet, but has the volume"
    );
    volume(&mut world, "w", "a", json!({}));
    assert_eq!(world.decide(), ["bind uid-q n1 a/d=w"]);
}

#[test]
fn a_failed_bind_frees_the_volume() {
    let mut world = a_pod_that_its_claim_waits_for(BY_HAND, json!({}));
    volume(&mut world, "v", "a", json!({}));
    volume(&mut world, "w", "b", json!({}));
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=v"]);
    world.mirror.write_failed("uid-p", Some(("n1", "no disk".to_owned())));
    assert_eq!(world.after(1), ["bind uid-p n2 a/c=w"], "another node is tried");
    claim(&mut world, "d", json!({}));
    world.group("h", json!({}));
    world.pod(
        "q",
        json!({ "metadata": { "annotations": { "pod-group-name": "h" } },
                "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }] } }),
    );
    assert_eq!(world.decide(), ["bind uid-q n1 a/d=v"], "the volume is free again");
}

#[test]
fn a_reserved_volume_and_a_chosen_node_are_kept() {
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    volume(
        &mut world,
        "v",
        "b",
        json!({ "spec": { "claimRef": { "namespace": "a", "name": "c" } } }),
    );
    assert_eq!(world.decide(), ["bind uid-p n2 a/c=v"]);
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    let annotations = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n2" } } });
    claim(&mut world, "c", annotations);
    assert_eq!(world.decide(), ["bind uid-p n2 a/c=new"]);
    world.mirror.write_failed("uid-p", None);
    world.mirror.remove_node("n2");
    assert_eq!(world.decide(), [""; 0]);
    claim(&mut world, "c", json!({}));
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=new"]);
}

#[test]
fn claims_that_wait_for_something_else() {
    let mut world = a_pod_that_its_claim_waits_for(BY_HAND, json!({}));
    world.mirror.remove_storage_class("late");
    world.decide();
    assert!(
        world
            .reason("uid-p")
            .starts_with("storageclass.storage.k8s.io \"late\" not found")
    );
    class(&mut world, BY_HAND, json!({ "volumeBindingMode": "Immediate" }));
    world.decide();
    assert!(world.reason("uid-p").starts_with("pod has unbound immediate"));
    claim(
        &mut world,
        "c",
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
    );
    world.decide();
    assert!(
        world
            .reason("uid-p")
            .starts_with("persistentvolumeclaim \"c\" is being deleted")
    );
    claim(
        &mut world,
        "c",
        json!({ "spec": { "volumeName": "v" }, "status": { "phase": "Lost" } }),
    );
    world.decide();
    assert!(
        world
            .reason("uid-p")
            .contains("bound to non-existent persistentvolume \"v\"")
    );
    claim(
        &mut world,
        "c",
        json!({ "spec": { "resources": { "requests": { "storage": "much" } } } }),
    );
    class(&mut world, BY_HAND, json!({}));
    world.decide();
    let reason = world.reason("uid-p");
    assert!(
        reason.starts_with("PersistentVolumeClaim a/c: spec.resources.requests.storage"),
        "{reason}"
    );
}

#[test]
fn an_ephemeral_volume_needs_the_claim_of_its_pod() {
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    world.pod(
        "p",
        json!({ "spec": { "volumes": [{ "name": "scratch", "ephemeral": {} }] } }),
    );
    assert_eq!(world.decide(), [""; 0]);
    assert!(
        world
            .reason("uid-p")
            .starts_with("waiting for ephemeral volume controller to create")
    );
    let owned = |uid: &str| json!({ "metadata": { "ownerReferences": [{ "kind": "Pod", "name": "p", "uid": uid, "controller": true }] } });
    claim(&mut world, "p-scratch", owned("uid-q"));
    assert_eq!(world.decide(), [""; 0]);
    assert!(world.reason("uid-p").contains("was not created for the pod"));
    claim(&mut world, "p-scratch", owned("uid-p"));
    assert_eq!(world.decide(), ["bind uid-p n1 a/p-scratch=new"]);
}

#[test]
fn all_claims_of_a_pod_get_volumes_of_one_node() {
    let mut world = a_pod_that_its_claim_waits_for(BY_HAND, json!({}));
    claim(
        &mut world,
        "d",
        json!({ "spec": { "resources": { "requests": { "storage": "1Gi" } } } }),
    );
    user(&mut world, "p", &["c", "d"]);
    volume(&mut world, "v", "a", json!({}));
    volume(&mut world, "w", "b", json!({}));
    assert_eq!(world.decide(), [""; 0]);
    // The smaller claim leaves the only volume that is large enough to the other one.
    volume(
        &mut world,
        "x",
        "b",
        json!({ "spec": { "capacity": { "storage": "2Gi" } } }),
    );
    assert_eq!(world.decide(), ["bind uid-p n2 a/d=x a/c=w"]);
}

#[test]
fn pods_with_one_claim_meet_on_one_node_unless_many_can_use_it() {
    let two = |world: &mut World| {
        world.group("g", json!({ "spec": { "minMember": 2 } }));
        user(world, "q", &["c"]);
    };
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    two(&mut world);
    assert_eq!(world.decide(), [""; 0], "a node has one GPU");
    claim(&mut world, "c", json!({ "spec": { "accessModes": ["ReadWriteMany"] } }));
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=new", "bind uid-q n2 a/c=new"]);
}

#[test]
fn a_gang_starts_whole_or_not_at_all() {
    let mut world = a_pod_that_its_claim_waits_for(BY_HAND, json!({}));
    world.group("g", json!({ "spec": { "minMember": 2 } }));
    claim(&mut world, "d", json!({}));
    user(&mut world, "q", &["d"]);
    volume(&mut world, "v", "a", json!({}));
    assert_eq!(world.decide(), [""; 0]);
    volume(&mut world, "w", "b", json!({}));
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=v", "bind uid-q n2 a/d=w"]);
}

#[test]
fn pools_go_with_their_last_claim() {
    let mut world = a_pod_that_its_claim_waits_for(BY_HAND, json!({}));
    volume(&mut world, "v", "a", json!({}));
    world.sync();
    let volumes = json!([{ "name": "c", "persistentVolumeClaim": { "claimName": "c" } }]);
    world.pod("p", json!({ "spec": { "nodeName": "n1", "volumes": volumes } }));
    let outbox = world.mirror.take_outbox();
    let gone = |event: &Event| matches!(event, Event::VolumePoolGone(_));
    assert_eq!(outbox.events.iter().filter(|event| gone(event)).count(), 1);
    volume(&mut world, "w", "a", json!({}));
    assert_eq!(world.mirror.take_outbox().events, []);
}

#[test]
fn a_namespace_waits_for_a_bounded_number_of_different_volumes() {
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    let size = |bytes: usize| json!({ "spec": { "resources": { "requests": { "storage": bytes.to_string() } } } });
    // With the claim c, one more than the bound.
    let names: Vec<String> = (0..32).map(|number| format!("size-{number:02}")).collect();
    for (number, name) in names.iter().enumerate() {
        claim(&mut world, name, size(1_000 + number));
        user(&mut world, name, &[name]);
    }
    claim(&mut world, "d", json!({}));
    user(&mut world, "q", &["d"]);
    world.decide();
    let reason = world.reason("uid-size-31");
    assert!(
        reason.starts_with("claims of namespace a wait for more than 32 different kinds of volumes"),
        "{reason}"
    );
    assert!(
        !world.reason("uid-q").contains("different kinds"),
        "its claim asks for the same as another one"
    );
    // A pod that goes makes room for another request; one that was postponed and is gone passes its turn on.
    claim(&mut world, "size-32", size(2_000));
    user(&mut world, "size-32", &["size-32"]);
    world.decide();
    world.mirror.remove_pod(&ObjectKey::new("a", "size-31"));
    world.mirror.remove_pod(&ObjectKey::new("a", "size-00"));
    world.decide();
    assert!(!world.reason("uid-size-32").contains("different kinds"));
}

/// A claim that is bound to a volume of a driver.
fn bound_claim(world: &mut World, name: &str, driver: &str, rest: Value) {
    world.mirror.apply_volume(&Arc::new(slim(json!({
        "metadata": { "name": name }, "status": { "phase": "Bound" },
        "spec": { "claimRef": { "namespace": "a", "name": name }, "csi": { "driver": driver, "volumeHandle": name } },
    }))));
    let bound = json!({ "spec": { "volumeName": name }, "status": { "phase": "Bound" } });
    claim(world, name, merged(bound, rest));
}

fn limit(world: &mut World, node: &str, count: u32) {
    world.mirror.apply_csi_node(&slim(json!({
        "metadata": { "name": node },
        "spec": { "drivers": [{ "name": "csi.example", "nodeID": node, "allocatable": { "count": count } }] },
    })));
}

/// A pod of another scheduler on a node, without a GPU.
fn foreign_user(world: &mut World, name: &str, node: &str, claim: &str) {
    let volumes = json!([{ "name": "d", "persistentVolumeClaim": { "claimName": claim } }]);
    world.pod(
        name,
        json!({ "spec": { "schedulerName": "other", "nodeName": node, "volumes": volumes, "containers": [] }, "status": { "phase": "Running" } }),
    );
}

#[test]
fn a_claim_of_one_pod_is_used_by_one_pod() {
    let once = json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } });
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    claim(&mut world, "c", once.clone());
    world.group("h", json!({}));
    let volumes = json!([{ "name": "c", "persistentVolumeClaim": { "claimName": "c" } }]);
    world.pod(
        "q",
        json!({ "metadata": { "annotations": { "pod-group-name": "h" } }, "spec": { "volumes": volumes } }),
    );
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=new"]);
    assert_eq!(world.decide(), [""; 0]);
    let words = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    assert!(world.reason("uid-q").contains(words), "{}", world.reason("uid-q"));
    // The claim is bound meanwhile, and its pod runs.
    bound_claim(&mut world, "c", "csi.example", once);
    world.pod(
        "p",
        json!({ "spec": { "nodeName": "n1", "volumes": volumes }, "status": { "phase": "Running" } }),
    );
    assert_eq!(world.decide(), [""; 0]);
    world.mirror.remove_pod(&ObjectKey::new("a", "p"));
    assert_eq!(world.decide(), ["bind uid-q n1"]);
}

#[test]
fn pods_of_other_schedulers_use_claims_and_places_for_volumes() {
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    foreign_user(&mut world, "f", "n1", "d");
    bound_claim(&mut world, "d", "csi.example", json!({}));
    limit(&mut world, "n1", 1);
    limit(&mut world, "n2", 0);
    assert_eq!(world.decide(), [""; 0]);
    assert!(
        world.reason("uid-p").contains("2 node(s) exceed max volume count"),
        "{}",
        world.reason("uid-p")
    );
    // A volume of another driver takes no place.
    bound_claim(&mut world, "d", "files.example", json!({}));
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=new"]);
    world.mirror.write_failed("uid-p", None);
    bound_claim(&mut world, "d", "csi.example", json!({}));
    assert_eq!(world.decide(), [""; 0], "the pods of a claim follow its volume");
    world.mirror.remove_csi_node("n2");
    assert_eq!(world.decide(), ["bind uid-p n2 a/c=new"]);
}

#[test]
fn a_pod_of_another_scheduler_keeps_a_claim_of_one_pod() {
    let mut world = a_pod_that_its_claim_waits_for("csi.example", json!({}));
    bound_claim(
        &mut world,
        "c",
        "csi.example",
        json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } }),
    );
    foreign_user(&mut world, "f", "n2", "c");
    assert_eq!(world.decide(), [""; 0]);
    world.mirror.remove_pod(&ObjectKey::new("a", "f"));
    assert_eq!(world.decide(), ["bind uid-p n1"]);
}

/// Free storage of the class in a zone.
fn storage(world: &mut World, zone: &str, capacity: &str) {
    let key = ObjectKey::new("csi", zone);
    let capacity = json!({
        "metadata": { "name": zone, "namespace": "csi" }, "storageClassName": "late", "capacity": capacity,
        "nodeTopology": { "matchLabels": { "zone": zone } },
    });
    world.mirror.apply_storage_capacity(&key, &slim(capacity));
}

#[test]
fn new_volumes_fit_into_the_storage_that_drivers_report() {
    let mut world = World::with(&MirrorSettings {
        counts_storage: true,
        ..MirrorSettings::default()
    });
    world.node("n1", json!({ "zone": "a" }));
    world.node("n2", json!({ "zone": "a" }));
    class(&mut world, "csi.example", json!({}));
    for (pod, group, of_pod) in [("p", "g", "c"), ("q", "h", "d")] {
        world.group(group, json!({}));
        claim(&mut world, of_pod, json!({}));
        let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": of_pod } }]);
        let annotations = json!({ "annotations": { "pod-group-name": group } });
        world.pod(pod, json!({ "metadata": annotations, "spec": { "volumes": volumes } }));
    }
    let driver = json!({ "metadata": { "name": "csi.example" }, "spec": { "storageCapacity": true } });
    world.mirror.apply_csi_driver(&slim(driver));
    assert_eq!(world.decide(), [""; 0], "the driver reports no storage");
    let words = "2 node(s) did not have enough free storage";
    assert!(world.reason("uid-p").contains(words), "{}", world.reason("uid-p"));
    storage(&mut world, "b", "100Gi");
    storage(&mut world, "a", "4Gi");
    assert_eq!(world.decide(), [""; 0], "there is too little");
    storage(&mut world, "a", "9Gi");
    assert_eq!(world.decide(), ["bind uid-p n1 a/c=new"]);
    assert_eq!(world.decide(), [""; 0], "the rest does not suffice");
    assert!(
        world
            .reason("uid-q")
            .contains("1 node(s) did not have enough free storage")
    );
    // The volume is being made: it still takes the storage that was free before.
    let selected = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": "n1" } } });
    claim(&mut world, "c", selected);
    assert_eq!(world.decide(), [""; 0]);
    world.mirror.write_failed("uid-p", Some(("n1", "no disk".to_owned())));
    claim(&mut world, "c", json!({}));
    world.mirror.remove_pod(&ObjectKey::new("a", "p"));
    assert_eq!(world.decide(), ["bind uid-q n1 a/d=new"]);
    world.mirror.write_failed("uid-q", None);
    world.mirror.remove_storage_capacity(&ObjectKey::new("csi", "a"));
    assert_eq!(world.decide(), [""; 0]);
    world.mirror.remove_csi_driver("csi.example");
    assert_eq!(
        world.decide(),
        ["bind uid-q n1 a/d=new"],
        "nobody counts the storage any more"
    );
}
