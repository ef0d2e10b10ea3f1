//! The view of small clusters, and the example of docs/view.md.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use kai_mirror::{MirrorSettings, Partition};
use kai_view::{
    Beneficiary, ClusterView, Decision, DecisionKind, EnforcementTier, GpuState, Knowledge, List, MissingList,
    NodeEnforcement, PodGpus, PodLimit, ReasonSource, SlicesKind,
};
use serde_json::{Value, json};
use support::{World, gang, node, pod, queue, reservation};

fn view(objects: &[Value]) -> ClusterView {
    World::new(objects).view(Knowledge::complete())
}

/// One node with four GPUs: one shared by two pods, two of a Job, one idle; a gang that does not fit.
fn small_cluster() -> Vec<Value> {
    let share = |group: &str, more: Value| {
        let mut share = json!({ "metadata": { "labels": { "runai-gpu-group": group } } });
        share["metadata"]["annotations"] = more;
        share
    };
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({ "type": kind, "status": status, "reason": reason, "message": message });
    let facts = json!({
        "metadata": { "labels": {
            "nvidia.com/cuda.driver-version.full": "615.71.09", "kai.scheduler/gpu-enforcement": "driver", "topology.kubernetes.io/zone": "zone-1", "example.com/rack": "rack-7",
            "example.com/other": "not shown",
        } },
        "status": { "conditions": [
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            condition("GPULimits", "True", "Driver", "the driver limits the GPU memory of each container"),
            condition("GPUSetupHealthy", "False", "Warnings", "the CDI spec is older than the driver"),
        ] },
    });
    let levels = json!([{ "nodeLabel": "topology.kubernetes.io/zone" }, { "nodeLabel": "example.com/rack" }]);
    vec![
        json!({ "kind": "Topology", "metadata": { "name": "racks" }, "spec": { "levels": levels } }),
        node("h100-1", 4, facts),
        queue("research", None, 4),
        queue("team-a", Some("research"), 1),
        queue("team-b", Some("research"), 3),
        gang("llm", "Deployment", "team-a", 1),
        gang("notebook", "Deployment", "team-a", 1),
        gang("train", "Job", "team-a", 1),
        gang("big", "Job", "team-b", 2),
        reservation("g1", "h100-1", "GPU-1"),
        pod(
            "llm-0",
            "llm",
            0,
            Some("h100-1"),
            share(
                "g1",
                json!({
                    "gpu-fraction": "0.5", "kai.scheduler/gpu-enforcement": "required", "kai.scheduler/gpu-enforcement-tier": "driver",
                    "kai.scheduler/gpu-limits": r#"{"container":"main","memoryMiB":40000}"#,
                }),
            ),
        ),
        pod(
            "notebook-0",
            "notebook",
            0,
            Some("h100-1"),
            share("g1", json!({ "gpu-memory": "10000" })),
        ),
        pod("train-0", "train", 2, Some("h100-1"), json!({})),
        pod("big-0", "big", 2, None, json!({})),
        pod("big-1", "big", 2, None, json!({})),
    ]
}

