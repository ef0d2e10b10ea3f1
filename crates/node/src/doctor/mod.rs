//! `kai doctor`: looks at one machine (or at a pod from inside) and says what works, what will not, and which command repairs it.
//! It changes nothing. What it sees is gathered in `look`, judged in `judge` (pure, so recorded machines can be judged in tests).

mod bolt;
mod go_build;
mod judge;
mod look;
pub mod report;
mod toml;

pub use judge::judge;
pub use look::{ClusterView, Facts, RuntimeClass, SilentGpu, look, probe_driver};
pub use report::{Finding, Report, Verdict};

use std::path::PathBuf;

use crate::Error;
use crate::agent::HostArgs;

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
    /// How a process died that opened the driver, as in `signal: 11 (SIGSEGV)`. The doctor does not open the driver then.
    #[arg(skip)]
    pub driver_crash: Option<String>,
}

/// Looks and judges.
pub fn run(args: Args) -> Result<Report, Error> {
    let facts = look(&args)?;
    Ok(judge(&facts))
}
