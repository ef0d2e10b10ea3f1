use kai_api::{Node, Pod, PodGroup, Queue};
use kai_engine::model::Config;
use kai_engine::report::{Decision as EngineDecision, Received};
use kai_mirror::{Assumed, MirrorSettings};
use serde_json::{Value, from_value, json};

use super::*;

const START: Millis = Millis::seconds(1_767_225_600);

/// A GPU that a pod of `lender` holds beyond its quota, and a pod of `owner` that reclaims it.
struct World {
    mirror: ClusterMirror,
    engine: Cluster,
    log: DecisionLog,
    now: Millis,
}

impl World {
    fn new() -> World {
        let mut mirror = ClusterMirror::new(&MirrorSettings::default());
        mirror.tick(START);
        for (name, gpus) in [("lender", 0), ("owner", 1)] {
            let quota = |gpus: i64| json!({ "quota": gpus, "limit": -1, "overQuotaWeight": 1 });
            let spec = json!({ "resources": { "gpu": quota(gpus), "cpu": quota(-1), "memory": quota(-1) } });
            let queue = json!({ "metadata": { "name": name, "uid": name }, "spec": spec });
            mirror.apply_queue(&from_value::<Queue>(queue).unwrap());
        }
        mirror.apply_node(&node("n1"));
        let mut world = World {
            mirror,
            engine: Cluster::new(),
            log: DecisionLog::default(),
            now: START,
        };
        world.workload("notebook", "lender", Some("n1"));
        world.workload("train", "owner", None);
        world.mirror.mark_synced();
        world
    }

    fn workload(&mut self, name: &str, queue: &str, node: Option<&str>) {
        let owner = format!("kind: Job\nname: {name}-job\n");
        let pod_group = json!({
            "metadata": { "name": name, "namespace": "a", "uid": name,
                          "annotations": { "kai.scheduler/top-owner-metadata": owner } },
            "spec": { "queue": queue, "minMember": 1 },
        });
        let pod_group: PodGroup = from_value(pod_group).unwrap();
        let key = ObjectKey::new("a", name);
        self.mirror.apply_pod_group(&key, &Arc::new(pod_group));
        self.mirror.apply_pod(&key, &Arc::new(pod(name, node)));
    }

    /// One cycle, carried out as the driver does.
    fn cycle(&mut self) -> Vec<Decision> {
        self.now = self.now + Millis::seconds(1);
        self.mirror.tick(self.now);
        for event in self.mirror.take_outbox().events {
            self.engine.apply(event);
        }
        let report = self.engine.cycle(self.now, &Config::default());
        for decision in &report.decisions {
            let after = AfterCycle::new(&self.mirror, &self.engine, self.now);
            match decision {
                EngineDecision::Bind(placed) => self.log.bind(placed, after),
                EngineDecision::Pipeline(placed) => self.log.promise(placed, after),
                EngineDecision::Evict { pod, reason } => {
                    self.log.evict(pod, reason, after);
                    self.mirror.assume(pod, Assumed::Evicting(self.now));
                }
                _ => {}
            }
        }
        self.log.end_cycle(&self.mirror);
        self.log.after(0, self.now)
    }

    fn placed(&self, node: &str) -> Placed {
        Placed {
            pod: "train".into(),
            node: node.into(),
            gpu_groups: Vec::new(),
            received: Received::Regular { devices: 1 },
            volumes: Vec::new(),
            action: Action::Allocate,
        }
    }
}

