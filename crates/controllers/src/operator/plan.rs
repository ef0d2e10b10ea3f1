//! The plan of an installation: every role with its flags and the settings of its pods. Pure.

use kai_api::SchedulingShard;
use kai_api::crd::ConfigSpec;
use kai_api::crd::config::{
    AdmissionConfig, AdmissionWebhook, BinderConfig, GlobalConfig, PodGroupControllerConfig, PodGrouperConfig,
    QueueControllerConfig, ServicePort,
};
use serde_json::{Value, json};

use super::arguments::{self, Controller, Names};
use super::component::{Component, Parts, Port, Role, ServicePlan, to_json};
use super::ignored::ignored;
use super::inputs::{ClusterFacts, Installation, Runner, SchedulerFlags};
use super::shard::{ShardInputs, ShardPlan, ShardScheduler};

const METRICS_PORT: i64 = 8080;
const PROBE_PORT: i64 = 8081;

/// The roles of an installation.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Namespace of the roles.
    pub namespace: String,
    /// The roles that all shards share.
    pub components: Vec<Component>,
    /// A scheduler for each shard, by name of the shard.
    pub shards: Vec<ShardPlan>,
    /// Settings of the Config that have no effect, with reasons.
    pub ignored: Vec<String>,
    /// Settings that the pods of all roles have.
    pub(super) pods: PodSettings,
}

/// Settings that the pods of all roles have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodSettings {
    pub(super) node_selector: Value,
    pub(super) tolerations: Value,
    pub(super) priority_class: Option<String>,
    pub(super) pull_secrets: Vec<String>,
    pub(super) security_context: Value,
}

/// The plan of a Config and its shards.
pub fn plan(
    spec: &ConfigSpec,
    shards: &[SchedulingShard],
    installation: &Installation,
    facts: ClusterFacts,
    flags: &dyn SchedulerFlags,
) -> Plan {
    let absent = (GlobalConfig::default(), BinderConfig::default(), Default::default());
    let global = spec.global.as_ref().unwrap_or(&absent.0);
    let binder = spec.binder.as_ref().unwrap_or(&absent.1);
    let reservation = binder.resource_reservation.as_ref().unwrap_or(&absent.2);
    let names = Names::new(spec, global, reservation);
    let namespace = match (installation.runner, &spec.namespace) {
        (Runner::Deployments, Some(namespace)) => namespace,
        (Runner::Deployments, None) | (Runner::Process, _) => &installation.namespace,
    };
    let roles = Roles {
        spec,
        namespace,
        names: &names,
        installation,
        facts,
    };
    let inputs = ShardInputs {
        spec,
        namespace,
        names: &names,
        installation,
        facts,
        flags,
    };
    let components = [
        roles.binder(binder),
        roles.admission(),
        roles.pod_grouper(),
        roles.pod_group_controller(),
        roles.queue_controller(),
        roles.node_scale_adjuster(),
    ];
    let mut shards: Vec<ShardPlan> = shards.iter().map(|shard| inputs.plan(shard)).collect();
    shards.sort_by(|a, b| a.shard.cmp(&b.shard));
    warn_of_common_partitions(&mut shards);
    Plan {
        namespace: namespace.clone(),
        components: components.into_iter().flatten().collect(),
        shards,
        ignored: ignored(spec, installation.runner, facts),
        pods: PodSettings::of(global, installation),
    }
}

/// Schedulers of one partition would compete for one lease, and all but one would never work.
fn warn_of_common_partitions(shards: &mut [ShardPlan]) {
    let partition = |shard: &ShardPlan| match &shard.scheduler {
        ShardScheduler::Run(component) => {
            let value = component.role_flags.get("partition-label-value");
            Some(value.unwrap_or_default().to_owned())
        }
        ShardScheduler::Invalid(_) | ShardScheduler::Disabled => None,
    };
    let partitions: Vec<_> = shards
        .iter()
        .map(|shard| (shard.shard.clone(), partition(shard)))
        .collect();
    for (shard, own) in shards.iter_mut().zip(&partitions) {
        let same = partitions
            .iter()
            .filter(|other| own.1.is_some() && other.1 == own.1 && other.0 != own.0);
        let same: Vec<&str> = same.map(|(name, _)| name.as_str()).collect();
        if !same.is_empty() {
            shard.warnings.push(format!(
                "partitionLabelValue: also of shard {}; only one of their schedulers works at a time",
                same.join(", ")
            ));
        }
    }
}

