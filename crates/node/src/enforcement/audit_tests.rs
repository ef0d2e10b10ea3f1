//! Tests of the audit: observations, and what follows from them.

use kai_gpu::MemoryLimits;

use super::super::receipt::LimitedMemory;
use super::super::receipt_dir::tests::receipt;
use super::*;

fn audited(id: &str, at: u64, answer: Answer) -> AuditedReceipt {
    AuditedReceipt {
        share_device: "share-1".to_owned(),
        receipt: Receipt {
            at_seconds: at,
            ..receipt(id)
        },
        cgroup_exists: true,
        answers: vec![answer],
    }
}

fn failed(id: &str, code: Option<&str>, started: bool) -> AuditedReceipt {
    let mut failed = audited(id, 2000, Answer::Missing);
    failed.receipt.limits.clear();
    failed.answers.clear();
    failed.receipt.container.uid = format!("uid-{id}");
    failed.receipt.failure = Some(Failure {
        code: code.map(str::to_owned),
        refused: code.is_some(),
        memory: LimitedMemory::Gpu,
        message: "no permission".to_owned(),
        started,
        promised: vec![GpuLimit::hard("GPU-1", 1 << 30)],
    });
    failed
}

fn seen(receipts: Vec<AuditedReceipt>) -> Observation {
    seen_at(2000, receipts)
}

fn seen_at(now_seconds: u64, receipts: Vec<AuditedReceipt>) -> Observation {
    Observation {
        now_seconds,
        limits_memory: true,
        receipts,
        held: Some(BTreeSet::from(["share-1".to_owned()])),
        ..Observation::default()
    }
}

fn reasons(audited: &Audited) -> Vec<&'static str> {
    audited.events.iter().map(|event| event.reason).collect()
}

const HELD: Answer = Answer::Held { used_bytes: 7 };

#[test]
fn each_answer_of_the_driver_has_a_meaning() {
    let limit = GpuLimit::hard("GPU-1", 1 << 30);
    let memory = |limits| Ok(CgroupMemory { limits, used_bytes: 7 });
    let refused = |code| {
        Err(MemoryLimitError::Refused {
            attempt: "reading".to_owned(),
            code,
        })
    };
    assert_eq!(answer(&limit, memory(MemoryLimits::hard(1 << 30))), HELD);
    assert_eq!(answer(&limit, memory(MemoryLimits::default())), Answer::Missing);
    assert!(matches!(
        answer(&limit, memory(MemoryLimits::hard(1))),
        Answer::Different(_)
    ));
    for code in [NvmlCode::NOT_SUPPORTED, NvmlCode::NOT_FOUND] {
        assert_eq!(answer(&limit, refused(code)), Answer::Missing);
    }
    for code in [NvmlCode::OPERATING_SYSTEM, NvmlCode::UNKNOWN] {
        assert!(matches!(answer(&limit, refused(code)), Answer::Unknown(_)));
    }
}

#[test]
fn a_limit_is_told_once_and_its_loss_once_more() {
    let mut audit = Audit::new(Repair::Evict, 1000);
    let first = audit.step(&seen(vec![audited("a", 1000, HELD)]));
    assert_eq!(reasons(&first), [EVENT_SET]);
    assert!(first.events[0].message.contains("1024 MiB on GPU GPU-1"), "{first:?}");
    assert_eq!(
        (first.rows[0].used_bytes, first.rows[0].enforced),
        (Some(7), Enforced::Yes)
    );
    assert!(audit.step(&seen(vec![audited("a", 1000, HELD)])).events.is_empty());

    let lost = audit.step(&seen(vec![audited("a", 1000, Answer::Missing)]));
    assert_eq!(reasons(&lost), [EVENT_MISSING]);
    assert_eq!((lost.rows[0].enforced, lost.summary.broken.len()), (Enforced::No, 1));
    assert!(lost.evict.is_empty(), "the driver may be in the middle of a reload");

    let again = audit.step(&seen(vec![audited("b", 1001, HELD)]));
    assert_eq!(reasons(&again), [EVENT_SET], "a restarted container");
    let other = audit.step(&seen(vec![audited("b", 1001, Answer::Different("5 bytes".to_owned()))]));
    assert!(other.events[0].message.contains("5 bytes") && other.events[0].message.contains("1073741824"));
}

/// How many pods are evicted in audits at these seconds, after one in which the limit held.
fn evictions(repair: Repair, limits_memory: bool, seconds: &[u64]) -> Vec<usize> {
    let mut audit = Audit::new(repair, 1000);
    audit.step(&seen_at(1000, vec![audited("a", 1000, HELD)]));
    let audits = seconds.iter().map(|now| Observation {
        limits_memory,
        ..seen_at(*now, vec![audited("a", 1000, Answer::Missing)])
    });
    audits.map(|observation| audit.step(&observation).evict.len()).collect()
}

