//! The policy of the scheduler of a node pool, from the Config and the shards of a cluster. For commands that look at the cluster as that
//! scheduler does: they make the same plan as the operator and `kai all`.

use std::collections::BTreeMap;

use kai_api::SchedulingShard;
use kai_controllers::operator::{self, ClusterFacts, Flags, Policy, Runner, ShardPlan, ShardScheduler};

use super::all::operated_installation;
use super::scheduler::Scheduler;
use super::shard_check::ShardCheck;
use super::table::parse;

/// The flag with the node pool of a scheduler.
const NODE_POOL: &str = "partition-label-value";

/// The flags and the configuration file of a scheduler. The default is that of a cluster without a Config.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardPolicy {
    flags: Flags,
    /// The content of the configuration file.
    config: Option<String>,
}

/// The policy of the scheduler of this node pool; empty for objects without the label. The error says why the cluster has no such
/// scheduler, or none whose settings are known.
pub(crate) fn shard_policy(policy: &Policy, node_pool: &str) -> Result<ShardPolicy, String> {
    // Without a Config, roles run with the flags of their processes.
    let Some(config) = &policy.config else {
        return Ok(ShardPolicy::default());
    };
    // Neither namespace nor image changes the policy.
    let installation = operated_installation("kai-scheduler").map_err(|error| error.to_string())?;
    let check = ShardCheck::of(Runner::Process);
    let plan_of = |shards: &[SchedulingShard]| {
        operator::plan(&config.spec, shards, &installation, ClusterFacts::default(), &check).shards
    };
    let pools: BTreeMap<&str, &str> = policy.shards.iter().map(named_pool).collect();
    let plans = plan_of(&policy.shards);
    let is_meant = |plan: &&ShardPlan| match &plan.scheduler {
        ShardScheduler::Run(component) => component.role_flags.get(NODE_POOL).unwrap_or_default() == node_pool,
        ShardScheduler::Invalid(_) | ShardScheduler::Disabled => pools.get(plan.shard.as_str()) == Some(&node_pool),
    };
    let Some(plan) = plans.iter().find(is_meant) else {
        return Err(format!("no SchedulingShard has the node pool {node_pool:?}"));
    };
    match &plan.scheduler {
        ShardScheduler::Run(component) => Ok(ShardPolicy {
            flags: component.role_flags.clone(),
            config: component.config_file.clone(),
        }),
        ShardScheduler::Invalid(reason) => Err(format!(
            "SchedulingShard {} is invalid, and its scheduler keeps older settings: {reason}",
            plan.shard
        )),
        ShardScheduler::Disabled => Err("the Config kai-config disables the schedulers".to_owned()),
    }
}

/// Name and node pool of a shard.
fn named_pool(shard: &SchedulingShard) -> (&str, &str) {
    let name = shard.metadata.name.as_deref().unwrap_or_default();
    (name, shard.node_pool().unwrap_or_default())
}

impl ShardPolicy {
    /// Sets a flag of the scheduler in place of the cluster's.
    pub(crate) fn set(&mut self, flag: &str, value: &str) {
        self.flags.set(flag, value);
    }

    /// Takes this configuration file in place of the cluster's.
    pub(crate) fn set_config_file(&mut self, path: &str) {
        self.config = None;
        self.flags.set("scheduler-conf", path);
    }

    /// The settings of that scheduler.
    pub(crate) fn settings(&self) -> anyhow::Result<kai_scheduler::Settings> {
        let flags = self.flags.arguments();
        match &self.config {
            Some(config) => ShardCheck::of(Runner::Process).settings(&flags, config),
            None => parse::<Scheduler>(&flags),
        }
    }
}

#[cfg(test)]
mod tests {
    use kai_engine::model::{Action, Config};
    use serde_json::{Value, json};

    use super::*;

    fn policy(config: Option<Value>, shards: &[(&str, Value)]) -> Policy {
        let config = config.map(|spec| json!({ "metadata": { "name": "kai-config" }, "spec": spec }));
        let shard = |(name, spec): &(&str, Value)| json!({ "metadata": { "name": name }, "spec": spec });
        Policy {
            config: config.map(|config| serde_json::from_value(config).unwrap()),
            shards: shards
                .iter()
                .map(|named| serde_json::from_value(shard(named)).unwrap())
                .collect(),
        }
    }

    #[test]
    fn a_node_pool_has_the_policy_of_its_shard() {
        let shards = [
            (
                "a100",
                json!({ "partitionLabelValue": "a100", "actions": { "preempt": { "enabled": false } } }),
            ),
            ("default", json!({ "args": { "restrict-node-scheduling": "true" } })),
        ];
        let policy = policy(Some(json!({ "global": { "schedulerName": "s" } })), &shards);
        let default = shard_policy(&policy, "").unwrap().settings().unwrap();
        assert!(default.restrict_nodes.is_some() && default.config.actions.contains(&Action::Preempt));
        assert_eq!(default.scheduler_name, "s");
        let mut pool = shard_policy(&policy, "a100").unwrap();
        let settings = pool.settings().unwrap();
        assert_eq!(settings.partition.name(), "a100");
        assert!(settings.restrict_nodes.is_none() && !settings.config.actions.contains(&Action::Preempt));
        pool.set("scheduler-name", "typed");
        assert_eq!(pool.settings().unwrap().scheduler_name, "typed");
        pool.set_config_file("");
        assert!(pool.settings().unwrap().config.actions.contains(&Action::Preempt));
    }

    #[test]
    fn a_policy_that_is_not_known_is_told() {
        let dance = json!({ "partitionLabelValue": "b", "actions": { "dance": {} } });
        let known = policy(Some(json!({})), &[("b", dance)]);
        let told = |pool: &str| shard_policy(&known, pool).unwrap_err();
        assert_eq!(told("c"), "no SchedulingShard has the node pool \"c\"");
        assert!(told("b").starts_with("SchedulingShard b is invalid"), "{}", told("b"));
        let disabled = json!({ "scheduler": { "service": { "enabled": false } } });
        let disabled = policy(Some(disabled), &[("default", json!({}))]);
        assert!(shard_policy(&disabled, "").unwrap_err().contains("disables"));
    }

    #[test]
    fn without_a_config_the_defaults_count() {
        let shards = [("default", json!({ "actions": { "preempt": { "enabled": false } } }))];
        let settings = shard_policy(&policy(None, &shards), "").unwrap().settings().unwrap();
        assert_eq!(settings.config, Config::default());
    }
}
