//! The commands that show a cluster. They list its objects with the caller's own rights, apply them to the scheduler's mirror and engine
//! in this process, run one cycle in memory, and show the view. They write nothing to the cluster.

pub(crate) mod decisions;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod gpus;
pub(crate) mod live;
mod load;
pub(crate) mod pending;
pub(crate) mod queues;
mod remote;
pub(crate) mod snapshot;
pub(crate) mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kai_cluster::ClientConfig;
use kai_view::ClusterView;
use serde::Serialize;

use crate::grid::{Grid, Screen};

/// How to reach the cluster, and as which scheduler to look at it.
#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// Kubeconfig file [default: $KUBECONFIG, else ~/.kube/config, else the pod's service account].
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context].
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    context: Option<String>,
    /// The schedulerName of the scheduler.
    #[arg(long, default_value = kai_api::keys::SCHEDULER_NAME, help_heading = "Scheduler")]
    scheduler_name: String,
    /// The node pool of the scheduler; empty for objects without the label.
    #[arg(long, default_value = "", hide_default_value = true, help_heading = "Scheduler")]
    node_pool: String,
    /// Configuration file of the scheduler (YAML), if it has one.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "",
        hide_default_value = true,
        help_heading = "Scheduler"
    )]
    scheduler_conf: String,
}

impl Connection {
    fn access(&self) -> ClientConfig {
        ClientConfig::User {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
        }
    }

    /// The kubeconfig that is tried, for messages.
    fn tried(&self) -> String {
        let variable = || std::env::var("KUBECONFIG").ok().filter(|paths| !paths.is_empty());
        match (&self.kubeconfig, variable()) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(paths)) => format!("{paths} (from KUBECONFIG)"),
            (None, None) => "~/.kube/config".to_owned(),
        }
    }

    fn settings(&self) -> anyhow::Result<kai_scheduler::Settings> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            arguments: kai_scheduler::Args,
        }
        let mut line = <Line as clap::Parser>::try_parse_from(["scheduler"])?;
        line.arguments.scheduler_name.clone_from(&self.scheduler_name);
        line.arguments.partition_label_value.clone_from(&self.node_pool);
        line.arguments.scheduler_conf.clone_from(&self.scheduler_conf);
        Ok(kai_scheduler::Settings::try_from(line.arguments)?)
    }
}

/// Where the view comes from.
#[derive(Debug, Args)]
pub(crate) struct Origin {
    /// Address of the scheduler's debug endpoints, such as http://127.0.0.1:8081 after `kubectl port-forward`. Its own view is shown then;
    /// otherwise the cluster's objects are listed with your rights.
    #[arg(long, value_name = "URL", help_heading = "Scheduler")]
    scheduler: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl Origin {
    fn scheduler(&self) -> Option<remote::SchedulerUrl> {
        self.scheduler.as_deref().map(remote::SchedulerUrl::new)
    }
}

/// Which objects to show.
#[derive(Debug, Args)]
pub(crate) struct Scope {
    /// Only workloads of this namespace. Where you may not list pods of all namespaces, those of this one are read.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Workloads of all namespaces. This is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

impl Scope {
    fn contains(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|only| only == namespace)
    }
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For a person.
    Table,
    /// With more columns.
    Wide,
    /// For a program (docs/view.md).
    Json,
    /// The same as YAML.
    Yaml,
}

/// The flag `--output`.
#[derive(Debug, Args)]
pub(crate) struct Format {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

impl Format {
    fn is_wide(&self) -> bool {
        self.output == Output::Wide
    }

    /// Prints the value for a program, or the lines for a person. What could not be read is on standard error.
    fn print<T: Serialize>(
        &self,
        view: &ClusterView,
        value: &T,
        lines: impl FnOnce(Screen) -> Vec<String>,
    ) -> anyhow::Result<ExitCode> {
        for missing in &view.missing {
            eprintln!("warning: {}", words::missing(missing));
        }
        self.print_value(value, lines)
    }

    /// Prints the value for a program, or the lines for a person.
    fn print_value<T: Serialize>(
        &self,
        value: &T,
        lines: impl FnOnce(Screen) -> Vec<String>,
    ) -> anyhow::Result<ExitCode> {
        let text = match self.output {
            Output::Table => lines(Screen::of_standard_output()).join("\n") + "\n",
            // As wide as it is: a terminal wraps whole lines, which a reader of so many columns prefers to wrapped cells.
            Output::Wide => {
                let screen = Screen {
                    width_max: None,
                    ..Screen::of_standard_output()
                };
                lines(screen).join("\n") + "\n"
            }
            Output::Json => serde_json::to_string_pretty(value)? + "\n",
            Output::Yaml => serde_saphyr::to_string(value)?,
        };
        crate::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The lines of a table; a sentence if it has no rows.
fn lines_or(grid: &Grid, screen: Screen, nothing: &str) -> Vec<String> {
    match grid.is_empty() {
        true => vec![nothing.to_owned()],
        false => grid.lines(screen),
    }
}

/// Runs the future of a command.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work)
}
