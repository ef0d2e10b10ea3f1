//! Placeholders: reservation pods without users that occupy the other GPUs of a node for a moment, so that the kubelet has to give a
//! recreated reservation pod the group's own GPU. Without them the kubelet may choose the same wrong GPU each time. Kept in memory only:
//! after a restart the count begins at zero.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::GpuGroupKey;

/// No machine has more GPUs than this.
const PLACEHOLDERS_MAX: u32 = 16;
/// Pause after a group could not get its GPU back for the first time; it doubles with each further failure. Each try keeps other pods from
/// the node's GPUs for a moment.
const FIRST_COOLDOWN: Duration = Duration::from_secs(15);
const LONGEST_COOLDOWN: Duration = Duration::from_secs(600);

/// The number of placeholders that each group needs. Few groups ever need one.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// A plain lock: held for map operations only.
    groups: Mutex<BTreeMap<GpuGroupKey, PlaceholderNeed>>,
}

#[derive(Debug, Default)]
struct PlaceholderNeed {
    count: u32,
    /// Tries in which the group got another GPU.
    tries: u32,
    /// Cooldowns since the group had its GPU.
    cooldowns: u32,
    /// The group can't get its GPU now: no try before this time.
    cooldown_until: Option<Instant>,
}

impl PlaceholderNeed {
    fn start_cooldown(&mut self) {
        let doubled = FIRST_COOLDOWN.saturating_mul(2_u32.saturating_pow(self.cooldowns));
        *self = PlaceholderNeed {
            count: 0,
            tries: 0,
            cooldowns: self.cooldowns.saturating_add(1),
            cooldown_until: Some(Instant::now() + doubled.min(LONGEST_COOLDOWN)),
        };
    }
}

impl Placeholders {
    /// The group got another GPU than its own: one more placeholder occupies that GPU in the next try.
    pub(crate) fn add_blocker(&self, key: &GpuGroupKey) {
        let mut groups = self.groups.lock();
        let need = groups.entry(key.clone()).or_default();
        if need.cooldown_until.is_none_or(|until| until <= Instant::now()) {
            need.count = (need.count + 1).min(PLACEHOLDERS_MAX);
            need.tries += 1;
            need.cooldown_until = None;
        }
        // Each try occupies one more GPU. After more tries than GPUs the node won't give the group its own.
        if need.tries > PLACEHOLDERS_MAX {
            need.start_cooldown();
        }
    }

    /// Reduces the group's placeholders to `count`.
    pub(crate) fn limit(&self, key: &GpuGroupKey, count: u32) {
        if let Some(need) = self.groups.lock().get_mut(key) {
            need.count = need.count.min(count);
        }
    }

    /// The rest of the group's cooldown: another pod has its GPU.
    pub(crate) fn cooldown_left(&self, key: &GpuGroupKey) -> Option<Duration> {
        let until = self.groups.lock().get(key)?.cooldown_until?;
        until
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }

    /// Ends the cooldown of all groups of the node, because a pod with whole GPUs has left it: its GPU may be a group's own. Returns the
    /// groups.
    pub(crate) fn end_cooldown(&self, node: &str) -> Vec<GpuGroupKey> {
        let mut groups = self.groups.lock();
        let of_node = groups.iter_mut().filter(|(key, _)| *key.node == *node);
        of_node
            .filter_map(|(key, need)| need.cooldown_until.take().map(|_| key.clone()))
            .collect()
    }

    /// The placeholders that the group needs. Each has a group key of its own.
    pub(crate) fn needed_for(&self, key: &GpuGroupKey) -> Vec<GpuGroupKey> {
        let count = self.groups.lock().get(key).map_or(0, |need| need.count);
        (0..count).map(|number| placeholder(key, number)).collect()
    }

    /// Whether the key is a placeholder that a group needs.
    pub(crate) fn is_needed(&self, key: &GpuGroupKey) -> bool {
        let groups = self.groups.lock();
        groups
            .iter()
            .any(|(group, need)| (0..need.count).any(|number| placeholder(group, number) == *key))
    }

