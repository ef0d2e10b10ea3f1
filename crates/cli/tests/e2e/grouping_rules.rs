//! Grouping rules for kinds of workloads that the code does not know: a ConfigMap of kai's namespace, read while the grouper runs.

use kai_api::{ConfigMap, Object as _, Resource, Scope};
use kai_cluster::Selection;
use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};

use crate::harness::manifest::PodManifest;
use crate::harness::{Cluster, scenario};

const EVENTS: Resource = Resource::new("", "v1", "Event", "events", Scope::Namespaced);
const RULE: &str = include_str!("../../../../examples/grouping/render-farm-rule.yaml");
const KAI: &str = "kai-scheduler";
const NAME: &str = "kai-grouping-rules";

/// The definition of the kind, which kai has no code for.
async fn define(cluster: &Cluster) {
    crate::workloads::foreign_kind(cluster, "example.com", "RenderFarm", "renderfarms").await;
}

/// What an administrator allows.
fn right() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "kai-render-farms", "labels": { "kai.scheduler/aggregate-to-grouping-rules": "true" } },
        "rules": [{ "apiGroups": ["example.com"], "resources": ["renderfarms"], "verbs": ["get"] }],
    })
}

async fn allow(cluster: &Cluster) {
    match cluster.kube() {
        Some(kube) => kube.apply(right()).await,
        None => drop(cluster.try_create(right()).await),
    }
}

async fn farm(cluster: &Cluster, name: &str, renderers: i32) -> Value {
    let roles = json!([{ "name": "director", "replicas": 1 }, { "name": "renderer", "replicas": renderers }]);
    let farm = json!({
        "apiVersion": "example.com/v1", "kind": "RenderFarm", "metadata": { "name": name, "namespace": "default" },
        "spec": { "team": "default-queue", "priority": "train", "roles": roles },
    });
    cluster.try_create(farm).await.unwrap()
}

/// Creates the pods of a farm in place of its operator.
async fn start(cluster: &Cluster, farm: &Value, renderers: i32) {
    let name = farm["metadata"]["name"].as_str().unwrap();
    let pod = |role: &str, index: i32| {
        PodManifest::new(&format!("{name}-{role}-{index}"))
            .owned_by(farm)
            .label("example.com/role", role)
    };
    cluster.create(pod("director", 0).build()).await;
    for index in 0..renderers {
        cluster.create(pod("renderer", index).gpus(1).build()).await;
    }
}

/// Creates the rules and waits until the grouper has read them: pods that come earlier would be grouped without.
async fn declare(cluster: &Cluster, name: &str, rule: &str) -> Value {
    let mut data = json!({});
    data[name] = rule.into();
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": NAME, "namespace": KAI }, "data": data });
    let map = cluster.try_create(map).await.unwrap();
    until_told(cluster, &map, &format!("rules in effect: {name}")).await;
    map
}

/// Waits for an event of this object that contains the text.
async fn until_told(cluster: &Cluster, object: &Value, words: &str) {
    let (name, uid) = (&object["metadata"]["name"], &object["metadata"]["uid"]);
    let told = async || {
        let events = cluster
            .client
            .list_values(&EVENTS, &Selection::default())
            .await
            .unwrap();
        events.iter().any(|event| {
            event["involvedObject"]["uid"] == *uid
                && event["message"].as_str().is_some_and(|message| message.contains(words))
        })
    };
    cluster.until_async(&format!("an event of {name}: {words}"), told).await;
}

fn minimum_of(cluster: &Cluster, farm: &str) -> Option<i32> {
    let groups = cluster.informers().pod_groups().all();
    let of_farm = groups
        .iter()
        .find(|group| group.metadata.plain_name().starts_with(&format!("pg-{farm}-")))?;
    of_farm.as_written().min_member
}

#[test]
fn pods_of_an_unknown_kind_start_as_a_gang_by_a_rule() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        define(cluster).await;
        allow(cluster).await;
        declare(cluster, "render-farm.yaml", RULE).await;
        let film = farm(cluster, "film", 3).await;
        start(cluster, &film, 3).await;
        cluster
            .until("the gang has its minimum", |cluster| {
                minimum_of(cluster, "film") == Some(4)
            })
            .await;
        cluster.until_waiting("film-renderer-0", "GPU").await;
        assert!(cluster.running().is_empty(), "{}", cluster.picture());
        cluster
            .kubelets
            .add(&NodeTemplate::new("second", "h100:1"))
            .await
            .unwrap();
        cluster.until_running(4).await;
        let pod = cluster.pod("film-renderer-1").unwrap();
        assert_eq!(
            pod.metadata.labels.text("kai.scheduler/subgroup-name"),
            Some("renderer")
        );
    });
}

