//! Queues.

use kai_engine::model::{Gpus, Millis, QueueSpec, Quota, ResourceQuota};
use serde::Deserialize;

use crate::crd::{QueueResource, QueueResources, QueueStatus};
use crate::duration::parse_duration;
use crate::error::FieldError;
use crate::metadata::Metadata;
use crate::priority_policy::{PriorityCeiling, QueueCeiling};
use crate::text::{Text, null_as_default};
use crate::{Error, Problem, Read, keys};

const SKIPPED: &str = "the queue is skipped";
const INHERITED: &str = "the value is inherited instead";
const ZERO: &str = "it counts as zero";
/// Default of `spec.priority`.
const PRIORITY_DEFAULT: i32 = 100;
/// The API's value for unlimited.
const UNLIMITED: f64 = -1.0;
/// The bound on amounts of a queue in the engine's units: 100 PB of memory, 100 billion GPUs.
const AMOUNT_MAX: f64 = 1e17;
/// The engine's units per unit of the API.
const MEMORY_UNIT_BYTES: f64 = 1e6;
const GPU_UNIT: f64 = Gpus::ONE.0 as f64;
const CPU_UNIT: f64 = 1.0;
const WEIGHT_UNIT: f64 = 1e6;
const WEIGHT_MAX: f64 = 1e9;

/// A Queue.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// The kind as written; `None` in items of a list, which leaves it out.
    pub kind: Option<Text>,
    /// Metadata.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_as_default")]
    status: QueueStatus,
}

crate::object::object!(Queue, "scheduling.run.ai", "v2", "Queue", "queues", Cluster);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    display_name: Option<Text>,
    parent_queue: Option<Text>,
    priority: Option<i32>,
    resources: Option<Resources>,
    preempt_min_runtime: Option<Text>,
    reclaim_min_runtime: Option<Text>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "null_as_default")]
    gpu: Resource,
    #[serde(deserialize_with = "null_as_default")]
    cpu: Resource,
    #[serde(deserialize_with = "null_as_default")]
    memory: Resource,
}

/// The API defines a missing value as zero, not as unlimited.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resource {
    #[serde(deserialize_with = "null_as_default")]
    quota: f64,
    #[serde(deserialize_with = "null_as_default")]
    limit: f64,
    #[serde(deserialize_with = "null_as_default")]
    over_quota_weight: f64,
}

/// A set of namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(Vec<Box<str>>);

impl Namespaces {
    /// Whether the namespace is in the set.
    pub fn contain(&self, namespace: &str) -> bool {
        self.0.iter().any(|name| **name == *namespace)
    }
}

impl Queue {
    /// The parent queue.
    pub fn parent(&self) -> Option<&str> {
        self.spec.parent_queue.as_deref().filter(|parent| !parent.is_empty())
    }

    /// The name in messages: the display name or the object's name.
    pub fn display_name(&self) -> &str {
        self.own_display_name().unwrap_or(self.metadata.plain_name())
    }

    /// The display name in the spec.
    pub fn own_display_name(&self) -> Option<&str> {
        self.spec.display_name.as_deref().filter(|name| !name.is_empty())
    }

    /// The namespaces that may use the queue; `None` = all.
    pub fn namespaces(&self) -> Option<Namespaces> {
        let names = self.metadata.annotations.text(keys::QUEUE_ALLOWED_NAMESPACES)?;
        Some(Namespaces(names.split(',').map(|name| name.trim().into()).collect()))
    }

    /// The queue's own priority ceiling, and the parent whose ceiling applies too.
    pub fn priority_ceiling(&self) -> QueueCeiling {
        QueueCeiling {
            parent: self.parent().map(Into::into),
            ceiling: self
                .metadata
                .annotations
                .text(keys::QUEUE_MAX_PRIORITY)
                .map(PriorityCeiling::parse),
        }
    }

    /// The quotas and limits in the spec.
    pub fn resources(&self) -> QueueResources {
        let promised = |resource: Resource| QueueResource {
            quota: resource.quota,
            over_quota_weight: resource.over_quota_weight,
            limit: resource.limit,
        };
        let resources = self.spec.resources.clone().unwrap_or_default();
        QueueResources {
            gpu: promised(resources.gpu),
            cpu: promised(resources.cpu),
            memory: promised(resources.memory),
        }
    }

