//! The history as text, for an object of the API: short, readable, and bounded in size.
//!
//! A span has the capacity in the mean and the usage of each queue in millionths of it, so that a history outlives a change of the half-life:
//! with another one, spans that were observed without a gap count as if amounts had been constant in them.

use std::collections::BTreeMap;

use kai_engine::model::{Millis, PerResource};
use serde::{Deserialize, Serialize};

use crate::history::{History, Span};

/// The version of the format.
const VERSION: u32 = 1;
const MILLIONTHS: f64 = 1e6;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    half_life_millis: Option<i64>,
    spans: Vec<SavedSpan>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedSpan {
    /// Milliseconds since 1970.
    start: i64,
    end: i64,
    /// The sum of the weights of the observed milliseconds.
    weight: f64,
    /// Milli-cores, bytes and millionths of GPUs, in the mean.
    capacity: [f64; 3],
    /// CPU, memory and GPUs of each queue, in millionths of the capacity.
    queues: BTreeMap<String, [i64; 3]>,
}

impl History {
    /// The history as text of at most `bytes_max` bytes. Spans are joined until it fits, in the text only.
    pub fn save(&self, bytes_max: usize) -> String {
        let mut history = self.clone();
        loop {
            let text = history.text();
            let cells: usize = history.spans().iter().map(|span| span.allocated.len()).sum();
            if text.len() <= bytes_max {
                return text;
            }
            if history.spans().len() <= 1 {
                // One span of all queues, and still too long: a history without queues says less than none.
                return String::new();
            }
            // Joining saves a part of the cells only, so that this ends after a few rounds.
            history.bound_cells((cells / 2).max(1));
        }
    }

    fn text(&self) -> String {
        let saved = Saved {
            version: VERSION,
            half_life_millis: self.decay().half_life().map(|half_life| half_life.0),
            spans: self.spans().iter().map(save_span).collect(),
        };
        serde_json::to_string(&saved).expect("maps with text keys are JSON")
    }

    /// Adds a saved history; call it before the first observation. Spans in the future come from a wrong clock and are left out.
    pub fn load(&mut self, text: &str, now: Millis) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let saved: Saved = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if saved.version != VERSION {
            return Err(format!(
                "its version is {}, and this program reads {VERSION}",
                saved.version
            ));
        }
        let same = saved.half_life_millis == self.decay().half_life().map(|half_life| half_life.0);
        let mut spans: Vec<Span> = Vec::new();
        for saved in saved.spans {
            let Some(span) = self.load_span(saved, same) else {
                continue;
            };
            let follows = spans.last().is_none_or(|last| last.end <= span.start);
            if follows && span.end <= now {
                spans.push(span);
            }
        }
        self.restore(spans);
        Ok(())
    }

    /// `None` = its numbers have no meaning.
    fn load_span(&self, saved: SavedSpan, same_half_life: bool) -> Option<Span> {
        let (start, end) = (Millis(saved.start), Millis(saved.end));
        let weight = match same_half_life {
            true => saved.weight,
            false => self.decay().stretch(end - start),
        };
        let sane = |number: f64| number.is_finite() && number >= 0.0;
        if start >= end || !sane(weight) || !saved.capacity.into_iter().all(sane) {
            return None;
        }
        let capacity = saved.capacity.map(|mean| mean * weight);
        let sums = |usage: [i64; 3]| {
            let sum = |at: usize| usage[at].max(0) as f64 / MILLIONTHS * capacity[at];
            of_array([sum(0), sum(1), sum(2)])
        };
        Some(Span {
            start,
            end,
            weight,
            capacity: of_array(capacity),
            allocated: saved
                .queues
                .into_iter()
                .map(|(queue, usage)| (queue, sums(usage)))
                .collect(),
        })
    }
}

fn save_span(span: &Span) -> SavedSpan {
    let capacity = to_array(&span.capacity);
    let millionths = |sums: &PerResource<f64>| {
        let sums = to_array(sums);
        std::array::from_fn(|at| match capacity[at] > 0.0 {
            true => (sums[at] / capacity[at] * MILLIONTHS).round() as i64,
            false => 0,
        })
    };
    let queues = span
        .allocated
        .iter()
        .map(|(queue, sums)| (queue.clone(), millionths(sums)));
    let weight = span.weight;
    SavedSpan {
        start: span.start.0,
        end: span.end.0,
        weight: weight.round().max(1.0),
        // Whole numbers: a fraction of a byte is noise of the sums.
        capacity: capacity.map(|sum| if weight > 0.0 { (sum / weight).round() } else { 0.0 }),
        queues: queues.filter(|(_, usage): &(_, [i64; 3])| *usage != [0; 3]).collect(),
    }
}

fn to_array(values: &PerResource<f64>) -> [f64; 3] {
    [values.cpu, values.memory, values.gpu]
}

fn of_array([cpu, memory, gpu]: [f64; 3]) -> PerResource<f64> {
    PerResource { cpu, memory, gpu }
}

#[cfg(test)]
mod tests {
    use kai_engine::model::{Gpus, QueueResources};
    use proptest::prelude::*;

    use super::*;
    use crate::decay::Decay;
    use crate::{Observation, Window};

