//! Metrics of watched pods.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::run::WatchReport;

type Values = Family<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>>;

/// Adds the metrics of the last measurement.
pub fn add_metrics(registry: &mut Registry, node: &str, report: &WatchReport) {
    let mut register = |name: &str, help: &str| {
        let values = Values::default();
        registry.register(name, help, values.clone());
        values
    };
    let used = register(
        "kai_gpu_share_used_bytes",
        "GPU memory that the processes of a pod with a GPU share use, as the driver says",
    );
    let share = register("kai_gpu_share_bytes", "GPU memory that a pod with a GPU share may use");
    let exceeded = register(
        "kai_gpu_share_exceeded",
        "1 if the pod has been above its GPU share for longer than the grace",
    );
    for watched in &report.watched {
        let labels = vec![
            ("node", node.to_owned()),
            ("namespace", watched.pod.namespace.clone()),
            ("pod", watched.pod.name.clone()),
            ("container", watched.pod.container.clone()),
            ("UUID", watched.gpu.clone()),
        ];
        used.get_or_create(&labels).set(watched.used.bytes as f64);
        share.get_or_create(&labels).set(watched.share_bytes as f64);
        exceeded
            .get_or_create(&labels)
            .set(f64::from(u8::from(watched.exceeded)));
    }
    let evictions = register(
        "kai_gpu_share_evictions",
        "Pods that the agent has evicted since its start because they were above their GPU share",
    );
    evictions
        .get_or_create(&vec![("node", node.to_owned())])
        .set(report.evictions as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforcement::watch::{SharePod, UsedMemory, Watched};

    #[test]
    fn every_watched_pod_has_its_numbers() {
        let report = WatchReport {
            watched: vec![Watched {
                pod: SharePod {
                    namespace: "team".to_owned(),
                    name: "a".to_owned(),
                    uid: "u".to_owned(),
                    container: "main".to_owned(),
                    share_mib: [("GPU-0".to_owned(), 1)].into(),
                },
                gpu: "GPU-0".to_owned(),
                used: UsedMemory {
                    bytes: 5,
                    unmeasured: 0,
                },
                share_bytes: 3,
                exceeded: true,
            }],
            evictions: 2,
        };
        let mut registry = Registry::default();
        add_metrics(&mut registry, "n", &report);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"kai_gpu_share_used_bytes{node="n",namespace="team",pod="a",container="main",UUID="GPU-0"} 5.0"#,
            r#"kai_gpu_share_bytes{node="n",namespace="team",pod="a",container="main",UUID="GPU-0"} 3.0"#,
            r#"kai_gpu_share_exceeded{node="n",namespace="team",pod="a",container="main",UUID="GPU-0"} 1.0"#,
            r#"kai_gpu_share_evictions{node="n"} 2.0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
