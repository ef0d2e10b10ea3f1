//! The file of `kai simulate --usage`. The fields of KAI's time-based-fairshare-simulator keep their meaning; `step`, `start`, `windowType`,
//! `cronString` and `arrivals` are ours. Upper and lower case count the same in names of fields, as there.

use std::collections::BTreeMap;
use std::path::Path;

use kai_api::crd::UsageDbConfig;
use kai_engine::model::Millis;
use kai_usage::settings::window_size;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::division::Division;
use crate::Error;

// Bounds on one file. A run takes time in proportion to steps times jobs.
const STEPS_MAX: i64 = 100_000;
const JOBS_MAX: u64 = 100_000;
const PODS_MAX: u32 = 1_000;
const QUEUES_MAX: usize = 1_000;
const NODES_MAX: i64 = 10_000;
const GPUS_MAX: i64 = 1_024;
/// Values in the outcome.
const POINTS_MAX: i64 = 5_000_000;
const BYTES_MAX: u64 = 16 << 20;

/// KAI's defaults.
const CYCLES: i64 = 100;
const WINDOW_STEPS: i64 = 5;
const STEP: Millis = Millis::seconds(1);
const PRIORITY: i32 = 100;
/// When a run begins, for schedules of windows.
const START: &str = "2026-01-01T00:00:00Z";

/// A file.
#[derive(Clone, Debug)]
pub enum UsageFile {
    /// Queues that compete over time.
    Run(Box<UsageRun>),
    /// One division among queues.
    Division(Division),
}

/// Queues that compete over time.
#[derive(Clone, Debug)]
pub struct UsageRun {
    /// The time between two steps.
    pub step: Millis,
    /// Their number.
    pub steps: i64,
    /// When the first one is.
    pub start: Millis,
    /// The window and its half-life.
    pub usage: kai_usage::UsageSettings,
    /// The weight of past usage.
    pub usage_weight_millionths: i64,
    /// GPUs of each node.
    pub nodes: Vec<i64>,
    /// The queues.
    pub queues: Vec<Queue>,
    /// The jobs in the order of their arrival.
    pub jobs: Vec<Job>,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Its parent.
    pub parent: Option<String>,
    /// Its priority.
    pub priority: i32,
    /// Its quota.
    pub deserved_gpus: f64,
    /// Its weight above the quotas.
    pub weight: f64,
}

/// A job that arrives.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its queue.
    pub queue: String,
    /// When it arrives, since the start.
    pub at: Millis,
    /// Its pods.
    pub pods: u32,
    /// How many of them must run together.
    pub min_pods: u32,
    /// GPUs of each.
    pub gpus: i64,
    /// How long it runs; `None` = without end.
    pub runs: Option<Millis>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    step: Option<String>,
    start: Option<String>,
    duration: Option<String>,
    cycles: Option<i64>,
    windowsize: Option<Length>,
    windowtype: Option<String>,
    cronstring: Option<String>,
    halflifeperiod: Option<Length>,
    kvalue: Option<f64>,
    nodes: Vec<RawNode>,
    queues: Vec<RawQueue>,
    #[serde(default)]
    jobs: Option<BTreeMap<String, RawJobs>>,
    #[serde(default)]
    arrivals: Option<Vec<RawArrivals>>,
}

