//! Who is looked at next, and what was told already. Those never looked at come first, then those not looked at for longest.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault};

use kai_api::ObjectKey;
use kai_engine::model::Millis;
use rustc_hash::{FxHashMap, FxHasher};

/// A waiting pod is looked at again after this time. Reasons count nodes, and those counts change all the time; people don't read
/// faster.
const LOOK_AGAIN: Millis = Millis::seconds(5);

/// The rota of waiting pods.
#[derive(Debug, Default)]
pub(crate) struct Rota {
    by_time: BTreeSet<(Millis, Box<str>)>,
    pods: FxHashMap<Box<str>, Look>,
    gangs: FxHashMap<ObjectKey, Spoken>,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Millis,
    /// What was told last, and since when something was.
    told: Option<(u64, Millis)>,
}

/// What was told about a gang, and for which of its pods. Pods of one gang may wait for different reasons; as long as the one waits,
/// the others don't speak for the gang, or its condition would change with every look.
#[derive(Clone, Debug)]
struct Spoken {
    speaker: Box<str>,
    hash: u64,
}

impl Rota {
    /// The pod waits: it is looked at as soon as possible.
    pub(crate) fn add(&mut self, uid: &str) {
        let told = match self.pods.remove(uid) {
            Some(look) => {
                self.by_time.remove(&(look.at, uid.into()));
                look.told
            }
            None => None,
        };
        self.schedule(uid.into(), Millis(0), told);
    }

    /// Up to `max` pods whose time has come. Each must be given back with [`Rota::again`] or [`Rota::forget`].
    pub(crate) fn due(&mut self, now: Millis, max: usize) -> Vec<Box<str>> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some((at, _)) = self.by_time.first()
            && *at <= now
        {
            let (_, uid) = self.by_time.pop_first().expect("it was looked at just now");
            due.push(uid);
        }
        due
    }

    /// It still waits.
    pub(crate) fn again(&mut self, uid: Box<str>, now: Millis) {
        let told = self.pods.get(&uid).and_then(|look| look.told);
        self.schedule(uid, now + LOOK_AGAIN, told);
    }

    /// It does not wait any more.
    pub(crate) fn forget(&mut self, uid: &str) {
        if let Some(look) = self.pods.remove(uid) {
            self.by_time.remove(&(look.at, uid.into()));
        }
    }

    /// Notes what is told about a pod; since when it has been told of its waiting, if this text is news.
    pub(crate) fn tell(&mut self, uid: &str, text: &str, now: Millis) -> Option<Millis> {
        let look = self.pods.get_mut(uid)?;
        let (hash, since) = (hash(text), look.told.map_or(now, |(_, since)| since));
        let news = look.told.is_none_or(|(last, _)| last != hash);
        look.told = Some((hash, since));
        news.then_some(since)
    }

    /// Notes what is told about a gang on account of a pod of it; whether it is news.
    pub(crate) fn tell_gang(&mut self, gang: &ObjectKey, uid: &str, text: &str) -> bool {
        let hash = hash(text);
        if let Some(spoken) = self.gangs.get(gang) {
            let another_speaks = *spoken.speaker != *uid && self.pods.contains_key(&spoken.speaker);
            if another_speaks || spoken.hash == hash {
                return false;
            }
        }
        let speaker = uid.into();
        self.gangs.insert(gang.clone(), Spoken { speaker, hash });
        true
    }

    /// Nothing of the gang waits any more, or it is gone.
    pub(crate) fn forget_gang(&mut self, gang: &ObjectKey) {
        self.gangs.remove(gang);
    }

    /// Pods that wait.
    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    fn schedule(&mut self, uid: Box<str>, at: Millis, told: Option<(u64, Millis)>) {
        self.by_time.insert((at, uid.clone()));
        self.pods.insert(uid, Look { at, told });
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
        let mut rota = Rota::default();
        ["a", "b", "c"].into_iter().for_each(|uid| rota.add(uid));
        let first = rota.due(Millis(0), 2);
        assert_eq!(names(&first), ["a", "b"]);
        first.into_iter().for_each(|uid| rota.again(uid, Millis(0)));
        let second = rota.due(Millis(0), 2);
        assert_eq!(names(&second), ["c"], "the others had their turn");
        rota.forget("c");
        assert_eq!(names(&rota.due(Millis::seconds(5), 9)), ["a", "b"]);
    }

    #[test]
    fn one_pod_speaks_for_its_gang() {
        let mut rota = Rota::default();
        let gang = ObjectKey::new("a", "g");
        ["a", "b"].into_iter().for_each(|uid| rota.add(uid));
        assert!(rota.tell_gang(&gang, "a", "full"));
        assert!(!rota.tell_gang(&gang, "b", "bad claim"));
        assert!(rota.tell_gang(&gang, "a", "fuller"));
        rota.forget("a");
        assert!(rota.tell_gang(&gang, "b", "bad claim"));
    }

    #[test]
    fn only_news_is_told() {
        let mut rota = Rota::default();
        rota.add("a");
        let now = Millis::seconds;
        assert_eq!(rota.tell("a", "full", now(1)), Some(now(1)));
        assert_eq!(rota.tell("a", "full", now(2)), None);
        assert_eq!(
            rota.tell("a", "fuller", now(3)),
            Some(now(1)),
            "it waits since the first time"
        );
        rota.forget("a");
        assert_eq!(rota.tell("a", "full", now(4)), None, "it does not wait");
    }
}
