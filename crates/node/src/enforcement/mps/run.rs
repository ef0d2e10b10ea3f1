//! The thread that runs the daemons of this node. It starts and watches them as [`Supervisor`] says, creates namespaces on request, and keeps
//! the GPUs in the compute mode that makes the server the only way to them.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kai_gpu::{Driver, GpuComputeMode};
use tokio::sync::{oneshot, watch};

use super::commands::{self, Command};
use super::launch::{Launcher, first_line};
use super::plan::{Daemon, MpsPlan, Namespace, Namespaces};
use super::supervise::{Health, Order, Seen, Supervisor};

/// Requests that wait for the thread. A kubelet starts containers one after the other, so more are a mistake.
const REQUESTS_QUEUED_MAX: usize = 64;
/// How long a command may take. Commands are answered at once, or by a daemon that hangs.
const COMMAND_MAX: Duration = Duration::from_secs(10);
/// How long the work of one client may take to end when the daemon is stopped, and the daemon itself. The agent's pod has ten seconds.
const STOP_MAX: Duration = Duration::from_secs(3);

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
    /// Between two looks at the daemons.
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
    Stop(oneshot::Sender<()>),
}

/// The running thread.
#[derive(Debug, Clone)]
pub struct MpsHandle {
    requests: SyncSender<Request>,
    status: watch::Receiver<MpsStatus>,
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

    /// Ends clients and daemons, and gives the GPUs their usual compute mode.
    pub async fn stop(&self) {
        let (reply, answer) = oneshot::channel();
        if self.requests.try_send(Request::Stop(reply)).is_ok() {
            let _ = answer.await;
        }
    }
}

/// Starts the thread. It ends with [`MpsHandle::stop`], or when the last handle is dropped.
pub fn start(config: MpsConfig, driver: Arc<dyn Driver>) -> MpsHandle {
    let (requests, received) = sync_channel(REQUESTS_QUEUED_MAX);
    let (sender, status) = watch::channel(MpsStatus::Starting);
    let worker = Worker {
        launcher: Launcher {
            host_root: config.host_root.clone(),
            own_program: config.own_program.clone(),
            program: config.plan.program.clone(),
        },
        config,
        driver,
        namespaces: Namespaces::new(),
        daemons: Vec::new(),
        status: sender,
    };
    std::thread::spawn(move || worker.run(received));
    MpsHandle { requests, status }
}

struct Worker {
    config: MpsConfig,
    launcher: Launcher,
    driver: Arc<dyn Driver>,
    /// The namespaces of running containers: a daemon that is started anew gets them in its configuration.
    namespaces: Namespaces,
    daemons: Vec<Supervised>,
    status: watch::Sender<MpsStatus>,
}

struct Supervised {
    daemon: Daemon,
    supervisor: Supervisor,
    child: Option<Child>,
    /// The first line that it prints.
    said: Option<Receiver<String>>,
    /// Why the last start failed.
    failed: Option<String>,
}

impl Worker {
    fn run(mut self, requests: Receiver<Request>) {
        let daemons = self.config.plan.daemons(&self.config.state_dir, &self.namespaces);
        self.daemons = daemons
            .into_iter()
            .map(|daemon| Supervised {
                daemon,
                supervisor: Supervisor::new(Instant::now()),
                child: None,
                said: None,
                failed: None,
            })
            .collect();
        loop {
            self.look();
            let until = Instant::now() + self.config.pace;
            loop {
                match requests.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(Request::Open(namespace, reply)) => {
                        let _ = reply.send(self.open(namespace));
                    }
                    Ok(Request::Close(name)) => self.close(&name),
                    Ok(Request::Stop(reply)) => {
                        self.stop();
                        let _ = reply.send(());
                        return;
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return self.stop(),
                }
            }
        }
    }

    /// One look at each daemon.
    fn look(&mut self) {
        let fenced = self.fence();
        for at in 0..self.daemons.len() {
            let seen = self.seen(at);
            match self.daemons[at].supervisor.step(Instant::now(), seen) {
                Order::Start => {
                    let started = fenced.clone().and_then(|()| self.start_daemon(at));
                    self.daemons[at].failed = started.err();
                }
                Order::Kill => self.kill(at),
                Order::Wait => {}
            }
        }
        let failed = self.daemons.iter().find_map(|one| match one.supervisor.health() {
            Health::Fails(reason) => Some(format!("{}: {reason}", one.daemon.name)),
            Health::Starting | Health::Serves => None,
        });
        let serves = self
            .daemons
            .iter()
            .all(|one| *one.supervisor.health() == Health::Serves);
        let status = match (fenced, failed, serves) {
            (Err(reason), _, _) | (Ok(()), Some(reason), _) => MpsStatus::Fails(reason),
            (Ok(()), None, true) => MpsStatus::Serves,
            (Ok(()), None, false) => MpsStatus::Starting,
        };
        self.status
            .send_if_modified(|known| std::mem::replace(known, status.clone()) != status);
    }