fn node(name: &str) -> Node {
    let node = json!({
        "metadata": { "name": name, "uid": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1" } },
    });
    from_value(node).unwrap()
}

/// A pod for node n1 only.
fn pod(name: &str, node: Option<&str>) -> Pod {
    let mut pod: Value = json!({
        "metadata": { "name": name, "namespace": "a", "uid": name, "annotations": { "pod-group-name": name } },
        "spec": { "schedulerName": "kai-scheduler", "nodeSelector": { "kubernetes.io/hostname": "n1" }, "containers": [{ "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
        "status": { "phase": if node.is_some() { "Running" } else { "Pending" } },
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    from_value(pod).unwrap()
}

#[test]
fn an_eviction_names_its_beneficiary_and_action() {
    let mut world = World::new();
    let decisions = world.cycle();
    let [evict, promise] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    let side = |queue: &str, used: i64, due: i64| json!({ "queue": queue, "gpus": { "used": used, "fairShare": due, "quota": due } });
    let fairness =
        json!({ "rule": "overFairShare", "victim": side("lender", 1, 0), "beneficiary": side("owner", 0, 1) });
    assert_eq!(
        *evict,
        Decision {
            number: 1,
            time: "2026-01-01T00:00:01Z".parse().unwrap(),
            kind: DecisionKind::Evict,
            action: Some("reclaim".to_owned()),
            namespace: "a".to_owned(),
            pod: "notebook".to_owned(),
            pod_group: Some("notebook".to_owned()),
            workload: "Job notebook-job".to_owned(),
            queue: Some("lender".to_owned()),
            node: Some("n1".to_owned()),
            gpus: Some(PodGpus::Whole { devices: 1 }),
            beneficiary: Some(Beneficiary {
                namespace: "a".to_owned(),
                pod_group: "train".to_owned(),
                workload: "Job train-job".to_owned(),
                queue: Some("owner".to_owned()),
            }),
            reason: Some("reclaimed for Job a/train-job (1 pod in all)".to_owned()),
            fairness: Some(from_value(fairness).unwrap()),
            waiting_since: None,
            waiting_reason: None,
        }
    );
    assert_eq!((promise.kind, promise.number), (DecisionKind::Promise, 2));
    assert_eq!(
        (promise.action.as_deref(), promise.node.as_deref()),
        (Some("reclaim"), Some("n1"))
    );
    assert_eq!(promise.reason.as_deref(), Some("waits for pods to leave node n1"));
}

/// The lender's fair share covers its pod, because another node is free; but the owner's quota comes first.
#[test]
fn a_reclaim_by_quota_says_so() {
    let mut world = World::new();
    world.mirror.apply_node(&node("n2"));
    let decisions = world.cycle();
    let rule = |fairness: &Fairness| serde_json::to_value(fairness).unwrap();
    let side = |queue: &str, used: i64, fair_share: i64, quota: i64| json!({ "queue": queue, "gpus": { "used": used, "fairShare": fair_share, "quota": quota } });
    let expect =
        json!({ "rule": "overQuota", "victim": side("lender", 1, 1, 0), "beneficiary": side("owner", 0, 1, 1) });
    assert_eq!(decisions[0].fairness.as_ref().map(rule), Some(expect), "{decisions:?}");
}

#[test]
fn a_promise_is_recorded_once_until_it_changes_and_then_the_binding() {
    let mut world = World::new();
    world.cycle();
    for _ in 0..3 {
        assert_eq!(world.cycle().len(), 2, "every cycle decides the promise anew");
    }
    let (again, elsewhere) = (world.placed("n1"), world.placed("n2"));
    let after = AfterCycle::new(&world.mirror, &world.engine, world.now);
    world.log.promise(&again, after);
    world.log.promise(&elsewhere, after);
    world.log.promise(&elsewhere, after);
    world.log.promise(&again, after);
    let nodes = |decisions: Vec<Decision>| -> Vec<_> { decisions.into_iter().map(|decision| decision.node).collect() };
    assert_eq!(
        nodes(world.log.after(2, world.now)),
        [Some("n2".to_owned()), Some("n1".to_owned())]
    );
    world.mirror.remove_pod(&ObjectKey::new("a", "notebook"));
    let decisions = world.cycle();
    let newest = decisions.last().unwrap();
    assert_eq!(
        (newest.kind, newest.action.as_deref()),
        (DecisionKind::Bind, Some("allocate"))
    );
    assert_eq!((newest.beneficiary.as_ref(), newest.reason.as_ref()), (None, None));
    // The pod is gone: a pod of this uid that waits again would be promised something new.
    world.mirror.remove_pod(&ObjectKey::new("a", "train"));
    world.cycle();
    assert!(world.log.promises.is_empty());
}

#[test]
fn the_log_is_bounded_by_number_and_time() {
    let mut world = World::new();
    world.cycle();
    let placed = world.placed("n1");
    let later = START + Millis::seconds(1_800);
    for _ in 0..2 * ENTRIES_MAX {
        world
            .log
            .bind(&placed, AfterCycle::new(&world.mirror, &world.engine, later));
    }
    assert_eq!(world.log.entries.len(), ENTRIES_MAX);
    let newest = 2 + 2 * ENTRIES_MAX as u64;
    let all = world.log.newest_first(later);
    assert_eq!((all.len(), all[0].number), (ENTRIES_MAX, newest));
    let last: Vec<u64> = world
        .log
        .after(newest - 2, later)
        .iter()
        .map(|decision| decision.number)
        .collect();
    assert_eq!(last, [newest - 1, newest]);
    assert_eq!(world.log.after(newest, later), []);
    assert_eq!(
        world.log.after(newest + 1, later).len(),
        ENTRIES_MAX,
        "the number is of an earlier run of the scheduler"
    );
    world
        .log
        .bind(&placed, AfterCycle::new(&world.mirror, &world.engine, later + KEPT_FOR));
    assert_eq!(world.log.entries.len(), ENTRIES_MAX, "an hour is not over");
    let expired = later + KEPT_FOR + Millis(1);
    assert_eq!(world.log.newest_first(expired).len(), 1);
    assert_eq!(world.log.after(0, expired + KEPT_FOR), []);
}

#[test]
fn views_share_decisions_while_somebody_looks() {
    let mut world = World::new();
    world.cycle();
    let first = world.log.newest_first(world.now);
    let shares = |one: &[Arc<Decision>], other: &[Arc<Decision>]| -> Vec<bool> {
        one.iter()
            .zip(other)
            .map(|(one, other)| Arc::ptr_eq(one, other))
            .collect()
    };
    assert_eq!(shares(&first, &world.log.newest_first(world.now)), [true, true]);
    world.log.drop_shown();
    assert!(first.iter().all(|decision| Arc::strong_count(decision) == 1));
    let again = world.log.newest_first(world.now);
    assert_eq!(shares(&first, &again), [false, false]);
    assert_eq!(first, again);
}

#[test]
fn a_binding_says_since_when_and_why_the_pod_waited() {
    let mut world = World::new();
    let waits = |reason: &str| -> Pod {
        let status = json!({ "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason }] });
        let waits = json!({
            "metadata": { "name": "train", "namespace": "a", "uid": "train", "creationTimestamp": "2025-12-31T23:50:00Z",
                          "annotations": { "pod-group-name": "train" } },
            "spec": { "schedulerName": "kai-scheduler", "nodeSelector": { "kubernetes.io/hostname": "n1" },
                      "containers": [{ "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
            "status": status,
        });
        from_value(waits).unwrap()
    };
    let key = ObjectKey::new("a", "train");
    world.mirror.apply_pod(&key, &Arc::new(waits("no node is free")));
    let decisions = world.cycle();
    let [evict, promise] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert_eq!((evict.waiting_since, evict.waiting_reason.as_deref()), (None, None));
    assert_eq!(promise.waiting_since, "2025-12-31T23:50:00Z".parse().ok());
    assert_eq!(promise.waiting_reason.as_deref(), Some("no node is free"));
    // A long reason is shortened.
    world.mirror.apply_pod(&key, &Arc::new(waits(&"ä".repeat(9_000))));
    world.mirror.remove_pod(&ObjectKey::new("a", "notebook"));
    let bound = world.cycle().pop().unwrap();
    assert_eq!(bound.kind, DecisionKind::Bind);
    let reason = bound.waiting_reason.unwrap();
    assert_eq!(reason.chars().count(), WAITING_REASON_CHARACTERS_MAX + 1);
    assert!(reason.ends_with('…'));
}