#[test]
fn a_pod_is_evicted_after_its_limit_was_gone_for_a_while_and_again_after_a_pause() {
    let seconds = [1001, 1002, 1030, 1031, 1032, 1090, 1091];
    assert_eq!(evictions(Repair::Evict, true, &seconds), [0, 0, 0, 1, 0, 0, 1]);
    assert_eq!(evictions(Repair::None, true, &seconds), [0; 7]);
    assert_eq!(
        evictions(Repair::Evict, false, &seconds),
        [0; 7],
        "the node has another tier"
    );
}

#[test]
fn a_container_whose_limit_was_never_seen_is_not_evicted() {
    let mut audit = Audit::new(Repair::Evict, 1000);
    for now in [1001, 1100, 1200] {
        let result = audit.step(&seen_at(now, vec![audited("a", 900, Answer::Missing)]));
        assert_eq!((result.summary.broken.len(), result.evict.len()), (1, 0));
    }
}

#[test]
fn a_driver_that_does_not_answer_is_no_missing_limit() {
    let mut audit = Audit::new(Repair::Evict, 1000);
    audit.step(&seen(vec![audited("a", 1000, HELD)]));
    for _ in 0..3 {
        let unknown = audit.step(&seen(vec![audited("a", 1000, Answer::Unknown("lost".to_owned()))]));
        assert!(unknown.events.is_empty() && unknown.evict.is_empty() && unknown.summary.broken.is_empty());
        assert_eq!(unknown.rows[0].enforced, Enforced::Unknown);
        assert_eq!(unknown.summary.unreadable.as_deref(), Some("lost"));
    }
}

#[test]
fn a_restarted_agent_tells_no_old_news() {
    let mut audit = Audit::new(Repair::None, 5000);
    assert!(audit.step(&seen(vec![audited("a", 1000, HELD)])).events.is_empty());
    assert_eq!(
        reasons(&audit.step(&seen(vec![audited("a", 1000, Answer::Missing)]))),
        [EVENT_MISSING]
    );
}

#[test]
fn refusals_of_three_pods_in_a_row_end_the_tier() {
    let mut audit = Audit::new(Repair::None, 1000);
    let mut step = |receipt| audit.step(&seen(vec![receipt]));
    for (id, code) in [("a", Some("NO_PERMISSION")), ("b", Some("UNKNOWN"))] {
        let result = step(failed(id, code, false));
        assert_eq!((reasons(&result), result.give_up), (vec![EVENT_FAILED], None));
        assert_eq!(result.failures, [code.unwrap()]);
    }
    assert!(
        step(audited("c", 2000, HELD)).give_up.is_none(),
        "a success starts the count anew"
    );
    for id in ["d", "e"] {
        assert!(step(failed(id, Some("UNKNOWN"), false)).give_up.is_none());
    }
    let mut again = failed("e", Some("UNKNOWN"), false);
    again.receipt.at_seconds += 1;
    assert!(step(again).give_up.is_none(), "the same pod again");
    let mut old = failed("old", Some("UNKNOWN"), false);
    old.receipt.at_seconds = 999;
    assert_eq!(
        step(old).give_up,
        None,
        "the operator has repaired the cause and restarted the agent"
    );
    let other = step(failed("f", None, false));
    assert_eq!(
        (other.failures, other.give_up),
        (vec!["other".to_owned()], None),
        "not the driver's"
    );
    assert!(
        step(failed("g", Some("UNKNOWN"), false))
            .give_up
            .unwrap()
            .contains("3 pods in a row")
    );
    assert!(
        step(failed("g", Some("UNKNOWN"), false)).failures.is_empty(),
        "counted once"
    );
    audit.new_driver();
    assert!(audit.step(&Observation::default()).give_up.is_none());
}

#[test]
fn a_container_that_the_policy_let_in_is_broken_and_not_evicted() {
    let mut audit = Audit::new(Repair::Evict, 1000);
    for _ in 0..2 {
        let result = audit.step(&seen(vec![failed("a", Some("UNKNOWN"), true)]));
        assert_eq!((result.summary.broken.len(), result.evict.len()), (1, 0));
        assert_eq!(rows(&result), [("GPU-1", Some(1 << 30), Enforced::No)]);
    }
    let result = audit.step(&seen(vec![failed("b", Some("UNKNOWN"), false)]));
    assert!(
        result.summary.broken.is_empty() && result.rows.is_empty(),
        "it does not run"
    );
    // The driver did not answer in time, so the receipt has no cgroup.
    let mut unknown_place = failed("c", Some("TIMEOUT"), true);
    unknown_place.receipt.cgroup.clear();
    unknown_place.cgroup_exists = false;
    let mut observation = seen(vec![unknown_place]);
    let result = audit.step(&observation);
    assert!(result.summary.broken[0].contains("team/half") && result.rows.len() == 1);
    observation.held = Some(BTreeSet::new());
    assert!(audit.step(&observation).summary.broken.is_empty(), "its pod is gone");
}

