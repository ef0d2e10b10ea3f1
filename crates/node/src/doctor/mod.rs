//! `kai doctor`: inspects one machine, or a pod from inside, and reports what works, what will not work, and which command repairs it.
//! It changes nothing. `facts` reads the machine; `checks` turns the facts into findings and is pure, so tests can check recorded machines.

mod bolt;
mod checks;
mod facts;
mod go_build;
pub mod on_node;
pub mod report;
mod shares;
mod toml;

pub use checks::run_checks;
pub use facts::{ClusterView, Facts, RuntimeClass, UnresponsiveGpu, collect_facts, probe_driver};
pub(crate) use facts::{RuntimeVersion, collect_beside_agent};
pub use report::{Finding, Report, Verdict};

use std::path::PathBuf;

use crate::Error;
use crate::agent::HostArgs;

/// The variable by which `kai doctor NODE` passes the node object to its pod. A variable and no flag: images of older versions ignore it.
const CLUSTER_VIEW_ENV: &str = "KAI_DOCTOR_CLUSTER";

/// Options of the doctor.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host: HostArgs,
    /// Name of this node, to look at its labels. Default: the host name.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Kubeconfig, to look at the node's labels and the runtime class. Default: those that KUBECONFIG names, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Image that pods of this cluster need on the node; checked in the runtime's store. May be given more than once.
    #[arg(long = "image")]
    pub images: Vec<String>,
    /// The node object as JSON, for a pod without a token. `kai doctor NODE` sets it.
    #[arg(long, hide = true, env = CLUSTER_VIEW_ENV, hide_env = true)]
    pub cluster_view: Option<String>,
    /// How a process died that opened the driver, as in `signal: 11 (SIGSEGV)`. The doctor does not open the driver then.
    #[arg(skip)]
    pub driver_crash: Option<String>,
}

/// Collects the facts about this machine and checks them.
pub fn run(args: Args) -> Result<Report, Error> {
    let facts = collect_facts(&args)?;
    Ok(run_checks(&facts))
}
