//! Makes the story of a failure shorter: fewer steps, fewer kinds of faults, as long as it still fails.

use crate::life::live;
use crate::plan::Plan;

/// Lives that are tried; each takes a fraction of a second.
const TRIES_MAX: usize = 150;

/// A plan that fails and has less in it.
pub(crate) fn shrunk(plan: &Plan) -> Plan {
    let mut best = plan.clone();
    let mut tries = 0;
    let mut try_out = |candidate: Plan, best: &mut Plan| {
        tries += 1;
        let better = tries <= TRIES_MAX && live(&candidate, false).is_err();
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
