//! `kai crds`: the custom resource definitions of an installation, to print, to commit, or to apply to a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use kai_api::crd::{Manifest, crds, manifests};
use kai_controllers::installation::crds::{NewerCrds, apply};

use crate::roles::Connection;

/// The flags of `kai crds`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
    output: Format,
    /// Write one YAML file per kind into this directory instead of printing.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "output")]
    to: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Apply the definitions to the cluster, and wait until it serves them.
    Apply(ApplyArguments),
}

/// The flags of `kai crds apply`.
#[derive(Debug, clap::Args)]
struct ApplyArguments {
    #[command(flatten)]
    connection: Connection,
    /// Replace definitions of a newer version of kai. Fields that this version does not know are lost.
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// One document per kind.
    Yaml,
    /// One list.
    Json,
}

/// Prints, writes or applies the definitions.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if let Some(Action::Apply(arguments)) = arguments.action {
        return apply_to_cluster(&arguments);
    }
    match (arguments.to, arguments.output) {
        (Some(directory), _) => write(&directory, &manifests())?,
        (None, Format::Yaml) => {
            let documents: Vec<String> = manifests().into_iter().map(|manifest| manifest.yaml).collect();
            crate::print(&documents.join("---\n"))?;
        }
        (None, Format::Json) => {
            let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": crds() });
            crate::print(&format!("{}\n", serde_json::to_string_pretty(&list)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn apply_to_cluster(arguments: &ApplyArguments) -> anyhow::Result<ExitCode> {
    let newer = match arguments.force {
        true => NewerCrds::Replace,
        false => NewerCrds::Refuse,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kai_cluster::Client::connect(&arguments.connection.access()).await?;
        let lines = apply(&client, newer)
            .await?
            .into_iter()
            .map(|name| format!("{name} applied\n"));
        crate::print(&lines.collect::<String>())?;
        Ok(ExitCode::SUCCESS)
    })
}

fn write(directory: &Path, manifests: &[Manifest]) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("can't create {}", directory.display()))?;
    for manifest in manifests {
        let path = directory.join(&manifest.file_name);
        fs::write(&path, &manifest.yaml).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}
