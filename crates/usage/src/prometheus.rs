//! Usage from Prometheus: KAI's queries, and their answers.
//!
//! Each query sums a metric over the window, in steps of the resolution: the allocation by queue, and the capacity of the cluster, for each
//! resource. Tumbling and cron windows are sums over the time since the window began. (KAI asks for a range there, with a query that
//! Prometheus refuses, and could not use the answer.)
//!
//! A queue has a series for each process that reported it. The largest of them counts, so that a restart of the queue controller counts
//! nothing twice.

use std::collections::BTreeMap;
use std::time::Duration;

use kai_api::crd::UsageParams;
use kai_engine::model::{Millis, PerResource};
use kai_engine::reasons::Resource;
use serde::Deserialize;

use crate::settings::duration;
use crate::{UsageByQueue, UsageSettings, billionths};

/// The label with the name of the queue.
const QUEUE_LABEL: &str = "queue_name";
/// The points of a sum, at most: as many as Prometheus allows in a range query. A window with more gets a coarser resolution.
const POINTS_MAX: i64 = 11_000;

/// Keys of `extraParams`.
const QUERY_TIMEOUT: &str = "usageQueryTimeout";
const RESOLUTION: &str = "queryResolution";
const ALLOCATION: PerResource<(&str, &str)> = PerResource {
    cpu: ("cpuAllocationMetric", "kai_queue_allocated_cpu_cores"),
    memory: ("memoryAllocationMetric", "kai_queue_allocated_memory_bytes"),
    gpu: ("gpuAllocationMetric", "kai_queue_allocated_gpus"),
};
const CAPACITY: PerResource<(&str, &str)> = PerResource {
    cpu: ("cpuCapacityMetric", "sum(kube_node_status_capacity{resource=\"cpu\"})"),
    memory: (
        "memoryCapacityMetric",
        "sum(kube_node_status_capacity{resource=\"memory\"})",
    ),
    gpu: (
        "gpuCapacityMetric",
        "sum(kube_node_status_capacity{resource=\"nvidia_com_gpu\"})",
    ),
};

/// A Prometheus server and the metrics there.
#[derive(Clone, Debug, PartialEq)]
pub struct PrometheusSettings {
    /// Where it is.
    pub address: Address,
    /// The time for all queries of one round.
    pub query_timeout: Duration,
    /// The step of the sums.
    resolution: Millis,
    allocation: PerResource<String>,
    capacity: PerResource<String>,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A URL.
    Url(String),
    /// The URL is in this environment variable.
    Variable(String),
}

/// A query, and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// What its answer is.
    pub of: Sum,
    /// PromQL, for an instant query.
    pub text: String,
}

/// A sum over the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// The cluster's capacity.
    Capacity(Resource),
    /// The allocation by queue.
    Allocation(Resource),
}

/// The answers of one round.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    capacity: PerResource<Option<f64>>,
    allocated: BTreeMap<String, PerResource<f64>>,
}

impl PrometheusSettings {
    /// One of `url` and `variable` is set.
    pub(crate) fn read(
        url: Option<String>,
        variable: Option<String>,
        params: &UsageParams,
    ) -> Result<PrometheusSettings, String> {
        let extra = |key: &str| params.extra_params.get(key).cloned().filter(|value| !value.is_empty());
        let metrics = |names: PerResource<(&str, &str)>| {
            PerResource::from_fn(|resource| {
                let (key, default) = names[resource];
                extra(key).unwrap_or_else(|| default.to_owned())
            })
        };
        let time = |key: &str, default: u64| {
            let time = duration(&format!("extraParams.{key}"), &extra(key))?;
            let time = time.filter(|time| !time.is_zero());
            Ok::<_, String>(time.unwrap_or(Duration::from_secs(default)))
        };
        let address = match (url, variable) {
            (Some(url), _) => {
                if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
                    return Err(format!(
                        "connectionString: {url:?} is not an address such as http://prometheus:9090"
                    ));
                }
                Address::Url(url)
            }
            (None, variable) => Address::Variable(variable.unwrap_or_default()),
        };
        Ok(PrometheusSettings {
            address,
            query_timeout: time(QUERY_TIMEOUT, 10)?,
            resolution: Millis(i64::try_from(time(RESOLUTION, 60)?.as_millis()).unwrap_or(i64::MAX)),
            allocation: metrics(ALLOCATION),
            capacity: metrics(CAPACITY),
        })
    }

    /// The queries of a round. None if the window has just begun, and nothing is summed up yet.
    pub fn queries(&self, settings: &UsageSettings, now: Millis) -> Vec<Query> {
        let length = now - settings.window.start(now);
        let resolution = self.resolution.0.max(length.0 / POINTS_MAX).max(1);
        if length.0 < resolution {
            return Vec::new();
        }
        let sum_over_time = |metric: &str| {
            let weighted = match settings.decay.half_life() {
                None => metric.to_owned(),
                Some(half_life) => {
                    let (now, half_life) = (now.0.div_euclid(1000), half_life.0 as f64 / 1000.0);
                    format!("({metric}) * (0.5 ^ (({now} - time()) / {half_life}))")
                }
            };
            format!("sum_over_time(({weighted})[{}ms:{resolution}ms])", length.0)
        };
        let queries = Resource::ALL.into_iter().flat_map(|resource| {
            let allocated = format!("max by ({QUEUE_LABEL}) ({})", self.allocation[resource]);
            [
                (Sum::Capacity(resource), sum_over_time(&self.capacity[resource])),
                (Sum::Allocation(resource), sum_over_time(&allocated)),
            ]
        });
        queries.map(|(of, text)| Query { of, text }).collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    #[serde(default)]
    result: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    /// Time and number.
    value: (f64, String),
}

