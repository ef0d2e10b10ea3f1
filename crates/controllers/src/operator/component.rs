//! One role of a plan: its flags, and the settings of its Deployment.

use kai_api::crd::ConfigSpec;
use kai_api::crd::config::{GlobalConfig, Image, Service, Vpa};
use serde::Serialize;
use serde_json::{Value, json};

use super::Flags;
use super::inputs::{ClusterFacts, ImageReference, Installation};

/// A role that the operator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The scheduler of a shard.
    Scheduler,
    /// The binder.
    Binder,
    /// The webhooks.
    Admission,
    /// The pod grouper.
    PodGrouper,
    /// The pod-group controller.
    PodGroupController,
    /// The queue controller.
    QueueController,
    /// The node-scale adjuster.
    NodeScaleAdjuster,
}

impl Role {
    /// The subcommand of `kai`.
    pub fn command(self) -> &'static str {
        match self {
            Role::Scheduler => "scheduler",
            Role::Binder => "binder",
            Role::Admission => "admission",
            Role::PodGrouper | Role::PodGroupController | Role::QueueController | Role::NodeScaleAdjuster => {
                "controllers"
            }
        }
    }

    /// The service account; the installation creates it with its permissions. The controllers share one.
    fn service_account(self) -> &'static str {
        self.command()
    }

    /// KAI replaces schedulers and binders without an overlap. The lease guards against two leaders, but a pod of an old version would
    /// hold the lease until the new one is ready, which it never is without the lease.
    fn strategy(self) -> &'static str {
        match self {
            Role::Scheduler | Role::Binder => "Recreate",
            Role::Admission
            | Role::PodGrouper
            | Role::PodGroupController
            | Role::QueueController
            | Role::NodeScaleAdjuster => "RollingUpdate",
        }
    }

    /// Requests for a small cluster, such as one Jetson. There are no limits: the memory of a scheduler grows with the cluster.
    fn default_resources(self) -> Value {
        match self {
            Role::Scheduler => json!({ "requests": { "cpu": "50m", "memory": "64Mi" } }),
            Role::Binder
            | Role::Admission
            | Role::PodGrouper
            | Role::PodGroupController
            | Role::QueueController
            | Role::NodeScaleAdjuster => {
                json!({ "requests": { "cpu": "10m", "memory": "32Mi" } })
            }
        }
    }
}

/// A role with its flags and the settings of its Deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    /// The role.
    pub role: Role,
    /// Name of the Deployment, and of the objects beside it.
    pub name: String,
    /// Flags of the process: ports, election, log. `kai all` has its own.
    pub process_flags: Flags,
    /// Flags of the role.
    pub role_flags: Flags,
    /// Content of the configuration file of a scheduler.
    pub config_file: Option<String>,
    pub(super) service_account: &'static str,
    pub(super) strategy: &'static str,
    pub(super) image: String,
    pub(super) pull_policy: String,
    /// `None` leaves the number to Kubernetes or to an autoscaler.
    pub(super) replicas: Option<i32>,
    pub(super) resources: Value,
    pub(super) affinity: Value,
    pub(super) ports: Vec<Port>,
    pub(super) probe_port: i64,
    pub(super) service: Option<ServicePlan>,
    /// Maximum of unavailable pods; `None` without a budget.
    pub(super) disruption_budget: Option<i32>,
    pub(super) vpa: Option<Value>,
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) number: i64,
}

/// A Service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServicePlan {
    /// Its spec without the selector.
    pub(super) spec: Value,
}

/// The settings that every component of a Config has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts<'a> {
    pub(super) service: Option<&'a Service>,
    pub(super) replicas: Option<i32>,
    pub(super) vpa: Option<&'a Vpa>,
}

impl Parts<'_> {
    pub(super) fn is_enabled(&self) -> bool {
        self.service.and_then(|service| service.enabled).unwrap_or(true)
    }
}

impl Component {
    /// A component without flags and ports.
    pub(super) fn new(
        role: Role,
        name: &str,
        spec: &ConfigSpec,
        parts: Parts<'_>,
        installation: &Installation,
        facts: ClusterFacts,
    ) -> Component {
        let absent = GlobalConfig::default();
        let global = spec.global.as_ref().unwrap_or(&absent);
        let image = parts.service.and_then(|service| service.image.as_ref());
        let replicas = parts.replicas.or(global.replica_count);
        let resources = parts.service.and_then(|service| service.resources.as_ref());
        let mut component = Component {
            role,
            name: name.to_owned(),
            process_flags: Flags::default(),
            role_flags: Flags::default(),
            config_file: None,
            service_account: role.service_account(),
            strategy: role.strategy(),
            image: image_url(image, &installation.image),
            pull_policy: pull_policy(image, installation),
            replicas,
            resources: resources.map_or_else(|| role.default_resources(), to_json),
            affinity: affinity(global, parts.service, name),
            ports: Vec::new(),
            probe_port: 8081,
            service: None,
            disruption_budget: disruption_budget(parts.service, replicas),
            vpa: vpa(parts.vpa, global.vpa.as_ref(), facts),
        };
        if global.json_log == Some(true) {
            component.process_flags.set("log-json", true);
        }
        component
    }