#[test]
fn a_rule_may_change_and_a_broken_one_is_told_about() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        define(cluster).await;
        allow(cluster).await;
        let map = declare(cluster, "render-farm.yaml", RULE).await;
        let film = farm(cluster, "film", 2).await;
        start(cluster, &film, 2).await;
        cluster
            .until("the gang has its minimum", |cluster| {
                minimum_of(cluster, "film") == Some(3)
            })
            .await;
        // A mistake: it is told, and the rule of before holds for new workloads.
        let change = |text: &str| json!({ "data": { "render-farm.yaml": text } });
        let broken = RULE.replace("minimum: {sum", "minimun: {sum");
        cluster
            .patch(&ConfigMap::RESOURCE, KAI, NAME, change(&broken))
            .await
            .unwrap();
        until_told(
            cluster,
            &map,
            "rule render-farm.yaml: minimun: there is no such field here; did you mean minimum?",
        )
        .await;
        let sequel = farm(cluster, "sequel", 1).await;
        start(cluster, &sequel, 1).await;
        cluster
            .until("the last valid rule holds", |cluster| {
                minimum_of(cluster, "sequel") == Some(2)
            })
            .await;
        cluster
            .until("the sequel fits", |cluster| cluster.runs("sequel-renderer-0"))
            .await;
        assert_eq!(minimum_of(cluster, "film"), Some(3));
        // Another minimum: the waiting gang is grouped again.
        let one = RULE.replace(r#"{sum: "spec.roles[*].replicas"}"#, "{value: 1}");
        cluster
            .patch(&ConfigMap::RESOURCE, KAI, NAME, change(&one))
            .await
            .unwrap();
        cluster
            .until("the minimum is one pod", |cluster| {
                minimum_of(cluster, "film") == Some(1)
            })
            .await;
        let second = NodeTemplate::new("second", "h100:1");
        cluster.kubelets.add(&second).await.unwrap();
        // With the minimum of before, no pod of the film would start: both renderers need a GPU.
        let one_renders = |cluster: &Cluster| {
            let renderers = ["film-renderer-0", "film-renderer-1"];
            renderers.iter().any(|renderer| cluster.runs(renderer))
        };
        cluster
            .until("the film starts with a part of its pods", one_renders)
            .await;
        let in_no_subgroup = |cluster: &Cluster| {
            let mut pods = cluster
                .pods()
                .into_iter()
                .filter(|pod| pod.metadata.plain_name().starts_with("film-"));
            pods.all(|pod| pod.metadata.labels.text("kai.scheduler/subgroup-name").is_none())
        };
        cluster
            .until("the pods of the film are in no subgroup", in_no_subgroup)
            .await;
    });
}

/// On a real API server, where the grouper has the rights of the manifests only.
#[test]
fn a_missing_right_is_told_on_the_pod() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        let Some(kube) = cluster.kube() else { return };
        crate::workloads::foreign_kind(cluster, "example.org", "Mill", "mills").await;
        let rule = "apiVersion: example.org/v1\nkind: Mill\nminimum: spec.size\n";
        declare(cluster, "mill.yaml", rule).await;
        let mill = json!({ "apiVersion": "example.org/v1", "kind": "Mill", "metadata": { "name": "mill", "namespace": "default" },
                           "spec": { "size": 2 } });
        let mill = cluster.try_create(mill).await.unwrap();
        let pod = |name: &str| PodManifest::new(name).owned_by(&mill).gpus(1).build();
        let first = cluster.try_create(pod("mill-0")).await.unwrap();
        until_told(cluster, &first, "kai may not read Mill mill of example.org/v1").await;
        assert!(
            cluster.informers().pod_groups().all().is_empty(),
            "{}",
            cluster.picture()
        );
        let mut allowed = right();
        allowed["metadata"]["name"] = "kai-mills".into();
        allowed["rules"][0]["apiGroups"] = json!(["example.org"]);
        allowed["rules"][0]["resources"] = json!(["mills"]);
        kube.apply(allowed).await;
        cluster.create(pod("mill-1")).await;
        cluster.until_running(2).await;
        assert_eq!(minimum_of(cluster, "mill"), Some(2));
        // The next run on this server begins without the right.
        let roles = Resource::new(
            "rbac.authorization.k8s.io",
            "v1",
            "ClusterRole",
            "clusterroles",
            Scope::Cluster,
        );
        let target = kai_cluster::Target {
            resource: &roles,
            namespace: "",
            name: "kai-mills",
        };
        cluster
            .client
            .delete(target, &kai_cluster::Deletion::default())
            .await
            .unwrap();
    });
}
