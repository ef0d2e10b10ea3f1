//! Runs the steps: jobs end and arrive, usage is brought up to date, and the engine decides until nothing more changes.

use std::collections::BTreeMap;

use kai_engine::Cluster;
use kai_engine::model::{
    Config, EnforcementTier, Event, FractioningCondition, GangKey, GangSpec, GpuRequest, Labels, MemoryKind,
    MigStrategy, Millis, NodeSpec, PodPhase, PodSpec, QueueResources, QueueSpec, Quota, Requests, ResourceQuota,
};
use kai_engine::reasons::Resource;
use kai_engine::report::{Decision, Report};
use kai_usage::{History, Observation, UsageByQueue};
use rustc_hash::FxHashMap;

use super::read::{Job, Queue, UsageRun};
use super::{Point, QueueOutcome, UsageOutcome};

/// Cycles of one step. An eviction and the start in its place take two, the end of a chain of them a few more; what is not at rest then goes
/// on in the next step.
const CYCLES_MAX: i64 = 8;
/// Pod slots of a node: more than the jobs of any file need.
const NODE_PODS: i64 = 100_000;
const NAMESPACE: &str = "simulation";

/// Hears how many steps are done.
pub type Progress<'p> = &'p mut dyn FnMut(i64);

/// Runs the file.
pub fn run(file: &UsageRun, progress: Progress<'_>) -> UsageOutcome {
    let mut simulation = Simulation::new(file);
    for step in 0..file.steps {
        simulation.step(step);
        progress(step + 1);
    }
    simulation.finish()
}

struct Simulation<'f> {
    file: &'f UsageRun,
    cluster: Cluster,
    config: Config,
    history: History,
    /// What the engine has.
    usage: UsageByQueue,
    /// Places in `file.queues`.
    queue_ids: FxHashMap<&'f str, usize>,
    jobs: Vec<RunningJob>,
    /// By uid: the job and the pod in it.
    pods: FxHashMap<String, (usize, usize)>,
    outcome: UsageOutcome,
}

/// A job that has arrived.
struct RunningJob {
    /// Its place in `file.jobs`.
    job: usize,
    pods: Vec<PodSpec>,
    started: Option<Millis>,
    /// How long at least its minimum has run.
    ran: Millis,
    ended: bool,
}

impl RunningJob {
    fn running(&self) -> usize {
        self.pods.iter().filter(|pod| pod.node.is_some()).count()
    }
}