impl Answers {
    /// Adds the answer to a query; an error says what Prometheus said.
    pub fn add(&mut self, of: Sum, text: &[u8]) -> Result<(), String> {
        for (queue, value) in samples(text)? {
            match of {
                // More than one series: the metric does not sum up all nodes.
                Sum::Capacity(resource) => set(&mut self.capacity, resource, |sum| Some(sum.unwrap_or(0.0) + value)),
                Sum::Allocation(resource) if !queue.is_empty() => {
                    set(self.allocated.entry(queue).or_default(), resource, |sum| sum + value);
                }
                Sum::Allocation(_) => {}
            }
        }
        Ok(())
    }

    /// The resources whose capacity no series has.
    pub fn without_capacity(&self) -> Vec<Resource> {
        let missing = |resource: &Resource| self.capacity[*resource].is_none();
        Resource::ALL.into_iter().filter(missing).collect()
    }

    /// The usage of each queue.
    pub fn usage(&self) -> UsageByQueue {
        let usage = self.allocated.iter().map(|(queue, sums)| {
            let capacity = |resource| self.capacity[resource].unwrap_or(0.0);
            let usage = PerResource::from_fn(|resource| billionths(sums[resource], capacity(resource)));
            (queue.clone(), usage)
        });
        usage.filter(|(_, usage)| *usage != PerResource::default()).collect()
    }
}

fn set<T: Copy>(values: &mut PerResource<T>, resource: Resource, change: impl Fn(T) -> T) {
    let value = match resource {
        Resource::Cpu => &mut values.cpu,
        Resource::Memory => &mut values.memory,
        Resource::Gpu => &mut values.gpu,
    };
    *value = change(*value);
}