#[test]
fn receipts_go_with_their_containers() {
    let mut audit = Audit::new(Repair::None, 1000);
    let mut gone = audited("a", 1000, Answer::Unknown("gone".to_owned()));
    gone.cgroup_exists = false;
    let between_starts = audit.step(&seen(vec![gone.clone()]));
    assert!(between_starts.remove.is_empty() && between_starts.rows.is_empty());
    let mut observation = seen(vec![gone]);
    observation.held = None;
    assert!(
        audit.step(&observation).remove.is_empty(),
        "the kubelet does not answer"
    );
    observation.held = Some(BTreeSet::new());
    assert_eq!(audit.step(&observation).remove, ["share-1"]);
    observation.receipts[0].cgroup_exists = true;
    assert!(audit.step(&observation).remove.is_empty(), "it still runs");
}

#[test]
fn a_lift_that_failed_is_counted_and_logged_and_says_nothing_about_the_tier() {
    let mut audit = Audit::new(Repair::None, 0);
    let lift = |id: &str| ("GPU-1".to_owned(), failed(id, Some("NO_PERMISSION"), true).receipt);
    let seen = Observation {
        failed_lifts: ["a", "b", "c", "d"].map(lift).into(),
        ..seen(Vec::new())
    };
    let audited = audit.step(&seen);
    assert_eq!(audited.failures, ["NO_PERMISSION"; 4]);
    assert_eq!(audited.warnings.len(), 4);
    assert!(
        audited.warnings[0].contains("container a") && audited.warnings[0].contains("GPU-1"),
        "{:?}",
        audited.warnings
    );
    assert_eq!((audited.events.len(), audited.give_up), (0, None));
}

fn without_receipt(promised: Option<Vec<GpuLimit>>, audits: u32) -> WithoutReceipt {
    WithoutReceipt {
        container: receipt("a").container,
        container_id: "containerd://a".to_owned(),
        gpus: vec!["GPU-1".to_owned(), "GPU-2".to_owned()],
        promised,
        audits,
    }
}

/// GPU, limit and state of each row.
fn rows(audited: &Audited) -> Vec<(&str, Option<u64>, Enforced)> {
    let rows = audited.rows.iter();
    rows.map(|row| (row.gpu.as_str(), row.limit_bytes, row.enforced))
        .collect()
}

#[test]
fn containers_from_before_the_tier_are_named_and_have_rows() {
    let mut audit = Audit::new(Repair::Evict, 1000);
    let mut observation = seen(Vec::new());
    observation.without_receipt.push(without_receipt(None, 1));
    for _ in 0..2 {
        let result = audit.step(&observation);
        assert_eq!(result.summary.unlimited, ["team/half, container main"]);
        assert_eq!(
            rows(&result),
            [("GPU-1", None, Enforced::No), ("GPU-2", None, Enforced::No)]
        );
        assert!(result.events.is_empty() && result.evict.is_empty() && result.summary.broken.is_empty());
        observation.now_seconds += 1000;
    }
    observation.without_receipt[0].gpus.clear();
    assert_eq!(rows(&audit.step(&observation)), [("", None, Enforced::No)]);
}

#[test]
fn a_container_whose_hook_did_not_run_is_told_and_evicted_by_option() {
    let found = |audits, now_seconds| Observation {
        without_receipt: vec![without_receipt(Some(vec![GpuLimit::hard("GPU-1", 1 << 30)]), audits)],
        ..seen_at(now_seconds, Vec::new())
    };
    for (repair, evictions) in [(Repair::Evict, [0, 0, 0, 1, 0, 1]), (Repair::None, [0; 6])] {
        let mut audit = Audit::new(repair, 1000);
        let first = audit.step(&found(1, 1000));
        assert!(
            first.events.is_empty() && first.rows.is_empty() && first.summary.broken.is_empty(),
            "the container may be starting: {first:?}"
        );
        let told = audit.step(&found(2, 1030));
        assert_eq!(reasons(&told), [EVENT_MISSING]);
        assert!(
            told.events[0].message.contains("did not run the hook") && told.events[0].message.contains("runc or crun"),
            "{told:?}"
        );
        let mut evicted = Vec::new();
        for now in [1030, 1031, 1059, 1060, 1119, 1120] {
            let result = audit.step(&found(3, now));
            assert_eq!(rows(&result), [("GPU-1", Some(1 << 30), Enforced::No)]);
            assert!(result.events.is_empty() && result.summary.broken[0].contains("team/half"));
            evicted.push(result.evict.len());
        }
        assert_eq!(evicted, evictions);
        audit.step(&seen(Vec::new()));
        assert_eq!(reasons(&audit.step(&found(2, 1200))), [EVENT_MISSING], "another time");
    }
}
