//! Rounds of queries to Prometheus.

use std::convert::Infallible;
use std::sync::Arc;

use kai_engine::model::Millis;
use kai_engine::reasons::Resource;
use kai_usage::prometheus::{Address, Answers};
use kai_usage::{PrometheusSettings, UsageByQueue, UsageSettings};
use tokio::time::{Instant, MissedTickBehavior};

use super::http::Server;
use super::{Brought, UsageSource};

impl UsageSource {
    /// Queries Prometheus once per fetch interval. A round that fails changes nothing: the last usage is used on.
    pub(super) async fn query(&self, usage: &UsageSettings, prometheus: &PrometheusSettings) -> Infallible {
        let server = match address(&prometheus.address).and_then(|address| Server::new(&address)) {
            Ok(server) => server,
            Err(error) => {
                self.metrics.usage().failed();
                tracing::error!(
                    error,
                    "past usage can't be queried; fair shares follow present usage only"
                );
                self.fail_first();
                return std::future::pending().await;
            }
        };
        let mut rounds = tokio::time::interval(usage.fetch_interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Told::default();
        loop {
            rounds.tick().await;
            let started = Instant::now();
            let round = self.round(&server, usage, prometheus, &mut told);
            let round = tokio::time::timeout(prometheus.query_timeout, round).await;
            match round.unwrap_or_else(|_| Err("it did not answer in time".to_owned())) {
                Ok(usage) => {
                    self.metrics.usage().answered_after(started.elapsed());
                    self.brings.send_replace(Brought::Usage(Arc::new(usage), started));
                }
                Err(error) => {
                    self.metrics.usage().failed();
                    tracing::warn!(
                        server = server.name(),
                        error,
                        "past usage was not fetched; the last one is used"
                    );
                    self.fail_first();
                }
            }
        }
    }

    async fn round(
        &self,
        server: &Server,
        usage: &UsageSettings,
        prometheus: &PrometheusSettings,
        told: &mut Told,
    ) -> Result<UsageByQueue, String> {
        let now = Millis(self.context.clock.now().as_millisecond());
        let mut answers = Answers::default();
        let queries = prometheus.queries(usage, now);
        for query in &queries {
            let answer = server.query(&query.text, now).await?;
            let added = answers.add(query.of, &answer);
            added.map_err(|error| format!("{error} (query {})", query.text))?;
        }
        if !queries.is_empty() {
            let missing = answers.without_capacity();
            let names: Vec<&str> = missing.iter().map(|resource| word(*resource)).collect();
            if missing.len() == Resource::ALL.len() {
                return Err(
                    "no capacity of the cluster is known there: scrape kube-state-metrics, or set *CapacityMetric in extraParams"
                        .to_owned(),
                );
            }
            told.missing(names.join(", "));
        }
        Ok(answers.usage())
    }
}

/// What was told already.
#[derive(Debug, Default)]
struct Told {
    missing: String,
}

impl Told {
    /// Tells once which resources have no capacity there.
    fn missing(&mut self, names: String) {
        if names != self.missing && !names.is_empty() {
            tracing::warn!(
                resources = names,
                "Prometheus knows no capacity of these; their past usage counts as zero"
            );
        }
        self.missing = names;
    }
}

fn word(resource: Resource) -> &'static str {
    match resource {
        Resource::Cpu => "CPU",
        Resource::Memory => "memory",
        Resource::Gpu => "GPUs",
    }
}

fn address(address: &Address) -> Result<String, String> {
    match address {
        Address::Url(url) => Ok(url.clone()),
        Address::Variable(name) => {
            std::env::var(name).map_err(|_| format!("connectionStringEnvVar: the environment has no variable {name}"))
        }
    }
}