#[test]
fn gpus_have_their_pods() {
    let view = view(&small_cluster());
    let node = &view.nodes.as_ref().unwrap()[0];
    assert_eq!(node.gpu_model.as_deref(), Some("NVIDIA-H100"));
    assert_eq!(node.gpus[0].uuid.as_deref(), Some("GPU-1"));
    let gpus: Vec<_> = node
        .gpus
        .iter()
        .map(|gpu| {
            let pods = gpu.pods.iter().map(|pod| (pod.name.as_str(), pod.mib));
            (gpu.state, gpu.used_mib, pods.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(
        gpus,
        [
            (
                GpuState::Shared,
                Some(50_000),
                vec![("llm-0", Some(40_000)), ("notebook-0", Some(10_000))]
            ),
            (GpuState::Whole, Some(80_000), vec![("train-0", Some(80_000))]),
            (GpuState::Whole, Some(80_000), vec![("train-0", Some(80_000))]),
            (GpuState::Idle, Some(0), vec![]),
        ]
    );
}

#[test]
fn an_idle_gpu_beside_a_group_without_reservation_is_held() {
    let mut objects = small_cluster();
    objects.retain(|object| object["metadata"]["namespace"] != "kai-resource-reservation");
    let view = view(&objects);
    let gpus = &view.nodes.as_ref().unwrap()[0].gpus;
    assert_eq!((gpus[0].state, &gpus[0].uuid), (GpuState::Shared, &None));
    assert_eq!(
        gpus[3].state,
        GpuState::Held,
        "the kubelet may give any GPU to the next pod"
    );
}

#[test]
fn queues_are_a_tree_with_their_amounts() {
    let view = view(&small_cluster());
    let queues = view.queues.as_ref().unwrap();
    let names: Vec<(&str, u32)> = queues.iter().map(|queue| (queue.name.as_str(), queue.depth)).collect();
    assert_eq!(names, [("research", 0), ("team-a", 1), ("team-b", 1)]);
    let gpus = &queues[1].gpus;
    let text = |amount: Option<kai_view::GpuAmount>| amount.unwrap().to_string();
    // Fractions are charged in hundredths: 2 + 0.50 + 0.13 (10,000 of 80,000 MiB, rounded up).
    assert_eq!(text(gpus.used), "2.63");
    assert_eq!(text(gpus.borrowed), "1.63");
    assert_eq!(text(gpus.reclaimable), "1.63");
    assert_eq!(queues[1].over_quota, Some(true));
    assert_eq!((queues[2].gangs_waiting, queues[2].gangs_running), (Some(1), Some(0)));
    assert_eq!(text(queues[2].gpus.requested), "4");
}

#[test]
fn nodes_have_what_their_labels_and_conditions_say() {
    let mut objects = small_cluster();
    let in_pool = json!({ "metadata": { "labels": {
        "kai.scheduler/node-pool": "a", "nvidia.com/gpu.deploy.driver": "true", "example.com/rack": "rack-8",
    } } });
    objects.push(node("plain", 1, in_pool));
    let full = view(&objects);
    // The scheduler of the default node pool has the nodes without the label.
    let [node] = &full.nodes.as_ref().unwrap()[..] else {
        panic!()
    };
    assert_eq!(
        (node.pool.as_deref(), node.driver.as_deref()),
        (None, Some("615.71.09"))
    );
    let domains: Vec<(&str, &str, &str)> = node
        .topology
        .iter()
        .map(|domain| (domain.topology.as_str(), domain.level.as_str(), domain.value.as_str()))
        .collect();
    assert_eq!(
        domains,
        [
            ("racks", "topology.kubernetes.io/zone", "zone-1"),
            ("racks", "example.com/rack", "rack-7")
        ]
    );
    assert!(node.labels.contains_key("example.com/rack") && node.labels.contains_key("nvidia.com/gpu.product"));
    assert!(!node.labels.contains_key("example.com/other"));
    let kinds: Vec<(&str, bool)> = node
        .conditions
        .iter()
        .map(|condition| (condition.kind.as_str(), condition.is_problem()))
        .collect();
    assert_eq!(
        kinds,
        [("GPULimits", false), ("GPUSetupHealthy", true), ("Ready", false)]
    );
    assert_eq!(
        node.conditions[1].message.as_deref(),
        Some("the CDI spec is older than the driver")
    );

    let settings = MirrorSettings {
        partition: Partition::new("kai.scheduler/node-pool", "a"),
        ..MirrorSettings::default()
    };
    let pool = World::with(&settings, &objects).view(Knowledge::complete());
    let [node] = &pool.nodes.as_ref().unwrap()[..] else {
        panic!()
    };
    assert_eq!(node.pool.as_deref(), Some("a"));
    assert_eq!(node.topology, [], "without the outer level it is in no domain");
    assert!(!node.labels.contains_key("nvidia.com/gpu.deploy.driver"));
    assert!(node.labels.contains_key("example.com/rack"), "a level of a topology");
}

#[test]
fn nodes_and_pods_say_what_holds_them_to_their_share() {
    let mut objects = small_cluster();
    objects.push(node("plain", 1, json!({})));
    let full = view(&objects);
    let [held, plain] = &full.nodes.as_ref().unwrap()[..] else {
        panic!()
    };
    assert_eq!(held.gpu_enforcement.tier, Some(EnforcementTier::Driver));
    assert!(
        held.gpu_enforcement
            .message
            .as_deref()
            .unwrap()
            .contains("limits the GPU memory")
    );
    assert_eq!(
        plain.gpu_enforcement,
        NodeEnforcement::default(),
        "without the label it is unknown"
    );
    let limits: Vec<(&str, Option<u64>)> = held.gpus[0]
        .pods
        .iter()
        .map(|pod| (pod.name.as_str(), pod.limit_mib))
        .collect();
    assert_eq!(limits, [("llm-0", Some(40_000)), ("notebook-0", None)]);
    let limit = |name: &str| {
        let mut pods = full.pods.as_ref().unwrap().iter();
        pods.find(|pod| pod.name == name).unwrap().gpu_limit.clone()
    };
    let promised = PodLimit {
        required: true,
        tier: Some(EnforcementTier::Driver),
        memory_mib: Some(40_000),
    };
    assert_eq!(limit("llm-0"), Some(promised));
    assert_eq!(limit("notebook-0"), Some(PodLimit::default()), "nothing was promised");
    assert_eq!(limit("train-0"), None, "a whole GPU has no share");
}

#[test]
fn a_queue_borrows_from_siblings_that_leave_their_quota() {
    let view = view(&small_cluster());
    let queues = view.queues.as_ref().unwrap();
    let lenders: Vec<(&str, String)> = queues[1]
        .lenders
        .iter()
        .map(|lender| (lender.queue.as_str(), lender.gpus.to_string()))
        .collect();
    assert_eq!(lenders, [("team-b", "1.63".to_owned())]);
    assert_eq!((&queues[0].lenders, &queues[2].lenders), (&vec![], &vec![]));
}

#[test]
fn gangs_have_the_names_that_people_know_and_say_why_they_wait() {
    let view = view(&small_cluster());
    let waiting = view.waiting_gangs();
    assert_eq!(waiting.len(), 1);
    let big = waiting[0];
    assert_eq!(big.workload(), "Job big-owner");
    assert_eq!((big.min, big.needed, big.waiting, big.running), (2, 2, 2, 0));
    assert_eq!(big.position, Some(1));
    assert_eq!(
        big.waiting_since.map(|time| time.to_string()).as_deref(),
        Some("2026-01-01T00:30:00Z")
    );
    let reason = big.reason.as_deref().unwrap();
    assert!(reason.contains("held by"), "{reason}");
    assert!(reason.contains("Job team/train-owner"), "{reason}");
    let pods = view.pods.as_ref().unwrap();
    let pod = pods.iter().find(|pod| pod.name == "big-0").unwrap();
    assert_eq!(pod.reason_source, Some(ReasonSource::Engine));
    assert_eq!(pod.gpus, PodGpus::Whole { devices: 2 });
}

#[test]
fn a_failed_gpu_is_unhealthy_and_an_unlabelled_one_is_unknown() {
    let failed = node(
        "failed",
        2,
        json!({ "status": { "capacity": { "nvidia.com/gpu": "3" } } }),
    );
    let mut plain = node("plain", 1, json!({}));
    plain["metadata"]["labels"] = json!({});
    plain["status"]["capacity"] = Value::Null;
    let view = view(&[failed, plain]);
    let nodes = view.nodes.as_ref().unwrap();
    let states = |at: usize| nodes[at].gpus.iter().map(|gpu| gpu.state).collect::<Vec<_>>();
    assert_eq!(states(0), [GpuState::Idle, GpuState::Idle, GpuState::Unhealthy]);
    assert_eq!(nodes[0].gpus_unhealthy, Some(1));
    assert_eq!(states(1), [GpuState::Idle]);
    assert_eq!(
        (&nodes[1].gpu_model, nodes[1].gpu_memory_mib, nodes[1].gpus_unhealthy),
        (&None, None, None),
        "unknown, not zero"
    );
}

#[test]
fn mig_slices_and_replicas_are_what_they_are() {
    let mig = node(
        "mig",
        0,
        json!({ "metadata": { "labels": { "nvidia.com/mig.strategy": "mixed", "node-role.kubernetes.io/mig-enabled": "true" } },
                "status": { "allocatable": { "nvidia.com/mig-1g.5gb": "7" } } }),
    );
    let sliced = node(
        "sliced",
        8,
        json!({ "metadata": { "labels": { "nvidia.com/gpu.count": "2" } } }),
    );
    let slice = json!({ "spec": { "containers": [{ "resources": { "limits": { "nvidia.com/mig-1g.5gb": "2" } } }] } });
    let objects = [
        mig,
        sliced,
        queue("team-a", None, -1),
        gang("a", "Job", "team-a", 1),
        pod("on-mig", "a", 0, Some("mig"), slice),
        pod("on-replica", "a", 1, Some("sliced"), json!({})),
    ];
    let view = view(&objects);
    let nodes = view.nodes.as_ref().unwrap();
    let (mig, replicas) = (&nodes[0].slices[0], &nodes[1].slices[0]);
    assert_eq!((mig.kind, mig.allocatable, mig.used), (SlicesKind::Mig, 7, Some(2)));
    assert_eq!((mig.pods[0].name.as_str(), mig.pods[0].slices), ("on-mig", 2));
    assert_eq!(
        (replicas.kind, replicas.allocatable, replicas.used),
        (SlicesKind::Replica, 8, Some(1))
    );
    assert_eq!(replicas.pods[0].name, "on-replica");
    let states: Vec<GpuState> = nodes[1].gpus.iter().map(|gpu| gpu.state).collect();
    assert_eq!(states, [GpuState::TimeSliced, GpuState::TimeSliced]);
}

fn without(list: List, only_namespace: Option<&str>) -> Knowledge {
    let missing = MissingList {
        list,
        only_namespace: only_namespace.map(str::to_owned),
        message: "forbidden".to_owned(),
    };
    Knowledge { missing: vec![missing] }
}

#[test]
fn without_a_list_its_consequences_are_unknown_and_reasons_come_from_conditions() {
    let mut objects = small_cluster();
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "as the scheduler wrote" });
    objects.last_mut().unwrap()["status"]["conditions"] = json!([condition]);
    let mut world = World::new(&objects);

    let no_nodes = world.view(without(List::Nodes, None));
    assert_eq!(no_nodes.nodes, None);
    let queues = no_nodes.queues.as_ref().unwrap();
    assert_eq!((queues[1].over_quota, queues[1].gpus.used), (None, None));
    assert_eq!(
        queues[1].gpus.quota.unwrap().to_string(),
        "1",
        "the quota is in the queue itself"
    );
    let reason = |view: &ClusterView, name: &str| {
        let pods = view.pods.as_ref().unwrap();
        let pod = pods.iter().find(|pod| pod.name == name).unwrap();
        (pod.reason.clone(), pod.reason_source)
    };
    assert_eq!(
        reason(&no_nodes, "big-1"),
        (Some("as the scheduler wrote".into()), Some(ReasonSource::Condition))
    );
    assert_eq!(reason(&no_nodes, "big-0"), (None, None));

    let some_pods = world.view(without(List::Pods, Some("team")));
    let node = &some_pods.nodes.as_ref().unwrap()[0];
    assert_eq!(
        node.gpus.last().unwrap().state,
        GpuState::Unknown,
        "not idle: nobody knows"
    );
    assert_eq!(node.cpu_milli.used, None);
    assert!(some_pods.pods.is_some());
    assert_eq!(world.view(without(List::Pods, None)).pods, None);
}

#[test]
fn the_order_of_objects_does_not_matter() {
    let mut objects = small_cluster();
    let expect = view(&objects);
    objects.reverse();
    assert_eq!(view(&objects), expect);
}

/// A decision as the scheduler records it.
fn eviction() -> Decision {
    let text = |text: &str| Some(text.to_owned());
    let side = |queue: &str, used: i64, fair_share: i64| json!({ "queue": queue, "gpus": { "used": used, "fairShare": fair_share, "quota": fair_share } });
    let fairness =
        json!({ "rule": "overFairShare", "victim": side("team-a", 3, 1), "beneficiary": side("team-b", 0, 3) });
    Decision {
        number: 7,
        time: "2026-01-01T00:58:00Z".parse().unwrap(),
        kind: DecisionKind::Evict,
        action: text("reclaim"),
        namespace: "team".to_owned(),
        pod: "old-0".to_owned(),
        pod_group: text("old"),
        workload: "Job old-owner".to_owned(),
        queue: text("team-a"),
        node: text("h100-1"),
        gpus: Some(PodGpus::Whole { devices: 1 }),
        beneficiary: Some(Beneficiary {
            namespace: "team".to_owned(),
            pod_group: "earlier".to_owned(),
            workload: "Job earlier-owner".to_owned(),
            queue: text("team-b"),
        }),
        reason: text("reclaimed for Job team/earlier-owner (1 pod in all)"),
        fairness: Some(serde_json::from_value(fairness).unwrap()),
        waiting_since: None,
        waiting_reason: None,
    }
}

/// The example of docs/view.md is the view of the small cluster. Run with `UPDATE_EXAMPLE=1` to write it.
#[test]
fn the_documentation_shows_a_real_view() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/view.md");
    let docs = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = docs.split_once("```json\n").unwrap();
    let (shown, after) = rest.split_once("```\n").unwrap();
    let mut real = view(&small_cluster());
    real.decisions = Some(vec![Arc::new(eviction())]);
    let real = serde_json::to_value(real).unwrap();
    if std::env::var_os("UPDATE_EXAMPLE").is_some() {
        let text = serde_json::to_string_pretty(&real).unwrap();
        std::fs::write(&path, format!("{before}```json\n{text}\n```\n{after}")).unwrap();
        return;
    }
    let shown: Value = serde_json::from_str(shown).unwrap();
    assert_eq!(
        real, shown,
        "run this test with UPDATE_EXAMPLE=1, and describe new fields in docs/view.md"
    );
    let read: ClusterView = serde_json::from_value(shown).unwrap();
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        real,
        "what is written is read again"
    );
    // Every field of the example has a row in the tables of the page.
    let mut fields = Vec::new();
    names(&real, &mut fields);
    for field in fields {
        assert!(
            docs.contains(&format!("`{field}`")),
            "docs/view.md does not describe {field}"
        );
    }
}

fn names(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            found.push(name.clone());
            // The keys of labels are no fields.
            if name != "labels" {
                names(value, found);
            }
        }),
        Value::Array(items) => items.iter().for_each(|item| names(item, found)),
        _ => {}
    }
}

#[test]
fn past_usage_is_shown_where_it_is_known() {
    let mut world = World::new(&small_cluster());
    let past = |world: &mut World| {
        let queues = world.view(Knowledge::complete()).queues.unwrap();
        let past = queues
            .iter()
            .map(|queue| queue.past_usage.map(|past| past.gpus_millionths));
        past.collect::<Vec<_>>()
    };
    assert_eq!(past(&mut world), [None, None, None]);
    let usage = kai_engine::model::Usage {
        queue: "team-a".to_owned(),
        cpu_billionths: 0,
        memory_billionths: 0,
        gpu_billionths: 250_000_499,
    };
    world.engine.apply(kai_engine::model::Event::Usage(usage));
    world.engine.cycle(support::NOW, &kai_engine::model::Config::default());
    assert_eq!(past(&mut world), [Some(0), Some(250_000), Some(0)]);
}
