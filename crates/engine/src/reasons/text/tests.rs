//! Tests of the texts.

use std::sync::Arc;

use super::words::Instant;
use crate::model::{Action, GangKey, Gpus, Millis};
use crate::reasons::{Check, EvictionReason, PodsLacking, QueueBound, Reason, Rejections, Resource, not_ready_text};

#[test]
fn a_gang_that_waits_for_pods_says_so_in_words_that_are_known_from_kai() {
    let lacking = |sub_group: Option<&str>| PodsLacking {
        sub_group: sub_group.map(str::to_owned),
        required: 2,
        existing: 1,
        gated: 0,
    };
    assert_eq!(
        not_ready_text(&[lacking(None)]),
        "Job is not ready for scheduling. Waiting for 2 pods, currently 1 exist, 0 are gated."
    );
    assert_eq!(
        not_ready_text(&[lacking(Some("a")), lacking(Some("b"))]),
        "Job is not ready for scheduling. Waiting for 2 pods for SubGroup a, currently 1 exist, 0 are gated. \
         Waiting for 2 pods for SubGroup b, currently 1 exist, 0 are gated."
    );
}

#[test]
fn instants_are_written_as_dates() {
    let check = |seconds: i64, expect: &str| assert_eq!(Instant(Millis::seconds(seconds)).to_string(), expect);
    check(0, "1970-01-01T00:00:00Z");
    check(951_782_399, "2000-02-28T23:59:59Z");
    check(951_782_400, "2000-02-29T00:00:00Z");
    check(1_767_268_800, "2026-01-01T12:00:00Z");
    check(4_107_542_400, "2100-03-01T00:00:00Z");
}

#[test]
fn a_queue_is_missing_by_name_or_by_the_queue_above_it() {
    let check = |reason: Reason, expect: &str| assert_eq!(reason.to_string(), expect);
    check(Reason::QueueMissing("team".to_owned()), "queue team does not exist");
    check(
        Reason::QueueMissing(String::new()),
        "the pod group names no queue; write the name of one into spec.queue",
    );
    let cut_off = |missing: Option<&str>| Reason::QueueDisconnected {
        queue: "team".to_owned(),
        missing: missing.map(str::to_owned),
    };
    check(
        cut_off(Some("company")),
        "queue team waits for queue company above it, which does not exist; create company, or change spec.parentQueue of the \
         queue that names it",
    );
    check(
        cut_off(None),
        "queue team is below itself; change spec.parentQueue of one of the queues above it",
    );
}

#[test]
fn a_name_that_is_no_word_is_in_quotes() {
    let check = |name: &str, expect: &str| {
        assert_eq!(Reason::QueueMissing(name.to_owned()).to_string(), expect);
    };
    check("team-a.b_c", "queue team-a.b_c does not exist");
    check("   ", "queue \"   \" does not exist");
    check("a b", "queue \"a b\" does not exist");
    check("a\n", "queue \"a\\n\" does not exist");
}

#[test]
fn holders_of_one_name_are_summed() {
    let holder = |name: &str, millionths: i64| {
        let key = GangKey {
            namespace: "a".to_owned(),
            name: name.to_owned(),
        };
        (key, Gpus(millionths))
    };
    let held = Reason::NoNode(Rejections {
        checks: vec![(Check::Gpus, 2)],
        holders: Arc::new([
            holder("train", 400_000),
            holder("model-0", 250_000),
            holder("model-1", 250_000),
            holder("a", 200_000),
            holder("b", 100_000),
        ]),
        ..Rejections::default()
    });
    let name = |gang: &GangKey| match gang.name.split_once('-') {
        Some((name, _)) => format!("Deployment a/{name}"),
        None => format!("Job a/{}", gang.name),
    };
    let told = held.with_names(&name).to_string();
    assert!(
        told.ends_with("; held by Deployment a/model (0.5 GPUs), Job a/train (0.4 GPUs), Job a/a (0.2 GPUs)"),
        "{told}"
    );
}

#[test]
fn nodes_are_counted_in_words_that_are_known_from_kai() {
    let rejections = Rejections {
        checks: vec![(Check::Gpus, 2), (Check::PodSlots, 1), (Check::Extended, 1)],
        extended: vec!["nvidia.com/mig-1g.5gb".to_owned()],
        holders: Arc::default(),
        search_cut: false,
    };
    let expect = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs, \
                  1 node(s) pod number exceeded, 1 node(s) didn't have enough of mig profile: nvidia.com/mig-1g.5gb";
    assert_eq!(Reason::NoNode(rejections).to_string(), expect);
}

#[test]
fn gangs_are_called_as_the_reader_knows_them() {
    let gang = GangKey {
        namespace: "a".to_owned(),
        name: "pg-llm-0-uid".to_owned(),
    };
    let name = |gang: &GangKey| format!("Deployment {}/llm", gang.namespace);
    let held = Reason::NoNode(Rejections {
        checks: vec![(Check::Gpus, 2)],
        extended: Vec::new(),
        holders: Arc::new([(gang.clone(), Gpus::ONE)]),
        search_cut: false,
    });
    assert!(
        held.with_names(&name)
            .to_string()
            .ends_with("; held by Deployment a/llm (1 GPU)")
    );
    assert!(held.to_string().ends_with("; held by a/pg-llm-0-uid (1 GPU)"));
    let evicted = EvictionReason::For {
        action: Action::Preempt,
        gang: Arc::new(gang),
        moved: false,
        pods: 1,
        fairness: None,
    };
    assert_eq!(
        evicted.with_names(&name).to_string(),
        "preempted by Deployment a/llm (1 pod in all)"
    );
}

#[test]
fn what_was_cut_short_says_so() {
    let rejections = Rejections {
        checks: vec![(Check::Gpus, 2)],
        search_cut: true,
        ..Rejections::default()
    };
    let expect = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs; the search for \
                  gangs to make room was cut short and goes on in a later cycle";
    assert_eq!(Reason::NoNode(rejections).to_string(), expect);
    let expect = "the search for a place was cut short by the cycle's budget of work and goes on in the next cycles";
    assert_eq!(Reason::CutShort.to_string(), expect);
}

#[test]
fn amounts_read_naturally() {
    let bound = QueueBound {
        queue: "team".to_owned(),
        resource: Resource::Gpu,
        bound: 1_000_000,
        used: 500_000,
        requested: 2_000_000,
    };
    let expect = "over the limit of queue team: 1 GPU, 0.5 GPUs in use, 2 GPUs more asked for";
    assert_eq!(Reason::OverLimit(bound).to_string(), expect);
}
