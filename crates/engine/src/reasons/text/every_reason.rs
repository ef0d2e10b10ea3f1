//! The text of every variant. Users search for these texts, and scripts match them.

use std::sync::Arc;

use crate::model::{Action, FractioningCondition, GangKey, Gpus, Millis};
use crate::reasons::{
    AffinityTermBound, AvoidedNode, BackgroundCause, Check, EvictionReason, GpuConflict, GpuShareError, InvalidValue,
    PodsLacking, PriorityRefusal, Problem, QueueBound, Reason, Refusal, Rejections, Resource, SubGroupExcess,
    domain_text, not_ready_text,
};

fn check(reason: Reason, text: &str) {
    assert_eq!(reason.to_string(), text);
}

fn gang(name: &str) -> GangKey {
    GangKey {
        namespace: "team".to_owned(),
        name: name.to_owned(),
    }
}

fn rejections() -> Rejections {
    Rejections {
        checks: vec![(Check::Gpus, 2)],
        holders: Arc::new([(gang("train"), Gpus::ONE)]),
        ..Rejections::default()
    }
}

fn bound(resource: Resource, unit: i64) -> QueueBound {
    QueueBound {
        queue: "q".to_owned(),
        resource,
        bound: 2 * unit,
        used: unit,
        requested: 3 * unit / 2,
    }
}

#[test]
fn a_pod_without_a_gang_or_queue() {
    check(
        Reason::GangMissing(None),
        "the pod belongs to no pod group (annotation pod-group-name)",
    );
    check(Reason::GangMissing(Some(gang("g"))), "pod group team/g does not exist");
    check(Reason::QueueMissing("q".to_owned()), "queue q does not exist");
    check(
        Reason::QueueMissing(String::new()),
        "the pod group names no queue; write the name of one into spec.queue",
    );
    let disconnected = |missing: Option<&str>| Reason::QueueDisconnected {
        queue: "q".to_owned(),
        missing: missing.map(str::to_owned),
    };
    check(
        disconnected(Some("top")),
        "queue q waits for queue top above it, which does not exist; create top, or change spec.parentQueue of the queue that names it",
    );
    check(
        disconnected(None),
        "queue q is below itself; change spec.parentQueue of one of the queues above it",
    );
    check(
        Reason::QueueNotLeaf("q".to_owned()),
        "queue q has child queues; name one of them",
    );
    check(
        Reason::UnknownSubGroup("s".to_owned()),
        "the pod group has no subgroup s",
    );
    check(
        Reason::SubGroupsExceeded(SubGroupExcess::Count(5000)),
        "the pod group is not scheduled: 5000 subgroups are more than the 4096 that a pod group may have; join some of them, or make \
         several pod groups",
    );
    check(
        Reason::SubGroupsExceeded(SubGroupExcess::Depth),
        "the pod group is not scheduled: subgroups are nested more than 16 levels deep; leave out levels",
    );
}

#[test]
fn a_gang_that_is_not_tried() {
    check(Reason::Gated, "scheduling gates are set");
    let lacking = PodsLacking {
        sub_group: Some("s".to_owned()),
        required: 2,
        existing: 1,
        gated: 1,
    };
    assert_eq!(
        not_ready_text(std::slice::from_ref(&lacking)),
        "Job is not ready for scheduling. Waiting for 2 pods for SubGroup s, currently 1 exist, 1 are gated."
    );
    let not_ready = Reason::GangNotReady {
        ready: 0,
        required: 2,
        lacking: vec![lacking.clone()],
    };
    check(not_ready, "the gang has 0 pods ready to start, 2 are required");
    let sub_group_not_ready = Reason::GangNotReady {
        ready: 3,
        required: 3,
        lacking: vec![lacking],
    };
    check(
        sub_group_not_ready,
        "subgroup s has 0 pods ready to start, 2 are required",
    );
    let until = Millis::seconds(1_767_268_800);
    check(
        Reason::PreemptionDelay { until },
        "may not evict others before its preemption delay is over, at 2026-01-01T12:00:00Z",
    );
    check(Reason::NotTried, "not reached in this cycle");
    check(
        Reason::CutShort,
        "the search for a place was cut short by the cycle's budget of work and goes on in the next cycles",
    );
}

