//! The embedded history: what each queue held, summed over the window, in bounded memory.
//!
//! An amount holds from one [`Observation`] to the next. Its integral over time goes to the latest of a list of spans. A span keeps sums,
//! weighted as of its end, of the capacity and of each queue's allocation: with the half-life, the sum of a span decays exactly, whatever its
//! length. Only where a sliding window begins within a span, the part of the span is an estimate: as if amounts had been constant in it. A
//! window that tumbles has one span.

use std::collections::BTreeMap;

use kai_engine::model::{Millis, PerResource, QueueResources};
use kai_engine::reasons::Resource;

use crate::decay::Decay;
use crate::window::Window;
use crate::{UsageByQueue, billionths};

/// The spans of a sliding window: a week has spans of an hour and three quarters.
const SPANS: i64 = 96;

/// Pairs of a queue and a span, at most. Above it the shortest neighbouring spans are joined, which makes the beginning of a sliding window
/// less exact. A pair takes about a hundred bytes.
pub const CELLS_MAX: usize = 100_000;

/// Queues in a span, at most; Kubernetes is not built for more objects of a kind that people write. Above it, queues that no longer exist are forgotten.
const QUEUES_MAX: usize = 20_000;

/// How long an observation holds without the next one. A scheduler observes every few seconds: what comes later follows a jump of the clock or a
/// hung process, of which nothing is known.
const HOLD_MAX: Millis = Millis::seconds(600);

/// What queues hold at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The resources of the cluster.
    pub capacity: QueueResources,
    /// What the pods of each queue and of the queues below it hold.
    pub allocated: BTreeMap<String, QueueResources>,
}

/// Sums over a stretch of time, weighted as of its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) start: Millis,
    pub(crate) end: Millis,
    /// The sum of the weights of its observed milliseconds.
    pub(crate) weight: f64,
    pub(crate) capacity: PerResource<f64>,
    pub(crate) allocated: BTreeMap<String, PerResource<f64>>,
}

/// What each queue held in the window.
#[derive(Clone, Debug)]
pub struct History {
    window: Window,
    decay: Decay,
    cells_max: usize,
    /// In the order of time; they do not overlap.
    spans: Vec<Span>,
    /// What holds since a time.
    holds: Option<(Millis, Observation)>,
}

impl History {
    /// A history without a past.
    pub fn new(window: Window, decay: Decay) -> History {
        History {
            window,
            decay,
            cells_max: CELLS_MAX,
            spans: Vec::new(),
            holds: None,
        }
    }

    /// What holds from now on. What held before is added up to now. A time that does not grow adds nothing.
    pub fn observe(&mut self, now: Millis, observation: Observation) {
        if let Some((since, held)) = self.holds.take() {
            self.add(since, now.min(since + HOLD_MAX), &held);
        }
        self.holds = Some((now, observation));
        self.forget(now);
    }

    /// What held from one time to another, however long. For simulations, which know it.
    pub fn hold(&mut self, from: Millis, until: Millis, observation: &Observation) {
        self.add(from, until, observation);
        self.forget(until);
    }

