//! Mutated inputs for fuzz tests. A test gives a seed corpus and a check. The check runs on mutations of the corpus; an input on which
//! it panics is printed. The short run is the same every time. `KAI_FUZZ_SECONDS=600 cargo test -p CRATE -- --ignored long_run` runs
//! for ten minutes, each time from another random seed.
//!
//! Mutation is not guided by coverage: the formats are small, and the corpora reach every part of their parsers.

mod bytes;
mod json;
mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

pub use random::Random;

/// Cases of a short run.
const SHORT_CASES: u64 = 2_000;
/// Seconds of a long run, unless `KAI_FUZZ_SECONDS` is set.
const LONG_SECONDS: u64 = 60;
/// Upper bound of a mutated input.
pub const BYTES_MAX: usize = 64 * 1024;

/// A run over mutated inputs.
#[derive(Debug, Clone)]
pub struct Fuzz {
    name: &'static str,
    length: Length,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
enum Length {
    Cases(u64),
    Time(Duration),
}

impl Fuzz {
    /// A short run with the same cases every time, for `cargo test`.
    pub fn short(name: &'static str) -> Self {
        Self {
            name,
            length: Length::Cases(SHORT_CASES),
            seed: 1,
        }
    }

    /// A long run of `KAI_FUZZ_SECONDS`.
    pub fn long(name: &'static str) -> Self {
        let seconds = std::env::var("KAI_FUZZ_SECONDS").ok();
        let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(LONG_SECONDS);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            name,
            length: Length::Time(Duration::from_secs(seconds)),
            seed: now.as_nanos() as u64,
        }
    }

    /// Bounds the cases of a short run, for slow checks.
    pub fn at_most(mut self, cases: u64) -> Self {
        if let Length::Cases(max) = &mut self.length {
            *max = cases.min(*max);
        }
        self
    }

    /// Runs the check on mutations of byte strings. `dictionary` has tokens and numbers of the format.
    pub fn bytes(self, corpus: &[Vec<u8>], dictionary: &[&[u8]], check: impl Fn(&[u8])) {
        assert!(!corpus.is_empty(), "the corpus is empty");
        self.run(
            |random| bytes::mutated(corpus, dictionary, random),
            |input: &Vec<u8>| input.escape_ascii().to_string(),
            |input| check(input),
        );
    }

    /// Runs the check on mutations of texts; invalid UTF-8 is replaced.
    pub fn texts(self, corpus: &[&str], dictionary: &[&str], check: impl Fn(&str)) {
        let corpus: Vec<Vec<u8>> = corpus.iter().map(|text| text.as_bytes().to_vec()).collect();
        let dictionary: Vec<&[u8]> = dictionary.iter().map(|token| token.as_bytes()).collect();
        self.bytes(&corpus, &dictionary, |input| check(&String::from_utf8_lossy(input)));
    }

    /// Runs the check on mutations of JSON trees, with values at which programs often fail.
    pub fn json(self, corpus: &[Value], check: impl Fn(&Value)) {
        assert!(!corpus.is_empty(), "the corpus is empty");
        self.run(|random| json::mutated(corpus, random), Value::to_string, check);
    }

    /// Runs the check on inputs that `make` generates.
    pub fn run<T>(self, mut make: impl FnMut(&mut Random) -> T, show: impl Fn(&T) -> String, check: impl Fn(&T)) {
        let began = Instant::now();
        let mut cases = 0;
        let mut slowest = Duration::ZERO;
        loop {
            let is_over = match self.length {
                Length::Cases(max) => cases >= max,
                Length::Time(max) => began.elapsed() >= max,
            };
            if is_over {
                break;
            }
            let mut random = Random::new(self.seed.wrapping_add(cases));
            let input = make(&mut random);
            let started = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| check(&input)));
            assert!(result.is_ok(), "{}: panicked on {}", self.name, show(&input));
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
            let corpus = [json!({"a": [1, 2], "b": "text"})];
            Fuzz::short("test").json(&corpus, |value| assert!(value["a"].is_array(), "no list"));
        });
        let failure = failed.unwrap_err();
        let text = failure.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("test: panicked on "), "{text}");
    }
}
