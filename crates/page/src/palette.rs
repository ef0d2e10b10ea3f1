//! Colours of queues. The style sheet has the colours; here queues get their classes.
//!
//! A queue begins at the colour that its name gives, so that its colour is the same on every page and after every restart. If another queue
//! with a smaller name has that colour, the queue takes the next free one: its colour depends on that queue too, but two queues never look
//! alike while there are colours left.

use rustc_hash::FxHashMap;

/// Colours in the style sheet. They can be told apart with any kind of colour vision.
const COLOURS: usize = 10;
/// Each colour is plain, or has stripes.
const LOOKS: usize = 2 * COLOURS;

const CLASSES: [&str; LOOKS] = [
    "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q0 st", "q1 st", "q2 st", "q3 st", "q4 st", "q5 st",
    "q6 st", "q7 st", "q8 st", "q9 st",
];

/// The class of pods of other schedulers, and of pods whose queue is unknown.
pub(crate) const FOREIGN: &str = "qf";
/// The class of other namespaces' work in a view with few namespaces.
pub(crate) const OTHER: &str = "qo";

/// The classes of queues.
#[derive(Debug)]
pub(crate) struct Palette<'a> {
    classes: FxHashMap<&'a str, &'static str>,
}

impl<'a> Palette<'a> {
    pub(crate) fn new(queues: impl IntoIterator<Item = &'a str>) -> Palette<'a> {
        let mut names: Vec<&str> = queues.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        let mut taken = [false; LOOKS];
        let mut classes = FxHashMap::default();
        for name in names {
            let first = (fnv(name) % COLOURS as u64) as usize;
            let plain = (0..COLOURS).map(|step| (first + step) % COLOURS);
            let mut looks = plain.clone().chain(plain.map(|look| look + COLOURS));
            let look = looks.find(|look| !taken[*look]).unwrap_or(first);
            taken[look] = true;
            classes.insert(name, CLASSES[look]);
        }
        Palette { classes }
    }

    pub(crate) fn class(&self, queue: &str) -> &'static str {
        self.classes.get(queue).copied().unwrap_or(FOREIGN)
    }
}

/// FNV-1a: the same on every machine and in every version.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_their_colours_and_differ() {
        let names: Vec<String> = (0..20).map(|number| format!("team-{number}")).collect();
        let all = Palette::new(names.iter().map(String::as_str));
        let again = Palette::new(names.iter().rev().map(String::as_str));
        let mut classes: Vec<&str> = names.iter().map(|name| all.class(name)).collect();
        assert!(names.iter().all(|name| all.class(name) == again.class(name)));
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), 20);
        assert_eq!(all.class("no queue"), FOREIGN);
    }

    #[test]
    fn more_queues_than_colours_share_them() {
        let names: Vec<String> = (0..50).map(|number| format!("team-{number}")).collect();
        let all = Palette::new(names.iter().map(String::as_str));
        assert!(names.iter().all(|name| CLASSES.contains(&all.class(name))));
    }
}
