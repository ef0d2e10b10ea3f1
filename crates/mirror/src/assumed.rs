//! What was decided and is not yet seen, and what lately failed. Pure book-keeping with deadlines; time comes in from outside.
//!
//! A decision counts as carried out at once. While its write is on the way it has no deadline, since writes have one of their own.

use std::collections::BTreeSet;
use std::time::Duration;

use kai_api::Backoff;
use kai_engine::model::{BindInFlight, Millis};
use rustc_hash::FxHashMap;

/// After a write that went well, the watch has to show its effect within this time. Watches lag by seconds when an API server is
/// in trouble; giving up too early would promise the place twice.
const SEEN_WITHIN: Millis = Millis::seconds(60);
/// Pauses after failed bindings of one pod.
const PAUSES: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// Something decided for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assumed {
    /// It is bound.
    Bound(BindInFlight),
    /// It was told to leave then.
    Leaving(Millis),
}

#[derive(Clone, Debug)]
struct Assumption {
    what: Assumed,
    /// `None` while the write is on the way.
    deadline: Option<Millis>,
}

/// The last failures of a pod's bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    count: u32,
    pub node: String,
    pub message: String,
    pub held_until: Millis,
    pub avoided_until: Millis,
}

/// All of it, by uid of the pod.
#[derive(Debug, Default)]
pub(crate) struct Assumptions {
    assumed: FxHashMap<Box<str>, Assumption>,
    failures: FxHashMap<Box<str>, Failure>,
    /// When to look at a pod again.
    alarms: BTreeSet<(Millis, Box<str>)>,
}

impl Assumptions {
    pub(crate) fn assume(&mut self, uid: &str, what: Assumed) {
        self.assumed.insert(uid.into(), Assumption { what, deadline: None });
    }

    pub(crate) fn of(&self, uid: &str) -> Option<&Assumed> {
        self.assumed.get(uid).map(|assumption| &assumption.what)
    }

    /// The write went well; its effect must be seen soon.
    pub(crate) fn written(&mut self, uid: &str, now: Millis) {
        if let Some(assumption) = self.assumed.get_mut(uid) {
            let deadline = now + SEEN_WITHIN;
            assumption.deadline = Some(deadline);
            self.alarms.insert((deadline, uid.into()));
        }
    }

    /// The cluster shows it, or it failed.
    pub(crate) fn drop_assumption(&mut self, uid: &str) {
        self.assumed.remove(uid);
    }

    /// A binding of the pod failed: it is held back, and then kept away from the node for as long again.
    pub(crate) fn failed(&mut self, uid: &str, node: &str, message: String, now: Millis) {
        let count = self
            .failures
            .get(uid)
            .map_or(0, |failure| failure.count)
            .saturating_add(1);
        let pause = Millis(i64::try_from(PAUSES.pause(count).as_millis()).unwrap_or(i64::MAX));
        let failure = Failure {
            count,
            node: node.to_owned(),
            message,
            held_until: now + pause,
            avoided_until: now + pause + pause,
        };
        self.alarms.insert((failure.held_until, uid.into()));
        self.alarms.insert((failure.avoided_until, uid.into()));
        self.failures.insert(uid.into(), failure);
    }

    pub(crate) fn failure(&self, uid: &str) -> Option<&Failure> {
        self.failures.get(uid)
    }

    /// The pod got its node, or is gone.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.assumed.remove(uid);
        self.failures.remove(uid);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.assumed.is_empty() && self.failures.is_empty()
    }

    /// It is bound: what failed before does not matter any more.
    pub(crate) fn forgive(&mut self, uid: &str) {
        self.failures.remove(uid);
    }

    /// Pods to look at again by now, each with what was assumed in vain.
    pub(crate) fn due(&mut self, now: Millis) -> Vec<(Box<str>, Option<Assumed>)> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.alarms.first()
            && *at <= now
        {
            let (_, uid) = self.alarms.pop_first().expect("it was looked at just now");
            let expired = |assumption: &Assumption| assumption.deadline.is_some_and(|deadline| deadline <= now);
            let in_vain = match self.assumed.get(&uid) {
                Some(assumption) if expired(assumption) => self.assumed.remove(&uid).map(|assumption| assumption.what),
                Some(_) | None => None,
            };
            due.push((uid, in_vain));
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
        })
    }

    #[test]
    fn an_assumption_expires_only_after_its_write() {
        let mut book = Assumptions::default();
        book.assume("u", bound());
        assert_eq!(book.due(Millis::seconds(1000)), []);
        book.written("u", Millis::seconds(1000));
        assert_eq!(book.due(Millis::seconds(1059)), []);
        assert_eq!(book.due(Millis::seconds(1060)), [("u".into(), Some(bound()))]);
        assert_eq!(book.of("u"), None);
    }

    #[test]
    fn a_confirmed_assumption_does_not_expire() {
        let mut book = Assumptions::default();
        book.assume("u", bound());
        book.written("u", Millis(0));
        book.drop_assumption("u");
        assert_eq!(book.due(Millis::seconds(100)), [("u".into(), None)]);
    }

    #[test]
    fn pauses_grow_with_failures_up_to_a_minute() {
        let mut book = Assumptions::default();
        let held = |book: &mut Assumptions| {
            book.failed("u", "n", String::new(), Millis(0));
            book.failure("u").map(|failure| failure.held_until.0 / 1000)
        };
        let pauses: Vec<_> = (0..8).filter_map(|_| held(&mut book)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        book.forgive("u");
        assert_eq!(held(&mut book), Some(1));
    }
}