    /// The status. A cluster has few queues, so the type keeps all of it.
    pub fn status(&self) -> &QueueStatus {
        &self.status
    }

    /// The engine's type; `Err` if the engine can't take the queue. `now` is the creation time of queues without one.
    pub fn read(&self, now: Millis) -> Result<Read<QueueSpec>, Problem> {
        let object = || format!("Queue {}", self.metadata.plain_name());
        let mut problems = Vec::new();
        let mut runtime = |text: &Option<Text>, field: &str| {
            let text = text.as_deref()?;
            match parse_duration(text) {
                Ok(runtime) if runtime.0 < 0 => {
                    let error = Error::NegativeDuration(text.to_owned());
                    problems.push(FieldError::new(field, error).of(object(), ZERO));
                    Some(Millis(0))
                }
                Ok(runtime) => Some(runtime),
                Err(error) => {
                    problems.push(FieldError::new(field, error).of(object(), INHERITED));
                    None
                }
            }
        };
        let preempt_min_runtime = runtime(&self.spec.preempt_min_runtime, "spec.preemptMinRuntime");
        let reclaim_min_runtime = runtime(&self.spec.reclaim_min_runtime, "spec.reclaimMinRuntime");
        let value = self.spec(now, preempt_min_runtime, reclaim_min_runtime);
        Ok(Read {
            value: value.map_err(|error| error.of(object(), SKIPPED))?,
            problems,
        })
    }

    fn spec(&self, now: Millis, preempt: Option<Millis>, reclaim: Option<Millis>) -> Result<QueueSpec, FieldError> {
        let name = self.metadata.required_name()?.to_owned();
        let quota = match &self.spec.resources {
            None => Quota {
                cpu: ResourceQuota::NOTHING,
                memory: ResourceQuota::NOTHING,
                gpu: ResourceQuota::NOTHING,
            },
            Some(resources) => Quota {
                cpu: resources.cpu.read("cpu", CPU_UNIT)?,
                memory: resources.memory.read("memory", MEMORY_UNIT_BYTES)?,
                gpu: resources.gpu.read("gpu", GPU_UNIT)?,
            },
        };
        let given = |text: &Option<Text>| text.as_deref().filter(|text| !text.is_empty()).map(str::to_owned);
        Ok(QueueSpec {
            display_name: given(&self.spec.display_name).unwrap_or_default(),
            parent: given(&self.spec.parent_queue),
            created: self.metadata.created(now)?,
            uid: self.metadata.uid_or(|| name.clone()),
            priority: self.spec.priority.unwrap_or(PRIORITY_DEFAULT),
            quota,
            preempt_min_runtime: preempt,
            reclaim_min_runtime: reclaim,
            name,
        })
    }
}

impl Resource {
    fn read(&self, name: &str, unit: f64) -> Result<ResourceQuota, FieldError> {
        let field = |part: &str| format!("spec.resources.{name}.{part}");
        let bounded = |value: f64, part: &str| {
            if value == UNLIMITED {
                return Ok(None);
            }
            amount(value, unit, AMOUNT_MAX)
                .map(Some)
                .map_err(|error| FieldError::new(field(part), error))
        };
        Ok(ResourceQuota {
            deserved: bounded(self.quota, "quota")?,
            limit: bounded(self.limit, "limit")?,
            weight_millionths: amount(self.over_quota_weight, WEIGHT_UNIT, WEIGHT_UNIT * WEIGHT_MAX)
                .map_err(|error| match error {
                    Error::NotAQueueAmount(text) => Error::NotAWeight(text),
                    error => error,
                })
                .map_err(|error| FieldError::new(field("overQuotaWeight"), error))?,
        })
    }
}

/// The resources whose quota exceeds the parent's quota, by their names in messages. The parent can't guarantee such a quota.
pub fn quotas_above_parent(child: &Quota, parent: &Quota) -> Vec<&'static str> {
    let above = |child: &ResourceQuota, parent: &ResourceQuota| match (child.deserved, parent.deserved) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(child), Some(parent)) => child > parent,
    };
    let pairs = [
        ("GPU", &child.gpu, &parent.gpu),
        ("CPU", &child.cpu, &parent.cpu),
        ("memory", &child.memory, &parent.memory),
    ];
    let found = pairs.into_iter().filter(|(_, child, parent)| above(child, parent));
    found.map(|(name, ..)| name).collect()
}