    /// Serves metrics on one port and probes on another, as KAI's controllers do.
    pub(super) fn serve(&mut self, metrics: i64, probes: i64) {
        self.process_flags.set("metrics-bind-address", format!(":{metrics}"));
        self.process_flags
            .set("health-probe-bind-address", format!(":{probes}"));
        self.probe_port = probes;
        self.ports.push(Port::new("metrics", metrics));
        self.ports.push(Port::new("probes", probes));
    }

    /// Takes part in an election, always: without one, two pods would lead during a rollout or beside KAI's controllers.
    pub(super) fn elect(&mut self, namespace: &str) {
        self.process_flags.set("leader-elect", true);
        self.process_flags.set("namespace", namespace);
    }

    /// The arguments of the container.
    pub fn arguments(&self) -> Vec<String> {
        let command = std::iter::once(self.role.command().to_owned());
        let flags = self.process_flags.arguments().into_iter();
        command.chain(flags).chain(self.role_flags.arguments()).collect()
    }
}

impl Port {
    pub(super) fn new(name: &str, number: i64) -> Port {
        let name = name.to_owned();
        Port { name, number }
    }
}

/// Names of KAI's images, one per program. A Config that KAI left names them, and its programs do not know kai's flags.
const IMAGES_OF_KAI: [&str; 10] = [
    "admission",
    "binder",
    "nodescaleadjuster",
    "podgroupcontroller",
    "podgrouper",
    "queuecontroller",
    "resource-reservation",
    "resourcereservation",
    "scalingpod",
    "scheduler",
];

/// Whether an image of this name is one of KAI's programs.
pub(super) fn is_image_of_kai(name: &str) -> bool {
    IMAGES_OF_KAI.contains(&name)
}

/// The image of a component: the parts that the Config sets, and the installation's image for the others. An image of KAI counts as not set.
pub(super) fn image_url(image: Option<&Image>, installed: &ImageReference) -> String {
    let image = image.filter(|image| !image.name.as_deref().is_some_and(is_image_of_kai));
    let part = |part: fn(&Image) -> &Option<String>, default: &str| {
        let set = image
            .and_then(|image| part(image).as_deref())
            .filter(|text| !text.is_empty());
        set.unwrap_or(default).to_owned()
    };
    let image = ImageReference {
        repository: part(|image| &image.repository, &installed.repository),
        name: part(|image| &image.name, &installed.name),
        tag: part(|image| &image.tag, &installed.tag),
    };
    image.to_string()
}

fn pull_policy(image: Option<&Image>, installation: &Installation) -> String {
    let set = image.and_then(|image| image.pull_policy.clone());
    set.unwrap_or_else(|| installation.pull_policy.clone())
}

/// Each kind of affinity from the component, else from all components. Pods of one component avoid each other's nodes unless the Config
/// has an anti-affinity of its own.
fn affinity(global: &GlobalConfig, service: Option<&Service>, name: &str) -> Value {
    let mut affinity = to_json(&global.affinity.clone().unwrap_or_default());
    let own = service.and_then(|service| service.affinity.as_ref()).map(to_json);
    for (kind, terms) in own.iter().filter_map(Value::as_object).flatten() {
        affinity[kind] = terms.clone();
    }
    let term = json!({ "labelSelector": { "matchLabels": { "app": name } }, "topologyKey": "kubernetes.io/hostname" });
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let anti_affinity = &mut affinity["podAntiAffinity"];
    if global.require_default_pod_anti_affinity_term == Some(true) {
        match anti_affinity[required].as_array_mut() {
            Some(terms) => terms.push(term),
            None => anti_affinity[required] = json!([term]),
        }
    } else if anti_affinity.is_null() {
        anti_affinity[preferred] = json!([{ "weight": 100, "podAffinityTerm": term }]);
    }
    affinity
}

/// A budget for one pod would forbid to drain its node.
fn disruption_budget(service: Option<&Service>, replicas: Option<i32>) -> Option<i32> {
    let budget = service?.pod_disruption_budget.as_ref()?;
    let wanted = budget.enabled == Some(true) && replicas.is_some_and(|replicas| replicas > 1);
    wanted.then(|| budget.max_unavailable.unwrap_or(1))
}

/// The policies of a VerticalPodAutoscaler; the component's own settings replace the global ones field by field.
fn vpa(own: Option<&Vpa>, global: Option<&Vpa>, facts: ClusterFacts) -> Option<Value> {
    let setting = |of: fn(&Vpa) -> Value| {
        let both = [own, global].into_iter().flatten();
        both.map(of).find(|value| !value.is_null())
    };
    let enabled = setting(|vpa| to_json(&vpa.enabled)) == Some(Value::Bool(true));
    if !enabled || !facts.serves_vpa {
        return None;
    }
    let mut policies = json!({});
    let update = setting(|vpa| to_json(&vpa.update_policy)).unwrap_or_else(|| json!({}));
    policies["updatePolicy"] = update;
    if policies["updatePolicy"]["updateMode"].is_null() {
        policies["updatePolicy"]["updateMode"] = "InPlaceOrRecreate".into();
    }
    if let Some(resources) = setting(|vpa| to_json(&vpa.resource_policy)) {
        policies["resourcePolicy"] = resources;
    }
    Some(policies)
}

/// Types of the API have string keys only, so they are always JSON.
pub(super) fn to_json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
