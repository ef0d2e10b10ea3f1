//! The conditions of a Config and its shards, for roles that run inside this process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use kai_api::{SchedulingShard, keys};
use kai_cluster::{Context, Error};
use tokio::sync::watch;

use super::objects::Owner;
use super::plan::Plan;
use super::shard::ShardScheduler;
use super::status::{Readiness, write_config_status, write_shard_status};

/// Conditions are written again after this time, in case that others changed them or a write failed.
const REWRITE: Duration = Duration::from_secs(60);

/// How far the roles of each owner are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    pub(super) by_owner: BTreeMap<Owner, Readiness>,
}

impl Conditions {
    /// The conditions of a plan whose roles all run.
    pub fn of(plan: &Plan) -> Conditions {
        let config = Readiness {
            ignored: plan.ignored.clone(),
            ..Readiness::default()
        };
        let mut by_owner = BTreeMap::from([(Owner::Config, config)]);
        for shard in &plan.shards {
            let mut readiness = Readiness {
                ignored: shard.warnings.clone(),
                ..Readiness::default()
            };
            match &shard.scheduler {
                ShardScheduler::Run(_) => {}
                ShardScheduler::Disabled => readiness.missing.push("the Config disables the scheduler".to_owned()),
                ShardScheduler::Invalid(reason) => readiness.errors.push(reason.clone()),
            }
            by_owner.insert(Owner::Shard(shard.shard.clone()), readiness);
        }
        Conditions { by_owner }
    }

    /// The conditions of shards without a Config.
    pub fn without_config(shards: &[SchedulingShard]) -> Conditions {
        let missing = format!("there is no Config {}", keys::CONFIG_NAME);
        let readiness = Readiness {
            missing: vec![missing],
            ..Readiness::default()
        };
        let shards = shards
            .iter()
            .map(|shard| Owner::Shard(shard.metadata.plain_name().to_owned()));
        Conditions {
            by_owner: shards.map(|owner| (owner, readiness.clone())).collect(),
        }
    }

    /// Records an error of a shard, or of the Config.
    pub fn fail(&mut self, shard: Option<&str>, error: String) {
        let owner = shard.map_or(Owner::Config, |shard| Owner::Shard(shard.to_owned()));
        self.of_owner(&owner).errors.push(error);
    }

    /// Whether all roles that are switched on run as planned.
    pub(super) fn are_available(&self) -> bool {
        self.by_owner
            .values()
            .all(|readiness| readiness.errors.is_empty() && readiness.unavailable.is_empty())
    }

    pub(super) fn of_owner(&mut self, owner: &Owner) -> &mut Readiness {
        self.by_owner.entry(owner.clone()).or_default()
    }

    /// Writes the conditions that the objects do not have yet.
    pub(super) async fn write(&self, context: &Context) -> Result<(), Error> {
        let now = context.clock.now_text();
        for (owner, readiness) in &self.by_owner {
            match owner {
                Owner::Config => write_config_status(&context.client, keys::CONFIG_NAME, readiness, &now).await?,
                Owner::Shard(shard) => write_shard_status(&context.client, shard, readiness, &now).await?,
            }
        }
        Ok(())
    }
}

/// Writes the newest conditions until dropped.
pub async fn keep_conditions(context: Context, mut conditions: watch::Receiver<Conditions>) -> Infallible {
    loop {
        let newest = conditions.borrow_and_update().clone();
        if let Err(error) = newest.write(&context).await {
            tracing::warn!(%error, "writing the conditions of Config and shards failed");
        }
        match tokio::time::timeout(REWRITE, conditions.changed()).await {
            Ok(Ok(())) | Err(_) => {}
            // The sender ends with the process.
            Ok(Err(_)) => std::future::pending().await,
        }
    }
}