    /// The usage of each queue that had any in the window, as of now.
    pub fn usage(&self, now: Millis) -> UsageByQueue {
        let start = self.window.start(now);
        let mut capacity = PerResource::<f64>::default();
        let mut allocated: BTreeMap<&str, PerResource<f64>> = BTreeMap::new();
        for span in &self.spans {
            let weight = self.decay.weight(now - span.end) * self.part_after(span, start);
            if weight > 0.0 {
                add_weighted(&mut capacity, &span.capacity, weight);
                for (queue, sums) in &span.allocated {
                    add_weighted(allocated.entry(queue).or_default(), sums, weight);
                }
            }
        }
        let usage = allocated.into_iter().map(|(queue, sums)| {
            let usage = PerResource::from_fn(|resource| billionths(sums[resource], capacity[resource]));
            (queue.to_owned(), usage)
        });
        usage.filter(|(_, usage)| *usage != PerResource::default()).collect()
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    pub(crate) fn decay(&self) -> Decay {
        self.decay
    }

    /// Begins with these spans of an earlier process; they are in the order of time.
    pub(crate) fn restore(&mut self, spans: Vec<Span>) {
        self.spans = spans;
        self.bound_cells(self.cells_max);
    }

    /// Adds what held from `since` to `until`.
    fn add(&mut self, since: Millis, until: Millis, held: &Observation) {
        // What is before the window is forgotten anyway; this also bounds the number of spans to fill.
        let mut since = since.max(self.window.start(until));
        if let Some(last) = self.spans.last() {
            // A clock that was set back tells nothing new until it is past what is known.
            since = since.max(last.end);
        }
        while since < until {
            let end = self.span_end(since).min(until);
            let span = self.spans.last_mut().expect("span_end leaves the span of this time");
            span.extend(since, end, held, self.decay);
            since = end;
        }
        self.bound_cells(self.cells_max);
        self.bound_queues(held);
    }

    /// When the span of a time ends at the latest; begins a new span if the last one ends before.
    fn span_end(&mut self, time: Millis) -> Millis {
        let (oldest, length) = match self.window.slides() {
            Some(size) => (time, Millis((size.0 / SPANS).max(1))),
            // A span that began before the window belongs to the last one.
            None => (self.window.start(time), Millis(i64::MAX)),
        };
        let continues = |span: &Span| match self.window.slides() {
            Some(_) => time < span.start + length,
            None => span.start >= oldest,
        };
        if !self.spans.last().is_some_and(continues) {
            self.spans.push(Span::new(time));
        }
        let start = self.spans.last().map_or(time, |span| span.start);
        start + length
    }

    /// The part of a span's sums that is after a time.
    fn part_after(&self, span: &Span, time: Millis) -> f64 {
        if span.start >= time {
            return 1.0;
        }
        if span.end <= time {
            return 0.0;
        }
        self.decay.stretch(span.end - time) / self.decay.stretch(span.end - span.start)
    }

    /// Drops the spans before the window.
    fn forget(&mut self, now: Millis) {
        let start = self.window.start(now);
        self.spans.retain(|span| span.end > start);
    }

    /// Joins neighbouring spans, the shortest first, until there are few enough pairs of a queue and a span.
    pub(crate) fn bound_cells(&mut self, cells_max: usize) {
        let mut cells: usize = self.spans.iter().map(|span| span.allocated.len()).sum();
        while cells > cells_max && self.spans.len() > 1 {
            let length = |at: &usize| self.spans[at + 1].end - self.spans[*at].start;
            let shortest = (0..self.spans.len() - 1).min_by_key(|at| length(at).0);
            let at = shortest.expect("there are two spans");
            let later = self.spans.remove(at + 1);
            cells -= self.spans[at].allocated.len() + later.allocated.len();
            self.spans[at].join(later, self.decay);
            cells += self.spans[at].allocated.len();
        }
    }

    fn bound_queues(&mut self, held: &Observation) {
        if let Some(span) = self.spans.last_mut().filter(|span| span.allocated.len() > QUEUES_MAX) {
            span.allocated.retain(|queue, _| held.allocated.contains_key(queue));
        }
    }
}

impl Span {
    fn new(start: Millis) -> Span {
        Span {
            start,
            end: start,
            weight: 0.0,
            capacity: PerResource::default(),
            allocated: BTreeMap::new(),
        }
    }

    /// Lets the sums decay up to a time.
    fn age(&mut self, until: Millis, decay: Decay) {
        let factor = decay.weight(until - self.end);
        self.weight *= factor;
        scale(&mut self.capacity, factor);
        self.allocated.values_mut().for_each(|sums| scale(sums, factor));
        self.end = until;
    }

    /// Adds what held from `since` to `until`.
    fn extend(&mut self, since: Millis, until: Millis, held: &Observation, decay: Decay) {
        self.age(until, decay);
        let weight = decay.stretch(until - since);
        self.weight += weight;
        add_amounts(&mut self.capacity, &held.capacity, weight);
        for (queue, amounts) in &held.allocated {
            if *amounts == QueueResources::ZERO {
                continue;
            }
            match self.allocated.get_mut(queue) {
                Some(sums) => add_amounts(sums, amounts, weight),
                None => add_amounts(self.allocated.entry(queue.clone()).or_default(), amounts, weight),
            }
        }
    }

    /// Adds the span after this one.
    fn join(&mut self, later: Span, decay: Decay) {
        self.age(later.end, decay);
        self.weight += later.weight;
        add_weighted(&mut self.capacity, &later.capacity, 1.0);
        for (queue, sums) in later.allocated {
            add_weighted(self.allocated.entry(queue).or_default(), &sums, 1.0);
        }
    }
}

/// A change of each value.
fn change(sums: &mut PerResource<f64>, of: impl Fn(f64, Resource) -> f64) {
    *sums = PerResource::from_fn(|resource| of(sums[resource], resource));
}

fn scale(sums: &mut PerResource<f64>, factor: f64) {
    change(sums, |sum, _| sum * factor);
}

fn add_weighted(sums: &mut PerResource<f64>, more: &PerResource<f64>, weight: f64) {
    change(sums, |sum, resource| sum + more[resource] * weight);
}

fn add_amounts(sums: &mut PerResource<f64>, amounts: &QueueResources, weight: f64) {
    change(sums, |sum, resource| sum + amounts[resource] as f64 * weight);
}

#[cfg(test)]
mod tests {
    use kai_engine::model::Gpus;
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;