#[test]
fn a_gang_that_is_not_placed() {
    check(
        Reason::OverLimit(bound(Resource::Gpu, 1_000_000)),
        "over the limit of queue q: 2 GPUs, 1 GPU in use, 1.5 GPUs more asked for",
    );
    check(
        Reason::OverLimit(bound(Resource::Cpu, 1_000)),
        "over the limit of queue q: 2 cores, 1 core in use, 1.5 cores more asked for",
    );
    check(
        Reason::OverQuota(bound(Resource::Memory, 1_000_000_000)),
        "non-preemptible and over the quota of queue q: 2 GB of memory, 1 GB of memory in use, 1.5 GB of memory more asked for",
    );
    check(
        Reason::CoreOverQuota(bound(Resource::Gpu, 1_000_000)),
        "the core is non-preemptible and over the quota of queue q: 2 GPUs, 1 GPU in use, 1.5 GPUs more asked for",
    );
    check(
        Reason::NoNode(rejections()),
        "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs; held by team/train (1 GPU)",
    );
    check(
        Reason::NoNode(Rejections::default()),
        "no nodes with enough resources were found: there is no node",
    );
    let short = |sub_group: Option<&str>| Reason::GangShort {
        placed: 1,
        required: 2,
        sub_group: sub_group.map(str::to_owned),
        rejections: rejections(),
    };
    check(
        short(None),
        "only 1 of 2 pods of the gang fit: 2 node(s) didn't have enough resources: GPUs; held by team/train (1 GPU)",
    );
    check(
        short(Some("s")),
        "only 1 pods fit while subgroup s requires 2: 2 node(s) didn't have enough resources: GPUs; held by team/train (1 GPU)",
    );
    let domains = [("r1".to_owned(), 1), ("r2".to_owned(), 0)];
    assert_eq!(domain_text(&domains[0], 2), "r1: room for 1 of 2 pods");
    let no_domain = Reason::NoDomain {
        topology: "t".to_owned(),
        level: "rack".to_owned(),
        domains: domains.to_vec(),
        required: 2,
    };
    check(
        no_domain,
        "no rack of topology t can hold 2 pods together; room in r1: 1, r2: 0",
    );
    let unknown = |level: Option<&str>| Reason::TopologyUnknown {
        topology: "t".to_owned(),
        level: level.map(str::to_owned),
    };
    check(unknown(None), "topology t does not exist");
    check(unknown(Some("row")), "topology t has no level row");
}

#[test]
fn a_pod_that_waits_for_others_or_was_evicted() {
    let node = "n".to_owned();
    check(Reason::WaitsForRelease { node }, "waits for pods to leave node n");
    let evicted = |action, moved| {
        Reason::Evicted(EvictionReason::For {
            action,
            gang: Arc::new(gang("g")),
            moved,
            pods: 2,
            fairness: None,
        })
    };
    check(evicted(Action::Reclaim, false), "reclaimed for team/g (2 pods in all)");
    check(
        evicted(Action::Preempt, true),
        "preempted by team/g (2 pods in all; it has a new place)",
    );
    check(
        evicted(Action::Consolidation, true),
        "moved to make room for team/g (2 pods in all)",
    );
    check(
        Reason::Evicted(EvictionReason::StaleGang),
        "its gang runs below its minimum for too long",
    );
    check(
        Reason::Evicted(EvictionReason::LeavingNode),
        "its gang falls below its minimum and has pods on a node that is being removed; it moves as a whole",
    );
    check(
        Reason::Evicted(EvictionReason::Background {
            pods: 1,
            cause: BackgroundCause::Room,
        }),
        "background pods made room for other workloads (1 pod in all)",
    );
    check(
        Reason::Evicted(EvictionReason::Background {
            pods: 2,
            cause: BackgroundCause::QueueBound,
        }),
        "background pods left the limit or quota of a queue to other workloads (2 pods in all)",
    );
}

