//! A process beside the test, with its output in a file. It is killed without warning when it is stopped or dropped: its clients have
//! to recover.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) struct Process {
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts the process; its output is appended to `<name>.log` in `directory`.
    pub(crate) fn start(directory: &Path, name: &str, command: &mut Command) -> Process {
        let log = directory.join(format!("{name}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let started = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn();
        let child = started.unwrap_or_else(|error| panic!("{name} can't be started: {error}"));
        Process { log, child }
    }

    /// Fails the test if the process has ended.
    pub(crate) fn check(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("{} ended with {status}:\n{}", self.log.display(), self.last_words());
        }
    }

    /// The end of the output.
    pub(crate) fn last_words(&self) -> String {
        const LINES: usize = 30;
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