    const MINUTE: i64 = 60_000;

    fn history(half_life: Option<i64>) -> History {
        let size = Millis::seconds(24 * 3600);
        History::new(Window::Sliding { size }, Decay::new(half_life.map(Millis)))
    }

    /// A minute of each of these amounts, held by as many queues in turn.
    fn filled(half_life: Option<i64>, amounts: &[i64], queues: usize) -> (History, Millis) {
        let mut history = history(half_life);
        let amount = |count| QueueResources {
            cpu_milli: count * 10,
            memory_bytes: count << 30,
            gpus: Gpus::hundredths(count),
        };
        let mut now = Millis(1_000_000_000_000);
        for (at, count) in amounts.iter().chain([&0]).enumerate() {
            let queue = format!("team-{}", at % queues);
            let observation = Observation {
                capacity: amount(800),
                allocated: [(queue, amount(*count))].into(),
            };
            history.observe(now, observation);
            now = now + Millis(MINUTE);
        }
        (history, now)
    }

    fn restored(text: &str, half_life: Option<i64>, now: Millis) -> Result<History, String> {
        let mut fresh = history(half_life);
        fresh.load(text, now).map(|()| fresh)
    }

    #[track_caller]
    fn same(a: &History, b: &History, now: Millis, billionths: i64) {
        let (a, b) = (a.usage(now), b.usage(now));
        assert_eq!(a.len(), b.len());
        for ((queue, a), (_, b)) in a.iter().zip(&b) {
            for (a, b) in [(a.cpu, b.cpu), (a.memory, b.memory), (a.gpu, b.gpu)] {
                assert!((a - b).abs() <= billionths, "{queue}: {a} {b}");
            }
        }
    }

    #[test]
    fn a_saved_history_is_text_that_people_can_read() {
        let (history, now) = filled(None, &[400, 800], 2);
        let text = history.save(10_000);
        assert_eq!(
            text,
            r#"{"version":1,"spans":[{"start":1000000000000,"end":1000000120000,"weight":120000.0,"capacity":[8000.0,858993459200.0,8000000.0],"queues":{"team-0":[250000,250000,250000],"team-1":[500000,500000,500000]}}]}"#
        );
        same(&history, &restored(&text, None, now).unwrap(), now, 0);
    }

    #[test]
    fn what_can_not_be_read_is_refused_or_left_out() {
        let now = Millis(1_000_000_000_000);
        for (text, told) in [
            ("{", "EOF"),
            (r#"{"version":2,"spans":[]}"#, "its version is 2"),
            ("[]", "invalid"),
        ] {
            let error = restored(text, None, now).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert!(restored("", None, now).unwrap().spans().is_empty());
        let spans = |start: i64, end: i64, weight: &str| {
            let span = format!(
                r#"{{"start":{start},"end":{end},"weight":{weight},"capacity":[1,1,1],"queues":{{"q":[1,1,1]}}}}"#
            );
            let text = format!(r#"{{"version":1,"spans":[{span},{span}]}}"#);
            restored(&text, None, now).unwrap().spans().len()
        };
        assert_eq!(spans(0, 1000, "5"), 1, "the second one is the first one again");
        assert_eq!(spans(1000, 0, "5"), 0);
        assert_eq!(spans(0, 1000, "-1"), 0);
        assert_eq!(spans(0, now.0 + 1, "1"), 0, "in the future");
    }

    #[test]
    fn a_long_history_is_joined_until_it_fits() {
        let (history, now) = filled(None, &[100; 1200], 40);
        let whole = history.save(1 << 20);
        for bytes in [whole.len(), whole.len() / 2, 4_000] {
            let text = history.save(bytes);
            assert!(text.len() <= bytes && !text.is_empty(), "{} of {bytes}", text.len());
            same(&history, &restored(&text, None, now).unwrap(), now, 1_000);
        }
        assert_eq!(history.save(100), "");
    }

    #[test]
    fn another_half_life_weighs_the_saved_spans_anew() {
        let (history, now) = filled(None, &[400; 600], 1);
        let other = restored(&history.save(1 << 20), Some(3_600_000), now).unwrap();
        let usage = other.usage(now)["team-0"];
        assert!((usage.gpu - 500_000_000).abs() < 1_000, "{usage:?}");
    }

    proptest! {
        #[test]
        fn a_restart_changes_nothing_that_counts(
            amounts in prop::collection::vec(0_i64..=800, 1..200),
            half_life in prop::option::of(60_000_i64..10_000_000),
            queues in 1_usize..6,
        ) {
            let (history, now) = filled(half_life, &amounts, queues);
            let text = history.save(1 << 20);
            let restored = restored(&text, half_life, now).unwrap();
            let (a, b) = (history.usage(now), restored.usage(now));
            for (queue, usage) in &a {
                let again = b.get(queue).copied().unwrap_or_default();
                prop_assert!((usage.gpu - again.gpu).abs() <= 1_000, "{} {:?} {:?}", queue, usage, again);
            }
            prop_assert_eq!(restored.save(1 << 20), text);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\]{}\":,0-9a-z.-]{0,60}") {
            let _ = restored(&text, None, Millis(0));
        }
    }
}