/// Queue and number of each series of an instant query.
fn samples(text: &[u8]) -> Result<Vec<(String, f64)>, String> {
    let answer: Answer =
        serde_json::from_slice(text).map_err(|error| format!("it did not answer as Prometheus does: {error}"))?;
    if answer.status != "success" {
        return Err(format!("it answered with an error: {}", answer.error));
    }
    let data = answer.data.ok_or("it answered without data")?;
    if data.result_type != "vector" {
        return Err(format!(
            "it answered with a {}; the query must have a vector",
            data.result_type
        ));
    }
    let numbers = data.result.into_iter().filter_map(|mut sample| {
        let number: f64 = sample.value.1.parse().ok()?;
        let queue = sample.metric.remove(QUEUE_LABEL).unwrap_or_default();
        (number.is_finite() && number >= 0.0).then_some((queue, number))
    });
    Ok(numbers.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::read;
    use crate::{Source, UsageSettings};

    fn settings(params: serde_json::Value) -> (UsageSettings, PrometheusSettings) {
        let config = json!({ "clientType": "prometheus", "connectionString": "http://p:9090", "usageParams": params });
        let read = read(&serde_json::from_value(config).unwrap()).unwrap();
        let Source::Prometheus(prometheus) = read.source.clone() else {
            panic!("the address is set")
        };
        (read, prometheus)
    }

    fn queries(params: serde_json::Value, now: i64) -> Vec<String> {
        let (settings, prometheus) = settings(params);
        let queries = prometheus.queries(&settings, Millis(now)).into_iter();
        queries.map(|query| query.text).collect()
    }

    #[test]
    fn the_queries_of_a_sliding_window() {
        let all = queries(json!({ "windowSize": "1d" }), 1_700_000_000_000);
        assert_eq!(all.len(), 6);
        assert_eq!(
            all[5],
            "sum_over_time((max by (queue_name) (kai_queue_allocated_gpus))[86400000ms:60000ms])"
        );
        assert_eq!(
            all[4],
            "sum_over_time((sum(kube_node_status_capacity{resource=\"nvidia_com_gpu\"}))[86400000ms:60000ms])"
        );
        let decayed = queries(json!({ "halfLifePeriod": "1h", "windowSize": "1y" }), 1_700_000_000_999);
        let expect = "sum_over_time(((max by (queue_name) (kai_queue_allocated_cpu_cores)) * (0.5 ^ ((1700000000 - time()) / \
                      3600)))[31536000000ms:2866909ms])";
        assert_eq!(decayed[1], expect);
    }

    #[test]
    fn windows_that_start_anew_are_summed_from_their_start() {
        let tumbling =
            json!({ "windowType": "tumbling", "windowSize": "1d", "tumblingWindowStartTime": "2026-03-01T00:00:00Z" });
        let start = 1_772_323_200_000;
        assert!(queries(tumbling.clone(), start + 2 * 86_400_000 + 3_600_000)[5].ends_with("[3600000ms:60000ms])"));
        assert_eq!(
            queries(tumbling.clone(), start + 59_999).len(),
            0,
            "nothing is summed up yet"
        );
        assert_eq!(queries(tumbling, start - 5).len(), 0);
        let cron = json!({ "windowType": "cron", "cronString": "0 0 * * *" });
        assert!(queries(cron, start + 7_200_000)[0].ends_with("[7200000ms:60000ms])"));
    }

    #[test]
    fn metrics_and_times_can_be_others() {
        let params = json!({ "extraParams": { "gpuAllocationMetric": "mine", "gpuCapacityMetric": "sum(kai_node_gpus)",
            "usageQueryTimeout": "3s", "queryResolution": "10s" } });
        let all = queries(params.clone(), 1_700_000_000_000);
        assert!(
            all[4].starts_with("sum_over_time((sum(kai_node_gpus))[") && all[4].contains(":54981ms"),
            "{}",
            all[4]
        );
        assert!(all[5].contains("(mine)"));
        assert_eq!(settings(params).1.query_timeout.as_secs(), 3);
    }

    fn vector(samples: &[(&str, &str)]) -> Vec<u8> {
        let result: Vec<_> = samples
            .iter()
            .map(|(queue, value)| json!({ "metric": { "queue_name": queue }, "value": [1.5, value] }))
            .collect();
        json!({ "status": "success", "data": { "resultType": "vector", "result": result } })
            .to_string()
            .into_bytes()
    }

    #[test]
    fn usage_is_the_quotient_of_the_answers() {
        let mut answers = Answers::default();
        answers
            .add(Sum::Capacity(Resource::Gpu), &vector(&[("", "80")]))
            .unwrap();
        let allocated = vector(&[
            ("a", "20"),
            ("b", "0"),
            ("c", "NaN"),
            ("", "7"),
            ("d", "-1"),
            ("e", "x"),
        ]);
        answers.add(Sum::Allocation(Resource::Gpu), &allocated).unwrap();
        answers
            .add(Sum::Allocation(Resource::Cpu), &vector(&[("a", "5")]))
            .unwrap();
        assert_eq!(answers.without_capacity(), [Resource::Cpu, Resource::Memory]);
        let expect = PerResource {
            gpu: 250_000_000,
            ..PerResource::default()
        };
        assert_eq!(answers.usage(), UsageByQueue::from([("a".to_owned(), expect)]));
    }

    #[test]
    fn other_answers_are_errors_in_words() {
        for (answer, told) in [
            (&b"<html>"[..], "it did not answer as Prometheus does"),
            (
                br#"{"status":"error","errorType":"bad_data","error":"parse error"}"#,
                "it answered with an error: parse error",
            ),
            (br#"{"status":"success"}"#, "without data"),
            (
                br#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#,
                "it answered with a matrix",
            ),
        ] {
            let error = Answers::default()
                .add(Sum::Capacity(Resource::Cpu), answer)
                .unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[test]
    fn an_address_has_a_scheme() {
        let config = json!({ "clientType": "prometheus", "connectionString": "p:9090" });
        let error = read(&serde_json::from_value(config).unwrap()).unwrap_err();
        assert_eq!(
            error,
            "connectionString: \"p:9090\" is not an address such as http://prometheus:9090"
        );
    }
}
