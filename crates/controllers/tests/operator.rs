//! The operator on the embedded API server: Config and shards become objects with conditions; drift is repaired.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use kai_cluster::{Client, Context};
use kai_controllers::operator::{self, Installation, Runner, SchedulerFlags, Settings};
use kai_embedded::server::{Clock, DeleteOptions, Options, Patch, Server, StoreHandle};
use serde_json::{Value, json};

const NAMESPACE: &str = "kai-scheduler";

struct AnyFlags;

impl SchedulerFlags for AnyFlags {
    fn is_known(&self, _: &str) -> bool {
        true
    }

    fn check(&self, _: &[String], config: &str) -> Result<Vec<String>, String> {
        match config.contains("dance") {
            true => Err("\"dance\" is not an action".to_owned()),
            false => Ok(vec!["plugins: elastic: stays on".to_owned()]),
        }
    }
}

struct World {
    store: StoreHandle,
}

impl World {
    /// A cluster with an operator, a Config and the shard `default`.
    async fn start() -> World {
        let start = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Some(Clock::starting_at(start));
        let server = Server::new(Options {
            clock,
            ..Options::default()
        });
        let store = server.store();
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        for object in kai_api::crd::crds().into_iter().chain([namespace]) {
            store.create(object).unwrap();
        }
        let context = Context::new(Client::in_process(server.service()), kai_cluster::Clock::runtime(start));
        let settings = Settings {
            installation: Installation {
                namespace: NAMESPACE.to_owned(),
                image: "registry/kai:1".parse().unwrap(),
                pull_policy: "IfNotPresent".to_owned(),
                pull_secrets: Vec::new(),
                runner: Runner::Deployments,
            },
            scheduler_flags: Arc::new(AnyFlags),
        };
        tokio::spawn(operator::run(context, settings));
        let world = World { store };
        world.create("Config", "kai-config", json!({ "scheduler": { "GOGC": 100 } }));
        world.create("SchedulingShard", "default", json!({}));
        world
            .until("the scheduler is there", |world| {
                world.has("deployments.apps", "kai-scheduler-default")
            })
            .await;
        world
    }

    fn create(&self, kind: &str, name: &str, spec: Value) {
        let object =
            json!({ "apiVersion": "kai.scheduler/v1", "kind": kind, "metadata": { "name": name }, "spec": spec });
        self.store.create(object).unwrap();
    }

    fn get(&self, resource: &str, name: &str) -> Value {
        let is_ours = resource.ends_with(".kai.scheduler");
        let namespace = if is_ours { "" } else { NAMESPACE };
        let found = self.store.get(resource, namespace, name);
        found.map_or(Value::Null, |object| object.to_value())
    }

    fn has(&self, resource: &str, name: &str) -> bool {
        !self.get(resource, name).is_null()
    }

    fn merge(&self, resource: &str, name: &str, change: Value) {
        let is_ours = resource.ends_with(".kai.scheduler");
        let namespace = if is_ours { "" } else { NAMESPACE };
        self.store
            .patch(resource, namespace, name, &Patch::Merge(change))
            .unwrap();
    }

    fn delete(&self, resource: &str, name: &str) {
        let is_ours = resource.ends_with(".kai.scheduler");
        let namespace = if is_ours { "" } else { NAMESPACE };
        self.store
            .delete(resource, namespace, name, &DeleteOptions::now())
            .unwrap();
    }