impl PodSettings {
    fn of(global: &GlobalConfig, installation: &Installation) -> PodSettings {
        let own = global
            .images_pull_secret
            .iter()
            .chain(&global.additional_image_pull_secrets);
        let mut pull_secrets: Vec<String> = own.chain(&installation.pull_secrets).cloned().collect();
        pull_secrets.retain(|secret| !secret.is_empty());
        pull_secrets.sort();
        pull_secrets.dedup();
        PodSettings {
            node_selector: to_json(&global.node_selector),
            tolerations: to_json(&global.tolerations),
            priority_class: global.priority_class_name.clone().filter(|class| !class.is_empty()),
            pull_secrets,
            security_context: security_context(global),
        }
    }
}

/// The Pod Security Standard `restricted`; the fields that the Config sets replace those of the default. OpenShift assigns the user itself and
/// refuses others.
fn security_context(global: &GlobalConfig) -> Value {
    let is_openshift = global.openshift == Some(true);
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    if !is_openshift {
        context["runAsUser"] = 10_000.into();
        let own = global.security_context.as_ref().map(to_json);
        for (field, value) in own.iter().filter_map(Value::as_object).flatten() {
            context[field] = value.clone();
        }
    }
    context
}

/// The roles that all shards share.
struct Roles<'a> {
    spec: &'a ConfigSpec,
    namespace: &'a str,
    names: &'a Names<'a>,
    installation: &'a Installation,
    facts: ClusterFacts,
}

