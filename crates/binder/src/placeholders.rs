//! GPUs that are held for nobody for a moment, so that a node has no choice but to give a lost reservation its own GPU back. Which GPU a
//! pod gets is the kubelet's choice, and it may choose the same wrong one each time. Kept in memory only: what is forgotten begins anew.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::GroupKey;

/// More than this many GPUs are on no machine.
const PLACEHOLDERS_MAX: u32 = 16;
/// A group whose GPU can't be had back keeps others from the node's GPUs while it tries: not more often than this.
const REST: Duration = Duration::from_secs(600);

/// How many placeholders each group needs. Few groups ever need one.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// A plain lock: held for map operations only.
    groups: Mutex<BTreeMap<GroupKey, Need>>,
}

#[derive(Debug, Default)]
struct Need {
    count: u32,
    /// How often it came to nothing.
    tries: u32,
    /// It was all in vain: nothing is tried before this time.
    rests_until: Option<Instant>,
}

impl Need {
    fn resting() -> Need {
        Need {
            count: 0,
            tries: 0,
            rests_until: Some(Instant::now() + REST),
        }
    }
}

impl Placeholders {
    /// The group got another GPU than its own: that one has to be out of the way next time.
    pub(crate) fn one_more(&self, key: &GroupKey) {
        let mut groups = self.lock();
        let need = groups.entry(key.clone()).or_default();
        if need.rests_until.is_none_or(|until| until <= Instant::now()) {
            need.count = (need.count + 1).min(PLACEHOLDERS_MAX);
            need.tries += 1;
            need.rests_until = None;
        }
        // Each try should hold one more of the GPUs: a node that goes on to give another one won't give this one.
        if need.tries > PLACEHOLDERS_MAX {
            *need = Need::resting();
        }
    }

    /// So many are enough.
    pub(crate) fn limit(&self, key: &GroupKey, count: u32) {
        if let Some(need) = self.lock().get_mut(key) {
            need.count = need.count.min(count);
        }
    }

    /// Whether it was all in vain lately: somebody else has the group's GPU.
    pub(crate) fn rests(&self, key: &GroupKey) -> bool {
        let until = self.lock().get(key).and_then(|need| need.rests_until);
        until.is_some_and(|until| until > Instant::now())
    }

    /// A pod with a GPU has left the node: it may have had one that a group waits for. Answers with the groups that may try again.
    pub(crate) fn wake(&self, node: &str) -> Vec<GroupKey> {
        let mut groups = self.lock();
        let of_node = groups.iter_mut().filter(|(key, _)| *key.node == *node);
        of_node
            .filter_map(|(key, need)| need.rests_until.take().map(|_| key.clone()))
            .collect()
    }

    /// The placeholders that the group needs, as groups of their own.
    pub(crate) fn of(&self, key: &GroupKey) -> Vec<GroupKey> {
        let count = self.lock().get(key).map_or(0, |need| need.count);
        (0..count).map(|number| placeholder(key, number)).collect()
    }

    /// Whether this is a placeholder that some group needs.
    pub(crate) fn is_needed(&self, key: &GroupKey) -> bool {
        let groups = self.lock();
        groups
            .iter()
            .any(|(group, need)| (0..need.count).any(|number| placeholder(group, number) == *key))
    }

    /// The node does not give the GPU back even so. Answers with the placeholders that are to go.
    pub(crate) fn give_up(&self, key: &GroupKey) -> Vec<GroupKey> {
        let present = self.of(key);
        if let Some(need) = self.lock().get_mut(key).filter(|need| need.count > 0) {
            *need = Need::resting();
        }
        present
    }

    /// The group is well, or gone. Answers with all placeholders that there may be.
    pub(crate) fn end(&self, key: &GroupKey) -> Vec<GroupKey> {
        match self.lock().remove(key) {
            Some(_) => (0..PLACEHOLDERS_MAX).map(|number| placeholder(key, number)).collect(),
            None => Vec::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GroupKey, Need>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn placeholder(key: &GroupKey, number: u32) -> GroupKey {
    GroupKey::new(&key.node, &format!("{}-placeholder-{number}", key.group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_needs_one_more_until_the_group_is_well() {
        let (placeholders, key) = (Placeholders::default(), GroupKey::new("n", "g"));
        assert!(placeholders.of(&key).is_empty() && placeholders.end(&key).is_empty());
        placeholders.one_more(&key);
        placeholders.one_more(&key);
        let two = placeholders.of(&key);
        assert_eq!(two.len(), 2);
        assert!(two.iter().all(|one| placeholders.is_needed(one)) && !placeholders.is_needed(&key));
        placeholders.limit(&key, 1);
        assert_eq!(placeholders.of(&key), two[..1]);
        assert!(placeholders.end(&key).starts_with(&two));
        assert!(!placeholders.is_needed(&two[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_in_vain_is_not_tried_again_soon() {
        let (placeholders, key) = (Placeholders::default(), GroupKey::new("n", "g"));
        assert!(placeholders.give_up(&key).is_empty());
        placeholders.one_more(&key);
        assert!(!placeholders.rests(&key));
        assert_eq!(placeholders.give_up(&key).len(), 1);
        placeholders.one_more(&key);
        assert!(placeholders.of(&key).is_empty() && placeholders.rests(&key));
        tokio::time::sleep(REST).await;
        assert!(!placeholders.rests(&key));
        for _ in 0..PLACEHOLDERS_MAX {
            placeholders.one_more(&key);
            placeholders.limit(&key, 0);
        }
        placeholders.one_more(&key);
        assert!(
            placeholders.rests(&key),
            "a node that never gives it is not asked for ever"
        );
        tokio::time::sleep(REST).await;
        placeholders.one_more(&key);
        assert_eq!(placeholders.of(&key).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gpu_that_may_be_free_again_ends_the_rest() {
        let (placeholders, key) = (Placeholders::default(), GroupKey::new("n", "g"));
        placeholders.one_more(&key);
        assert!(placeholders.wake("n").is_empty(), "it does not rest");
        placeholders.give_up(&key);
        assert!(placeholders.wake("m").is_empty() && placeholders.rests(&key));
        assert_eq!(placeholders.wake("n"), std::slice::from_ref(&key));
        assert!(!placeholders.rests(&key));
    }
}
