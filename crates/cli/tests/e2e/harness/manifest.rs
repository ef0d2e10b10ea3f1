//! The objects that scenarios create, as a user would write them.

use kai_api::keys;
use serde_json::{Value, json};

/// A pod of kai's scheduler in namespace `default`.
#[derive(Clone, Debug)]
pub(crate) struct PodManifest(Value);

impl PodManifest {
    pub(crate) fn new(name: &str) -> PodManifest {
        PodManifest(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "labels": {}, "annotations": {} },
            "spec": {
                "schedulerName": keys::SCHEDULER_NAME,
                "containers": [{ "name": "main", "image": "example", "resources": { "requests": {}, "limits": {} } }],
            },
        }))
    }

    pub(crate) fn queue(self, queue: &str) -> PodManifest {
        self.label(keys::QUEUE, queue)
    }

    /// Requests a fraction of a GPU.
    pub(crate) fn fraction(self, fraction: &str) -> PodManifest {
        self.annotation(keys::GPU_FRACTION, fraction)
    }

    /// Requests memory of a GPU.
    pub(crate) fn gpu_memory_mib(self, mib: &str) -> PodManifest {
        self.annotation(keys::GPU_MEMORY, mib)
    }

    /// Requests whole GPUs, or MIG slices.
    pub(crate) fn devices(mut self, resource: &str, count: u32) -> PodManifest {
        self.0["spec"]["containers"][0]["resources"]["limits"][resource] = count.to_string().into();
        self.0["spec"]["containers"][0]["resources"]["requests"][resource] = count.to_string().into();
        self
    }

    /// Requests whole GPUs.
    pub(crate) fn gpus(self, count: u32) -> PodManifest {
        self.devices("nvidia.com/gpu", count)
    }

    pub(crate) fn priority(self, class: &str) -> PodManifest {
        self.label(keys::PRIORITY_CLASS_NAME, class)
    }

    /// Makes the pod a member of an existing pod group.
    pub(crate) fn member_of(self, group: &str) -> PodManifest {
        self.annotation(keys::POD_GROUP_NAME, group)
    }

    pub(crate) fn sub_group(self, name: &str) -> PodManifest {
        self.label(keys::SUB_GROUP_NAME, name)
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> PodManifest {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> PodManifest {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    /// Owned by another object.
    pub(crate) fn owned_by(mut self, owner: &Value) -> PodManifest {
        self.0["metadata"]["ownerReferences"] = json!([{
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "controller": true,
        }]);
        self
    }

    /// Restricts the pod to this node.
    pub(crate) fn on_node(mut self, name: &str) -> PodManifest {
        self.0["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": name });
        self
    }

    pub(crate) fn volumes(mut self, volumes: Value) -> PodManifest {
        self.0["spec"]["volumes"] = volumes;
        self
    }

    pub(crate) fn scheduler(mut self, name: &str) -> PodManifest {
        self.0["spec"]["schedulerName"] = name.into();
        self
    }

    pub(crate) fn build(self) -> Value {
        self.0
    }

    /// The pod template of a workload.
    pub(crate) fn template(self) -> Value {
        json!({ "metadata": { "labels": self.0["metadata"]["labels"], "annotations": self.0["metadata"]["annotations"] }, "spec": self.0["spec"] })
    }
}

/// A queue with a quota and a limit of GPUs (-1 = none), without limits of other resources.
pub(crate) fn queue(name: &str, parent: Option<&str>, quota: f64, limit: f64) -> Value {
    let unlimited = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let mut queue = json!({
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": { "name": name },
        "spec": { "resources": {
            "gpu": { "quota": quota, "limit": limit, "overQuotaWeight": 1 }, "cpu": unlimited, "memory": unlimited,
        } },
    });
    if let Some(parent) = parent {
        queue["spec"]["parentQueue"] = parent.into();
    }
    queue
}

/// A pod group.
pub(crate) fn pod_group(name: &str, queue: &str, min_member: u32) -> Value {
    json!({
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "queue": queue, "minMember": min_member },
    })
}
