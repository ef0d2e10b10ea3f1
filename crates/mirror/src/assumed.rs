//! Decisions that the watches do not show yet, and recent failures of bindings. The caller passes the time in.
//!
//! A decision counts as carried out at once (kube-scheduler: assume). While its write is in flight it has no deadline here, since the
//! write has a timeout of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use kai_api::Backoff;
use kai_engine::model::{BindInFlight, Millis};
use rustc_hash::FxHashMap;

/// The watch has to show the effect of a successful write within this time. Watches lag by seconds when an API server is overloaded;
/// to give up too early would assign the same resources twice.
const CONFIRM_TIMEOUT: Millis = Millis::seconds(60);
/// Pauses after failed bindings of one pod.
const BIND_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// A decision about a pod that counts as carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assumed {
    /// The pod is bound, with this node and these GPU groups.
    Bound(BindInFlight),
    /// The pod is being evicted, since this time.
    Evicting(Millis),
}

#[derive(Clone, Debug)]
struct Assumption {
    decision: Assumed,
    /// `None` while the write is in flight.
    deadline: Option<Millis>,
}

/// The consecutive failures of a pod's bindings; node and message are those of the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BindFailure {
    count: u32,
    pub node: String,
    pub message: String,
    pub retry_at: Millis,
    pub avoid_node_until: Millis,
}

/// Assumptions and failures by pod uid.
#[derive(Debug, Default)]
pub(crate) struct Assumptions {
    assumed: FxHashMap<Box<str>, Assumption>,
    bind_failures: FxHashMap<Box<str>, BindFailure>,
    /// When the mirror has to refresh a pod.
    deadlines: BTreeSet<(Millis, Box<str>)>,
}

impl Assumptions {
    pub(crate) fn assume(&mut self, uid: &str, decision: Assumed) {
        let deadline = None;
        self.assumed.insert(uid.into(), Assumption { decision, deadline });
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&Assumed> {
        self.assumed.get(uid).map(|assumption| &assumption.decision)
    }

    /// The write succeeded: from now on the watch has to show its effect in time.
    pub(crate) fn write_succeeded(&mut self, uid: &str, now: Millis) {
        if let Some(assumption) = self.assumed.get_mut(uid) {
            let deadline = now + CONFIRM_TIMEOUT;
            assumption.deadline = Some(deadline);
            self.deadlines.insert((deadline, uid.into()));
        }
    }

    /// The watch shows the decision, or its write failed.
    pub(crate) fn drop_assumption(&mut self, uid: &str) {
        self.assumed.remove(uid);
    }

    /// A binding of the pod failed. The pod is not placed during a pause, and not on this node during a second pause of that length.
    pub(crate) fn record_bind_failure(&mut self, uid: &str, node: &str, message: String, now: Millis) {
        let count = self
            .bind_failures
            .get(uid)
            .map_or(0, |failure| failure.count)
            .saturating_add(1);
        let pause = Millis(i64::try_from(BIND_BACKOFF.pause(count).as_millis()).unwrap_or(i64::MAX));
        let failure = BindFailure {
            count,
            node: node.to_owned(),
            message,
            retry_at: now + pause,
            avoid_node_until: now + pause + pause,
        };
        self.deadlines.insert((failure.retry_at, uid.into()));
        self.deadlines.insert((failure.avoid_node_until, uid.into()));
        self.bind_failures.insert(uid.into(), failure);
    }

    pub(crate) fn bind_failure(&self, uid: &str) -> Option<&BindFailure> {
        self.bind_failures.get(uid)
    }

    /// The pod is gone.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.assumed.remove(uid);
        self.bind_failures.remove(uid);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.assumed.is_empty() && self.bind_failures.is_empty()
    }

    /// The pod is bound: its earlier failures no longer delay it.
    pub(crate) fn clear_failures(&mut self, uid: &str) {
        self.bind_failures.remove(uid);
    }

    /// Pods to refresh by now, each with its assumption if that expired.
    pub(crate) fn due(&mut self, now: Millis) -> Vec<(Box<str>, Option<Assumed>)> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.deadlines.first()
            && *at <= now
        {
            let (_, uid) = self.deadlines.pop_first().expect("`first` found an element");
            let is_expired = |assumption: &Assumption| assumption.deadline.is_some_and(|deadline| deadline <= now);
            let expired = match self.assumed.get(&uid) {
                Some(assumption) if is_expired(assumption) => {
                    self.assumed.remove(&uid).map(|assumption| assumption.decision)
                }
                Some(_) | None => None,
            };
            due.push((uid, expired));
        }
        due
    }

    pub(crate) fn len(&self) -> usize {
        self.assumed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> Assumed {
        Assumed::Bound(BindInFlight {
            node: "n".to_owned(),
            gpu_groups: Vec::new(),
            volumes: Vec::new(),
        })
    }

    #[test]
    fn an_assumption_expires_only_after_its_write() {
        let mut assumptions = Assumptions::default();
        assumptions.assume("u", bound());
        assert_eq!(assumptions.due(Millis::seconds(1000)), []);
        assumptions.write_succeeded("u", Millis::seconds(1000));
        assert_eq!(assumptions.due(Millis::seconds(1059)), []);
        assert_eq!(assumptions.due(Millis::seconds(1060)), [("u".into(), Some(bound()))]);
        assert_eq!(assumptions.get("u"), None);
    }

    #[test]
    fn a_confirmed_assumption_does_not_expire() {
        let mut assumptions = Assumptions::default();
        assumptions.assume("u", bound());
        assumptions.write_succeeded("u", Millis(0));
        assumptions.drop_assumption("u");
        assert_eq!(assumptions.due(Millis::seconds(100)), [("u".into(), None)]);
    }

    #[test]
    fn pauses_grow_with_failures_up_to_a_minute() {
        let mut assumptions = Assumptions::default();
        let held = |assumptions: &mut Assumptions| {
            assumptions.record_bind_failure("u", "n", String::new(), Millis(0));
            assumptions.bind_failure("u").map(|failure| failure.retry_at.0 / 1000)
        };
        let pauses: Vec<_> = (0..8).filter_map(|_| held(&mut assumptions)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assumptions.clear_failures("u");
        assert_eq!(held(&mut assumptions), Some(1));
    }
}