    /// Starts the cooldown of a group with placeholders, because the node did not give its GPU back. Returns the placeholders to delete.
    pub(crate) fn start_cooldown(&self, key: &GpuGroupKey) -> Vec<GpuGroupKey> {
        let present = self.needed_for(key);
        if let Some(need) = self.groups.lock().get_mut(key).filter(|need| need.count > 0) {
            need.start_cooldown();
        }
        present
    }

    /// The group has its GPU, or no members. Returns all placeholders that may exist.
    pub(crate) fn clear(&self, key: &GpuGroupKey) -> Vec<GpuGroupKey> {
        match self.groups.lock().remove(key) {
            Some(_) => (0..PLACEHOLDERS_MAX).map(|number| placeholder(key, number)).collect(),
            None => Vec::new(),
        }
    }
}

fn placeholder(key: &GpuGroupKey, number: u32) -> GpuGroupKey {
    GpuGroupKey::new(&key.node, &format!("{}-placeholder-{number}", key.group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_needs_one_more_until_the_group_is_well() {
        let (placeholders, key) = (Placeholders::default(), GpuGroupKey::new("n", "g"));
        assert!(placeholders.needed_for(&key).is_empty() && placeholders.clear(&key).is_empty());
        placeholders.add_blocker(&key);
        placeholders.add_blocker(&key);
        let two = placeholders.needed_for(&key);
        assert_eq!(two.len(), 2);
        assert!(two.iter().all(|one| placeholders.is_needed(one)) && !placeholders.is_needed(&key));
        placeholders.limit(&key, 1);
        assert_eq!(placeholders.needed_for(&key), two[..1]);
        assert!(placeholders.clear(&key).starts_with(&two));
        assert!(!placeholders.is_needed(&two[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_in_vain_is_not_tried_again_soon() {
        let (placeholders, key) = (Placeholders::default(), GpuGroupKey::new("n", "g"));
        assert!(placeholders.start_cooldown(&key).is_empty());
        placeholders.add_blocker(&key);
        assert_eq!(placeholders.cooldown_left(&key), None);
        assert_eq!(placeholders.start_cooldown(&key).len(), 1);
        placeholders.add_blocker(&key);
        assert!(placeholders.needed_for(&key).is_empty());
        assert_eq!(placeholders.cooldown_left(&key), Some(FIRST_COOLDOWN));
        tokio::time::sleep(FIRST_COOLDOWN).await;
        assert_eq!(placeholders.cooldown_left(&key), None);
        for _ in 0..PLACEHOLDERS_MAX {
            placeholders.add_blocker(&key);
            placeholders.limit(&key, 0);
        }
        placeholders.add_blocker(&key);
        let left = placeholders.cooldown_left(&key);
        assert_eq!(
            left,
            Some(FIRST_COOLDOWN * 2),
            "a node that never gives it is not asked for ever"
        );
        tokio::time::sleep(FIRST_COOLDOWN * 2).await;
        placeholders.add_blocker(&key);
        assert_eq!(placeholders.needed_for(&key).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn cooldowns_double_up_to_a_limit() {
        let (placeholders, key) = (Placeholders::default(), GpuGroupKey::new("n", "g"));
        let mut all = Vec::new();
        for _ in 0..40 {
            placeholders.add_blocker(&key);
            placeholders.start_cooldown(&key);
            let left = placeholders.cooldown_left(&key).unwrap();
            all.push(left.as_secs());
            tokio::time::sleep(left).await;
        }
        assert_eq!(all[..7], [15, 30, 60, 120, 240, 480, 600]);
        assert_eq!(all.last(), Some(&600));
        placeholders.clear(&key);
        placeholders.add_blocker(&key);
        placeholders.start_cooldown(&key);
        assert_eq!(placeholders.cooldown_left(&key), Some(FIRST_COOLDOWN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gpu_that_may_be_free_again_ends_the_rest() {
        let (placeholders, key) = (Placeholders::default(), GpuGroupKey::new("n", "g"));
        placeholders.add_blocker(&key);
        assert!(placeholders.end_cooldown("n").is_empty(), "it does not rest");
        placeholders.start_cooldown(&key);
        assert!(placeholders.end_cooldown("m").is_empty() && placeholders.cooldown_left(&key).is_some());
        assert_eq!(placeholders.end_cooldown("n"), std::slice::from_ref(&key));
        assert_eq!(placeholders.cooldown_left(&key), None);
    }
}
