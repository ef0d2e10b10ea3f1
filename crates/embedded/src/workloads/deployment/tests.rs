//! Rollouts of deployments, step by step.

use super::*;
use crate::workloads::conditions;

const NOW: &str = "2026-01-01T00:10:00Z";

/// A Deployment with its ReplicaSets, to which plans are applied.
struct Cluster {
    deployment: Value,
    sets: Vec<Value>,
}

impl Cluster {
    fn new(replicas: i64, strategy: Value) -> Cluster {
        let labels = json!({ "app": "web" });
        let template = json!({ "metadata": { "labels": labels }, "spec": { "image": "a" } });
        Cluster {
            deployment: json!({
                "metadata": { "name": "web", "uid": "u", "generation": 1, "annotations": { "kubernetes.io/change-cause": "first" } },
                "spec": { "replicas": replicas, "selector": { "matchLabels": labels }, "template": template,
                    "strategy": strategy, "progressDeadlineSeconds": 600 },
            }),
            sets: Vec::new(),
        }
    }

    fn rolling(replicas: i64, surge: Value, unavailable: Value) -> Cluster {
        let bounds = json!({ "maxSurge": surge, "maxUnavailable": unavailable });
        Cluster::new(replicas, json!({ "type": "RollingUpdate", "rollingUpdate": bounds }))
    }

    fn set_image(&mut self, image: &str) {
        self.deployment["spec"]["template"]["spec"]["image"] = image.into();
        let generation = self.deployment["metadata"]["generation"].as_i64().unwrap();
        self.deployment["metadata"]["generation"] = (generation + 1).into();
    }

    fn plan(&self, now: &str) -> Plan {
        let deployment = Workload::of(self.deployment.clone()).unwrap();
        let sets: Vec<Workload> = self.sets.iter().cloned().filter_map(Workload::of).collect();
        plan(&deployment, &sets, now.parse().unwrap())
    }

    /// Plans once and applies the plan.
    fn step(&mut self, now: &str) -> Plan {
        let plan = self.plan(now);
        for (name, change) in &plan.change {
            let set = self
                .sets
                .iter_mut()
                .find(|set| set["metadata"]["name"] == **name)
                .unwrap();
            if let Some(replicas) = change.replicas {
                set["spec"]["replicas"] = replicas.into();
            }
            for (key, value) in &change.annotations {
                set["metadata"]["annotations"][key] = value.clone();
            }
        }
        self.sets.extend(plan.create.clone());
        self.sets
            .retain(|set| !plan.delete.iter().any(|name| set["metadata"]["name"] == **name));
        for (key, value) in &plan.annotations {
            self.deployment["metadata"]["annotations"][key] = value.clone();
        }
        self.deployment["status"] = plan.status.clone();
        plan
    }

