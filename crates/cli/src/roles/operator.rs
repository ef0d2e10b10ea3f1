//! `kai operator`: runs the roles in Deployments, as the Config and the scheduling shards say.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use kai_controllers::installation::{self, InstallationArgs, KaiPrograms};
use kai_controllers::operator::{self, ImageReference, Installation, Runner};

use super::process::{Election, IgnoredRates, Process};
use super::run::{Leadership, PageAddress, Start, lead_one, run_with};
use super::shard_check::ShardCheck;
use super::table::RoleSettings;

/// KAI's name of the lease: an operator of KAI and ours must not both lead.
pub(super) const LEASE: &str = "41fce092.run.ai";

/// The flags of `kai operator`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    process: Process,
    #[command(flatten)]
    election: Election,
    #[command(flatten)]
    installation: InstallationArgs,
    /// Image of kai, which all roles run: REGISTRY/PATH/NAME:TAG. Without it, the environment variables MS_REPOSITORY and MS_TAG name
    /// it, as for KAI's operator.
    #[arg(long, help_heading = "Role", env = "KAI_IMAGE")]
    image: Option<ImageReference>,
    /// Pull policy of the image, where the Config sets none.
    #[arg(long, help_heading = "Role", default_value = "IfNotPresent")]
    image_pull_policy: String,
    /// Image pull secret of all roles, besides those of the Config.
    #[arg(long, help_heading = "Role", default_value = "", hide_default_value = true)]
    image_pull_secret: String,
    #[command(flatten)]
    _rates: IgnoredRates,
}

/// Runs the operator until SIGTERM or SIGINT.
pub(crate) fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let settings = operator::Settings {
        installation: arguments.operated_installation()?,
        scheduler_flags: Arc::new(ShardCheck::of(Runner::Deployments)),
    };
    let installation = arguments.installation.settings(&arguments.election.namespace);
    let start = Start {
        installation: installation.map(|installation| installation::Settings {
            kai_programs: KaiPrograms::Replace,
            ..installation
        }),
        leadership: Leadership::Elected(arguments.election),
        leases: vec![LEASE.to_owned()],
        page: PageAddress::default(),
        announced: &RoleSettings::default(),
    };
    run_with(arguments.process, start, async |context, replica| {
        let work = async |context| Ok(operator::run(context, settings).await?);
        match replica {
            Some(replica) => {
                let start = context.health.hold("operator");
                lead_one(&replica, LEASE, &start, context, work).await
            }
            None => work(context).await,
        }
    })
}

impl Arguments {
    fn operated_installation(&self) -> anyhow::Result<Installation> {
        let image = match &self.image {
            Some(image) => image.clone(),
            None => image_of_environment(|name| std::env::var(name).ok())?,
        };
        Ok(Installation {
            namespace: self.election.namespace.clone(),
            image,
            pull_policy: self.image_pull_policy.clone(),
            pull_secrets: Some(self.image_pull_secret.clone())
                .into_iter()
                .filter(|secret| !secret.is_empty())
                .collect(),
            runner: Runner::Deployments,
        })
    }
}

/// The image that the variables of KAI's operator name. The name of kai's image is always `kai`.
fn image_of_environment(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<ImageReference> {
    let (Some(repository), Some(tag)) = (variable("MS_REPOSITORY"), variable("MS_TAG")) else {
        anyhow::bail!(
            "which image shall the roles run? Give --image REGISTRY/PATH/NAME:TAG, or set MS_REPOSITORY and MS_TAG"
        );
    };
    format!("{repository}/kai:{tag}").parse().map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_comes_from_kais_variables() {
        let both = |name: &str| {
            Some(
                if name == "MS_TAG" {
                    "1"
                } else {
                    "registry/kai-scheduler"
                }
                .to_owned(),
            )
        };
        assert_eq!(
            image_of_environment(both).unwrap().to_string(),
            "registry/kai-scheduler/kai:1"
        );
        assert!(image_of_environment(|_| None).is_err());
    }
}