#[test]
fn a_node_that_fails_a_check() {
    let texts = [
        (Check::Gpus, "node(s) didn't have enough resources: GPUs"),
        (Check::GpuMemory, "node(s) didn't have enough resources: GPU memory"),
        (
            Check::GpuTooSmall,
            "node(s) didn't have enough resources: GPU memory (the GPUs are too small)",
        ),
        (Check::Cpu, "node(s) didn't have enough resources: CPU cores"),
        (Check::Memory, "node(s) didn't have enough resources: memory"),
        (Check::PodSlots, "node(s) pod number exceeded"),
        (
            Check::Extended,
            "node(s) didn't have enough resources: extended resources",
        ),
        (Check::Unschedulable, "node is unschedulable"),
        (Check::NotReady, "node has NotReady condition or is under pressure"),
        (Check::Leaving, "node(s) that are being removed from the cluster"),
        (Check::NodeAffinity, "node(s) didn't match Pod's node affinity/selector"),
        (Check::Taints, "node(s) had untolerated taint(s)"),
        (
            Check::HostPorts,
            "node(s) didn't have free ports for the requested pod ports",
        ),
        (Check::PodAffinity, "node(s) didn't match pod affinity rules"),
        (Check::PodAntiAffinity, "node(s) didn't match pod anti-affinity rules"),
        (
            Check::MigMismatch,
            "node(s) whose MIG mode does not suit the GPU request",
        ),
        (
            Check::GpuMemoryUnknown,
            "node(s) with unknown GPU memory (label nvidia.com/gpu.memory missing)",
        ),
        (
            Check::Enforcement,
            "node(s) that don't limit GPU memory (required by annotation kai.scheduler/gpu-enforcement)",
        ),
        (
            Check::ComputeMode,
            "node(s) without a multi-process server (MPS) for compute mode sm-sharing",
        ),
        (
            Check::SmSharingOnly,
            "node(s) whose GPUs take pods with compute mode sm-sharing alone (multi-process server, MPS)",
        ),
        (
            Check::ComputeModeInUse,
            "node(s) whose GPUs with enough memory have pods of another compute mode",
        ),
        (
            Check::Fractioning(FractioningCondition::Met),
            "node(s) where condition gpu-fractioning.nvidia.com/Ready is True",
        ),
        (
            Check::Fractioning(FractioningCondition::False),
            "node(s) where condition gpu-fractioning.nvidia.com/Ready is False",
        ),
        (
            Check::Fractioning(FractioningCondition::Unknown),
            "node(s) where condition gpu-fractioning.nvidia.com/Ready is Unknown",
        ),
        (
            Check::Fractioning(FractioningCondition::NotFound),
            "node(s) where condition gpu-fractioning.nvidia.com/Ready is Unknown (ConditionNotFound)",
        ),
        (Check::VolumeNodes, "node(s) had volume node affinity conflict"),
        (
            Check::VolumesToBind,
            "node(s) didn't find available persistent volumes to bind",
        ),
        (Check::Storage, "node(s) did not have enough free storage"),
        (
            Check::ExclusiveClaim,
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
        ),
        (Check::AttachLimit, "node(s) exceed max volume count"),
        (Check::QueueBound, "node(s) where it would pass a queue's bound"),
        (Check::Domain, "node(s) outside the topology domain"),
    ];
    for (check, text) in texts {
        assert_eq!(check.text(), text);
    }
}

