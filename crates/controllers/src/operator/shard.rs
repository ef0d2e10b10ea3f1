//! The scheduler of one shard: flags, configuration file, and what the shard's condition says about them.

use kai_api::SchedulingShard;
use kai_api::crd::ConfigSpec;
use kai_api::crd::config::{SchedulerConfig, SchedulerService};
use serde_json::json;

use super::arguments::Names;
use super::component::{Component, Parts, Port, Role, ServicePlan};
use super::inputs::{ClusterFacts, Installation, Runner, SchedulerFlags};
use super::scheduler_config::{enabled_actions, scheduler_config};

/// Where the Deployment mounts the configuration file.
const CONFIG_PATH: &str = "/etc/config/config.yaml";
const PORT: i64 = 8080;

/// The scheduler of a shard.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardPlan {
    /// Name of the shard.
    pub shard: String,
    /// Its scheduler.
    pub scheduler: ShardScheduler,
    /// Settings of the shard that have no effect, or another effect than written.
    pub warnings: Vec<String>,
}

/// The scheduler of a shard, if there shall be one.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardScheduler {
    /// With these settings.
    Run(Box<Component>),
    /// The settings are invalid, for this reason. The shard keeps the scheduler that it has.
    Invalid(String),
    /// The Config disables all schedulers.
    Disabled,
}

/// What the plan of every shard depends on.
pub(super) struct ShardInputs<'a> {
    pub(super) spec: &'a ConfigSpec,
    pub(super) namespace: &'a str,
    pub(super) names: &'a Names<'a>,
    pub(super) installation: &'a Installation,
    pub(super) facts: ClusterFacts,
    pub(super) flags: &'a dyn SchedulerFlags,
}

impl ShardInputs<'_> {
    pub(super) fn plan(&self, shard: &SchedulingShard) -> ShardPlan {
        let name = shard.metadata.name.as_deref().unwrap_or_default().to_owned();
        let mut warnings = without_effect(shard);
        let service = self.spec.scheduler.as_ref().and_then(|config| config.service.as_ref());
        if service.and_then(|service| service.enabled) == Some(false) {
            return ShardPlan {
                shard: name,
                scheduler: ShardScheduler::Disabled,
                warnings,
            };
        }
        let mut component = self.component(&name, shard);
        self.shard_arguments(shard, &mut component, &mut warnings);
        let prometheus = self.spec.prometheus.as_ref();
        let url = prometheus.and_then(|prometheus| prometheus.external_prometheus_url.as_deref());
        let config = scheduler_config(&shard.spec, url.filter(|url| !url.is_empty()));
        let scheduler = match self.checked(shard, component, &config, &mut warnings) {
            Ok(component) => ShardScheduler::Run(Box::new(component)),
            Err(reason) => ShardScheduler::Invalid(reason),
        };
        ShardPlan {
            shard: name,
            scheduler,
            warnings,
        }
    }

    fn checked(
        &self,
        shard: &SchedulingShard,
        mut component: Component,
        config: &serde_json::Value,
        warnings: &mut Vec<String>,
    ) -> Result<Component, String> {
        let actions = enabled_actions(&shard.spec);
        let mut depths = shard.spec.queue_depth_per_action.keys();
        if let Some(unknown) = depths.find(|action| !actions.contains(action)) {
            return Err(format!(
                "queueDepthPerAction.{unknown}: no such action is enabled; enabled are {}",
                actions.join(", ")
            ));
        }
        let yaml = serde_saphyr::to_string(config).map_err(|error| error.to_string())?;
        let mut flags = component.role_flags.clone();
        if self.installation.runner == Runner::Deployments {
            for (name, value) in component.process_flags.pairs() {
                flags.set(name, value);
            }
        }
        warnings.extend(self.flags.check(&flags.arguments(), &yaml)?);
        component.config_file = Some(yaml);
        if self.installation.runner == Runner::Deployments {
            component.role_flags.set("scheduler-conf", CONFIG_PATH);
        }
        Ok(component)
    }

    fn component(&self, shard_name: &str, shard: &SchedulingShard) -> Component {
        let absent = SchedulerConfig::default();
        let config = self.spec.scheduler.as_ref().unwrap_or(&absent);
        let parts = Parts {
            service: config.service.as_ref(),
            replicas: config.replicas,
            vpa: config.vpa.as_ref(),
        };
        let name = format!("{}-{shard_name}", self.names.scheduler());
        let mut component = Component::new(Role::Scheduler, &name, self.spec, parts, self.installation, self.facts);
        component.elect(self.namespace);
        serve(&mut component, config.scheduler_service.as_ref());
        let flags = &mut component.role_flags;
        self.names.scheduler_name(flags);
        self.names.node_pool_label(flags);
        self.names.queue_label(flags);
        self.names.reservation_pods(flags);
        self.names.gpu_sharing(flags);
        flags.set_some("partition-label-value", shard.node_pool());
        let queues = self.spec.queue_controller.as_ref();
        flags.set_some(
            "metrics-namespace",
            queues.and_then(|queues| queues.metrics_namespace.as_ref()),
        );
        let rates = config
            .service
            .as_ref()
            .and_then(|service| service.k8s_client_config.as_ref());
        flags.set_some("qps", rates.and_then(|rates| rates.qps));
        flags.set_some("burst", rates.and_then(|rates| rates.burst));
        component
    }

    /// The shard's own arguments replace those of the plan.
    fn shard_arguments(&self, shard: &SchedulingShard, component: &mut Component, warnings: &mut Vec<String>) {
        for (name, value) in &shard.spec.args {
            match name.as_str() {
                "scheduler-conf" => {
                    warnings.push("args.scheduler-conf: ignored; the shard is the configuration".to_owned())
                }
                known if component.process_flags.get(known).is_some() => component.process_flags.set(known, value),
                known if self.flags.is_known(known) => component.role_flags.set(known, value),
                unknown => warnings.push(format!("args.{unknown}: ignored; the scheduler has no such flag here")),
            }
        }
    }
}

fn serve(component: &mut Component, service: Option<&SchedulerService>) {
    let absent = SchedulerService::default();
    let service = service.unwrap_or(&absent);
    let target = service.target_port.unwrap_or(PORT);
    component.process_flags.set("listen-address", format!(":{target}"));
    component.probe_port = target;
    component.ports.push(Port::new("http-metrics", target));
    let kind = service.type_.as_deref().unwrap_or("ClusterIP");
    let mut spec = json!({
        "type": kind,
        "ports": [{ "name": "http-metrics", "port": service.port.unwrap_or(PORT), "targetPort": target, "protocol": "TCP" }],
    });
    if kind == "ClusterIP" {
        // Headless, as in KAI: Prometheus scrapes every replica.
        spec["clusterIP"] = "None".into();
    }
    component.service = Some(ServicePlan { spec });
}

/// Settings that mean nothing to a scheduler without a garbage collector.
fn without_effect(shard: &SchedulingShard) -> Vec<String> {
    let spec = &shard.spec;
    let settings = [
        ("goMemLimit", spec.go_mem_limit.is_some()),
        ("goMemLimitRatio", spec.go_mem_limit_ratio.is_some()),
    ];
    let set: Vec<&str> = settings
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(name, _)| name)
        .collect();
    match set.as_slice() {
        [] => Vec::new(),
        set => vec![format!(
            "{}: ignored; the scheduler has no garbage collector",
            set.join(", ")
        )],
    }
}
