//! Plans as tables: a Config and its shards in, arguments and objects out.

mod every_setting;
mod plans;

use kai_api::SchedulingShard;
use kai_api::crd::ConfigSpec;
use serde_json::{Value, json};

use super::{ClusterFacts, Installation, Plan, Runner, SchedulerFlags, objects, plan};

/// Knows one flag, and refuses the configuration of shards with the action `dance`.
struct FewFlags;

impl SchedulerFlags for FewFlags {
    fn is_known(&self, name: &str) -> bool {
        ["v", "schedule-period"].contains(&name)
    }

    fn check(&self, _: &[String], config: &str) -> Result<Vec<String>, String> {
        match config.contains("dance") {
            true => Err("\"dance\" is not an action".to_owned()),
            false => Ok(Vec::new()),
        }
    }
}

fn installation(runner: Runner) -> Installation {
    Installation {
        namespace: "kai-scheduler".to_owned(),
        image: "registry/kai:1".parse().unwrap(),
        pull_policy: "IfNotPresent".to_owned(),
        pull_secrets: Vec::new(),
        runner,
    }
}

fn shard(name: &str, spec: Value) -> SchedulingShard {
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
}

fn plan_of(config: Value, shards: &[SchedulingShard], runner: Runner, facts: ClusterFacts) -> Plan {
    let spec: ConfigSpec = serde_json::from_value(config).unwrap();
    plan(&spec, shards, &installation(runner), facts, &FewFlags)
}

fn deployments(config: Value, shards: &[SchedulingShard]) -> Plan {
    plan_of(config, shards, Runner::Deployments, ClusterFacts::default())
}

/// The arguments of every role, a line each.
fn arguments(plan: &Plan) -> String {
    let shards = plan.shards.iter().map(|shard| match &shard.scheduler {
        super::ShardScheduler::Run(component) => component.arguments().join(" "),
        other => format!("{}: {other:?}", shard.shard),
    });
    let components = plan.components.iter().map(|component| component.arguments().join(" "));
    let lines: Vec<String> = components.chain(shards).collect();
    lines.join("\n")
}