#[test]
fn a_pod_that_is_refused() {
    let check = |refusal: Refusal, text: &str| check(Reason::Refused(refusal), text);
    let claim = || "data".to_owned();
    check(
        Refusal::InvalidField {
            field: "spec.tolerations".to_owned(),
            error: InvalidValue::TooMany { count: 129, max: 128 },
        },
        "spec.tolerations: 129 entries are more than the 128 that are scheduled; leave some out",
    );
    check(
        Refusal::AffinityTermsExceeded(65),
        "spec.affinity has 65 terms about other pods; give it at most 64",
    );
    check(
        Refusal::VolumeClaimMissing { claim: claim() },
        "persistentvolumeclaim \"data\" not found; create it, or name another claim in spec.volumes of the pod",
    );
    check(
        Refusal::EphemeralClaimMissing { claim: claim() },
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"data\"",
    );
    check(
        Refusal::EphemeralClaimForeign { claim: claim() },
        "PVC \"data\" was not created for the pod (pod is not owner); delete the claim, or give the pod or its volume another name",
    );
    check(
        Refusal::VolumeClaimDeleted { claim: claim() },
        "persistentvolumeclaim \"data\" is being deleted; create it again once it is gone",
    );
    check(
        Refusal::VolumeClaimLost {
            claim: claim(),
            volume: "v".to_owned(),
        },
        "persistentvolumeclaim \"data\" bound to non-existent persistentvolume \"v\"; delete the claim and create it again",
    );
    check(
        Refusal::VolumeClaimUnbound { claim: claim() },
        "pod has unbound immediate PersistentVolumeClaims: data; the events of the claim say what it waits for",
    );
    check(
        Refusal::StorageClassMissing {
            claim: claim(),
            class: "fast".to_owned(),
        },
        "storageclass.storage.k8s.io \"fast\" not found, which claim data names; create the class, or the claim with another one",
    );
    check(
        Refusal::UnboundClaimsExceeded { max: 16 },
        "the pod has more than 16 volume claims that wait for it; give it fewer volumes",
    );
    check(
        Refusal::VolumeRequestsExceeded {
            namespace: "team".to_owned(),
            max: 32,
        },
        "claims of namespace team wait for more than 32 different kinds of volumes, and those of the pod come after them; use fewer different \
         sizes, classes and selectors",
    );
    let missing = Refusal::VolumeMissing {
        volume: "v".to_owned(),
        claim: claim(),
    };
    check(missing, "persistent volume v of claim data does not exist");
    let problem = Problem {
        object: "PersistentVolume v".to_owned(),
        field: "spec.nodeAffinity".to_owned(),
        error: InvalidValue::Missing,
        effect: "the pod waits",
    };
    check(
        Refusal::VolumeInvalid(Box::new(problem)),
        "PersistentVolume v: spec.nodeAffinity: it is missing or empty; give it a value (the pod waits)",
    );
    check(
        Refusal::VolumeTermsExceeded { max: 64 },
        "the volumes of the pod are bound to too many different sets of nodes (64 at most)",
    );
    let config_maps = |more| Refusal::ConfigMapsMissing {
        namespace: "team".to_owned(),
        names: vec!["a".to_owned(), "b".to_owned()],
        more,
    };
    check(
        config_maps(0),
        "Missing required configmaps: a, b; create them in namespace team, or mark them as optional in the pod",
    );
    check(
        config_maps(3),
        "Missing required configmaps: a, b and 3 more; create them in namespace team, or mark them as optional in the pod",
    );
    check(
        Refusal::AsTheConditionSays("as the scheduler wrote".to_owned()),
        "as the scheduler wrote",
    );
    check(
        Refusal::GpuSharingDisabled,
        "GPU sharing is switched off; request whole GPUs, or ask an administrator to set spec.global.gpuSharingMode of the Config",
    );
    let failed = Refusal::BindFailed {
        node: "n".to_owned(),
        message: "timed out".to_owned(),
    };
    check(
        failed,
        "binding to node n failed and is tried again in a while: timed out",
    );
    let avoided = AvoidedNode {
        node: "n".to_owned(),
        until: Millis::seconds(1_767_268_800),
    };
    assert_eq!(
        avoided.to_string(),
        "node n is left out until 2026-01-01T12:00:00Z because binding to it failed"
    );
}

