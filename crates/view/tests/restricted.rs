//! Views for people who may see only some namespaces.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use kai_view::{
    Beneficiary, ClusterView, Decision, DecisionKind, Gang, GpuUser, Hidden, Knowledge, NodeCondition, OTHER_WORK, Pod,
    PodGpus, PodStatus, Text, Time,
};
use proptest::prelude::*;
use serde_json::json;
use support::{World, node};

/// A gang with one pod on a GPU.
#[derive(Clone, Debug)]
struct Work {
    namespace: usize,
    /// Whether somebody wrote a name with spaces into the pod group's annotation.
    has_odd_name: bool,
    waits: bool,
    /// Other gangs that its reason names.
    holders: Vec<usize>,
}

fn namespace(number: usize) -> String {
    format!("ns-{number}")
}

impl Work {
    fn workload_name(&self, at: usize) -> String {
        match self.has_odd_name {
            true => format!("the owner-{at:03} of it"),
            false => format!("owner-{at:03}"),
        }
    }

    fn names(&self, at: usize) -> [String; 3] {
        [
            format!("gang-{at:03}"),
            format!("pod-{at:03}"),
            format!("owner-{at:03}"),
        ]
    }

    fn container(&self, at: usize) -> String {
        format!("model-{at:03}")
    }
}

/// The texts of the scheduler name gangs in these ways.
fn reason(all: &[Work], holders: &[usize]) -> String {
    let mut text =
        "no nodes with enough resources were found: 1 node(s) didn't match Pod's node affinity/selector".to_owned();
    for (number, holder) in holders.iter().map(|holder| holder % all.len()).enumerate() {
        let (work, names) = (&all[holder], all[holder].names(holder));
        let namespace = namespace(work.namespace);
        text += &match number % 4 {
            0 => format!("; held by Job {namespace}/{} (2 GPUs)", work.workload_name(holder)),
            1 => format!(", pod group {namespace}/{} (0.5 GPUs)", names[0]),
            2 => format!("; {namespace}/{} has it.", names[1]),
            _ => format!("; preempted by {namespace}/{}", work.workload_name(holder)),
        };
    }
    text
}

/// A node whose only GPU all of this work shares.
fn view(all: &[Work]) -> ClusterView {
    let mut view = World::new(&[node("n1", 1, json!({}))]).view(Knowledge::complete());
    let (mut gangs, mut pods, mut users, mut decisions) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (at, work) in all.iter().enumerate() {
        let [gang, pod, _] = work.names(at);
        let (namespace, workload_name) = (namespace(work.namespace), work.workload_name(at));
        let reason = reason(all, &work.holders);
        gangs.push(Gang {
            namespace: namespace.as_str().into(),
            pod_group: gang.as_str().into(),
            workload_kind: "Job".into(),
            workload_name: workload_name.as_str().into(),
            queue: "q".into(),
            priority: 50,
            preemptible: true,
            preemptibility: None,
            min: 1,
            pods: 1,
            running: 0,
            starting: 0,
            waiting: 1,
            releasing: 0,
            needed: 1,
            position: None,
            created: Time::default(),
            waiting_since: None,
            last_start: None,
            last_eviction: None,
            stale_since: None,
            reason: Some(reason.as_str().into()),
            reason_source: None,
        });
        let status = if work.waits {
            PodStatus::Pending
        } else {
            PodStatus::Running
        };
        pods.push(Pod {
            namespace: namespace.as_str().into(),
            name: pod.as_str().into(),
            uid: Text::default(),
            pod_group: Some(gang.as_str().into()),
            status,
            node: None,
            gpus: PodGpus::Whole { devices: 1 },
            gpu_limit: None,
            gpu_groups: Vec::new(),
            created: Time::default(),
            since: None,
            reason: Some(reason.as_str().into()),
            reason_source: None,
        });
        users.push(GpuUser {
            namespace: namespace.as_str().into(),
            name: pod.as_str().into(),
            status,
            foreign: false,
            mib: Some(100),
            limit_mib: Some(100),
            slices: 1,
        });
        let beneficiary = work.holders.first().map(|holder| {
            let holder = holder % all.len();
            Beneficiary {
                namespace: self::namespace(all[holder].namespace),
                pod_group: all[holder].names(holder)[0].clone(),
                workload: format!("Job {}", all[holder].workload_name(holder)),
                queue: None,
            }
        });
        decisions.push(Arc::new(Decision {
            number: at as u64,
            time: Time::default(),
            kind: DecisionKind::Evict,
            action: Some("reclaim".to_owned()),
            namespace,
            pod,
            pod_group: Some(gang),
            workload: format!("Job {workload_name}"),
            queue: None,
            node: None,
            gpus: Some(PodGpus::None),
            beneficiary,
            reason: Some(reason.clone()),
            fairness: None,
            waiting_since: None,
            waiting_reason: Some(reason),
        }));
    }
    let node = &mut view.nodes.as_mut().unwrap()[0];
    // As the node agent names containers whose limits are lost.
    let lost = users.iter().enumerate().map(|(at, user)| {
        let container = all[at].container(at);
        format!("{}/{}, container {container}: gone", user.namespace, user.name)
    });
    let lost = format!(
        "{} container(s) are not held: {}. tier driver",
        users.len(),
        lost.collect::<Vec<_>>().join("; ")
    );
    node.gpu_enforcement.message = Some(lost.as_str().into());
    node.conditions = vec![NodeCondition {
        kind: "GPULimits".into(),
        status: "False".into(),
        reason: None,
        message: Some(lost.into()),
    }]
    .into();
    node.gpus[0].pods = users;
    (view.gangs, view.pods, view.decisions) = (Some(gangs), Some(pods), Some(decisions));
    view
}

