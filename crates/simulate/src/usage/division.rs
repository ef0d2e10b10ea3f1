//! One division among sibling queues: the request of KAI's fairshare-simulator.

use std::collections::BTreeMap;

use kai_engine::model::{Gpus, Millis, PerResource, QueueResources, QueueSpec, Quota, ResourceQuota};
use kai_engine::{ShareRequest, fair_shares};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The largest amount that a file may name; sums of a thousand queues fit.
const AMOUNT_MAX: f64 = 1e15;
const QUEUES_MAX: usize = 10_000;
/// KAI's defaults.
const REQUEST: f64 = 100_000.0;
const UNLIMITED: f64 = -1.0;

/// A request.
#[derive(Clone, Debug)]
pub struct Division {
    total: QueueResources,
    requests: Vec<ShareRequest>,
}

/// The fair share of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// GPUs.
    pub gpu: f64,
    /// Milli-cores.
    pub cpu: f64,
    /// Bytes.
    pub memory: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    total_resource: Total,
    queues: Vec<RawQueue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Total {
    #[serde(rename = "GPU")]
    gpu: f64,
    #[serde(rename = "CPU")]
    cpu: f64,
    #[serde(rename = "Memory")]
    memory: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawQueue {
    uid: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    creation_timestamp: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    resource_share: RawShares,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawShares {
    gpu: Option<RawShare>,
    cpu: Option<RawShare>,
    memory: Option<RawShare>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawShare {
    deserved: Option<f64>,
    max_allowed: Option<f64>,
    over_quota_weight: Option<f64>,
    request: Option<f64>,
    absolute_usage: Option<f64>,
}

impl Division {
    pub(super) fn read(value: Value) -> Result<Division, String> {
        let raw = Raw::deserialize(value).map_err(|error| error.to_string())?;
        if raw.queues.len() > QUEUES_MAX {
            return Err(format!("queues: {} is more than {QUEUES_MAX}", raw.queues.len()));
        }
        let total = QueueResources {
            cpu_milli: amount("totalResource.CPU", raw.total_resource.cpu)?,
            memory_bytes: amount("totalResource.Memory", raw.total_resource.memory)?,
            gpus: gpus("totalResource.GPU", raw.total_resource.gpu)?,
        };
        let requests = raw.queues.iter().map(request).collect::<Result<_, String>>()?;
        Ok(Division { total, requests })
    }

    /// The fair share of each queue, by uid. Past usage has no weight, as in KAI's simulator.
    pub fn shares(&self) -> BTreeMap<&str, Share> {
        let shares = fair_shares(self.total, 0, &self.requests);
        let uids = self.requests.iter().map(|request| request.queue.uid.as_str());
        let share = |share: QueueResources| Share {
            gpu: share.gpus.as_f64(),
            cpu: share.cpu_milli as f64,
            memory: share.memory_bytes as f64,
        };
        uids.zip(shares.into_iter().map(share)).collect()
    }
}

fn amount(field: &str, value: f64) -> Result<i64, String> {
    match value.is_finite() && (0.0..=AMOUNT_MAX).contains(&value) {
        true => Ok(value.round() as i64),
        false => Err(format!("{field}: {value} is not from 0 to {AMOUNT_MAX}")),
    }
}

fn gpus(field: &str, value: f64) -> Result<Gpus, String> {
    amount(field, value * Gpus::ONE.0 as f64).map(Gpus)
}

fn request(queue: &RawQueue) -> Result<ShareRequest, String> {
    let named = |part: &str, field: &str| format!("queues: {}: {part}.{field}", queue.uid);
    let share = |part: &str, given: &Option<RawShare>, unit: f64| {
        // KAI leaves the quota of an omitted block unlimited, but not that of GPUs.
        let omitted = RawShare {
            deserved: Some(if part == "gpu" { 0.0 } else { UNLIMITED }),
            ..RawShare::default()
        };
        let given = given.as_ref().unwrap_or(&omitted);
        let bound = |field: &str, value: f64| match value {
            UNLIMITED => Ok(None),
            value => amount(&named(part, field), value * unit).map(Some),
        };
        let weight = amount(
            &named(part, "overQuotaWeight"),
            given.over_quota_weight.unwrap_or(1.0) * 1e6,
        )?;
        let quota = ResourceQuota {
            deserved: bound("deserved", given.deserved.unwrap_or(0.0))?,
            limit: bound("maxAllowed", given.max_allowed.unwrap_or(UNLIMITED))?,
            weight_millionths: weight.min(1_000_000_000_000),
        };
        let request = amount(&named(part, "request"), given.request.unwrap_or(REQUEST) * unit)?;
        let usage = amount(&named(part, "absoluteUsage"), given.absolute_usage.unwrap_or(0.0))?;
        Ok::<_, String>((quota, request, usage))
    };
    let (cpu, memory) = (
        share("cpu", &queue.resource_share.cpu, 1.0)?,
        share("memory", &queue.resource_share.memory, 1.0)?,
    );
    let gpu = share("gpu", &queue.resource_share.gpu, Gpus::ONE.0 as f64)?;
    let created = match &queue.creation_timestamp {
        None => Millis(0),
        Some(text) => {
            kai_api::parse_time(text).map_err(|error| format!("queues: {}: creationTimestamp: {error}", queue.uid))?
        }
    };
    Ok(ShareRequest {
        queue: QueueSpec {
            name: queue.name.clone(),
            display_name: String::new(),
            parent: None,
            created,
            uid: queue.uid.clone(),
            priority: queue.priority,
            quota: Quota {
                cpu: cpu.0,
                memory: memory.0,
                gpu: gpu.0,
            },
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
        },
        requested: QueueResources {
            cpu_milli: cpu.1,
            memory_bytes: memory.1,
            gpus: Gpus(gpu.1),
        },
        usage_billionths: PerResource::default(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_example_of_kai_is_divided_by_weight() {
        let queue = |uid: &str, weight: i32| {
            json!({ "uid": uid, "name": uid, "priority": 0,
                "resourceShare": { "gpu": { "deserved": 10, "request": 100, "overQuotaWeight": weight } } })
        };
        let request = json!({ "totalResource": { "GPU": 100, "CPU": 16000, "Memory": 32000000 }, "queues": [queue("a", 3), queue("b", 1)] });
        let division = Division::read(request).unwrap();
        let gpus: Vec<f64> = division.shares().values().map(|share| share.gpu).collect();
        assert_eq!(gpus, [70.0, 30.0]);
    }

    #[test]
    fn an_error_names_queue_and_field() {
        let of = |share: Value| {
            let request = json!({ "totalResource": {}, "queues": [{ "uid": "q", "resourceShare": { "gpu": share } }] });
            Division::read(request).unwrap_err()
        };
        assert!(of(json!({ "deserved": -2 })).starts_with("queues: q: gpu.deserved: -2000000 is not from 0"));
        assert!(of(json!({ "request": 1e30 })).contains("gpu.request"));
    }
}