    fn condition(&self, resource: &str, name: &str, kind: &str) -> Value {
        let object = self.get(resource, name);
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition["type"] == kind);
        found.unwrap_or_default()
    }

    /// The arguments of a Deployment's container.
    fn arguments(&self, name: &str) -> String {
        self.get("deployments.apps", name)["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    }

    async fn until(&self, what: &str, mut holds: impl FnMut(&World) -> bool) {
        let waiting = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(300), waiting).await;
        assert!(
            done.is_ok(),
            "never: {what}\n{:#}",
            self.get("configs.kai.scheduler", "kai-config")["status"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_and_fields_of_others_stay() {
    let world = World::start().await;
    world.delete("services", "binder");
    let change = json!({ "spec": { "replicas": 3, "template": { "spec": { "serviceAccountName": "thief" } } },
                         "metadata": { "annotations": { "note": "mine" } } });
    world.merge("deployments.apps", "binder", change);
    let repaired = |world: &World| {
        let binder = world.get("deployments.apps", "binder");
        world.has("services", "binder") && binder["spec"]["template"]["spec"]["serviceAccountName"] == "binder"
    };
    world.until("the binder is repaired", repaired).await;
    let binder = world.get("deployments.apps", "binder");
    assert_eq!(binder["metadata"]["annotations"]["note"], "mine");
    assert_eq!(
        binder["spec"]["replicas"], 3,
        "no Config sets the replicas, so another manager may"
    );
    assert_eq!(binder["metadata"]["ownerReferences"][0]["kind"], "Config");
}

#[tokio::test(start_paused = true)]
async fn objects_follow_the_config_and_the_shards() {
    let world = World::start().await;
    world.create("SchedulingShard", "a100", json!({ "partitionLabelValue": "a100" }));
    world
        .until("the second scheduler is there", |world| {
            world.has("deployments.apps", "kai-scheduler-a100")
        })
        .await;
    assert!(
        world
            .arguments("kai-scheduler-a100")
            .contains("--partition-label-value=a100")
    );
    assert!(world.has("configmaps", "kai-scheduler-a100") && world.has("services", "kai-scheduler-a100"));
    world.delete("schedulingshards.kai.scheduler", "a100");
    world
        .until("the second scheduler is gone", |world| {
            !world.has("deployments.apps", "kai-scheduler-a100")
        })
        .await;
    let off =
        json!({ "spec": { "binder": { "service": { "enabled": false } }, "global": { "schedulerName": "ours" } } });
    world.merge("configs.kai.scheduler", "kai-config", off);
    world
        .until("the binder is gone and the scheduler has its new name", |world| {
            !world.has("deployments.apps", "binder")
                && !world.has("services", "binder")
                && !world.has("deployments.apps", "kai-scheduler-default")
                && world.has("deployments.apps", "ours-default")
        })
        .await;
    world.delete("configs.kai.scheduler", "kai-config");
    world
        .until("admission is gone", |world| !world.has("deployments.apps", "admission"))
        .await;
    let message =
        |world: &World| world.condition("schedulingshards.kai.scheduler", "default", "Ready")["message"].clone();
    world
        .until("the shard says why", |world| {
            message(world) == "there is no Config kai-config"
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn objects_go_with_the_installation_and_shards_stay() {
    let world = World::start().await;
    let anchor = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "kai-installation" }, "rules": [],
    });
    world.store.create(anchor).unwrap();
    let owner = |world: &World, name: &str| {
        let owners = world.get("deployments.apps", name)["metadata"]["ownerReferences"].clone();
        (owners.as_array().map_or(0, Vec::len), owners[0]["kind"].clone())
    };
    world.create("SchedulingShard", "a100", json!({ "partitionLabelValue": "a100" }));
    world
        .until("the anchor owns the schedulers", |world| {
            let of_anchor = (1, json!("ClusterRole"));
            owner(world, "kai-scheduler-a100") == of_anchor && owner(world, "kai-scheduler-default") == of_anchor
        })
        .await;
    world.delete("schedulingshards.kai.scheduler", "a100");
    world
        .until("the scheduler of the deleted shard is gone", |world| {
            !world.has("deployments.apps", "kai-scheduler-a100")
        })
        .await;
    world
        .store
        .delete(
            "clusterroles.rbac.authorization.k8s.io",
            "",
            "kai-installation",
            &DeleteOptions::now(),
        )
        .unwrap();
    world
        .until("all roles are gone", |world| {
            ["kai-scheduler-default", "binder", "admission"]
                .iter()
                .all(|name| !world.has("deployments.apps", name))
        })
        .await;
    // The operator, which still runs here, creates nothing again.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!world.has("deployments.apps", "binder"));
    assert!(world.has("schedulingshards.kai.scheduler", "default") && world.has("configs.kai.scheduler", "kai-config"));
}

/// A Deployment as KAI's operator makes it for an owner, with a pod.
fn deployment_of_kai(name: &str, owner: &Value) -> [Value; 2] {
    let reference = |owner: &Value| {
        json!([{
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
        }])
    };
    let labels = json!({ "app": name, "app.kubernetes.io/managed-by": "kai-operator" });
    let template = json!({
        "metadata": { "labels": { "app": name } },
        "spec": {
            "containers": [{
                "name": name, "image": "registry/of-kai:v0.17.0", "env": [{ "name": "GOGC", "value": "400" }],
                "volumeMounts": [{ "name": "cert", "mountPath": "/cert" }],
            }],
            "volumes": [{ "name": "cert", "secret": { "secretName": "kai-admission-webhook-tls-secret" } }],
        },
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": reference(owner) },
        "spec": { "selector": { "matchLabels": { "app": name } }, "strategy": { "type": "Recreate" }, "template": template },
    });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("{name}-of-kai"), "namespace": NAMESPACE, "finalizers": ["example.com/runs"] },
        "spec": { "containers": [{ "name": name, "image": "registry/of-kai:v0.17.0" }] },
    });
    pod["metadata"]["labels"] = json!({ "app": name });
    [deployment, pod]
}

#[tokio::test(start_paused = true)]
async fn objects_of_kais_operator_are_replaced_once_their_pods_are_gone() {
    let world = World::start().await;
    let anchor = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "kai-installation" }, "rules": [],
    });
    world.store.create(anchor).unwrap();
    let config = world.get("configs.kai.scheduler", "kai-config");
    let shard = world.get("schedulingshards.kai.scheduler", "default");
    for (name, owner) in [
        ("binder", &config),
        ("kai-scheduler-default", &shard),
        ("node-scale-adjuster", &config),
    ] {
        if world.has("deployments.apps", name) {
            world.delete("deployments.apps", name);
        }
        let [deployment, mut pod] = deployment_of_kai(name, owner);
        let created = world.store.create(deployment).unwrap().to_value();
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": created["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]);
        world.store.create(pod).unwrap();
    }
    let image = |world: &World, name: &str| {
        world.get("deployments.apps", name)["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    };
    world
        .until("KAI's Deployments are being deleted", |world| {
            !world.get("deployments.apps", "binder")["metadata"]["deletionTimestamp"].is_null()
        })
        .await;
    // The pods run on: their program could still bind pods.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(image(&world, "binder"), "registry/of-kai:v0.17.0");
    let message = world.condition("configs.kai.scheduler", "kai-config", "Available")["message"].to_string();
    assert!(
        message.contains("Deployment binder of KAI-Scheduler is being removed"),
        "{message}"
    );

    for name in ["binder", "kai-scheduler-default", "node-scale-adjuster"] {
        world.merge(
            "pods",
            &format!("{name}-of-kai"),
            json!({ "metadata": { "finalizers": null } }),
        );
    }
    world
        .until("the operator's Deployments are there", |world| {
            ["binder", "kai-scheduler-default"]
                .iter()
                .all(|name| image(world, name) == "registry/kai:1")
                && !world.has("deployments.apps", "node-scale-adjuster")
        })
        .await;
    for name in ["binder", "kai-scheduler-default"] {
        let text = world.get("deployments.apps", name).to_string();
        for of_kai in [
            "\"kind\":\"Config\"",
            "\"kind\":\"SchedulingShard\"",
            "webhook-tls-secret",
            "GOGC\",\"value\":\"400",
        ] {
            assert!(!text.contains(of_kai), "{of_kai} is left: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_shard_keeps_its_scheduler_and_says_why() {
    let world = World::start().await;
    let dance = json!({ "spec": { "actions": { "dance": { "enabled": true } }, "partitionLabelValue": "x" } });
    world.merge("schedulingshards.kai.scheduler", "default", dance);
    let ready = |world: &World| world.condition("schedulingshards.kai.scheduler", "default", "Ready");
    world
        .until("the shard is not ready", |world| {
            ready(world)["message"].to_string().contains("dance")
        })
        .await;
    assert_eq!(ready(&world)["status"], "False");
    assert!(
        !world
            .arguments("kai-scheduler-default")
            .contains("--partition-label-value")
    );
}

#[tokio::test(start_paused = true)]
async fn conditions_tell_what_runs_and_what_has_no_effect() {
    let world = World::start().await;
    let ready = |world: &World| world.condition("configs.kai.scheduler", "kai-config", "Ready");
    world
        .until("the Config has conditions", |world| !ready(world).is_null())
        .await;
    assert_eq!(
        (&ready(&world)["status"], &ready(&world)["reason"]),
        (&json!("False"), &json!("not_ready"))
    );
    let all = [
        "binder",
        "admission",
        "pod-grouper",
        "podgroup-controller",
        "queue-controller",
        "kai-scheduler-default",
    ];
    for name in all {
        let deployment = world.get("deployments.apps", name);
        let status = json!({
            "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "observedGeneration": deployment["metadata"]["generation"],
            "conditions": [{ "type": "Available", "status": "True" }],
        });
        let patch = Patch::Merge(json!({ "status": status }));
        world
            .store
            .patch_status("deployments.apps", NAMESPACE, name, &patch)
            .unwrap();
    }
    world
        .until("the Config is ready", |world| ready(world)["status"] == "True")
        .await;
    let told = "all roles run; without effect: scheduler.GOGC (the scheduler has no garbage collector)";
    assert_eq!(ready(&world)["message"], told);
    assert_eq!(ready(&world)["observedGeneration"], 1);
    let shard = world.condition("schedulingshards.kai.scheduler", "default", "Ready");
    assert_eq!(
        shard["message"],
        "all roles run; without effect: plugins: elastic: stays on"
    );
}

#[tokio::test(start_paused = true)]
async fn the_gpu_operators_policy_comes_and_goes() {
    let world = World::start().await;
    let with_cdi = |world: &World| world.arguments("binder").contains("cdiEnabled");
    assert!(!with_cdi(&world));
    let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let names = json!({ "kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy", "listKind": "ClusterPolicyList" });
    world
        .store
        .create(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "clusterpolicies.nvidia.com" },
            "spec": { "group": "nvidia.com", "scope": "Cluster", "names": names,
                      "versions": [{ "name": "v1", "served": true, "storage": true, "schema": schema }] },
        }))
        .unwrap();
    world
        .store
        .create(json!({
            "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy",
            "metadata": { "name": "cluster-policy", "labels": { "app.kubernetes.io/version": "v25.10.0" } },
            "spec": { "cdi": { "enabled": true } },
        }))
        .unwrap();
    world.until("the binder uses CDI", with_cdi).await;
    let set_cdi = async |enabled: bool| {
        let patch = Patch::Merge(json!({ "spec": { "cdi": { "enabled": enabled } } }));
        // The operator no longer works on its own last change.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let before = tokio::time::Instant::now();
        world
            .store
            .patch("clusterpolicies.nvidia.com", "", "cluster-policy", &patch)
            .unwrap();
        world
            .until("the binder follows", |world| with_cdi(world) == enabled)
            .await;
        before.elapsed()
    };
    // The time is virtual. Without the watch the changes would wait for the resync of 30 seconds.
    for enabled in [false, true, false, true] {
        let took = set_cdi(enabled).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    world
        .store
        .delete(
            "customresourcedefinitions.apiextensions.k8s.io",
            "",
            "clusterpolicies.nvidia.com",
            &DeleteOptions::now(),
        )
        .unwrap();
    world.until("the binder decides itself", |world| !with_cdi(world)).await;
}