/// A time, or a number of steps.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Length {
    Steps(i64),
    Time(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    gpus: i64,
    count: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawQueue {
    name: String,
    parent: Option<String>,
    priority: Option<i32>,
    deservedgpus: Option<f64>,
    weight: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawJobs {
    gpus: i64,
    numpods: Option<u32>,
    numjobs: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArrivals {
    queue: String,
    at: Option<String>,
    every: Option<String>,
    count: Option<u32>,
    pods: Option<u32>,
    gpus: i64,
    runs: Option<String>,
}

/// Reads a file; `-` is standard input.
pub fn read(path: &Path) -> Result<UsageFile, Error> {
    use std::io::Read as _;
    let unreadable = |source| Error::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    match path.as_os_str() == "-" {
        true => std::io::stdin().lock().take(BYTES_MAX).read_to_string(&mut text),
        false => {
            let file = std::fs::File::open(path).map_err(unreadable)?;
            file.take(BYTES_MAX).read_to_string(&mut text)
        }
    }
    .map_err(unreadable)?;
    parse(&text).map_err(|problem| Error::Syntax {
        path: path.to_owned(),
        format: "file for --usage",
        problem,
    })
}

/// Reads the text of a file.
pub fn parse(text: &str) -> Result<UsageFile, String> {
    let value: Value = kai_yaml::from_str(text)?;
    if value.get("totalResource").is_some() {
        return Division::read(value).map(UsageFile::Division);
    }
    let raw = Raw::deserialize(lower_case(value, false)).map_err(|error| error.to_string())?;
    raw.build().map(|run| UsageFile::Run(Box::new(run)))
}

/// The names of fields in lower case. The fields of `jobs` are names of queues.
fn lower_case(value: Value, names: bool) -> Value {
    match value {
        Value::Object(fields) => {
            let lower = fields.into_iter().map(|(name, value)| {
                let key = if names { name } else { name.to_ascii_lowercase() };
                let value = lower_case(value, !names && key == "jobs");
                (key, value)
            });
            Value::Object(lower.collect::<Map<_, _>>())
        }
        Value::Array(values) => values.into_iter().map(|value| lower_case(value, false)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// A number in a range.
fn within<T: PartialOrd + std::fmt::Display + Copy>(field: &str, value: T, min: T, max: T) -> Result<T, String> {
    match (min..=max).contains(&value) {
        true => Ok(value),
        false => Err(format!("{field}: {value} is not from {min} to {max}")),
    }
}

/// A time such as `3d` or `90m`.
fn time(field: &str, text: &str) -> Result<Millis, String> {
    match text.trim() {
        "0" | "0s" | "0h" => Ok(Millis(0)),
        text => window_size(text).map_err(|error| error.replacen("windowSize", field, 1)),
    }
}

impl Raw {
    fn build(self) -> Result<UsageRun, String> {
        let step = self.step.as_deref().map_or(Ok(STEP), |text| time("step", text))?;
        if step.0 <= 0 {
            return Err("step: it is no time; write more than zero, such as 10m".to_owned());
        }
        let steps = match (self.cycles, &self.duration) {
            (Some(_), Some(_)) => return Err("cycles and duration: both are set; remove one".to_owned()),
            (Some(cycles), None) => cycles,
            (None, Some(text)) => time("duration", text)?.0 / step.0,
            (None, None) => CYCLES,
        };
        let steps = within("cycles, or duration / step", steps, 1, STEPS_MAX)?;
        let start = kai_api::parse_time(self.start.as_deref().unwrap_or(START));
        let start = start.map_err(|error| format!("start: {error}"))?;
        let usage = self.usage(step)?;
        let queues = self.queues()?;
        within("queues times cycles", steps * queues.len() as i64, 1, POINTS_MAX)?;
        let jobs = self.jobs(&queues)?;
        let mut nodes = Vec::new();
        for node in &self.nodes {
            let gpus = within("nodes.gpus", node.gpus, 0, GPUS_MAX)?;
            let count = within(
                "nodes.count",
                node.count.unwrap_or(1),
                1,
                NODES_MAX - nodes.len() as i64,
            )?;
            nodes.extend((0..count).map(|_| gpus));
        }
        let k = within("kValue", self.kvalue.unwrap_or(1.0), -1000.0, 1000.0)?;
        Ok(UsageRun {
            step,
            steps,
            start,
            usage,
            usage_weight_millionths: (k.max(0.0) * 1e6).round() as i64,
            nodes,
            queues,
            jobs,
        })
    }

    fn usage(&self, step: Millis) -> Result<kai_usage::UsageSettings, String> {
        let text = |length: &Length| match length {
            Length::Steps(steps) => format!("{}ms", step.0.saturating_mul(*steps)),
            Length::Time(text) => text.clone(),
        };
        let window = self.windowsize.as_ref().unwrap_or(&Length::Steps(WINDOW_STEPS));
        let config = json!({ "clientType": "embedded", "usageParams": {
            "windowSize": text(window),
            "windowType": self.windowtype,
            "tumblingWindowStartTime": self.start.as_deref().unwrap_or(START),
            "cronString": self.cronstring,
            "halfLifePeriod": self.halflifeperiod.as_ref().map(text),
        } });
        let config = UsageDbConfig::deserialize(config).map_err(|error| error.to_string())?;
        kai_usage::settings::read(&config)
    }

    fn queues(&self) -> Result<Vec<Queue>, String> {
        within("queues", self.queues.len(), 1, QUEUES_MAX)?;
        let queue = |raw: &RawQueue| {
            let field = |name: &str| format!("queues: {}: {name}", raw.name);
            Ok(Queue {
                name: raw.name.clone(),
                parent: raw.parent.clone().filter(|parent| !parent.is_empty()),
                priority: raw.priority.unwrap_or(PRIORITY),
                deserved_gpus: within(&field("deservedGPUs"), raw.deservedgpus.unwrap_or(0.0), -1.0, 1e6)?,
                weight: within(&field("weight"), raw.weight.unwrap_or(1.0), 0.0, 1e6)?,
            })
        };
        let queues: Vec<Queue> = self.queues.iter().map(queue).collect::<Result<_, String>>()?;
        let mut names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("queues: {} is there twice", twice[0]));
        }
        let known = |name: &str| names.binary_search(&name).is_ok();
        for queue in &queues {
            if let Some(parent) = queue.parent.as_deref().filter(|parent| !known(parent)) {
                return Err(format!("queues: {}: parent: there is no queue {parent}", queue.name));
            }
        }
        Ok(queues)
    }

    fn jobs(&self, queues: &[Queue]) -> Result<Vec<Job>, String> {
        let is_leaf = |name: &str| {
            let known = queues.iter().any(|queue| queue.name == name);
            known && !queues.iter().any(|queue| queue.parent.as_deref() == Some(name))
        };
        let mut jobs: Vec<Job> = Vec::new();
        let mut add = |field: &str, job: Job, count: u32, every: Millis| {
            if !is_leaf(&job.queue) {
                return Err(format!(
                    "{field}: there is no queue {} without queues below it",
                    job.queue
                ));
            }
            within(&format!("{field}: pods"), job.pods, 1, PODS_MAX)?;
            within(&format!("{field}: gpus"), job.gpus, 0, GPUS_MAX)?;
            within("jobs in all", jobs.len() as u64 + u64::from(count), 0, JOBS_MAX)?;
            jobs.extend((0..count).map(|number| Job {
                at: job.at + Millis(every.0.saturating_mul(i64::from(number))),
                ..job.clone()
            }));
            Ok(())
        };
        for (queue, raw) in self.jobs.iter().flatten() {
            let job = Job {
                queue: queue.clone(),
                at: Millis(0),
                pods: raw.numpods.unwrap_or(1),
                min_pods: 1,
                gpus: raw.gpus,
                runs: None,
            };
            add(&format!("jobs: {queue}"), job, raw.numjobs.unwrap_or(1), Millis(0))?;
        }
        for (at, raw) in self.arrivals.iter().flatten().enumerate() {
            let field = |name: &str| format!("arrivals[{at}].{name}");
            let read =
                |name: &str, text: &Option<String>| text.as_deref().map(|text| time(&field(name), text)).transpose();
            let pods = raw.pods.unwrap_or(1);
            let job = Job {
                queue: raw.queue.clone(),
                at: read("at", &raw.at)?.unwrap_or_default(),
                pods,
                min_pods: pods,
                gpus: raw.gpus,
                runs: read("runs", &raw.runs)?,
            };
            let every = read("every", &raw.every)?.unwrap_or_default();
            add(&format!("arrivals[{at}]"), job, raw.count.unwrap_or(1), every)?;
        }
        // Stable: jobs of one moment keep the order of the file.
        jobs.sort_by_key(|job| job.at);
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> Result<UsageRun, String> {
        match parse(text)? {
            UsageFile::Run(run) => Ok(*run),
            UsageFile::Division(_) => Err("a division".to_owned()),
        }
    }

    #[test]
    fn a_file_of_kai_is_read() {
        let text = "Cycles: 1024\nHalfLifePeriod: 128\nJobs:\n  Team-B: {GPUs: 16, NumJobs: 100, NumPods: 1}\nKValue: null\n\
                    Nodes: [{Count: 1, GPUs: 16}]\nQueues: [{Name: top, Parent: '', Weight: null}, {Name: Team-B, Parent: top}]\nWindowSize: 256\n";
        let run = run(text).unwrap();
        assert_eq!(
            (run.steps, run.step, run.nodes.as_slice(), run.jobs.len()),
            (1024, Millis::seconds(1), &[16][..], 100)
        );
        assert_eq!(run.usage.decay.half_life(), Some(Millis::seconds(128)));
        assert!(matches!(run.usage.window, kai_usage::Window::Sliding { size } if size == Millis::seconds(256)));
        assert_eq!((run.usage_weight_millionths, run.queues[1].priority), (1_000_000, 100));
    }

    #[test]
    fn jobs_arrive_at_their_times() {
        let text = "step: 10m\nduration: 2d\nwindowSize: 1d\nnodes: [{gpus: 8, count: 2}]\nqueues: [{name: a}]\n\
                    arrivals: [{queue: a, at: 1h, every: 2h, count: 3, gpus: 2, pods: 4, runs: 30m}, {queue: a, gpus: 1}]\n";
        let run = run(text).unwrap();
        let hours: Vec<i64> = run.jobs.iter().map(|job| job.at.0 / 3_600_000).collect();
        assert_eq!((run.steps, hours), (288, vec![0, 1, 3, 5]));
        assert_eq!(
            (run.jobs[1].min_pods, run.jobs[1].runs, run.jobs[0].runs),
            (4, Some(Millis::seconds(1800)), None)
        );
    }

    #[test]
    fn an_error_names_the_field() {
        let base = "nodes: [{gpus: 8}]\nqueues: [{name: a}, {name: b, parent: a}]\n";
        for (more, told) in [
            ("cycles: 0", "cycles, or duration / step: 0 is not from 1"),
            ("cycle: 1", "unknown field `cycle`"),
            ("step: soon", "step: "),
            ("cycles: 1\nduration: 1d", "cycles and duration: both are set"),
            (
                "jobs: {a: {gpus: 1}}",
                "jobs: a: there is no queue a without queues below it",
            ),
            ("jobs: {b: {gpus: 5000}}", "jobs: b: gpus: 5000 is not from 0 to 1024"),
            (
                "arrivals: [{queue: b, gpus: 1, count: 4000000000}]",
                "jobs in all: 4000000000 is not from 0 to 100000",
            ),
            ("windowType: round", "windowType: \"round\" is unknown"),
            ("windowType: cron", "cronString: \"\" is not a schedule"),
        ] {
            let error = run(&format!("{base}{more}\n")).unwrap_err();
            assert!(error.contains(told), "{more}: {error}");
        }
        assert!(
            run("nodes: []\nqueues: [{name: a}, {name: a}]")
                .unwrap_err()
                .contains("twice")
        );
        assert!(
            run("nodes: []\nqueues: [{name: a, parent: x}]")
                .unwrap_err()
                .contains("there is no queue x")
        );
    }
}
