//! The commands that show a cluster. They list its objects with the caller's own rights, apply them to the scheduler's mirror and engine
//! in this process, run one cycle in memory, and show the view. They write nothing to the cluster.

pub(crate) mod decisions;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod gpus;
pub(crate) mod live;
mod load;
pub(crate) mod pending;
mod policy;
pub(crate) mod queues;
pub(crate) mod remote;
pub(crate) mod snapshot;
pub(crate) mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kai_cluster::ClientConfig;
use kai_view::ClusterView;
use serde::Serialize;
use serde_json::{Value, json};

use crate::grid::{Grid, Screen};

/// How to reach the cluster, and as which scheduler to look at it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// Kubeconfig file [default: $KUBECONFIG, else ~/.kube/config, else the pod's service account].
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context].
    #[arg(long, value_name = "NAME", help_heading = "Connection")]
    context: Option<String>,
    /// The schedulerName of the scheduler [default: that of the cluster's Config, else kai-scheduler].
    #[arg(long, value_name = "NAME", help_heading = "Scheduler")]
    scheduler_name: Option<String>,
    /// The node pool of the scheduler; empty for objects without the label.
    #[arg(long, default_value = "", hide_default_value = true, help_heading = "Scheduler")]
    node_pool: String,
    /// Configuration file of the scheduler (YAML) [default: that of the SchedulingShard of the node pool].
    #[arg(long, value_name = "FILE", help_heading = "Scheduler")]
    scheduler_conf: Option<String>,
}

impl Connection {
    fn access(&self) -> ClientConfig {
        ClientConfig::User {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
        }
    }

    /// The namespace of the kubeconfig's context. A scheduler that is named by its address needs no kubeconfig: only one that is named by a
    /// flag must be there.
    async fn namespace(&self) -> anyhow::Result<String> {
        match load::connect(self).await {
            Ok(client) => Ok(client.default_namespace().to_owned()),
            Err(error) if self.kubeconfig.is_some() || self.context.is_some() => Err(error),
            Err(_) => Ok("default".to_owned()),
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
}

/// Where the view comes from.
#[derive(Debug, Args)]
pub(crate) struct Origin {
    /// Show the scheduler's own view, from its debug endpoints: `auto` forwards their port of the pod that leads, through the API server with
    /// your rights; or their address, such as http://127.0.0.1:8081. Otherwise the cluster's objects are listed with your rights.
    #[arg(long, value_name = "auto|URL", help_heading = "Scheduler")]
    scheduler: Option<String>,
    /// The namespace of the scheduler's lease and pods, for `--scheduler auto`.
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = "kai-scheduler",
        help_heading = "Scheduler"
    )]
    scheduler_namespace: String,
    #[command(flatten)]
    connection: Connection,
}

impl Origin {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The scheduler whose own view is meant.
    pub(crate) fn scheduler(&self) -> Option<remote::SchedulerEndpoints> {
        let scheduler = self.scheduler.as_deref()?;
        Some(match scheduler {
            "auto" => remote::SchedulerEndpoints::of_leader(&self.connection, &self.scheduler_namespace),
            url => remote::SchedulerEndpoints::at(url),
        })
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

/// The fields of an answer for a program, below those that every answer has: version, time, and the lists that are missing.
fn document(view: &ClusterView, mut fields: Value) -> Value {
    fields["version"] = view.version.as_str().into();
    fields["time"] = json!(view.time);
    fields["missing"] = json!(view.missing);
    fields
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
