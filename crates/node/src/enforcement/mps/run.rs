//! The thread that runs the daemon of this node. It starts and watches it as [`Supervisor`] says, creates namespaces on request, and keeps
//! the GPUs in the compute mode that makes the server the only way to them.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kai_gpu::Driver;
use tokio::sync::{oneshot, watch};

use super::commands::{self, Command};
use super::launch::{Launcher, first_line};
use super::modes::{fence, give_back};
use super::plan::{Daemon, MpsPlan, Namespace, Namespaces};
use super::supervise::{Health, Order, Seen, Supervisor};

/// Requests that wait for the thread. A kubelet starts containers one after the other, so more are a mistake.
const REQUESTS_QUEUED_MAX: usize = 64;
/// How long a command may take. Commands are answered at once, or by a daemon that hangs.
const COMMAND_MAX: Duration = Duration::from_secs(10);
/// How long the stop may take before the compute modes are given back. The agent's pod has ten seconds.
const STOP_MAX: Duration = Duration::from_secs(6);
/// The part of it in which clients end: each is asked to.
const CLIENTS_STOP_MAX: Duration = Duration::from_secs(3);
/// How long one client may take.
const CLIENT_STOP_MAX: Duration = Duration::from_secs(1);
/// How long a caller waits for the stop: a driver that hangs may hold up the compute modes.
const STOP_WAIT_MAX: Duration = Duration::from_secs(8);

/// How long the last words of a daemon that has ended may take to arrive: a process that it started may keep the pipe open.
const SAID_MAX: Duration = Duration::from_secs(1);

/// What the thread needs to know.
#[derive(Debug, Clone)]
pub struct MpsConfig {
    /// What runs.
    pub plan: MpsPlan,
    /// The host's `/` in this process.
    pub host_root: PathBuf,
    /// The program that enters the host's mount namespace: [`super::launch::THIS_PROGRAM`], except in tests.
    pub own_program: PathBuf,
    /// Where the files of the tier are; the same path here and on the host.
    pub state_dir: PathBuf,
    /// Between two looks at the daemon.
    pub pace: Duration,
}

/// What the server is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MpsStatus {
    /// It has not served yet.
    Starting,
    /// It serves.
    Serves,
    /// It does not, for this reason. It is started again.
    Fails(String),
}

impl MpsStatus {
    /// Whether the node can have the tier now; the error says why not.
    pub fn ability(&self) -> Result<(), String> {
        match self {
            MpsStatus::Starting => Err("the multi-process server has not answered yet".to_owned()),
            MpsStatus::Serves => Ok(()),
            MpsStatus::Fails(reason) => Err(format!(
                "the multi-process server does not serve, and is started again: {reason}"
            )),
        }
    }
}

enum Request {
    Open(Namespace, oneshot::Sender<Result<(), String>>),
    Close(String),
    /// Another plan, or why the node can have none now.
    Plan(Result<MpsPlan, String>),
    /// Look at the flag that says that the thread is to stop.
    Stop,
}

/// The running thread.
#[derive(Debug, Clone)]
pub struct MpsHandle {
    requests: SyncSender<Request>,
    status: watch::Receiver<MpsStatus>,
    /// Whether the thread is to stop.
    stopping: Arc<AtomicBool>,
}

impl MpsHandle {
    /// What the server is good for, as it changes.
    pub fn status(&self) -> watch::Receiver<MpsStatus> {
        self.status.clone()
    }

    /// Creates the namespace of a container before the container starts. The error is a sentence for the pod's event.
    pub async fn open(&self, namespace: Namespace) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        let busy = "the multi-process server is busy or stopped; trying again".to_owned();
        self.requests
            .try_send(Request::Open(namespace, reply))
            .map_err(|_| busy.clone())?;
        answer.await.unwrap_or(Err(busy))
    }

    /// Removes the namespace of a container that is gone.
    pub fn close(&self, namespace: &str) {
        // A namespace that stays is replaced when its share device is used again.
        let _ = self.requests.try_send(Request::Close(namespace.to_owned()));
    }

    /// Ends clients and daemon, and starts the daemon of another plan with the namespaces of running containers. Without a plan (the error
    /// says why) there is no daemon until the next one. Returns whether the thread will do it.
    pub fn change(&self, plan: Result<MpsPlan, String>) -> bool {
        self.requests.try_send(Request::Plan(plan)).is_ok()
    }

    /// Ends clients and daemon, and gives the GPUs their usual compute mode.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // If there is no room for it, the thread has requests, and sees the flag after each.
        let _ = self.requests.try_send(Request::Stop);
        // The thread drops the sender when it ends.
        let mut status = self.status.clone();
        let _ = tokio::time::timeout(STOP_WAIT_MAX, status.wait_for(|_| false)).await;
    }
}

