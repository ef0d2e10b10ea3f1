//! `kai playground`: a whole cluster in this process. The embedded API server, simulated nodes with made-up GPUs, and all of kai's roles
//! as in production; then a short story, and a cluster to play with under `kubectl`.

mod picture;
mod story;
mod world;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use world::World;

/// What was typed.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run the story, print how things ended, and exit: 0 if everything went as it should, 1 if not.
    #[arg(long)]
    once: bool,
    /// The cluster alone, without the story.
    #[arg(long, conflicts_with = "once")]
    empty: bool,
    /// The nodes, from a YAML file instead of the usual ones (docs/playground.md).
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Where the API server listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where to write the kubeconfig.
    #[arg(long, value_name = "FILE", default_value = "kai-playground.kubeconfig")]
    kubeconfig: PathBuf,
    /// What the roles log: a level, or targets with levels.
    #[arg(long = "log", value_name = "FILTER", default_value = "error", env = "RUST_LOG")]
    log: String,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    crate::log::start_quietly(&arguments.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let nodes = nodes(&arguments)?;
        let world = World::start(&nodes, arguments.listen).await?;
        world.write_kubeconfig(&arguments.kubeconfig)?;
        let mut out = io::stdout();
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut held = true;
        if !arguments.empty {
            held = story::tell(&world, &mut out, colour).await?;
        }
        picture::show(&world, &mut out)?;
        if arguments.once {
            std::fs::remove_file(&arguments.kubeconfig).ok();
            let verdict = if held { "everything went as it should" } else { "something did not go as it should" };
            writeln!(out, "\n{verdict}")?;
            return Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let file = arguments.kubeconfig.display();
        let room = match arguments.empty {
            true => "",
            false => "  kubectl delete pod notebook-0 notebook-1   # the story leaves no GPU free\n",
        };
        // Not an error if nobody reads it: the cluster is there all the same.
        crate::print(&format!(
            "\nThe cluster is yours at {}:\n\n  export KUBECONFIG={file}\n  kubectl get nodes,queues\n  kubectl get pods -o wide\n{room}  kubectl apply -f examples/half-a-gpu.yaml\n\nCtrl-C ends it.\n",
            world.address()
        ))?;
        tokio::select! {
            ended = world.ended() => Err(ended),
            _ = tokio::signal::ctrl_c() => {
                std::fs::remove_file(&arguments.kubeconfig).ok();
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

fn nodes(arguments: &Arguments) -> anyhow::Result<sim::kubelet::NodesFile> {
    let (name, text) = match &arguments.nodes {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
            (path.display().to_string(), text)
        }
        None => ("the usual nodes".to_owned(), include_str!("nodes.yaml").to_owned()),
    };
    sim::kubelet::NodesFile::parse(&text).map_err(|problem| anyhow::anyhow!("{name}: {problem}"))
}
