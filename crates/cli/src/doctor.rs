//! `kai doctor`: prints the findings. It first opens the driver in a process of its own: the dynamic linker crashes on some libraries
//! whose bytes are corrupted, and the crash is a finding.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};

use clap::{Args, ValueEnum};

/// The flags of `kai doctor`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    doctor: kai_node::doctor::Args,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Only open the driver and list its devices, for the check that the driver library does not crash.
    #[arg(long, hide = true)]
    probe_driver: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// For a person.
    Table,
    /// For a program.
    Json,
}

/// Checks the machine. The exit code is 1 if something will not work.
pub(crate) fn run(mut arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.probe_driver {
        kai_node::doctor::probe_driver(&arguments.doctor);
        return Ok(ExitCode::SUCCESS);
    }
    arguments.doctor.driver_crash = driver_crash();
    let report = kai_node::doctor::run(arguments.doctor)?;
    let text = match arguments.output {
        Output::Table => report.table(),
        Output::Json => report.json() + "\n",
    };
    crate::print(&text)?;
    Ok(ExitCode::from(report.exit_code()))
}

/// Signals by which a library ends its process: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
const CRASHES: [i32; 5] = [4, 6, 7, 8, 11];

/// Opens the driver in a process of its own, with the flags of this one. How that process crashed, if it did. Where no process can be
/// started, the doctor goes on without the check.
fn driver_crash() -> Option<String> {
    let status = Command::new(std::env::current_exe().ok()?)
        .args(std::env::args_os().skip(1))
        .arg("--probe-driver")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()?;
    let crashed = status.signal().is_some_and(|signal| CRASHES.contains(&signal));
    crashed.then(|| status.to_string())
}