    /// Keeps processes that do not find the daemon away from the GPUs. Anybody with root on the host may change the mode, so it is looked at
    /// again and again.
    fn fence(&self) -> Result<(), String> {
        for gpu in &self.config.plan.gpus {
            let mode = self.driver.compute_mode(gpu).map_err(|error| error.with_remedy())?;
            if mode != Some(GpuComputeMode::ExclusiveProcess) {
                let set = self.driver.set_compute_mode(gpu, GpuComputeMode::ExclusiveProcess);
                set.map_err(|error| error.with_remedy())?;
            }
        }
        Ok(())
    }

    fn seen(&mut self, at: usize) -> Seen {
        let protocol = self.config.plan.protocol;
        let one = &mut self.daemons[at];
        if let Some(reason) = one.failed.take() {
            return Seen::Ended(reason);
        }
        let Some(child) = &mut one.child else {
            return Seen::NoProcess;
        };
        match child.try_wait() {
            Ok(Some(status)) => {
                one.child = None;
                let log = one.daemon.log_dir.join("control.log");
                let said = one.said.take().and_then(|said| said.recv_timeout(SAID_MAX).ok());
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
        let answer = self
            .launcher
            .call(&commands::probe(protocol), &one.daemon.environment, COMMAND_MAX);
        match answer.and_then(|answer| commands::serves(protocol, &answer)) {
            Ok(()) => Seen::Serves,
            Err(reason) => Seen::Silent(reason),
        }
    }

    fn start_daemon(&mut self, at: usize) -> Result<(), String> {
        // The configuration has the namespaces of the containers that run now.
        let plan = &self.config.plan;
        let daemons = plan.daemons(&self.config.state_dir, &self.namespaces);
        let one = &mut self.daemons[at];
        one.daemon = daemons.into_iter().nth(at).expect("a plan has the same daemons always");
        for directory in [&one.daemon.pipe_dir, &one.daemon.log_dir] {
            std::fs::create_dir_all(directory).map_err(|error| format!("creating {}: {error}", directory.display()))?;
        }
        if one.daemon.pipe_dir.join("control").exists() {
            // A daemon that an earlier agent left behind: a second one would not start.
            let _ = self
                .launcher
                .call(&commands::quit(plan.protocol), &one.daemon.environment, STOP_MAX);
        }
        if let Some((path, text)) = &one.daemon.config {
            std::fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))?;
        }
        let mut command = self.launcher.command(&one.daemon.arguments, &one.daemon.environment);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("starting {}: {error}", self.launcher.program))?;
        one.said = Some(first_line(child.stderr.take()));
        one.child = Some(child);
        tracing::info!(daemon = one.daemon.name, "started");
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        let one = &mut self.daemons[at];
        if let Some(mut child) = one.child.take() {
            tracing::warn!(daemon = one.daemon.name, "does not serve; killing it");
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
        for command in commands::create(self.config.plan.protocol, &namespace) {
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
        if let Some(command) = commands::delete(self.config.plan.protocol, name) {
            // Most often there is none.
            let _ = self.command(&command);
        }
    }

    /// Runs a command of the newer protocol, which has one daemon.
    fn command(&self, command: &Command) -> Result<String, String> {
        let environment = &self.daemons[0].daemon.environment;
        self.launcher.call(command, environment, COMMAND_MAX)
    }

    /// Ends clients first: one that is killed inside of a kernel can block the server.
    fn stop(&mut self) {
        let protocol = self.config.plan.protocol;
        for one in &mut self.daemons {
            let Some(mut child) = one.child.take() else { continue };
            let call = |command: &Command| self.launcher.call(command, &one.daemon.environment, STOP_MAX);
            let server =
                commands::servers(protocol).and_then(|servers| commands::pids(&call(&servers).ok()?).first().copied());
            let clients = commands::clients(protocol, server).and_then(|clients| call(&clients).ok());
            for client in commands::pids(&clients.unwrap_or_default()) {
                if let Some(command) = commands::terminate(protocol, server, client) {
                    let _ = call(&command);
                }
            }
            let _ = call(&commands::quit(protocol));
            let deadline = Instant::now() + STOP_MAX;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        for gpu in &self.config.plan.gpus {
            if let Err(error) = self.driver.set_compute_mode(gpu, GpuComputeMode::Default) {
                tracing::warn!(gpu, %error, "the GPU keeps the compute mode EXCLUSIVE_PROCESS; run nvidia-smi -c DEFAULT");
            }
        }
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