impl Roles<'_> {
    fn component(&self, role: Role, name: &str, parts: Parts<'_>) -> Option<Component> {
        let component = || Component::new(role, name, self.spec, parts, self.installation, self.facts);
        parts.is_enabled().then(component)
    }

    fn controller(&self, role: Role, name: &str, which: Controller, parts: Parts<'_>) -> Option<Component> {
        let mut component = self.component(role, name, parts)?;
        component.elect(self.namespace);
        component.role_flags = which.alone();
        if self.installation.runner == Runner::Process && which == Controller::Queues {
            component.role_flags.set("create-defaults", true);
        }
        Some(component)
    }

    fn binder(&self, config: &BinderConfig) -> Option<Component> {
        let parts = Parts {
            service: config.service.as_ref(),
            replicas: config.replicas,
            vpa: config.vpa.as_ref(),
        };
        let mut component = self.component(Role::Binder, "binder", parts)?;
        component.elect(self.namespace);
        let metrics = config.metrics_port.unwrap_or(METRICS_PORT);
        component.serve(metrics, config.probe_port.unwrap_or(PROBE_PORT));
        component.service = Some(ServicePlan::of(&[service_port("http-metrics", metrics, "metrics")]));
        arguments::binder(
            config,
            self.names,
            self.installation,
            self.facts,
            &mut component.role_flags,
        );
        Some(component)
    }

    fn admission(&self) -> Option<Component> {
        let absent = AdmissionConfig::default();
        let config = self.spec.admission.as_ref().unwrap_or(&absent);
        let parts = Parts {
            service: config.service.as_ref(),
            replicas: config.replicas,
            vpa: config.vpa.as_ref(),
        };
        let mut component = self.component(Role::Admission, "admission", parts)?;
        let absent = AdmissionWebhook::default();
        let ports = config.webhook.as_ref().unwrap_or(&absent);
        let metrics = ports.metrics_port.unwrap_or(METRICS_PORT);
        component.serve(metrics, ports.probe_port.unwrap_or(PROBE_PORT));
        component
            .ports
            .push(Port::new("webhook", ports.target_port.unwrap_or(9443)));
        component.service = Some(ServicePlan::of(&[
            service_port("webhook", ports.port.unwrap_or(443), "webhook"),
            service_port("http-metrics", metrics, "metrics"),
        ]));
        arguments::admission(self.spec, self.namespace, self.names, &mut component.role_flags);
        Some(component)
    }

    fn pod_grouper(&self) -> Option<Component> {
        let absent = PodGrouperConfig::default();
        let config = self.spec.pod_grouper.as_ref().unwrap_or(&absent);
        let parts = Parts {
            service: config.service.as_ref(),
            replicas: config.replicas,
            vpa: config.vpa.as_ref(),
        };
        let mut component = self.controller(Role::PodGrouper, "pod-grouper", Controller::PodGrouper, parts)?;
        component.serve(METRICS_PORT, PROBE_PORT);
        arguments::pod_grouper(self.spec, self.namespace, self.names, &mut component.role_flags);
        Some(component)
    }

    fn pod_group_controller(&self) -> Option<Component> {
        let absent = PodGroupControllerConfig::default();
        let config = self.spec.pod_group_controller.as_ref().unwrap_or(&absent);
        let parts = Parts {
            service: config.service.as_ref(),
            replicas: config.replicas,
            vpa: config.vpa.as_ref(),
        };
        let name = "podgroup-controller";
        let mut component = self.controller(Role::PodGroupController, name, Controller::PodGroups, parts)?;
        component.serve(METRICS_PORT, PROBE_PORT);
        arguments::pod_group_controller(self.spec, self.names, &mut component.role_flags);
        Some(component)
    }

    fn queue_controller(&self) -> Option<Component> {
        let absent = QueueControllerConfig::default();
        let config = self.spec.queue_controller.as_ref().unwrap_or(&absent);
        let parts = Parts {
            service: config.service.as_ref(),
            replicas: config.replicas,
            vpa: config.vpa.as_ref(),
        };
        let mut component = self.controller(Role::QueueController, "queue-controller", Controller::Queues, parts)?;
        let absent = ServicePort::default();
        let metrics = config
            .controller_service
            .as_ref()
            .and_then(|service| service.metrics.as_ref());
        let metrics = metrics.unwrap_or(&absent);
        component.serve(metrics.target_port.unwrap_or(METRICS_PORT), PROBE_PORT);
        let name = metrics.name.as_deref().unwrap_or("metrics");
        let port = service_port(name, metrics.port.unwrap_or(METRICS_PORT), "metrics");
        component.service = Some(ServicePlan::of(&[port]));
        arguments::queue_controller(config, &mut component.role_flags);
        Some(component)
    }

    /// Only if the Config has it: few clusters have an autoscaler, and the adjuster needs a namespace of its own.
    fn node_scale_adjuster(&self) -> Option<Component> {
        let config = self.spec.node_scale_adjuster.as_ref()?;
        let parts = Parts {
            service: config.service.as_ref(),
            replicas: None,
            vpa: config.vpa.as_ref(),
        };
        let is_wanted = config.service.as_ref().and_then(|service| service.enabled) == Some(true);
        let name = "node-scale-adjuster";
        let which = Controller::NodeScaleAdjuster;
        let mut component = self
            .controller(Role::NodeScaleAdjuster, name, which, parts)
            .filter(|_| is_wanted)?;
        component.serve(METRICS_PORT, PROBE_PORT);
        arguments::node_scale_adjuster(config, self.names, self.installation, &mut component.role_flags);
        Some(component)
    }
}

impl ServicePlan {
    fn of(ports: &[Value]) -> ServicePlan {
        let spec = json!({ "type": "ClusterIP", "ports": ports });
        ServicePlan { spec }
    }
}

/// A port of a service that leads to a named port of the pods.
fn service_port(name: &str, port: i64, target: &str) -> Value {
    json!({ "name": name, "port": port, "targetPort": target, "protocol": "TCP" })
}
