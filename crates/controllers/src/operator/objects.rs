//! The Kubernetes objects of a plan. Rendering only.

use kai_api::{Resource, Scope};
use serde_json::{Value, json};

use super::component::{Component, Role};
use super::plan::{Plan, PodSettings};
use super::shard::ShardScheduler;

pub(super) static DEPLOYMENT: Resource = Resource::new("apps", "v1", "Deployment", "deployments", Scope::Namespaced);
pub(super) static SERVICE: Resource = Resource::new("", "v1", "Service", "services", Scope::Namespaced);
pub(super) static CONFIG_MAP: Resource = Resource::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced);
pub(super) static DISRUPTION_BUDGET: Resource = Resource::new(
    "policy",
    "v1",
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    Scope::Namespaced,
);
pub(super) static VPA: Resource = Resource::new(
    "autoscaling.k8s.io",
    "v1",
    "VerticalPodAutoscaler",
    "verticalpodautoscalers",
    Scope::Namespaced,
);

/// The label by which the chart's ServiceMonitor finds the Services of all roles and shards.
const PART_OF: &str = "app.kubernetes.io/part-of";
/// Name of the volume and key of the ConfigMap with the configuration file of a scheduler.
const CONFIG_VOLUME: &str = "config";
const CONFIG_KEY: &str = "config.yaml";
/// A pod starts again when its configuration file changes, because the template changes with this annotation.
const CONFIG_HASH: &str = "kai.scheduler/config-hash";

/// How long the service proxies of a cluster may take to learn that a pod has begun to serve webhooks. The pod is available only after this
/// time, so that no call of the API server fails during a rollout.
const SERVICE_BEGIN_SECONDS: u32 = 5;
/// The same for a pod that ceases to serve: it serves for this time after its end was decided. A busy node learns it late, and a call that is
/// sent to the old pod fails.
const SERVICE_END_SECONDS: u32 = 10;

/// The object that owns an object of the plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The Config.
    Config,
    /// The shard of this name.
    Shard(String),
}

/// An object of the plan, without its owner reference.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredObject {
    /// Its owner.
    pub owner: Owner,
    /// Its resource.
    pub resource: &'static Resource,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The fields that the operator applies.
    pub fields: Value,
}

/// The objects of a plan. A shard with invalid settings has none here: it keeps those that it has.
pub fn objects(plan: &Plan) -> Vec<DesiredObject> {
    let mut objects = Vec::new();
    for component in &plan.components {
        objects.extend(component_objects(plan, component, &Owner::Config));
    }
    for shard in &plan.shards {
        if let ShardScheduler::Run(component) = &shard.scheduler {
            let owner = Owner::Shard(shard.shard.clone());
            objects.extend(component_objects(plan, component, &owner));
        }
    }
    objects
}

fn component_objects(plan: &Plan, component: &Component, owner: &Owner) -> Vec<DesiredObject> {
    let object = |resource: &'static Resource, mut fields: Value| {
        fields["metadata"]["labels"] = json!({ "app": component.name, (PART_OF): "kai-scheduler" });
        fields["metadata"]["name"] = component.name.as_str().into();
        fields["metadata"]["namespace"] = plan.namespace.as_str().into();
        DesiredObject {
            owner: owner.clone(),
            resource,
            namespace: plan.namespace.clone(),
            name: component.name.clone(),
            fields,
        }
    };
    let app = json!({ "app": component.name });
    // The ConfigMap first: the pods of the Deployment mount it.
    let config_file = component.config_file.as_ref();
    let config_map = config_file.map(|file| object(&CONFIG_MAP, json!({ "data": { (CONFIG_KEY): file } })));
    let deployment = object(&DEPLOYMENT, deployment(component, &plan.pods));
    let service = component.service.as_ref().map(|service| {
        let mut spec = service.spec.clone();
        spec["selector"] = app.clone();
        object(&SERVICE, json!({ "spec": spec }))
    });
    let budget = component.disruption_budget.map(|max_unavailable| {
        let spec = json!({ "maxUnavailable": max_unavailable, "selector": { "matchLabels": app } });
        object(&DISRUPTION_BUDGET, json!({ "spec": spec }))
    });
    let vpa = component.vpa.as_ref().map(|policies| {
        let mut spec = policies.clone();
        spec["targetRef"] = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": component.name });
        object(&VPA, json!({ "spec": spec }))
    });
    [config_map, Some(deployment), service, budget, vpa]
        .into_iter()
        .flatten()
        .collect()
}

fn deployment(component: &Component, pods: &PodSettings) -> Value {
    let app = json!({ "app": component.name });
    let mut template = json!({ "metadata": { "labels": app }, "spec": pod_spec(component, pods) });
    if let Some(file) = &component.config_file {
        template["metadata"]["annotations"] = json!({ (CONFIG_HASH): hash(file) });
    }
    let mut spec = json!({
        "selector": { "matchLabels": app },
        "strategy": { "type": component.strategy },
        "template": template,
    });
    if let Some(replicas) = component.replicas {
        spec["replicas"] = replicas.into();
    }
    if component.role == Role::Admission {
        spec["minReadySeconds"] = SERVICE_BEGIN_SECONDS.into();
    }
    json!({ "spec": spec })
}

fn pod_spec(component: &Component, pods: &PodSettings) -> Value {
    let secrets = pods.pull_secrets.iter().map(|name| json!({ "name": name }));
    let mut spec = json!({
        "serviceAccountName": component.service_account,
        "affinity": component.affinity,
        "containers": [container(component, pods)],
        "imagePullSecrets": secrets.collect::<Vec<_>>(),
        "nodeSelector": pods.node_selector,
        "tolerations": pods.tolerations,
    });
    if let Some(class) = &pods.priority_class {
        spec["priorityClassName"] = class.as_str().into();
    }
    if component.config_file.is_some() {
        spec["volumes"] = json!([{ "name": CONFIG_VOLUME, "configMap": { "name": component.name } }]);
    }
    // Empty lists and maps are left out: the operator then owns no field there, and other managers may set it.
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, field| *field != json!([]) && *field != json!({}));
    }
    spec
}

fn container(component: &Component, pods: &PodSettings) -> Value {
    let ports = component.ports.iter();
    let ports = ports.map(|port| json!({ "name": port.name, "containerPort": port.number, "protocol": "TCP" }));
    let probe = |path: &str, period_seconds: u32| json!({ "httpGet": { "path": path, "port": component.probe_port }, "periodSeconds": period_seconds });
    let mut container = json!({
        "name": component.name,
        "image": component.image,
        "imagePullPolicy": component.pull_policy,
        "args": component.arguments(),
        "ports": ports.collect::<Vec<_>>(),
        "resources": component.resources,
        "securityContext": pods.security_context,
        "readinessProbe": probe("/readyz", 5),
        "livenessProbe": probe("/livez", 20),
        // The identity in an election begins with the name of the pod.
        "env": [{ "name": "HOSTNAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
    });
    if component.role == Role::Admission {
        container["lifecycle"] = json!({ "preStop": { "sleep": { "seconds": SERVICE_END_SECONDS } } });
    }
    if component.config_file.is_some() {
        container["volumeMounts"] = json!([{ "name": CONFIG_VOLUME, "mountPath": "/etc/config", "readOnly": true }]);
    }
    container
}

/// FNV-1a: the value has to be the same in every version of the operator, or an upgrade would restart all schedulers.
fn hash(text: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}
