//! The flags of the installation step.

use std::path::PathBuf;

use clap::ArgAction::Set;

use super::KaiPrograms;

/// Flags of the installation step. Without them nothing is installed, and the role needs no permissions for it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Installation")]
pub struct InstallationArgs {
    /// Apply the CustomResourceDefinitions before anything else starts. Those of a newer version of kai stay.
    #[arg(long)]
    pub apply_crds: bool,
    /// Directory with objects of the installation: apply-*.yaml are applied at every start, create-*.yaml are created once.
    #[arg(long, value_name = "DIRECTORY")]
    pub installation: Option<PathBuf>,
    /// With --installation: create a Topology for each Topology of Kueue.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub migrate_topologies: bool,
}

/// What the installation step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether it applies the CustomResourceDefinitions.
    pub apply_crds: bool,
    /// The installation directory.
    pub directory: Option<PathBuf>,
    /// Whether it copies the Topologies of Kueue; only with a directory.
    pub migrate_topologies: bool,
    /// What happens while programs of KAI run in kai's namespace.
    pub kai_programs: KaiPrograms,
    /// kai's namespace, which owns the anchor of the installation.
    pub namespace: String,
}

impl InstallationArgs {
    /// The settings for an installation in this namespace; `None` without flags.
    pub fn settings(&self, namespace: &str) -> Option<Settings> {
        let wanted = self.apply_crds || self.installation.is_some();
        wanted.then(|| Settings {
            apply_crds: self.apply_crds,
            directory: self.installation.clone(),
            migrate_topologies: self.migrate_topologies,
            kai_programs: KaiPrograms::WaitFor,
            namespace: namespace.to_owned(),
        })
    }
}