    fn gpus(count: i64) -> QueueResources {
        QueueResources {
            gpus: Gpus::whole(count),
            ..QueueResources::ZERO
        }
    }

    fn observation(capacity: i64, queues: &[(&str, i64)]) -> Observation {
        Observation {
            capacity: gpus(capacity),
            allocated: queues
                .iter()
                .map(|(queue, count)| ((*queue).to_owned(), gpus(*count)))
                .collect(),
        }
    }

    fn sliding(size: i64, half_life: Option<i64>) -> History {
        History::new(
            Window::Sliding { size: Millis(size) },
            Decay::new(half_life.map(Millis)),
        )
    }

    /// Observes the same every minute from one time to another.
    fn hold(history: &mut History, from: i64, to: i64, held: &Observation) {
        for minute in from / 60_000..=to / 60_000 {
            history.observe(Millis(minute * 60_000), held.clone());
        }
    }

    fn percent(history: &History, now: i64, queue: &str) -> f64 {
        let usage = history.usage(Millis(now));
        usage.get(queue).map_or(0.0, |usage| usage.gpu as f64 / 1e7)
    }

    #[track_caller]
    fn near(value: f64, expect: f64) {
        assert!((value - expect).abs() < 1e-4, "{value} is not {expect}");
    }

    #[test]
    fn usage_is_the_part_of_the_capacity_over_the_same_time() {
        let mut history = sliding(7 * DAY, None);
        hold(&mut history, 0, 12 * HOUR, &observation(8, &[("a", 8)]));
        hold(&mut history, 12 * HOUR, 24 * HOUR, &observation(8, &[("b", 4)]));
        near(percent(&history, DAY, "a"), 50.0);
        near(percent(&history, DAY, "b"), 25.0);
        // The cluster grows: its capacity counts for the time that it was there.
        hold(&mut history, DAY, 2 * DAY, &observation(16, &[("b", 16)]));
        near(percent(&history, 2 * DAY, "a"), 100.0 * 4.0 / 24.0);
    }

    #[test]
    fn a_sliding_window_forgets_little_by_little() {
        let mut history = sliding(DAY, None);
        hold(&mut history, 0, DAY, &observation(4, &[("a", 4)]));
        hold(&mut history, DAY, DAY + 6 * HOUR, &observation(4, &[("b", 4)]));
        near(percent(&history, DAY + 6 * HOUR, "a"), 75.0);
        hold(&mut history, DAY + 6 * HOUR, 2 * DAY, &observation(4, &[]));
        assert_eq!(percent(&history, 2 * DAY, "a"), 0.0);
        assert!(history.spans.len() <= 98, "{}", history.spans.len());
    }

    #[test]
    fn half_is_left_after_a_half_life() {
        let mut history = sliding(7 * DAY, Some(6 * HOUR));
        hold(&mut history, 0, 6 * HOUR, &observation(4, &[("a", 4)]));
        hold(&mut history, 6 * HOUR, 12 * HOUR, &observation(4, &[]));
        // The first six hours have the weight 0.5 of the last six.
        near(percent(&history, 12 * HOUR, "a"), 100.0 / 3.0);
    }

    #[test]
    fn a_tumbling_window_forgets_at_once() {
        let window = Window::Tumbling {
            size: Millis(DAY),
            first: Millis(0),
        };
        let mut history = History::new(window, Decay::new(None));
        hold(&mut history, 0, DAY - 60_000, &observation(4, &[("a", 4)]));
        near(percent(&history, DAY - 60_000, "a"), 100.0);
        assert_eq!(percent(&history, DAY, "a"), 0.0);
        hold(&mut history, DAY - 60_000, DAY + HOUR, &observation(4, &[("b", 2)]));
        near(percent(&history, DAY + HOUR, "b"), 50.0);
        assert_eq!((percent(&history, DAY + HOUR, "a"), history.spans.len()), (0.0, 1));
    }

