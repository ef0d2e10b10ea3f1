//! The `kai` program: argument parsing, wiring and printing only. Every role and tool is a subcommand.

pub mod all;
mod crds;
mod doctor;
pub mod embedded;
mod grid;
mod log;
mod node_agent;
mod playground;
mod resource_reservation;
mod roles;
mod simulate;
mod uninstall;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// GPU scheduling for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "kai", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run clusters from files through the scheduler's engine, without a cluster.
    Simulate(simulate::Arguments),
    /// Try kai: a whole cluster with made-up GPUs in this process. Needs no GPU and no Kubernetes.
    Playground(playground::Arguments),
    /// All roles of the cluster's side in one process.
    All(Box<roles::AllArguments>),
    /// Decide which pod gets which node and GPU.
    Scheduler(Box<roles::SchedulerArguments>),
    /// Carry out decisions: reserve GPUs, prepare pods, bind them.
    Binder(Box<roles::BinderArguments>),
    /// Make gangs of workloads and keep the status of pod groups and queues.
    Controllers(Box<roles::ControllersArguments>),
    /// Check and complete pods, queues, pod groups and topologies as they are created.
    Admission(Box<roles::AdmissionArguments>),
    /// Remove what kai put in the way of the API: webhooks and policies. Workloads and their pods stay.
    Uninstall(uninstall::Arguments),
    /// Serve the GPUs of this node: offer them to the kubelet, inject the driver, label the node, watch health.
    NodeAgent(Box<node_agent::Arguments>),
    /// Write on this reservation pod which GPU it was given, and hold it. For nodes without the agent.
    ResourceReservation(Box<resource_reservation::Arguments>),
    /// Look at this machine and say what will not work, why, and what repairs it. Changes nothing.
    Doctor(Box<doctor::Arguments>),
    /// Print the custom resource definitions that an installation needs.
    Crds(crds::Arguments),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Simulate(arguments) => simulate::run(arguments),
        Command::Playground(arguments) => playground::run(arguments),
        Command::All(arguments) => roles::all(*arguments),
        Command::Scheduler(arguments) => roles::scheduler(*arguments),
        Command::Binder(arguments) => roles::binder(*arguments),
        Command::Controllers(arguments) => roles::controllers(*arguments),
        Command::Admission(arguments) => roles::admission(*arguments),
        Command::Uninstall(arguments) => uninstall::run(arguments),
        Command::NodeAgent(arguments) => node_agent::run(*arguments),
        Command::ResourceReservation(arguments) => resource_reservation::run(*arguments),
        Command::Doctor(arguments) => doctor::run(*arguments),
        Command::Crds(arguments) => crds::run(arguments),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // One sentence; our errors have their cause in it.
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints a text that is all a command has to say. The reader of a pipe may have seen enough; that is no error.
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
    }
}
