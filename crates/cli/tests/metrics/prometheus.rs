//! A real Prometheus that scrapes the cluster, with a token and with the alert rules of the chart.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cluster::{Cluster, Process, TOKEN, await_until, get, own_address, root};
use crate::rules::ALERTS;

/// Scrapes before the first query: a rate needs two.
const SCRAPES_MIN: f64 = 5.0;

pub(crate) struct Prometheus {
    address: SocketAddr,
    _process: Process,
}

impl Prometheus {
    /// Starts the program.
    pub(crate) fn start(program: &str, cluster: &Cluster) -> Prometheus {
        let address = cluster.prometheus;
        let path = |name: &str| cluster.directory().join(name).display().to_string();
        std::fs::write(path("token"), TOKEN).unwrap();
        let own = own_address();
        let job = |name: &str, port: u16| {
            let targets = format!("static_configs: [{{targets: ['{}']}}]", SocketAddr::new(own, port));
            let credentials = format!("authorization: {{credentials_file: {}}}", path("token"));
            format!("- {{job_name: {name}, honor_labels: true, {credentials}, {targets}}}\n")
        };
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n{}{}",
            root(ALERTS).canonicalize().unwrap().display(),
            job("kai-scheduler-default", cluster.roles.port()),
            job("kai-node-agent", cluster.agent.port()),
        );
        std::fs::write(path("prometheus.yaml"), config).unwrap();
        let log = std::fs::File::create(path("prometheus.log")).unwrap();
        let process = Command::new(program)
            .arg(format!("--config.file={}", path("prometheus.yaml")))
            .arg(format!("--storage.tsdb.path={}", path("prometheus")))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        Prometheus {
            address,
            _process: Process(process),
        }
    }

    /// Waits until all processes have been scraped a few times.
    pub(crate) fn await_scrapes(&self) {
        await_until("Prometheus scrapes both processes", || {
            let scraped = self.query("min(sum_over_time(up[5m])) and on () count(up) == 2").ok()?;
            let count: f64 = scraped.first()?["value"][1].as_str()?.parse().ok()?;
            (count >= SCRAPES_MIN).then_some(())
        });
    }

    /// The series of an instant query.
    pub(crate) fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let data = self.ask(&format!("/api/v1/query?query={}", percent_encoded(expression)))?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    /// The field `data` of an answer.
    pub(crate) fn ask(&self, path: &str) -> Result<Value, String> {
        let (_, body) = get(self.address, path, None).map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        match answer["status"] == "success" {
            true => Ok(answer["data"].clone()),
            false => Err(answer["error"].to_string()),
        }
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte.is_ascii_alphanumeric() {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
