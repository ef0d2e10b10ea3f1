//! `kai crds`: the custom resource definitions of an installation, to apply or to commit. Talks to no cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use kai_api::crd::{Manifest, crds, manifests};

/// The flags of `kai crds`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
    output: Format,
    /// Write one YAML file per kind into this directory instead of printing.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "output")]
    to: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// One document per kind.
    Yaml,
    /// One list.
    Json,
}

/// Prints or writes the definitions.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
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

fn write(directory: &Path, manifests: &[Manifest]) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("can't create {}", directory.display()))?;
    for manifest in manifests {
        let path = directory.join(&manifest.file_name);
        fs::write(&path, &manifest.yaml).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}
