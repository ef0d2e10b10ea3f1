//! Runs the host's control program. In the agent's container the program would find neither its libraries nor the server that it starts, and the
//! host's files are read-only there; so a child of this program enters the mount namespace of the host's init first. A call has a time limit.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::commands::Command;

/// The hidden command of this program that enters the host's mount namespace and becomes another program.
pub const LAUNCH_COMMAND: &str = "mps-launch";
/// The mount namespace of the host's init, with hostPID.
const HOST_MOUNTS: &str = "/proc/1/ns/mnt";
/// Between two looks at a call that has not ended.
const POLL: Duration = Duration::from_millis(20);
/// Longest answer that is kept.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Longest message of a daemon that is kept.
const LINE_BYTES_MAX: u64 = 4096;
/// This program, in the eyes of the kernel.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// How the host's program is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// The host's `/` in this process.
    pub host_root: PathBuf,
    /// The program with the command [`LAUNCH_COMMAND`]: [`THIS_PROGRAM`], except in tests.
    pub own_program: PathBuf,
    /// The program, as the host names it.
    pub program: String,
}

/// Why a program of the host does not run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The host's mount namespace can't be entered.
    #[error(
        "entering the mount namespace of the host ({HOST_MOUNTS}): {0}; the node agent's pod needs hostPID: true and a privileged container \
         (chart: nodeAgent.hostPID, nodeAgent.privileged)"
    )]
    Namespace(std::io::Error),
    /// The program can't be run there.
    #[error("running {program} on the host: {error}; install the driver's compute utilities there")]
    Program {
        /// Its path.
        program: String,
        /// What the kernel said.
        error: std::io::Error,
    },
}

impl Launcher {
    /// The host's program, ready to be started.
    pub fn command(&self, arguments: &[String], environment: &[(&'static str, String)]) -> std::process::Command {
        let mut command = match self.host_root == Path::new("/") {
            true => std::process::Command::new(&self.program),
            false => {
                let mut command = std::process::Command::new(&self.own_program);
                command.arg(LAUNCH_COMMAND).arg("--").arg(&self.program);
                command
            }
        };
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(environment.iter().map(|(key, value)| (*key, value.as_str())));
        command
    }

    /// Runs one command and returns what it printed. The error has what it printed, too. The call is given up when `cancelled` becomes true.
    pub fn call(
        &self,
        call: &Command,
        environment: &[(&'static str, String)],
        seconds_max: Duration,
        cancelled: &AtomicBool,
    ) -> Result<String, String> {
        let shown = format!("{} {}", self.program, call.join(" "));
        let mut command = self.command(call, environment);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("running {shown}: {error}"))?;
        let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let status = match wait(&mut child, seconds_max, cancelled) {
            Ok(status) => status,
            Err(reason) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("running {shown}: {reason}"));
            }
        };
        // The pipes end with the program, unless it has left children behind.
        let read =
            |reader: std::sync::mpsc::Receiver<String>| reader.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let (out, err) = (read(out), read(err));
        match status.success() {
            true => Ok(out),
            false => Err(format!(
                "running {shown}: {status}: {}",
                [err.trim(), out.trim()].join(" ").trim()
            )),
        }
    }
}

fn wait(child: &mut Child, seconds_max: Duration, cancelled: &AtomicBool) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + seconds_max;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() >= deadline => {
                return Err(format!("no answer within {} seconds", seconds_max.as_secs()));
            }
            Ok(None) if cancelled.load(Ordering::Relaxed) => return Err("given up, because the agent stops".to_owned()),
            Ok(None) => std::thread::sleep(POLL),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Reads a pipe to its end on a thread of its own, so that a long answer does not block the program.
fn reader(pipe: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// The first line that a daemon prints; the rest is read and dropped, so that the daemon never waits for a reader.
pub(super) fn first_line(pipe: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let Some(mut pipe) = pipe.map(BufReader::new) else {
            return;
        };
        let mut line = Vec::new();
        let _ = pipe.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let _ = sender.send(String::from_utf8_lossy(&line).trim().to_owned());
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    });
    receiver
}

/// Enters the mount namespace of the host's init and becomes the program. Returns only if that fails. The process must have one thread.
pub fn become_program(program: &str, arguments: &[String]) -> LaunchError {
    let entered = std::fs::File::open(HOST_MOUNTS).and_then(|namespace| {
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(namespace.as_fd(), kind).map_err(std::io::Error::from)
    });
    match entered {
        Ok(()) => LaunchError::Program {
            program: program.to_owned(),
            error: std::process::Command::new(program).args(arguments).exec(),
        },
        Err(error) => LaunchError::Namespace(error),
    }
}