impl<'f> Simulation<'f> {
    fn new(file: &'f UsageRun) -> Simulation<'f> {
        let mut cluster = Cluster::new();
        for (at, gpus) in file.nodes.iter().enumerate() {
            cluster.apply(Event::Node(node(at, *gpus)));
        }
        for (at, queue) in file.queues.iter().enumerate() {
            cluster.apply(Event::Queue(queue_spec(at, queue)));
        }
        let parents = |name: &str| file.queues.iter().any(|queue| queue.parent.as_deref() == Some(name));
        let queues = file.queues.iter().map(|queue| QueueOutcome {
            is_leaf: !parents(&queue.name),
            queue: queue.clone(),
            jobs: 0,
            ended: 0,
            evictions: 0,
            waited: Millis(0),
        });
        Simulation {
            file,
            cluster,
            config: Config {
                usage_weight_millionths: file.usage_weight_millionths,
                ..Config::default()
            },
            history: History::new(file.usage.window.clone(), file.usage.decay),
            usage: UsageByQueue::new(),
            queue_ids: file
                .queues
                .iter()
                .enumerate()
                .map(|(at, queue)| (queue.name.as_str(), at))
                .collect(),
            jobs: Vec::new(),
            pods: FxHashMap::default(),
            outcome: UsageOutcome {
                step: file.step,
                gpus: file.nodes.iter().sum(),
                queues: queues.collect(),
                points: Vec::new(),
            },
        }
    }

    fn step(&mut self, step: i64) {
        let now = self.file.start + Millis(self.file.step.0 * step);
        self.end_jobs(now);
        self.start_jobs(now);
        let usage = self.history.usage(now);
        for change in kai_usage::changes(&self.usage, &usage) {
            self.cluster.apply(Event::Usage(change));
        }
        self.usage = usage;
        for cycle in 0..CYCLES_MAX {
            let report = self.cluster.cycle(now + Millis(cycle), &self.config);
            if !self.carry_out(&report, now) {
                break;
            }
        }
        self.observe(now);
    }

    /// Ends the jobs that have run long enough.
    fn end_jobs(&mut self, now: Millis) {
        let mut ended = Vec::new();
        for job in &mut self.jobs {
            let spec = &self.file.jobs[job.job];
            if job.ended || job.running() < spec.min_pods as usize {
                continue;
            }
            // It has run since the last step, or since its start in it.
            job.ran = job.ran + self.file.step;
            if spec.runs.is_none_or(|runs| job.ran < runs) {
                continue;
            }
            job.ended = true;
            ended.push((job.job, job.started));
            for pod in &job.pods {
                self.cluster.apply(Event::PodGone(pod.uid.clone()));
                self.pods.remove(&pod.uid);
            }
            self.cluster.apply(Event::GangGone(gang_key(job.job)));
            self.outcome.queues[self.queue_ids[spec.queue.as_str()]].ended += 1;
        }
        let before = self.jobs.len();
        for (job, started) in ended {
            self.add_wait(job, started, now);
        }
        self.jobs.retain(|job| !job.ended);
        if self.jobs.len() < before {
            // Places in `jobs` have changed.
            for (at, job) in self.jobs.iter().enumerate() {
                for (pod, spec) in job.pods.iter().enumerate() {
                    self.pods.insert(spec.uid.clone(), (at, pod));
                }
            }
        }
    }

    /// The time that a job has waited for its first start.
    fn add_wait(&mut self, job: usize, started: Option<Millis>, now: Millis) {
        let spec = &self.file.jobs[job];
        let waited = started.unwrap_or(now) - (self.file.start + spec.at);
        let queue = &mut self.outcome.queues[self.queue_ids[spec.queue.as_str()]];
        queue.waited = queue.waited + waited.max(Millis(0));
    }

    fn start_jobs(&mut self, now: Millis) {
        let arrived: u32 = self.outcome.queues.iter().map(|queue| queue.jobs).sum();
        let next = self.file.jobs.iter().enumerate().skip(arrived as usize);
        for (at, job) in next.take_while(|(_, job)| self.file.start + job.at <= now) {
            self.outcome.queues[self.queue_ids[job.queue.as_str()]].jobs += 1;
            let created = self.file.start + job.at;
            self.cluster.apply(Event::Gang(gang(at, job, created)));
            let pods: Vec<PodSpec> = (0..job.pods).map(|number| pod(at, number, job, created)).collect();
            for (number, spec) in pods.iter().enumerate() {
                self.cluster.apply(Event::Pod(spec.clone()));
                self.pods.insert(spec.uid.clone(), (self.jobs.len(), number));
            }
            self.jobs.push(RunningJob {
                job: at,
                pods,
                started: None,
                ran: Millis(0),
                ended: false,
            });
        }
    }

    /// Carries decisions out at once; returns whether there were any.
    fn carry_out(&mut self, report: &Report, now: Millis) -> bool {
        let mut changed = false;
        let mut evicted: Vec<usize> = Vec::new();
        for decision in &report.decisions {
            let (uid, node) = match decision {
                Decision::Bind(placed) => (&*placed.pod, Some(placed.node.to_string())),
                Decision::Evict { pod, .. } => (&**pod, None),
                Decision::Pipeline(_)
                | Decision::Started(_)
                | Decision::Evicted(_)
                | Decision::Stale { .. }
                | Decision::Recovered(_) => continue,
            };
            let Some((job, pod)) = self.pods.get(uid).copied() else {
                continue;
            };
            changed = true;
            let job_state = &mut self.jobs[job];
            if node.is_none() && !evicted.contains(&job) {
                evicted.push(job);
            }
            if node.is_some() {
                job_state.started.get_or_insert(now);
            }
            let spec = &mut job_state.pods[pod];
            spec.phase = if node.is_some() {
                PodPhase::Running
            } else {
                PodPhase::Pending
            };
            spec.node = node;
            self.cluster.apply(Event::Pod(spec.clone()));
        }
        for job in evicted {
            let queue = self.file.jobs[self.jobs[job].job].queue.as_str();
            self.outcome.queues[self.queue_ids[queue]].evictions += 1;
        }
        changed
    }

    /// Records what queues hold until the next step.
    fn observe(&mut self, now: Millis) {
        let mut points = vec![Point::default(); self.file.queues.len()];
        let mut allocated: BTreeMap<String, QueueResources> = BTreeMap::new();
        for view in self.cluster.queues() {
            let Some(at) = self.queue_ids.get(view.name).copied() else {
                continue;
            };
            points[at] = Point {
                allocated: view.allocated.gpus.as_f64(),
                fair_share: view.fair_share.gpus.as_f64(),
                usage: 0.0,
            };
            allocated.insert(view.name.to_owned(), view.allocated);
        }
        let observation = Observation {
            capacity: self.cluster.capacity(),
            allocated,
        };
        self.history.hold(now, now + self.file.step, &observation);
        for (queue, usage) in self.history.usage(now + self.file.step) {
            if let Some(at) = self.queue_ids.get(queue.as_str()) {
                points[*at].usage = usage[Resource::Gpu] as f64 / 1e9;
            }
        }
        self.outcome.points.push(points);
    }

    fn finish(mut self) -> UsageOutcome {
        let end = self.file.start + Millis(self.file.step.0 * self.file.steps);
        for job in std::mem::take(&mut self.jobs) {
            self.add_wait(job.job, job.started, end);
        }
        self.outcome
    }
}

fn node(at: usize, gpus: i64) -> NodeSpec {
    NodeSpec {
        name: format!("node-{at:05}"),
        labels: Labels::new(),
        taints: Vec::new(),
        unschedulable: false,
        conditions: Vec::new(),
        cpu_milli: 1_000_000,
        memory_bytes: 1 << 40,
        gpus,
        pods: NODE_PODS,
        extended: Vec::new(),
        gpu_count_label: Some(gpus),
        gpu_memory_mib: None,
        gpu_memory_kind: MemoryKind::Dedicated,
        mig_enabled: false,
        mig_strategy: MigStrategy::None,
        enforcement: EnforcementTier::None,
        fractioning: FractioningCondition::Met,
    }
}

/// Queues are older the earlier they are in the file.
fn queue_spec(at: usize, queue: &Queue) -> QueueSpec {
    let millionths = |amount: f64| (amount * 1e6).round() as i64;
    QueueSpec {
        name: queue.name.clone(),
        display_name: String::new(),
        parent: queue.parent.clone(),
        created: Millis(at as i64),
        uid: queue.name.clone(),
        priority: queue.priority,
        quota: Quota {
            gpu: ResourceQuota {
                deserved: (queue.deserved_gpus >= 0.0).then(|| millionths(queue.deserved_gpus)),
                limit: None,
                weight_millionths: millionths(queue.weight),
            },
            ..Quota::UNBOUNDED
        },
        preempt_min_runtime: None,
        reclaim_min_runtime: None,
    }
}

fn gang_key(at: usize) -> GangKey {
    GangKey {
        namespace: NAMESPACE.to_owned(),
        name: format!("job-{at:06}"),
    }
}

fn gang(at: usize, job: &Job, created: Millis) -> GangSpec {
    let _key = gang_key(at);
    GangSpec {
        created,
        priority: 50,
        min_member: job.min_pods,
        ..GangSpec::new(gang_key(at), &job.queue)
    }
}

fn pod(at: usize, number: u32, job: &Job, created: Millis) -> PodSpec {
    let key = gang_key(at);
    let name = format!("{}-{number:03}", key.name);
    PodSpec {
        created,
        gang: Some(key),
        requests: Requests {
            gpu: match job.gpus {
                0 => GpuRequest::None,
                devices => GpuRequest::Whole { devices },
            },
            ..Requests::default()
        },
        ..PodSpec::new(NAMESPACE, &name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::{UsageFile, parse};
    use super::*;

    fn outcome(text: &str) -> UsageOutcome {
        let UsageFile::Run(file) = parse(text).unwrap() else {
            panic!("a run")
        };
        run(&file, &mut |_| {})
    }

    /// Jobs of both queues fill the cluster alone: only time can divide it.
    const OSCILLATION: &str = "cycles: 200\nhalfLifePeriod: 8\nwindowSize: 40\nkValue: 1\nnodes: [{gpus: 16}]\n\
        queues: [{name: top}, {name: a, parent: top, weight: WEIGHT}, {name: b, parent: top}]\n\
        jobs: {a: {gpus: 16, numJobs: 10}, b: {gpus: 16, numJobs: 10}}\n";

    #[test]
    fn queues_take_turns() {
        let outcome = outcome(&OSCILLATION.replace("WEIGHT", "1"));
        let hours = [1, 2].map(|queue| outcome.gpu_hours(queue));
        let share = hours[0] / (hours[0] + hours[1]);
        assert!((0.45..0.55).contains(&share), "{share}");
        assert!(outcome.queues[1].evictions > 3, "{}", outcome.queues[1].evictions);
    }

    #[test]
    fn without_weight_the_past_does_not_count() {
        let outcome = outcome(&OSCILLATION.replace("WEIGHT", "1").replace("kValue: 1", "kValue: 0"));
        assert_eq!(outcome.gpu_hours(2), 0.0);
        assert_eq!(outcome.queues[1].evictions, 0);
    }

    #[test]
    fn jobs_run_and_end() {
        let outcome = outcome(
            "step: 1h\nduration: 10h\nwindowSize: 1d\nnodes: [{gpus: 4}]\nqueues: [{name: a}]\n\
             arrivals: [{queue: a, gpus: 2, pods: 2, runs: 3h, count: 3}]\n",
        );
        let allocated: Vec<f64> = outcome.points.iter().map(|points| points[0].allocated).collect();
        assert_eq!(allocated, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 0.0]);
        let queue = &outcome.queues[0];
        assert_eq!(
            (queue.jobs, queue.ended, queue.mean_wait()),
            (3, 3, Some(Millis::seconds(3 * 3600)))
        );
        assert_eq!((outcome.gpu_hours(0), outcome.points[9][0].usage), (36.0, 0.9));
    }

    #[test]
    fn two_runs_are_equal() {
        let text = OSCILLATION.replace("WEIGHT", "3");
        assert_eq!(outcome(&text).points, outcome(&text).points);
    }
}
