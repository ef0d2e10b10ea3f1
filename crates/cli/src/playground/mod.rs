//! `kai playground`: a whole cluster in this process. The embedded API server, simulated nodes with fake GPUs, and all of kai's roles
//! as in production. It runs a short demonstration, then leaves the cluster to `kubectl`.

mod counted;
mod kubeconfig;
mod picture;
mod screen;
mod story;
mod world;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use screen::Screen;
use world::{Roles, World};

/// The flags of `kai playground`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run the story, print the outcome, and exit: 0 if all of it came true, 1 if not.
    #[arg(long)]
    once: bool,
    /// Start the cluster without the story.
    #[arg(long, conflicts_with = "once")]
    empty: bool,
    /// Run API server and nodes only: roles of another process serve the cluster, for instance `kai all` with the kubeconfig. The story
    /// waits for them.
    #[arg(long)]
    without_roles: bool,
    /// YAML file with the nodes (docs/playground.md). The story needs the default nodes and is left out.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Address of the API server.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Kubeconfig that gets the context kai-playground while the playground runs. Its other entries stay.
    #[arg(long, value_name = "FILE", default_value = "kai-playground.kubeconfig")]
    kubeconfig: PathBuf,
    /// Log filter of the roles: a level, or targets with levels.
    #[arg(long = "log", value_name = "FILTER", default_value = "error", env = "RUST_LOG")]
    log: String,
}

impl Arguments {
    fn roles(&self) -> Roles {
        match self.without_roles {
            true => Roles::Elsewhere,
            false => Roles::InProcess,
        }
    }
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    crate::log::start_quietly(&arguments.log)?;
    if arguments.once && arguments.nodes.is_some() {
        anyhow::bail!(
            "--once tells the story, which needs the usual nodes; leave out --nodes, or leave out --once for a cluster with your nodes"
        );
    }
    let nodes = nodes(&arguments)?;
    kubeconfig::check(&arguments.kubeconfig)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let played = async {
            let world = World::start(&nodes, arguments.listen, arguments.roles()).await?;
            // Dropped however the playground ends; then the context is removed.
            let _entry = kubeconfig::Entry::add(&arguments.kubeconfig, &world.address())?;
            play(&arguments, &world).await
        };
        tokio::select! {
            // Signals are handled before the kubeconfig is written.
            biased;
            () = crate::roles::stopped() => Ok(ExitCode::SUCCESS),
            played = played => played,
        }
    })
}

/// Runs the story, if there is one, and then the cluster until it ends.
async fn play(arguments: &Arguments, world: &World) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    let screen = Screen::of_stdout();
    let has_story = !arguments.empty && arguments.nodes.is_none();
    let held = match has_story {
        true => story::run(world, &mut out, screen).await?,
        false => true,
    };
    counted::until_counted(world).await;
    picture::show(world, &mut out, screen)?;
    if arguments.once {
        let verdict = if held {
            "everything went as it should"
        } else {
            "something did not go as it should"
        };
        writeln!(out, "\n{verdict}")?;
        return Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let file = arguments.kubeconfig.display();
    let room = match has_story {
        false => "",
        true => "  kubectl delete pod notebook-0 notebook-1   # the story leaves no GPU free\n",
    };
    let no_story = match arguments.nodes.is_some() && !arguments.empty {
        false => "",
        true => "\nThere is no story with --nodes: it needs the usual nodes.\n",
    };
    // A closed output is no error: the cluster runs on.
    crate::print(&format!(
        "{no_story}\nThe cluster is yours at {}:\n\n  export KUBECONFIG={file}\n  kubectl get nodes,queues\n  kubectl get pods -o wide\n{room}  kubectl apply -f examples/half-a-gpu.yaml\n\nCtrl-C ends it.\n",
        world.address()
    ))?;
    Err(world.ended().await)
}

fn nodes(arguments: &Arguments) -> anyhow::Result<kai_embedded::kubelet::NodesFile> {
    let (name, text) = match &arguments.nodes {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                anyhow::anyhow!("reading {}: {error}; name a file of nodes with --nodes", path.display())
            })?;
            (path.display().to_string(), text)
        }
        None => ("the usual nodes".to_owned(), include_str!("nodes.yaml").to_owned()),
    };
    kai_embedded::kubelet::NodesFile::parse(&text).map_err(|problem| anyhow::anyhow!("{name}: {problem}"))
}