#[test]
fn a_gang_that_is_refused() {
    let forbidden = Refusal::QueueForbidden {
        queue: "q".to_owned(),
        namespace: "team".to_owned(),
    };
    check(
        Reason::Refused(forbidden),
        "queue q is not for namespace team; use a queue of yours, or ask an administrator to name the namespace in the queue's \
         annotation kai.scheduler/allowed-namespaces",
    );
    let check = |refusal: PriorityRefusal, text: &str| {
        let gang = gang("g");
        check(
            Reason::Refused(Refusal::PriorityForbidden { gang, refusal }),
            &format!("PodGroup team/g: spec.priorityClassName: {text}"),
        );
    };
    check(
        PriorityRefusal::SystemClass {
            class: "system-node-critical".to_owned(),
            namespace: "team".to_owned(),
        },
        "priority class system-node-critical is for the system's own namespaces, and team is none of them; name another priority class, \
         for instance train",
    );
    let above = |class: Option<&str>| PriorityRefusal::AboveCeiling {
        class: class.map(str::to_owned),
        priority: 100,
        queue: "q".to_owned(),
        max: 75,
    };
    let remedy = "has priority 100, and queue q allows 75 at most; name a class of at most 75, or ask an administrator to raise the \
                  queue's annotation kai.scheduler/max-priority";
    check(above(Some("build")), &format!("priority class build {remedy}"));
    check(above(None), &format!("a pod group without a priority class {remedy}"));
    check(
        PriorityRefusal::UnreadableCeiling {
            queue: "q".to_owned(),
            text: "high".to_owned(),
        },
        "the queue's ceiling can't be read: Queue q: metadata.annotations.kai.scheduler/max-priority: \"high\" is not a whole number; \
         ask an administrator to write one, as in 100",
    );
}

#[test]
fn affinity_terms_beyond_a_bound() {
    check(
        Reason::AffinityTermsExceeded(AffinityTermBound::Namespace),
        "spec.affinity: pods of the namespace have 256 other terms with the same label value, or without a value (NotIn, Exists, \
         DoesNotExist); give many pods equal terms, or select by a label value that few terms have",
    );
    check(
        Reason::AffinityTermsExceeded(AffinityTermBound::Cluster),
        "spec.affinity: pods have 1024 other terms about other namespaces with the same label value, or without a value (NotIn, Exists, \
         DoesNotExist); select pods of the own namespace, or by a label value that few terms have",
    );
}

