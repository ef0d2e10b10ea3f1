//! `kai gpu-limit-hook`: the hook that the node agent puts into the CDI specs of containers with a GPU share.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use kai_node::enforcement::hook::{HookArgs, run as run_hook};

/// The options of `kai gpu-limit-hook`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    hook: HookArgs,
}

/// Runs the hook. Runtimes quote the last line of stderr in the pod's event.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let result = run_hook(arguments.hook, std::io::stdin());
    if let Some(line) = result.line {
        // A runtime that has closed its end does not want the line; the exit code tells the result.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    Ok(ExitCode::from(result.exit_code))
}
