//! The order in which pending pods are explained, and the last message of each. New pods come first, then those not explained for longest.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault};

use kai_api::ObjectKey;
use kai_engine::model::Millis;
use rustc_hash::{FxHashMap, FxHasher};

/// The time until a pending pod is explained again. Reasons count nodes, and these counts change with every cycle.
const EXPLAIN_PERIOD: Millis = Millis::seconds(5);

/// The pending pods by the time of their next explanation. The driver owns it.
#[derive(Debug, Default)]
pub(crate) struct ExplainQueue {
    by_time: BTreeSet<(Millis, Box<str>)>,
    pods: FxHashMap<Box<str>, QueuedPod>,
    gangs: FxHashMap<ObjectKey, GangMessage>,
}

#[derive(Clone, Copy, Debug)]
struct QueuedPod {
    due: Millis,
    /// Hash of the last message, and time of the first one.
    message: Option<(u64, Millis)>,
}

/// The last message about a gang, and the pod whose reason it has. Pods of one gang may have different reasons. While this pod is pending,
/// the other pods don't change the gang's condition; otherwise it would change with every explanation.
#[derive(Clone, Debug)]
struct GangMessage {
    pod: Box<str>,
    hash: u64,
}

impl ExplainQueue {
    /// The pod is pending: it is explained as soon as possible.
    pub(crate) fn add(&mut self, uid: &str) {
        let message = match self.pods.remove(uid) {
            Some(pod) => {
                self.by_time.remove(&(pod.due, uid.into()));
                pod.message
            }
            None => None,
        };
        self.schedule(uid.into(), Millis(0), message);
    }

    /// Takes up to `max` pods that are due. The caller returns each with [`ExplainQueue::requeue`] or [`ExplainQueue::remove`].
    pub(crate) fn due(&mut self, now: Millis, max: usize) -> Vec<Box<str>> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some((at, _)) = self.by_time.first()
            && *at <= now
        {
            let (_, uid) = self.by_time.pop_first().expect("`first` found an element");
            due.push(uid);
        }
        due
    }

    /// The pod is still pending.
    pub(crate) fn requeue(&mut self, uid: Box<str>, now: Millis) {
        let message = self.pods.get(&uid).and_then(|pod| pod.message);
        self.schedule(uid, now + EXPLAIN_PERIOD, message);
    }

    /// The pod is no longer pending.
    pub(crate) fn remove(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            self.by_time.remove(&(pod.due, uid.into()));
        }
    }

    /// Records a message about a pod. If it is a new one, returns the time of the pod's first message.
    pub(crate) fn record_message(&mut self, uid: &str, text: &str, now: Millis) -> Option<Millis> {
        let pod = self.pods.get_mut(uid)?;
        let (hash, since) = (hash(text), pod.message.map_or(now, |(_, since)| since));
        let is_new = pod.message.is_none_or(|(last, _)| last != hash);
        pod.message = Some((hash, since));
        is_new.then_some(since)
    }

    /// Records a message about a gang, with the reason of this pod. Returns whether it has to be written.
    pub(crate) fn record_gang_message(&mut self, gang: &ObjectKey, uid: &str, text: &str) -> bool {
        let hash = hash(text);
        if let Some(last) = self.gangs.get(gang) {
            let is_of_other_pod = *last.pod != *uid && self.pods.contains_key(&last.pod);
            if is_of_other_pod || last.hash == hash {
                return false;
            }
        }
        let pod = uid.into();
        self.gangs.insert(gang.clone(), GangMessage { pod, hash });
        true
    }

    /// The gang has no pending pods any more, or is gone.
    pub(crate) fn remove_gang(&mut self, gang: &ObjectKey) {
        self.gangs.remove(gang);
    }

    /// The number of pending pods.
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    fn schedule(&mut self, uid: Box<str>, due: Millis, message: Option<(u64, Millis)>) {
        self.by_time.insert((due, uid.clone()));
        self.pods.insert(uid, QueuedPod { due, message });
    }
}

fn hash(text: &str) -> u64 {
    BuildHasherDefault::<FxHasher>::default().hash_one(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(due: &[Box<str>]) -> Vec<&str> {
        due.iter().map(|uid| &**uid).collect()
    }

    #[test]
    fn everyone_gets_a_turn() {
        let mut queue = ExplainQueue::default();
        ["a", "b", "c"].into_iter().for_each(|uid| queue.add(uid));
        let first = queue.due(Millis(0), 2);
        assert_eq!(names(&first), ["a", "b"]);
        first.into_iter().for_each(|uid| queue.requeue(uid, Millis(0)));
        let second = queue.due(Millis(0), 2);
        assert_eq!(names(&second), ["c"], "the others had their turn");
        queue.remove("c");
        assert_eq!(names(&queue.due(Millis::seconds(5), 9)), ["a", "b"]);
    }

    #[test]
    fn one_pod_speaks_for_its_gang() {
        let mut queue = ExplainQueue::default();
        let gang = ObjectKey::new("a", "g");
        ["a", "b"].into_iter().for_each(|uid| queue.add(uid));
        assert!(queue.record_gang_message(&gang, "a", "full"));
        assert!(!queue.record_gang_message(&gang, "b", "bad claim"));
        assert!(queue.record_gang_message(&gang, "a", "fuller"));
        queue.remove("a");
        assert!(queue.record_gang_message(&gang, "b", "bad claim"));
    }

    #[test]
    fn only_news_is_told() {
        let mut queue = ExplainQueue::default();
        queue.add("a");
        let now = Millis::seconds;
        assert_eq!(queue.record_message("a", "full", now(1)), Some(now(1)));
        assert_eq!(queue.record_message("a", "full", now(2)), None);
        assert_eq!(
            queue.record_message("a", "fuller", now(3)),
            Some(now(1)),
            "it waits since the first time"
        );
        queue.remove("a");
        assert_eq!(queue.record_message("a", "full", now(4)), None, "it does not wait");
    }
}
