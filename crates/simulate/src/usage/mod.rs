//! `kai simulate --usage`: queues whose jobs compete for days. The engine decides; usage over time comes from the embedded history.
//!
//! | step | module |
//! |---|---|
//! | read the file: ours, and those of KAI's two simulators | [`read`] |
//! | jobs arrive, run and end; the engine decides | `run` |
//! | one division among queues, KAI's fairshare-simulator | [`division`] |

pub mod division;
pub mod read;
mod run;

pub use run::{Progress, run};

use kai_engine::model::Millis;

use read::Queue;

/// What happened.
#[derive(Clone, Debug)]
pub struct UsageOutcome {
    /// The time between two steps.
    pub step: Millis,
    /// GPUs of all nodes.
    pub gpus: i64,
    /// The queues as they are in the file, with what happened to their jobs.
    pub queues: Vec<QueueOutcome>,
    /// The state after each step.
    pub points: Vec<Vec<Point>>,
}

/// A queue and its jobs.
#[derive(Clone, Debug)]
pub struct QueueOutcome {
    /// The queue.
    pub queue: Queue,
    /// Whether no other queue has it as parent.
    pub is_leaf: bool,
    /// Jobs that arrived.
    pub jobs: u32,
    /// Jobs that ended.
    pub ended: u32,
    /// How often a job lost pods to another queue.
    pub evictions: u32,
    /// The sum of the times from the arrival of a job to its first start; a job that never started counts up to the end.
    pub waited: Millis,
}

impl QueueOutcome {
    /// How long a job waits in the mean.
    pub fn mean_wait(&self) -> Option<Millis> {
        (self.jobs > 0).then(|| Millis(self.waited.0 / i64::from(self.jobs)))
    }
}

/// A queue after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// GPUs that its pods hold.
    pub allocated: f64,
    /// GPUs that it is due.
    pub fair_share: f64,
    /// GPUs that it held over the window, as a part of all. What the engine knew is that of the step before.
    pub usage: f64,
}

impl UsageOutcome {
    /// GPU hours of a queue, by its place in `queues`.
    pub fn gpu_hours(&self, queue: usize) -> f64 {
        self.sum(queue, |point| point.allocated)
    }

    /// GPU hours that a queue was due.
    pub fn fair_gpu_hours(&self, queue: usize) -> f64 {
        self.sum(queue, |point| point.fair_share)
    }

    fn sum(&self, queue: usize, of: impl Fn(&Point) -> f64) -> f64 {
        let hours = self.step.0 as f64 / 3_600_000.0;
        self.points.iter().map(|points| of(&points[queue]) * hours).sum()
    }
}