#[test]
fn a_value_that_is_invalid() {
    let check = |value: InvalidValue, text: &str| assert_eq!(value.to_string(), text);
    let written =
        |variant: fn(String) -> InvalidValue, rest: &str| check(variant("x".to_owned()), &format!("\"x\" {rest}"));
    let text = || "x".to_owned();
    written(
        InvalidValue::NotAQuantity,
        "is not a quantity; write a number with an optional suffix, as in 500m, 4 or 16Gi",
    );
    written(InvalidValue::Negative, "is negative; write an amount of zero or more");
    check(
        InvalidValue::TooLarge { text: text(), max: 9 },
        "\"x\" is more than any machine has (at most 9); write the real amount",
    );
    written(
        InvalidValue::PartOfDevice,
        "is not a whole number; for a part of a GPU use the annotation gpu-fraction or gpu-memory",
    );
    written(
        InvalidValue::NotAFraction,
        "is not a fraction of a GPU; write a decimal above 0 and at most 1, as in 0.5",
    );
    written(
        InvalidValue::FractionAboveOne,
        "is more than one GPU; for whole GPUs use the resource nvidia.com/gpu, for a part a decimal up to 1",
    );
    written(
        InvalidValue::NotGpuMemory,
        "is not an amount of GPU memory; write MiB as a whole number above 0, as in 4096",
    );
    check(
        InvalidValue::NotADeviceCount { text: text(), max: 9 },
        "\"x\" is not a number of GPUs; write a whole number from 1 to 9",
    );
    check(
        InvalidValue::DevicesWithoutShare,
        "it needs gpu-fraction or gpu-memory beside it; add one of them or remove it",
    );
    for error in [
        GpuShareError::NotMemory(text()),
        GpuShareError::NoUnit(text()),
        GpuShareError::NotAPortion(text()),
        GpuShareError::LimitNotAbove {
            limit: text(),
            request: text(),
        },
        GpuShareError::LimitBelow {
            limit: text(),
            request: text(),
        },
        GpuShareError::PortionWithoutFraction,
        GpuShareError::MemoryLimitOfFraction,
        GpuShareError::Differs {
            from: "gpu-memory",
            value: text(),
        },
        GpuShareError::Beside {
            other: "gpu-fraction",
            instead: "gpu-fraction.limit",
        },
        GpuShareError::WithoutShare,
        GpuShareError::UnknownKey,
        GpuShareError::OtherContainer {
            container: text(),
            share: text(),
        },
    ] {
        let message = error.to_string();
        assert!(message.contains(';'), "no remedy: {message}");
        check(InvalidValue::GpuShare(error), &message);
    }
    written(
        InvalidValue::NotATime,
        "is not a time; write it as in 2026-01-31T12:00:00Z",
    );
    written(
        InvalidValue::NotADuration,
        "is not a duration; write it as in 90s, 5m or 1h30m",
    );
    written(InvalidValue::NotAnInteger, "is not a whole number; write one, as in 3");
    written(
        InvalidValue::NegativeDuration,
        "is negative; write a duration of zero or more, as in 5m",
    );
    check(
        InvalidValue::NotAQueueAmount("-2".to_owned()),
        "-2 is no amount; write -1 for unlimited, or a number of zero or more",
    );
    check(
        InvalidValue::NotAWeight("-2".to_owned()),
        "-2 is no weight; write a number of zero or more",
    );
    check(
        InvalidValue::NoPriorityClass(text()),
        "there is no priority class \"x\"; create it, or name one that exists",
    );
    check(
        InvalidValue::Unknown {
            text: text(),
            known: "a and b",
        },
        "\"x\" is unknown; known are a and b",
    );
    check(InvalidValue::Missing, "it is missing or empty; give it a value");
}

#[test]
fn fields_that_exclude_each_other_or_are_not_supported() {
    let check = |value: InvalidValue, text: &str| assert_eq!(value.to_string(), text);
    for (conflict, other) in [
        (GpuConflict::WholeGpus, "whole GPUs in the containers' resources"),
        (GpuConflict::WholeGpusOfPod, "whole GPUs in the same pod"),
        (GpuConflict::GpuFraction, "the annotation gpu-fraction"),
        (GpuConflict::MigSlices, "MIG slices in the containers' resources"),
    ] {
        check(
            InvalidValue::Conflict(conflict),
            &format!("it can't be combined with {other}; keep one of them"),
        );
    }
    check(
        InvalidValue::LevelWithoutTopology,
        "a level is named without a topology; name the topology beside it",
    );
    check(
        InvalidValue::TopologyWithoutLevel,
        "a topology is named without a level; name a required or a preferred level beside it",
    );
    let too_few = |sub_group: Option<&str>| InvalidValue::TooFewSubGroups {
        sub_group: sub_group.map(str::to_owned),
        wanted: 3,
        children: 2,
    };
    let text = "minSubGroup (3) exceeds the number of direct child SubGroups (2); add subgroups, or lower it";
    check(too_few(None), text);
    check(too_few(Some("s")), &format!("subgroup \"s\": {text}"));
    check(
        InvalidValue::ResourceClaims,
        "devices through resource claims are not supported; ask for nvidia.com/gpu or use the annotation gpu-fraction",
    );
    check(
        InvalidValue::NamespaceSelector,
        "namespaces can't be selected by their labels here; list them in namespaces, or use {} for all of them",
    );
}
