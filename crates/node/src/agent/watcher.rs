//! The thread that calls the driver: it waits for health events, probes the GPUs and lists them, and sends the results to the task that
//! owns the state. Driver calls block, so it is a thread and no task.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kai_gpu::{Driver, GpuError, HealthEventKind};
use tokio::sync::mpsc;

use super::state::{DriverProblem, Input};
use crate::health;

/// Longest wait for events; it bounds how long the thread outlives the agent.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Starts the thread. It ends when the receiver is dropped.
pub fn start(driver: Arc<dyn Driver>, probe: Duration, refresh: Duration, inputs: mpsc::Sender<Input>) {
    let thread = std::thread::Builder::new().name("gpu-driver".to_owned());
    // The default stack size is enough for driver calls, and only touched pages count towards the agent's memory.
    let spawned = thread.spawn(move || {
        Watcher {
            driver,
            probe,
            refresh,
            inputs,
            known: BTreeSet::new(),
            driver_works: true,
        }
        .run();
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "could not start the thread that watches the GPUs");
    }
}

struct Watcher {
    driver: Arc<dyn Driver>,
    probe: Duration,
    refresh: Duration,
    inputs: mpsc::Sender<Input>,
    /// UUIDs of the GPUs to probe.
    known: BTreeSet<String>,
    driver_works: bool,
}

/// The agent has ended: the receiver of inputs is dropped.
struct Ended;

impl Watcher {
    fn run(mut self) {
        let mut next_probe = Instant::now();
        let mut next_list = Instant::now();
        while !self.inputs.is_closed() {
            let now = Instant::now();
            let mut list_now = false;
            if now >= next_list {
                next_list = now
                    + if self.list().is_ok_and(|listed| listed) {
                        self.refresh
                    } else {
                        self.probe
                    };
            }
            if now >= next_probe {
                next_probe = now + self.probe;
                list_now = self.probe_all().unwrap_or(false);
            }
            let wait = next_probe
                .min(next_list)
                .saturating_duration_since(Instant::now())
                .min(WAIT_MAX);
            list_now |= self.wait(wait).unwrap_or(false);
            if list_now {
                next_list = Instant::now();
            }
        }
    }

    /// Lists the devices; `Ok(false)` if the driver did not answer.
    fn list(&mut self) -> Result<bool, Ended> {
        match self.driver.devices() {
            Ok(inventory) => {
                self.driver_works = true;
                // A GPU that the driver no longer lists is still probed, so that its return is noticed.
                self.known
                    .extend(inventory.devices.iter().map(|device| device.uuid.clone()));
                self.send(Input::Listed(Box::new(inventory))).map(|()| true)
            }
            Err(error) => self.failed(&error).map(|()| false),
        }
    }

    /// Probes every GPU; `Ok(true)` if the devices should be listed again.
    fn probe_all(&mut self) -> Result<bool, Ended> {
        let mut answers = Vec::new();
        for uuid in &self.known {
            match health::probe(&*self.driver, uuid) {
                Ok(()) => answers.push((uuid.clone(), Ok(()))),
                Err(error) if error.is_driver_gone() => {
                    self.failed(&error)?;
                    return Ok(false);
                }
                Err(error) => answers.push((uuid.clone(), Err(error.to_string()))),
            }
        }
        let returned = !self.driver_works && !answers.is_empty();
        self.driver_works |= returned;
        self.send(Input::Probed(answers)).map(|()| returned)
    }

    /// Waits for events; `Ok(true)` if the devices should be listed again.
    fn wait(&mut self, timeout: Duration) -> Result<bool, Ended> {
        let begun = Instant::now();
        match self.driver.wait_events(timeout) {
            Ok(events) if events.is_empty() => Ok(false),
            Ok(events) => {
                let list = |kind: &HealthEventKind| {
                    matches!(kind, HealthEventKind::InventoryChanged | HealthEventKind::Recovered)
                };
                let list = events.iter().any(|event| list(&event.kind));
                self.send(Input::Events(events)).map(|()| list)
            }
            Err(error) => {
                if error.is_driver_gone() {
                    self.failed(&error)?;
                }
                // A driver that fails immediately must not make this thread spin.
                std::thread::sleep(timeout.saturating_sub(begun.elapsed()));
                Ok(false)
            }
        }
    }

    fn failed(&mut self, error: &GpuError) -> Result<(), Ended> {
        if self.driver_works {
            tracing::warn!(error = %error.with_remedy(), "the GPU driver does not answer");
        }
        self.driver_works = false;
        let problem = DriverProblem {
            reason: error.to_string(),
            remedy: error.remedy().to_owned(),
        };
        self.send(Input::DriverFailed(problem))
    }

    fn send(&self, input: Input) -> Result<(), Ended> {
        self.inputs.blocking_send(input).map_err(|_| Ended)
    }
}
