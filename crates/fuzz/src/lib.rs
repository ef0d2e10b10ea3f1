//! Mutated inputs for fuzz tests. A test gives seeds and a check; the check is run on mutations of the seeds, and what it panics on is
//! printed. The usual run is short and the same every time. `KAI_FUZZ_SECONDS=600 cargo test -p CRATE -- --ignored long_run` goes on for
//! ten minutes, each time from another start.
//!
//! It knows nothing of coverage: the formats here are small, and the seeds reach every part of their readers.

mod bytes;
mod json;
mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

pub use random::Random;

/// Cases of a short run.
const SHORT_CASES: u64 = 2_000;
/// Seconds of a long run, unless the environment says otherwise.
const LONG_SECONDS: u64 = 60;
/// Longest mutated input.
pub const BYTES_MAX: usize = 64 * 1024;

/// One run over mutated inputs.
#[derive(Debug, Clone)]
pub struct Fuzz {
    name: &'static str,
    length: Length,
    start: u64,
}

#[derive(Debug, Clone, Copy)]
enum Length {
    Cases(u64),
    Time(Duration),
}

impl Fuzz {
    /// The same cases every time, for the usual test run.
    pub fn short(name: &'static str) -> Self {
        Self {
            name,
            length: Length::Cases(SHORT_CASES),
            start: 1,
        }
    }

    /// As many cases as `KAI_FUZZ_SECONDS` has time for.
    pub fn long(name: &'static str) -> Self {
        let seconds = std::env::var("KAI_FUZZ_SECONDS").ok();
        let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(LONG_SECONDS);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            name,
            length: Length::Time(Duration::from_secs(seconds)),
            start: now.as_nanos() as u64,
        }
    }

    /// With fewer cases in a short run, for checks that take long.
    pub fn at_most(mut self, cases: u64) -> Self {
        if let Length::Cases(most) = &mut self.length {
            *most = cases.min(*most);
        }
        self
    }

    /// Mutations of these bytes. `words` are texts and numbers that mean something in the format.
    pub fn bytes(self, seeds: &[Vec<u8>], words: &[&[u8]], check: impl Fn(&[u8])) {
        assert!(!seeds.is_empty(), "mutations are made of something");
        self.run(
            |random| bytes::mutated(seeds, words, random),
            |input: &Vec<u8>| input.escape_ascii().to_string(),
            |input| check(input),
        );
    }

    /// Mutations of these texts that are texts.
    pub fn texts(self, seeds: &[&str], words: &[&str], check: impl Fn(&str)) {
        let seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.bytes(&seeds, &words, |input| check(&String::from_utf8_lossy(input)));
    }

    /// Mutations of these trees, with values that programs trip over.
    pub fn json(self, seeds: &[Value], check: impl Fn(&Value)) {
        assert!(!seeds.is_empty(), "mutations are made of something");
        self.run(|random| json::mutated(seeds, random), Value::to_string, check);
    }

    /// Inputs that `make` makes.
    pub fn run<T>(self, mut make: impl FnMut(&mut Random) -> T, show: impl Fn(&T) -> String, check: impl Fn(&T)) {
        let began = Instant::now();
        let mut cases = 0;
        let mut slowest = Duration::ZERO;
        loop {
            let over = match self.length {
                Length::Cases(most) => cases >= most,
                Length::Time(most) => began.elapsed() >= most,
            };
            if over {
                break;
            }
            let mut random = Random::new(self.start.wrapping_add(cases));
            let input = make(&mut random);
            let started = Instant::now();
            let survived = catch_unwind(AssertUnwindSafe(|| check(&input)));
            assert!(survived.is_ok(), "{}: panicked on {}", self.name, show(&input));
            slowest = slowest.max(started.elapsed());
            cases += 1;
        }
        println!(
            "{}: {cases} cases in {} s, the slowest took {} ms",
            self.name,
            began.elapsed().as_secs(),
            slowest.as_millis()
        );
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_short_run_is_the_same_every_time_and_differs_from_its_seed() {
        let run = || {
            let seen = RefCell::new(Vec::new());
            Fuzz::short("test").bytes(&[b"seed".to_vec()], &[b"word"], |input| {
                seen.borrow_mut().push(input.to_vec())
            });
            seen.into_inner()
        };
        let first = run();
        assert_eq!(first, run());
        assert!(first.iter().collect::<BTreeSet<_>>().len() > 1_000);
        assert!(first.iter().any(|input| input.windows(4).any(|part| part == b"word")));
    }

    #[test]
    fn what_panics_is_shown() {
        let failed = catch_unwind(|| {
            let seeds = [json!({"a": [1, 2], "b": "text"})];
            Fuzz::short("test").json(&seeds, |value| assert!(value["a"].is_array(), "no list"));
        });
        let failure = failed.unwrap_err();
        let text = failure.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("test: panicked on "), "{text}");
    }
}
