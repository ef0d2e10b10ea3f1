//! `kai playground`: a whole cluster in this process. The embedded API server, simulated nodes with fake GPUs, and all of kai's roles
//! as in production. It serves the page of the cluster, runs a short story, and then leaves the cluster to `kubectl` and tells what
//! happens in it.

mod counted;
mod kubeconfig;
mod narrator;
mod picture;
mod screen;
mod steps;
mod story;
mod world;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use crate::inspect::live::LiveCluster;
use crate::page::{LiveSource, LoopbackOnly, Page};
use crate::roles::Served;
use kai_page::Source;
use narrator::Narrator;
use screen::Screen;
use steps::Steps;
use world::{Roles, World};

/// The address of the page, if it is free.
const PAGE_ADDRESS: &str = "127.0.0.1:8080";
/// Else: any port.
const ANY_ADDRESS: &str = "127.0.0.1:0";

/// The flags of `kai playground`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Run the story, print the outcome, and exit: 0 if all of it came true, 1 if not.
    #[arg(long)]
    once: bool,
    /// Start the cluster without the story. The page has a button for each of its steps.
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
    /// Address of the page; an empty one serves none [default: 127.0.0.1:8080, or another port if that is taken].
    #[arg(long, value_name = "ADDRESS", conflicts_with = "once")]
    ui_address: Option<String>,
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
    let steps = Arc::new(Steps::new(&world.client));
    let source = match arguments.once {
        true => None,
        false => Some(source(world, arguments.roles()).await),
    };
    let _page = match &source {
        Some(source) => serve_page(arguments, source, &steps)?,
        None => None,
    };
    let held = match has_story {
        true => story::run(world, &steps, &mut out, screen).await?,
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
        "{no_story}\nThe cluster is yours at {}:\n\n  export KUBECONFIG={file}\n  kubectl get nodes,queues\n  kubectl get pods -o wide\n{room}  kubectl apply -f examples/half-a-gpu.yaml\n\nWhat happens from now on is told below. Ctrl-C ends it.\n\n",
        world.address()
    ))?;
    let telling = async {
        if let Some(source) = source {
            let screen = crate::grid::Screen::of_standard_output();
            Narrator::after_now(source).await.tell(screen).await;
        }
        // A closed output is no error: the cluster runs on.
        std::future::pending().await
    };
    tokio::select! {
        never = telling => never,
        error = world.ended() => Err(error),
    }
}

/// Where page and narrator get the cluster from: the scheduler of this process, else the API server.
async fn source(world: &World, roles: Roles) -> Arc<dyn Source> {
    match roles {
        Roles::InProcess => Arc::new(world.scheduler.clone()),
        Roles::Elsewhere => {
            let (live, followed) = LiveCluster::of_client(&world.client).await.with_decisions(None).await;
            if let Err(error) = followed {
                tracing::warn!(%error, "decisions are unknown");
            }
            Arc::new(LiveSource::start(live))
        }
    }
}

/// Serves the page and prints its address; `None` if there is none.
fn serve_page(arguments: &Arguments, source: &Arc<dyn Source>, steps: &Arc<Steps>) -> anyhow::Result<Option<Served>> {
    let page = || {
        let steps: Arc<Steps> = Arc::clone(steps);
        Page {
            source: Arc::clone(source),
            authorizer: Arc::new(LoopbackOnly),
            // The story needs the usual nodes.
            story: arguments
                .nodes
                .is_none()
                .then_some(steps as Arc<dyn kai_page::StorySteps>),
            cluster_name: "the playground".to_owned(),
            forwarder: None,
        }
    };
    let served = match arguments.ui_address.as_deref() {
        Some("") => return Ok(None),
        Some(address) => page().serve(address, "--ui-address")?,
        None => {
            let flag = "--ui-address";
            let usual = page().serve(PAGE_ADDRESS, flag);
            usual.or_else(|_| page().serve(ANY_ADDRESS, flag))?
        }
    };
    if let Some(address) = served.address() {
        crate::print(&format!("The page of the cluster: http://{address}/\n"))?;
    }
    Ok(Some(served))
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