/// Converts a number of the API to the engine's integer unit. The engine has no floats in accounting.
fn amount(value: f64, unit: f64, max: f64) -> Result<i64, Error> {
    let scaled = (value * unit).round();
    if !value.is_finite() || value < 0.0 {
        return Err(Error::NotAQueueAmount(value.to_string()));
    }
    if scaled > max {
        return Err(Error::TooLarge {
            text: value.to_string(),
            max: (max / unit) as i64,
        });
    }
    Ok(scaled as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(spec: &str) -> Result<Read<QueueSpec>, String> {
        let text = format!(r#"{{"metadata":{{"name":"q"}},"spec":{spec}}}"#);
        let queue: Queue = serde_json::from_str(&text).unwrap();
        queue.read(Millis(7)).map_err(|problem| problem.to_string())
    }

    #[test]
    fn units_are_devices_milli_cores_and_megabytes() {
        let read = queue(
            r#"{"parentQueue":"p","resources":{"gpu":{"quota":1.5,"limit":-1,"overQuotaWeight":2},
                "cpu":{"quota":1000,"limit":2000},"memory":{"quota":3,"limit":-1}}}"#,
        );
        let spec = read.unwrap().value;
        assert_eq!(spec.parent.as_deref(), Some("p"));
        assert_eq!((spec.priority, spec.created), (100, Millis(7)));
        assert_eq!(
            spec.quota.gpu,
            ResourceQuota {
                deserved: Some(1_500_000),
                limit: None,
                weight_millionths: 2_000_000
            }
        );
        assert_eq!(
            spec.quota.cpu,
            ResourceQuota {
                deserved: Some(1000),
                limit: Some(2000),
                weight_millionths: 0
            }
        );
        assert_eq!(spec.quota.memory.deserved, Some(3_000_000));
    }

    #[test]
    fn no_resources_means_nothing_not_everything() {
        assert_eq!(queue("{}").unwrap().value.quota.gpu, ResourceQuota::NOTHING);
        assert_eq!(
            queue(r#"{"resources":{}}"#).unwrap().value.quota.cpu,
            ResourceQuota::NOTHING
        );
    }

    #[test]
    fn amounts_that_mean_nothing_are_refused() {
        assert_eq!(
            queue(r#"{"resources":{"gpu":{"quota":-5}}}"#).unwrap_err(),
            "Queue q: spec.resources.gpu.quota: -5 is no amount; write -1 for unlimited, or a number of zero or more (the \
             queue is skipped)"
        );
        assert!(queue(r#"{"resources":{"memory":{"limit":1e300}}}"#).is_err());
        assert_eq!(
            queue(r#"{"resources":{"memory":{"overQuotaWeight":-3}}}"#).unwrap_err(),
            "Queue q: spec.resources.memory.overQuotaWeight: -3 is no weight; write a number of zero or more (the queue is skipped)"
        );
    }

    #[test]
    fn a_negative_min_runtime_counts_as_zero_with_a_word() {
        let read = queue(r#"{"preemptMinRuntime":"-5m"}"#).unwrap();
        assert_eq!(read.value.preempt_min_runtime, Some(Millis(0)));
        let told: Vec<String> = read.problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            told,
            [
                "Queue q: spec.preemptMinRuntime: \"-5m\" is negative; write a duration of zero or more, as in 5m (it counts as zero)"
            ]
        );
    }

    #[test]
    fn a_quota_above_the_parents_is_found() {
        let quota = |gpu: &str| {
            queue(&format!(r#"{{"resources":{{"gpu":{{"quota":{gpu}}}}}}}"#))
                .unwrap()
                .value
                .quota
        };
        for (child, parent, expect) in [("4", "4", 0), ("5", "4", 1), ("-1", "4", 1), ("5", "-1", 0)] {
            assert_eq!(
                quotas_above_parent(&quota(child), &quota(parent)).len(),
                expect,
                "{child} {parent}"
            );
        }
    }

    #[test]
    fn a_bad_runtime_is_inherited_with_a_word() {
        let read = queue(r#"{"preemptMinRuntime":"5m","reclaimMinRuntime":"soon"}"#).unwrap();
        assert_eq!(read.value.preempt_min_runtime, Some(Millis::seconds(300)));
        assert_eq!(read.value.reclaim_min_runtime, None);
        assert_eq!(read.problems.len(), 1);
    }
}
