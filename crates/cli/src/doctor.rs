//! `kai doctor`: prints the findings about this machine. It first opens the driver in a process of its own: the dynamic linker crashes on
//! some libraries whose bytes are corrupted, and the crash is a finding.
//!
//! `kai doctor NODE` prints the findings about a node of the cluster: a Job runs the doctor there.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use kai_node::doctor::on_node::{self, JobArgs, NodeDoctor};

/// The flags of `kai doctor`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Node of the cluster to check, by a Job on it. Without it, the doctor checks this machine.
    #[arg(value_name = "NODE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    node: Option<String>,
    #[command(flatten)]
    doctor: kai_node::doctor::Args,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Only open the driver and list its devices, for the check that the driver library does not crash.
    #[arg(long, hide = true)]
    probe_driver: bool,
    #[command(flatten)]
    job: JobArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// For a person.
    Table,
    /// For a program.
    Json,
}

impl Output {
    fn word(self) -> &'static str {
        match self {
            Output::Table => "table",
            Output::Json => "json",
        }
    }
}

/// Checks the machine. The exit code is 1 if something will not work.
pub(crate) fn run(mut arguments: Arguments) -> anyhow::Result<ExitCode> {
    if arguments.probe_driver {
        kai_node::doctor::probe_driver(&arguments.doctor);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(node) = arguments.node.take() {
        return run_on_node(node, arguments);
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

/// Checks a node of the cluster. The exit code is the doctor's.
fn run_on_node(node: String, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments {
        doctor, output, job, ..
    } = arguments;
    if let Some(other) = doctor.node_name.filter(|other| *other != node) {
        bail!("the node is {node}, but --node-name (or the variable NODE_NAME) says {other}; name one node");
    }
    let mut flags = on_node::pod_flags(&doctor.host, &doctor.images)?;
    flags.push(format!("--output={}", output.word()));
    let access = on_node::access(doctor.kubeconfig.as_ref(), &job);
    let print_job = job.print_job;
    let doctor = NodeDoctor { node, job, flags };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if print_job {
            let manifest = doctor.manifest(&access).await?;
            crate::print(&serde_saphyr::to_string(&manifest).context("writing YAML")?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let client = kai_cluster::Client::connect(&access).await?;
        let report = doctor.run(&client).await?;
        crate::print(&report.text)?;
        if let Some(note) = report.note {
            eprintln!("warning: {note}");
        }
        Ok(ExitCode::from(report.exit_code))
    })
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