    /// Makes all wanted pods of the ReplicaSets ready.
    fn follow(&mut self) {
        for set in &mut self.sets {
            let replicas = set["spec"]["replicas"].clone();
            set["status"] = json!({ "replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas });
        }
    }

    fn sum(&self, part: &str, field: &str) -> i64 {
        self.sets.iter().map(|set| set[part][field].as_i64().unwrap_or(0)).sum()
    }

    /// Plans and applies until nothing changes.
    fn settle(&mut self, mut check: impl FnMut(&Cluster)) {
        for _ in 0..100 {
            let before = (self.sets.clone(), self.deployment.clone());
            self.step(NOW);
            check(self);
            self.follow();
            if before == (self.sets.clone(), self.deployment.clone()) {
                return;
            }
        }
        panic!("the rollout does not end");
    }

    fn replicas_of(&self, image: &str) -> i64 {
        let set = self
            .sets
            .iter()
            .find(|set| set["spec"]["template"]["spec"]["image"] == image);
        set.map_or(-1, |set| set["spec"]["replicas"].as_i64().unwrap())
    }

    fn revisions(&self) -> Vec<&str> {
        let all = self
            .sets
            .iter()
            .map(|set| set["metadata"]["annotations"][REVISION].as_str().unwrap());
        all.collect()
    }

    fn reason(&self, kind: &str) -> &str {
        conditions::find(&self.deployment["status"], kind)["reason"]
            .as_str()
            .unwrap_or_default()
    }
}

#[test]
fn an_update_replaces_all_pods_within_its_bounds() {
    for (surge, unavailable) in [
        (json!("25%"), json!("25%")),
        (json!(1), json!(0)),
        (json!(0), json!(1)),
        (json!(0), json!(0)),
    ] {
        let mut cluster = Cluster::rolling(4, surge.clone(), unavailable.clone());
        cluster.settle(|_| {});
        cluster.set_image("b");
        let least = if surge == json!(1) { 4 } else { 3 };
        cluster.settle(|cluster| {
            assert!(
                cluster.sum("spec", "replicas") <= 5,
                "{surge} {unavailable}: too many pods"
            );
            let available: i64 = cluster
                .sets
                .iter()
                .map(|set| {
                    let (wanted, has) = (&set["spec"]["replicas"], &set["status"]["availableReplicas"]);
                    wanted.as_i64().unwrap().min(has.as_i64().unwrap_or(0))
                })
                .sum();
            assert!(available >= least, "{surge} {unavailable}: too few pods");
        });
        assert_eq!((cluster.replicas_of("a"), cluster.replicas_of("b")), (0, 4));
        assert_eq!(cluster.reason("Progressing"), "NewReplicaSetAvailable");
        assert_eq!(cluster.reason("Available"), "MinimumReplicasAvailable");
        assert_eq!(cluster.deployment["status"]["observedGeneration"], 2);
        assert_eq!(cluster.deployment["status"]["updatedReplicas"], 4);
    }
}

#[test]
fn an_update_that_does_not_become_ready_keeps_old_pods() {
    let mut cluster = Cluster::rolling(4, json!(1), json!(1));
    cluster.settle(|_| {});
    cluster.set_image("b");
    // The new pods never become ready.
    for _ in 0..20 {
        cluster.step(NOW);
        let old = &mut cluster.sets[0];
        let replicas = old["spec"]["replicas"].clone();
        old["status"] = json!({ "replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas });
        if let Some(new) = cluster.sets.get_mut(1) {
            new["status"] = json!({ "replicas": new["spec"]["replicas"] });
        }
    }
    assert_eq!((cluster.replicas_of("a"), cluster.replicas_of("b")), (3, 2));
    assert_eq!(cluster.reason("Progressing"), "ReplicaSetUpdated");
    let plan = cluster.step("2026-01-01T00:15:00Z");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(300)));
    cluster.step("2026-01-01T00:20:00Z");
    assert_eq!(cluster.reason("Progressing"), "ProgressDeadlineExceeded");
}

#[test]
fn recreate_ends_the_old_pods_first() {
    let mut cluster = Cluster::new(2, json!({ "type": "Recreate" }));
    cluster.settle(|_| {});
    cluster.set_image("b");
    cluster.step(NOW);
    assert_eq!((cluster.replicas_of("a"), cluster.replicas_of("b")), (0, -1));
    cluster.sets[0]["status"]["availableReplicas"] = 1.into();
    cluster.step(NOW);
    assert_eq!(cluster.reason("Available"), "MinimumReplicasUnavailable");
    cluster.follow();
    cluster.step(NOW);
    assert_eq!(cluster.replicas_of("b"), 2);
}

#[test]
fn templates_are_numbered_and_one_that_comes_back_is_the_latest() {
    let mut cluster = Cluster::rolling(1, json!(1), json!(0));
    cluster.settle(|_| {});
    cluster.set_image("b");
    cluster.settle(|_| {});
    assert_eq!(cluster.revisions(), ["1", "2"]);
    assert_eq!(
        cluster.sets[0]["metadata"]["annotations"]["kubernetes.io/change-cause"],
        "first"
    );
    cluster.set_image("a");
    cluster.settle(|_| {});
    assert_eq!(cluster.revisions(), ["3", "2"]);
    assert_eq!(cluster.deployment["metadata"]["annotations"][REVISION], "3");
    cluster.deployment["spec"]["revisionHistoryLimit"] = 0.into();
    cluster.settle(|_| {});
    assert_eq!(cluster.revisions(), ["3"], "no old template is kept");
}

#[test]
fn a_paused_deployment_keeps_its_template_and_can_be_scaled() {
    let mut cluster = Cluster::rolling(1, json!(1), json!(0));
    cluster.settle(|_| {});
    cluster.deployment["spec"]["paused"] = true.into();
    cluster.set_image("b");
    cluster.deployment["spec"]["replicas"] = 3.into();
    cluster.settle(|_| {});
    assert_eq!((cluster.replicas_of("a"), cluster.replicas_of("b")), (3, -1));
    assert_eq!(cluster.reason("Progressing"), "DeploymentPaused");
}

#[test]
fn the_deployment_says_why_its_pods_are_not_created() {
    let mut cluster = Cluster::rolling(1, json!(1), json!(0));
    cluster.step(NOW);
    cluster.sets[0]["status"] =
        json!({ "conditions": [{ "type": "ReplicaFailure", "status": "True", "message": "no" }] });
    cluster.step(NOW);
    assert_eq!(
        conditions::find(&cluster.deployment["status"], "ReplicaFailure")["message"],
        "no"
    );
}