/// Starts the thread. It ends with [`MpsHandle::stop`], or when the last handle is dropped.
pub fn start(config: MpsConfig, driver: Arc<dyn Driver>) -> MpsHandle {
    let (requests, received) = sync_channel(REQUESTS_QUEUED_MAX);
    let (sender, status) = watch::channel(MpsStatus::Starting);
    let stopping = Arc::new(AtomicBool::new(false));
    let worker = Worker {
        launcher: Launcher {
            host_root: config.host_root.clone(),
            own_program: config.own_program.clone(),
            program: config.plan.program.clone(),
        },
        driver,
        namespaces: Namespaces::new(),
        daemon: config.plan.daemon(&config.state_dir, &Namespaces::new()),
        supervisor: Supervisor::new(Instant::now()),
        child: None,
        said: None,
        failed: None,
        status: sender,
        stopping: stopping.clone(),
        config,
        rests: None,
    };
    std::thread::spawn(move || worker.run(received));
    MpsHandle {
        requests,
        status,
        stopping,
    }
}

struct Worker {
    config: MpsConfig,
    launcher: Launcher,
    driver: Arc<dyn Driver>,
    /// The namespaces of running containers: a daemon that is started anew gets them in its configuration.
    namespaces: Namespaces,
    daemon: Daemon,
    supervisor: Supervisor,
    child: Option<Child>,
    /// The first line that it prints.
    said: Option<Receiver<String>>,
    /// Why the last start failed.
    failed: Option<String>,
    /// Why there is to be no daemon.
    rests: Option<String>,
    status: watch::Sender<MpsStatus>,
    stopping: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self, requests: Receiver<Request>) {
        loop {
            self.look();
            let until = Instant::now() + self.config.pace;
            loop {
                match requests.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(Request::Open(namespace, reply)) => {
                        let _ = reply.send(self.open(namespace));
                    }
                    Ok(Request::Close(name)) => self.close(&name),
                    Ok(Request::Plan(plan)) => {
                        self.change(plan);
                        break;
                    }
                    Ok(Request::Stop) => {}
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return self.stop(),
                }
                if self.stopping.load(Ordering::Relaxed) {
                    return self.stop();
                }
            }
        }
    }

    /// One look at the daemon.
    fn look(&mut self) {
        if let Some(reason) = &self.rests {
            self.status.send_replace(MpsStatus::Fails(reason.clone()));
            return;
        }
        let fenced = fence(&*self.driver, &self.config.state_dir, &self.config.plan.gpus);
        let seen = self.seen();
        match self.supervisor.step(Instant::now(), seen) {
            Order::Start => {
                let started = fenced.clone().and_then(|()| self.start_daemon());
                self.failed = started.err();
            }
            Order::Kill => self.kill(),
            Order::Wait => {}
        }
        let status = match (fenced, self.supervisor.health()) {
            (Err(reason), _) => MpsStatus::Fails(reason),
            (Ok(()), Health::Fails(reason)) => MpsStatus::Fails(reason.clone()),
            (Ok(()), Health::Serves) => MpsStatus::Serves,
            (Ok(()), Health::Starting) => MpsStatus::Starting,
        };
        self.status
            .send_if_modified(|known| std::mem::replace(known, status.clone()) != status);
    }

    fn change(&mut self, plan: Result<MpsPlan, String>) {
        self.stop();
        self.supervisor = Supervisor::new(Instant::now());
        self.failed = None;
        match plan {
            Ok(plan) => {
                self.launcher.program = plan.program.clone();
                self.daemon = plan.daemon(&self.config.state_dir, &self.namespaces);
                self.config.plan = plan;
                self.rests = None;
                self.status.send_replace(MpsStatus::Starting);
            }
            Err(reason) => self.rests = Some(reason),
        }
    }

    fn seen(&mut self) -> Seen {
        if let Some(reason) = self.failed.take() {
            return Seen::Ended(reason);
        }
        let Some(child) = &mut self.child else {
            return Seen::NoProcess;
        };
        match child.try_wait() {
            Ok(Some(status)) => {
                self.child = None;
                let log = self.daemon.log_dir.join("control.log");
                let said = self.said.take().and_then(|said| said.recv_timeout(SAID_MAX).ok());
                let said = said.filter(|said| !said.is_empty()).map(|said| format!(": {said}"));
                return Seen::Ended(format!(
                    "it ended ({status}){}; see {}",
                    said.unwrap_or_default(),
                    log.display()
                ));
            }
            Ok(None) => {}
            Err(error) => return Seen::Silent(error.to_string()),
        }
        match self
            .command(&commands::probe())
            .and_then(|answer| commands::serves(&answer))
        {
            Ok(()) => Seen::Serves,
            Err(reason) => Seen::Silent(reason),
        }
    }

    fn start_daemon(&mut self) -> Result<(), String> {
        // The configuration has the namespaces of the containers that run now.
        self.daemon = self.config.plan.daemon(&self.config.state_dir, &self.namespaces);
        let Daemon {
            arguments,
            environment,
            pipe_dir,
            log_dir,
            config_file,
            config,
        } = &self.daemon;
        for directory in [pipe_dir, log_dir] {
            std::fs::create_dir_all(directory).map_err(|error| format!("creating {}: {error}", directory.display()))?;
        }
        if pipe_dir.join("control").exists() {
            // A daemon that an earlier agent left behind: a second one would not start.
            let _ = self
                .launcher
                .call(&commands::quit(), environment, COMMAND_MAX, &self.stopping);
        }
        std::fs::write(config_file, config).map_err(|error| format!("writing {}: {error}", config_file.display()))?;
        let mut command = self.launcher.command(arguments, environment);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("starting {}: {error}", self.launcher.program))?;
        self.said = Some(first_line(child.stderr.take()));
        self.child = Some(child);
        tracing::info!("started the daemon of the multi-process server");
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            tracing::warn!("the daemon of the multi-process server does not serve; killing it");
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn open(&mut self, namespace: Namespace) -> Result<(), String> {
        self.status.borrow().ability()?;
        if self.namespaces.get(&namespace.name) == Some(&namespace) {
            return Ok(());
        }
        // An earlier container of the share device may have left its namespace, with other limits.
        self.close(&namespace.name);
        for command in commands::create(&namespace) {
            if let Err(reason) = self.command(&command) {
                self.close(&namespace.name);
                return Err(reason);
            }
        }
        self.namespaces.insert(namespace.name.clone(), namespace);
        Ok(())
    }

    fn close(&mut self, name: &str) {
        self.namespaces.remove(name);
        // Most often there is none.
        let _ = self.command(&commands::delete(name));
    }

    fn command(&self, command: &Command) -> Result<String, String> {
        self.launcher
            .call(command, &self.daemon.environment, COMMAND_MAX, &self.stopping)
    }

    /// Ends clients first: one that is killed inside of a kernel can block the server. All of it has one deadline, and the compute modes are
    /// given back whatever happens before.
    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let now = Instant::now();
            let (clients_end, end) = (now + CLIENTS_STOP_MAX, now + STOP_MAX);
            let until = |end: Instant| end.saturating_duration_since(Instant::now());
            let call = |command: &Command, seconds_max: Duration| {
                let never = AtomicBool::new(false);
                self.launcher
                    .call(command, &self.daemon.environment, seconds_max, &never)
            };
            let clients = call(&commands::clients(), CLIENT_STOP_MAX);
            for client in commands::pids(&clients.unwrap_or_default()) {
                let left = until(clients_end);
                if left.is_zero() {
                    tracing::warn!(
                        "not all programs of the multi-process server ended in time; they are killed with it"
                    );
                    break;
                }
                let _ = call(&commands::terminate(client), left.min(CLIENT_STOP_MAX));
            }
            // Half of what is left: the daemon ends after its answer.
            let _ = call(&commands::quit(), until(end) / 2);
            while matches!(child.try_wait(), Ok(None)) && !until(end).is_zero() {
                std::thread::sleep(Duration::from_millis(20));
            }
            // A process that hangs in the driver does not end even so, and nobody waits for it.
            let _ = child.kill();
            let _ = child.try_wait();
        }
        if let Err(problem) = give_back(&*self.driver, &self.config.state_dir) {
            tracing::warn!(problem, "could not give the GPUs their usual compute mode");
        }
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
