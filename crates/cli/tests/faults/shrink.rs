//! Shrinks a plan that fails: fewer kinds of faults, then fewer steps, while it still fails.

use crate::plan::{Plan, Step};

/// Runs that are tried; each takes a fraction of a second.
const TRIES_MAX: usize = 150;

/// A smaller plan that fails too.
pub(crate) fn shrunk(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    let mut tries = 0;
    let mut try_out = |candidate: Plan, best: &mut Plan| {
        tries += 1;
        let better = tries <= TRIES_MAX && fails(&candidate);
        if better {
            *best = candidate;
        }
        better
    };
    for kind in 0..best.rates.clone().each().len() {
        let mut calmer = best.clone();
        *calmer.rates.each()[kind] = 0;
        try_out(calmer, &mut best);
    }
    let mut chunk = best.steps.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < best.steps.len() {
            let mut shorter = best.clone();
            shorter.steps.drain(at..(at + chunk).min(shorter.steps.len()));
            if !try_out(shorter, &mut best) {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    best
}

#[test]
fn only_what_it_takes_to_fail_is_left() {
    let plan = Plan::drawn(1);
    let creates = |plan: &Plan| {
        let creates = |step: &Step| matches!(step, Step::Create { .. });
        plan.steps.iter().filter(|(step, _)| creates(step)).count()
    };
    let mut least = shrunk(&plan, |plan| creates(plan) >= 2);
    assert_eq!((least.steps.len(), creates(&least)), (2, 2));
    assert!(least.rates.each().iter().all(|rate| **rate == 0));
    assert_eq!(least.nodes.len(), plan.nodes.len(), "the cluster stays as it is");
}