fn work() -> impl Strategy<Value = Work> {
    let odd = prop::bool::weighted(0.1);
    (0..4_usize, odd, any::<bool>(), prop::collection::vec(0..30_usize, 0..5)).prop_map(
        |(namespace, has_odd_name, waits, holders)| Work {
            namespace,
            has_odd_name,
            waits,
            holders,
        },
    )
}

proptest! {
    #[test]
    fn no_name_of_another_namespace_is_in_the_json(
        all in prop::collection::vec(work(), 1..30),
        own in prop::collection::btree_set(0..4_usize, 0..4),
    ) {
        let namespaces: BTreeSet<String> = own.iter().map(|number| namespace(*number)).collect();
        let full = view(&all);
        let restricted = full.restricted_to(&namespaces);
        let json = serde_json::to_string(&restricted).unwrap();
        for (at, work) in all.iter().enumerate() {
            for name in work.names(at).into_iter().chain([work.container(at)]) {
                // The node's text has the containers; it is not shown where a name in it has no clear end.
                if own.contains(&work.namespace) && !json.contains(&name) && name == work.container(at) {
                    prop_assert!(json.contains("which is not shown"), "{json}");
                } else if own.contains(&work.namespace) {
                    prop_assert!(json.contains(&name), "own name {name} is gone");
                } else {
                    prop_assert!(!json.contains(&name), "{name} of {} in {json}", namespace(work.namespace));
                }
            }
        }
        let foreign = all.iter().filter(|work| !own.contains(&work.namespace)).count() as u32;
        prop_assert_eq!(restricted.hidden, Some(Hidden { gangs: foreign, pods: foreign }));
        let users = &restricted.nodes.as_ref().unwrap()[0].gpus[0].pods;
        let mib: i64 = users.iter().map(|user| user.mib.unwrap()).sum();
        prop_assert_eq!(mib, 100 * all.len() as i64, "the amounts stay");
        let merged = users.iter().filter(|user| user.name == OTHER_WORK && user.namespace.is_empty()).count();
        prop_assert_eq!(merged, usize::from(foreign > 0));
    }
}

#[test]
fn reasons_stay_readable() {
    let work = |namespace: usize, holders: &[usize]| Work {
        namespace,
        has_odd_name: false,
        waits: true,
        holders: holders.to_vec(),
    };
    let full = view(&[work(0, &[1, 0]), work(1, &[])]);
    let restricted = full.restricted_to(&[namespace(0)].into());
    assert_eq!(
        restricted.gangs.unwrap()[0].reason.as_deref(),
        Some(
            "no nodes with enough resources were found: 1 node(s) didn't match Pod's node affinity/selector; held by other work (2 \
             GPUs), pod group ns-0/gang-000 (0.5 GPUs)"
        )
    );
    let decision = &restricted.decisions.unwrap()[0];
    assert_eq!(decision.beneficiary, None);
    assert_eq!(decision.reason.as_deref(), Some("evicted for other work (reclaim)"));
    assert_eq!(full.hidden, None);
}

#[test]
fn an_explanation_names_no_other_work() {
    let json = json!({
        "position": { "beforeInQueue": 1, "beforeInOtherQueues": 0, "text": "second in its queue" },
        "needs": "2 GPUs on one node; n1 has 0 free, 2 are held by Job ns-1/owner-001",
        "nearestNodes": [{ "node": "n1", "check": "gpus", "freeGpus": 0, "missing": 2, "holders": [
            { "workload": "Job ns-1/owner-001", "gpus": 2.0, "queue": "q", "claim": "reclaimable" },
            { "workload": "Job ns-0/owner-000", "gpus": 1.0, "queue": "q", "claim": "reclaimable" },
        ] }],
        "remedies": [{ "text": "end Job ns-1/owner-001", "tried": true, "steps": [
            { "kind": "end", "text": "end Job ns-1/owner-001", "podGroup": "ns-1/gang-001" },
            { "kind": "end", "text": "end Job ns-0/owner-000", "podGroup": "ns-0/gang-000" },
        ] }],
        "cut": false,
        "trials": 3,
    });
    let explanation: kai_view::ExplanationView = serde_json::from_value(json).unwrap();
    for has_odd_name in [false, true] {
        let work = |namespace: usize| Work {
            namespace,
            has_odd_name,
            waits: true,
            holders: Vec::new(),
        };
        let restricted = view(&[work(0), work(1)]).restricted_explanation(&explanation, &[namespace(0)].into());
        let text = serde_json::to_string(&restricted).unwrap();
        assert!(!text.contains("-001"), "{text}");
        assert!(
            text.contains("end Job ns-0/owner-000") && text.contains("ns-0/gang-000"),
            "{text}"
        );
        assert_eq!(restricted.nearest_nodes[0].holders[0].workload, OTHER_WORK);
    }
}
