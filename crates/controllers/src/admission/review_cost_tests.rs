//! Tests: the steps of work that reviews of the largest objects take.

#![cfg(debug_assertions)]

use kai_embedded::large_objects::{List, check_growth, lengths};

use super::args::{Feature, Settings};
use super::review::{Operation, Request};
use super::server::{State, Webhook};

fn state() -> State {
    let settings = Settings {
        block_visible_devices: Feature::On,
        ..Settings::default()
    };
    State::new(settings, Vec::new(), |_| true, &kai_cluster::Metrics::default())
}

/// The steps that all reviews of the object take.
fn steps(state: &State, list: List, length: usize) -> u64 {
    let object = list.object(length);
    let webhooks: &[Webhook] = match object["kind"].as_str() {
        Some("Pod") => &[Webhook::MutatePod, Webhook::ValidatePod, Webhook::ValidatePodResize],
        Some("PodGroup") => &[Webhook::ValidatePodGroup],
        Some("Topology") => &[Webhook::ValidateTopology],
        other => panic!("{other:?} is reviewed by nobody"),
    };
    let of = |operation, old_object| Request {
        operation,
        namespace: "a".into(),
        object: object.clone(),
        old_object,
        ..Request::default()
    };
    let pod_group = kai_api::PodGroup::default();
    let requests = [
        of(Operation::Create, serde_json::Value::Null),
        of(Operation::Update, object.clone()),
    ];
    let ((), steps) = kai_engine::steps::of(|| {
        for webhook in webhooks {
            for request in &requests {
                state.review(*webhook, request, Some(&pod_group));
            }
        }
    });
    steps
}

#[test]
fn reviews_of_the_largest_objects_take_steps_by_their_length() {
    let state = state();
    for list in List::ALL {
        for length in lengths(list) {
            let checked = check_growth(length, |length| steps(&state, list, length));
            assert_eq!(checked, Ok(()), "{list:?}");
        }
    }
}

#[test]
fn a_review_that_compares_entries_in_pairs_would_be_found() {
    let in_pairs = |length: usize| {
        let object = List::Tolerations.object(length);
        let list = || super::unstructured::list(&object, "/spec/tolerations");
        let ((), steps) = kai_engine::steps::of(|| {
            for one in list() {
                let same = |other: &serde_json::Value| other["key"] == one["key"];
                assert_eq!(list().iter().filter(|other| same(other)).count(), 1);
            }
        });
        steps
    };
    for length in [64, 512] {
        assert!(check_growth(length, in_pairs).is_err());
    }
}
