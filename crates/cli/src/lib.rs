//! The `kai` program: argument parsing, wiring and printing only. Every role and tool is a subcommand.

mod completions;
mod crds;
mod doctor;
mod draw;
pub mod embedded;
mod gpu_limit_hook;
mod grid;
mod group;
mod inspect;
mod log;
mod man;
mod manifests;
mod mps_launch;
mod node_agent;
mod page;
mod playground;
mod remedies;
mod resource_reservation;
pub mod roles;
mod simulate;
mod top;
mod ui;
mod uninstall;
mod version;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// GPU scheduling for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "kai", version = kai_cluster::VERSION, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Lists the commands: the text of `--help`, the name, and the module with its `Arguments` and its function.
macro_rules! commands {
    ($($(#[$help:meta])+ $command:ident => $($module:ident)::+.$function:ident,)+) => {
        #[derive(Debug, Subcommand)]
        enum Command {
            $($(#[$help])+ $command(Box<$($module)::+::Arguments>),)+
        }

        impl Command {
            fn run(self) -> anyhow::Result<ExitCode> {
                match self {
                    $(Command::$command(arguments) => $($module)::+::$function(*arguments),)+
                }
            }
        }
    };
}

commands! {
    /// Run clusters from files through the scheduler's engine, without a cluster.
    Simulate => simulate.run,
    /// Try kai: a whole cluster with simulated GPUs in this process. Needs no GPU and no Kubernetes.
    Playground => playground.run,
    /// Show the GPUs of all nodes, their memory, and the pods on each.
    Gpus => inspect::gpus.run,
    /// Show the tree of queues: quota, fair share, what their pods use and request.
    Queues => inspect::queues.run,
    /// Show the gangs that wait: why, since when, at which position of their queue.
    Pending => inspect::pending.run,
    /// Show everything about one pod, pod group, queue or node.
    Explain => inspect::explain.run,
    /// Show the decisions of the last hour: which pod was bound, promised a place or evicted, for whom and why.
    Decisions => inspect::decisions.run,
    /// Show nodes, queues, what waits and what is decided on a full screen, live.
    Top => top.run,
    /// Serve the page of a cluster on this machine: GPUs, queues, what waits and why, decisions, live.
    Ui => ui.run,
    /// Show which pod groups would be made of workloads in files, and why. Writes nothing.
    Group => group.run,
    /// Write the scheduler's objects to a zip file in KAI's snapshot format.
    Snapshot => inspect::snapshot.run,
    /// Run all roles of the cluster's side in one process.
    All => roles::all.main,
    /// Decide which pod gets which node and GPU.
    Scheduler => roles::scheduler.main,
    /// Carry out decisions: reserve GPUs, prepare pods, bind them.
    Binder => roles::binder.main,
    /// Group workloads into gangs and keep the status of pod groups and queues.
    Controllers => roles::controllers.main,
    /// Check and complete pods, queues, pod groups and topologies as they are created.
    Admission => roles::admission.main,
    /// Run the roles in Deployments, as the Config and the scheduling shards say.
    Operator => roles::operator.main,
    /// Remove kai's webhooks, admission policies, leases and reservation pods from the cluster. Workloads and their pods stay.
    Uninstall => uninstall.run,
    /// Serve the GPUs of this node: offer them to the kubelet, inject the driver, label the node, watch health.
    NodeAgent => node_agent.run,
    /// Hold the container whose state is on stdin to its GPU memory. Container runtimes run this.
    #[command(hide = true)]
    GpuLimitHook => gpu_limit_hook.run,
    /// Become a program of the host. The node agent starts the multi-process server's daemon by this.
    #[command(hide = true)]
    MpsLaunch => mps_launch.run,
    /// Annotate this reservation pod with the GPU that it was given, and hold the GPU. For nodes without the agent.
    ResourceReservation => resource_reservation.run,
    /// Check this machine and report what will not work, why, and what repairs it. Changes nothing.
    Doctor => doctor.run,
    /// Print the custom resource definitions that an installation needs, or apply them to a cluster.
    Crds => crds.run,
    /// Print the objects of an installation, for those without Helm.
    Manifests => manifests.run,
    /// Print version, commit and build.
    Version => version.run,
    /// Print the completion script of a shell.
    Completions => completions.run,
    /// Write the manual pages of kai and all its commands to a directory.
    Man => man.run,
}

/// Runs the program.
pub fn main() -> ExitCode {
    match parse(std::env::args_os()).command.run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", with_causes(&error));
            ExitCode::from(2)
        }
    }
}

/// Parses the command line. Usage texts name the program as the user called it.
fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Arguments {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let called = called_as(arguments.first().map(std::path::Path::new));
    let matches = Arguments::command().bin_name(called).get_matches_from(arguments);
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The name of the program in usage texts. kubectl runs a program `kubectl-kai` for `kubectl kai`.
fn called_as(program: Option<&std::path::Path>) -> &'static str {
    let name = program.and_then(std::path::Path::file_name);
    match name.is_some_and(|name| name == "kubectl-kai") {
        true => "kubectl kai",
        false => "kai",
    }
}

/// The error and its causes in one line. Most of our errors have their cause in their text; it is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Prints the whole output of a command. A reader that closes the pipe early is no error.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_printed_with_its_causes_and_none_of_them_twice() {
        let cause = || io::Error::new(io::ErrorKind::AddrInUse, "address in use");
        let plain = anyhow::Error::new(cause()).context("listening").context("scheduler");
        assert_eq!(with_causes(&plain), "scheduler: listening: address in use");
        let source = cause();
        let told = kai_embedded::Error::Listen {
            address: ([127, 0, 0, 1], 1).into(),
            source,
        };
        let told = anyhow::Error::new(told).context("playground");
        assert_eq!(
            with_causes(&told),
            "playground: can't listen on 127.0.0.1:1: address in use"
        );
    }

    #[test]
    fn flags_about_the_job_need_a_node() {
        let check = |line: &str, expect: bool| {
            let taken = Arguments::try_parse_from(line.split(' '));
            assert_eq!(taken.is_ok(), expect, "{line}: {:?}", taken.err());
        };
        check("kai doctor", true);
        check("kai doctor -o json --image llm:1", true);
        check("kai doctor jetson-1 -o json --image llm:1 -n kai --context home", true);
        check("kai doctor jetson-1 --print-job --job-image registry/kai:1", true);
        check("kai doctor --print-job", false);
        check("kai doctor --namespace kai", false);
        check("kai doctor jetson-1 jetson-2", false);
        check("kai doctor jetson-1 --timeout 0", false);
    }

    #[test]
    fn as_a_plugin_it_is_called_kubectl_kai() {
        let called = |path: &str| called_as(Some(std::path::Path::new(path)));
        assert_eq!(called("/usr/local/bin/kubectl-kai"), "kubectl kai");
        assert_eq!((called("./kai"), called_as(None)), ("kai", "kai"));
    }

    #[test]
    fn no_two_flags_of_a_command_have_one_name() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn flags_of_kais_manifests_are_taken() {
        let check = |line: &str| {
            let taken = Arguments::try_parse_from(line.split(' '));
            assert!(taken.is_ok(), "{line}: {:?}", taken.err());
        };
        check(
            "kai scheduler --scheduler-conf=c.yaml --namespace=kai-scheduler --leader-elect --listen-address=:8080 --plugin-server-port=8081",
        );
        check(
            "kai binder --leader-elect=false --metrics-bind-address=:8080 --health-probe-bind-address=:8081 --qps=20 --feature-gates=A=true",
        );
        check("kai scheduler --v=3 --log-json --version=true --schedule-csi-storage --mig-worker-node-label-key=mig");
        check("kai controllers --leader-elect --zap-log-level=debug --qps=50 --burst=300");
        check(
            "kai controllers --enable-podgroup-webhook=true --log-level=3 --enable-webhook --enable-quota-validation",
        );
        check("kai admission --webhook-addr=9443 --leader-elect --qps=50 --gpu-sharing-enabled=true");
        check("kai all --role scheduler=--schedule-period=2s");
        check(
            "kai operator --namespace=kai-scheduler --leader-elect --qps=50 --burst=300 --image=registry/kai:1 --image-pull-secret=s",
        );
    }
}
