//! What `kai scheduler` accepts: the operator asks before it starts the scheduler of a shard.

use clap::FromArgMatches;
use kai_controllers::operator::{Runner, SchedulerFlags};

use super::scheduler;

/// The flags of a scheduler in its own process, or inside `kai all`.
pub(super) struct ShardCheck {
    runner: Runner,
}

impl ShardCheck {
    pub(super) fn of(runner: Runner) -> ShardCheck {
        ShardCheck { runner }
    }

    fn command(&self) -> clap::Command {
        let command = clap::Command::new("scheduler");
        match self.runner {
            Runner::Deployments => <scheduler::Arguments as clap::Args>::augment_args(command),
            Runner::Process => <kai_scheduler::Args as clap::Args>::augment_args(command),
        }
    }

    pub(super) fn settings(&self, flags: &[String], config: &str) -> anyhow::Result<kai_scheduler::Settings> {
        let line = std::iter::once("scheduler".to_owned()).chain(flags.iter().cloned());
        let matches = self.command().try_get_matches_from(line)?;
        let args = kai_scheduler::Args::from_arg_matches(&matches)?;
        Ok(kai_scheduler::Settings::of_shard(args, config)?)
    }
}

impl SchedulerFlags for ShardCheck {
    fn is_known(&self, name: &str) -> bool {
        let is_named = |argument: &clap::Arg| {
            let aliases = argument.get_all_aliases().unwrap_or_default();
            argument.get_long() == Some(name) || aliases.contains(&name)
        };
        self.command().get_arguments().any(is_named)
    }

    fn check(&self, flags: &[String], config: &str) -> Result<Vec<String>, String> {
        let settings = self.settings(flags, config).map_err(|error| error.to_string())?;
        Ok(settings.warnings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kai_api::SchedulingShard;
    use kai_controllers::operator::{ClusterFacts, Component, Installation, Plan, ShardScheduler, plan};
    use serde_json::{Value, json};

    use super::*;

    fn plan_of(config: Value, shard: Value, runner: Runner) -> Plan {
        let installation = Installation {
            namespace: "kai-scheduler".to_owned(),
            image: "registry/kai:1".parse().unwrap(),
            pull_policy: "IfNotPresent".to_owned(),
            pull_secrets: Vec::new(),
            runner,
        };
        let shard: SchedulingShard =
            serde_json::from_value(json!({ "metadata": { "name": "default" }, "spec": shard })).unwrap();
        let facts = ClusterFacts {
            gpu_operator_cdi: true,
            serves_vpa: true,
        };
        plan(
            &serde_json::from_value(config).unwrap(),
            &[shard],
            &installation,
            facts,
            &ShardCheck::of(runner),
        )
    }

    fn all(plan: &Plan) -> Vec<&Component> {
        let schedulers = plan.shards.iter().map(|shard| match &shard.scheduler {
            ShardScheduler::Run(component) => &**component,
            other => panic!("{}: {other:?}", shard.shard),
        });
        plan.components.iter().chain(schedulers).collect()
    }

    #[test]
    fn kai_takes_the_arguments_of_every_plan() {
        let config = json!({
            "global": {
                "schedulerName": "s", "queueLabelKey": "q", "nodePoolLabelKey": "p", "jsonLog": true, "replicaCount": 2, "gpuSharingMode": "HamiCore",
                "namespaceLabelSelector": { "a": "b" }, "podLabelSelector": { "a": "b" },
            },
            "podGrouper": {
                "maxConcurrentReconciles": 3,
                "args": { "gangScheduleKnative": false, "gangScheduleDeployment": false, "defaultPrioritiesConfigMapName": "n",
                          "defaultPrioritiesConfigMapNamespace": "m" },
            },
            "podGroupController": { "maxConcurrentReconciles": 3, "webhooks": { "enableValidation": false } },
            "queueController": {
                "metricsNamespace": "m", "queueLabelToMetricLabel": "a=b", "queueLabelToDefaultMetricValue": "a=c",
                "webhooks": { "enableValidation": true }, "enforceQuotaViolation": "Block",
            },
            "binder": {
                "maxConcurrentReconciles": 3, "cdiEnabled": true, "plugins": { "hamicore": { "enabled": true } },
                "resourceReservation": {
                    "namespace": "r", "serviceAccountName": "s", "appLabel": "l", "runtimeClassName": "c", "allocationTimeout": 9,
                    "podResources": { "requests": { "cpu": "1" } }, "reservationPodSecurityContext": { "runAsUser": 1 },
                    "reservationContainerSecurityContext": { "runAsUser": 1 }, "image": { "repository": "x", "name": "y", "tag": "z" },
                },
            },
            "admission": {
                "blockNvidiaVisibleDevices": true, "queueLabelSelector": true,
                "gpuFractionRuntimeClassName": "nvidia", "webhook": { "port": 1, "targetPort": 2, "probePort": 3, "metricsPort": 4 },
            },
            "scheduler": { "service": { "k8sClientConfig": { "qps": 1, "burst": 2 } } },
        });
        let shard = json!({ "partitionLabelValue": "a100", "args": { "v": "4", "schedule-period": "2s" } });
        for config in [json!({}), config] {
            for component in all(&plan_of(config.clone(), shard.clone(), Runner::Deployments)) {
                let line = std::iter::once("kai".to_owned()).chain(component.arguments());
                let taken = crate::Arguments::try_parse_from(line);
                assert!(taken.is_ok(), "{:?}: {:?}", component.arguments(), taken.err());
            }
        }
    }

    #[test]
    fn a_shard_says_what_the_scheduler_does_not_do() {
        let shard = json!({
            "plugins": { "elastic": { "enabled": false }, "numa": { "enabled": true } },
            "scenarioSearchBudgets": { "maxJobSearchDuration": "10s" },
            "usageDBConfig": { "clientType": "prometheus" },
            "args": { "v": "4", "detailed-fit-errors": "true" },
        });
        let warnings = |runner| plan_of(json!({}), shard.clone(), runner).shards[0].warnings.join("\n");
        insta::assert_snapshot!(warnings(Runner::Deployments));
        insta::assert_snapshot!(warnings(Runner::Process));
    }

    #[test]
    fn the_default_shard_has_nothing_to_say() {
        for runner in [Runner::Deployments, Runner::Process] {
            let plan = plan_of(json!({}), json!({}), runner);
            assert_eq!((all(&plan).len(), &plan.shards[0].warnings[..]), (6, &[][..]));
        }
    }
}