    #[test]
    fn a_clock_that_jumps_adds_nothing() {
        let mut history = sliding(7 * DAY, None);
        history.observe(Millis(DAY), observation(4, &[("a", 4)]));
        history.observe(Millis(0), observation(4, &[("a", 4)]));
        assert!(history.spans.is_empty());
        history.observe(Millis(3 * DAY), observation(4, &[("b", 4)]));
        history.observe(Millis(3 * DAY + 600_000), observation(4, &[]));
        // Ten minutes each, though three days passed before the second.
        near(percent(&history, 3 * DAY + 600_000, "a"), 50.0);
        let known = history.spans.clone();
        history.observe(Millis(2 * DAY), observation(4, &[("a", 4)]));
        history.observe(Millis(2 * DAY + 1_000), observation(4, &[("a", 4)]));
        assert_eq!(history.spans, known, "that time is known");
    }

    #[test]
    fn many_queues_make_spans_longer() {
        let mut history = sliding(96 * HOUR, None);
        history.cells_max = 100;
        for hour in 0..96 {
            let name = format!("q{hour}");
            hold(
                &mut history,
                hour * HOUR,
                (hour + 1) * HOUR,
                &observation(4, &[(&name, 2), ("all", 2)]),
            );
        }
        let cells: usize = history.spans.iter().map(|span| span.allocated.len()).sum();
        assert!(
            cells <= 100 && history.spans.len() < 60,
            "{cells} {}",
            history.spans.len()
        );
        near(percent(&history, 96 * HOUR, "all"), 50.0);
        near(percent(&history, 96 * HOUR, "q50"), 50.0 / 96.0);
    }

    #[test]
    fn a_cluster_without_a_resource_has_no_usage_of_it() {
        let mut history = sliding(DAY, Some(HOUR));
        hold(&mut history, 0, HOUR, &observation(0, &[("a", 1)]));
        assert!(history.usage(Millis(HOUR)).is_empty());
    }

    /// What one queue holds of eight GPUs, by the length of each stretch in seconds.
    fn stretches() -> impl Strategy<Value = Vec<(i64, i64)>> {
        prop::collection::vec((1_i64..600, 0_i64..=8), 1..60)
    }

    proptest! {
        /// The sums agree with an integral that keeps every stretch.
        #[test]
        fn decay_is_exact(stretches in stretches(), half_life in prop::option::of(1_i64..50_000), lag in 0_i64..10_000) {
            let decay = Decay::new(half_life.map(Millis::seconds));
            let mut history = History::new(Window::Sliding { size: Millis(7 * DAY) }, decay);
            let (mut now, mut held, mut all) = (0, Vec::new(), Vec::new());
            for (seconds, count) in &stretches {
                history.observe(Millis(now), observation(8, &[("q", *count)]));
                held.push((now, now + seconds * 1000, *count as f64));
                all.push((now, now + seconds * 1000, 8.0));
                now += seconds * 1000;
            }
            history.observe(Millis(now), Observation::default());
            let asked = now + lag * 1000;
            let sum = |stretches: &[(i64, i64, f64)]| -> f64 {
                let weighted = stretches.iter().map(|(from, to, count)| {
                    count * decay.stretch(Millis(to - from)) * decay.weight(Millis(asked - to))
                });
                weighted.sum()
            };
            let (queue, capacity) = (sum(&held), sum(&all));
            let expect = if capacity > 0.0 { 100.0 * queue / capacity } else { 0.0 };
            let value = percent(&history, asked, "q");
            // A sum that has decayed to almost nothing loses digits, but not the quotient.
            prop_assert!((value - expect).abs() < 1e-5 || capacity < 1e-250, "{} is not {}", value, expect);
        }

        /// More of the past can't make a share exceed the cluster, and the shares of queues add up.
        #[test]
        fn usage_is_a_share(stretches in stretches(), half_life in prop::option::of(60_i64..5_000), size in 600_i64..20_000) {
            let mut history = sliding(size * 1000, half_life.map(|seconds| seconds * 1000));
            let mut now = 0;
            for (seconds, count) in stretches {
                history.observe(Millis(now), observation(8, &[("q", count), ("rest", 8 - count)]));
                now += seconds * 1000;
            }
            history.observe(Millis(now), Observation::default());
            let usage = history.usage(Millis(now));
            let sum: i64 = usage.values().map(|usage| usage.gpu).sum();
            prop_assert!((sum - 1_000_000_000).abs() <= 2, "{}", sum);
            prop_assert_eq!(&usage, &history.usage(Millis(now)));
        }
    }
}
