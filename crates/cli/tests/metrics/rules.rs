//! The expressions of the chart: those of the alerts and those of the dashboards.

use serde_json::Value;

use crate::cluster::{read, root};

/// An alert rule.
pub(crate) struct Alert {
    pub(crate) name: String,
    pub(crate) rule: Value,
}

impl Alert {
    pub(crate) fn text(&self, path: &str) -> &str {
        self.rule.pointer(path).and_then(Value::as_str).unwrap_or_default()
    }
}

pub(crate) const ALERTS: &str = "deployments/kai-scheduler/files/alerts.yaml";

pub(crate) fn alerts() -> Vec<Alert> {
    let file: Value = serde_saphyr::from_str(&read(ALERTS)).unwrap();
    let groups = file["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let alert = |rule: &Value| Alert {
        name: rule["alert"].as_str().unwrap().to_owned(),
        rule: rule.clone(),
    };
    rules.map(alert).collect()
}

/// A dashboard of the chart.
pub(crate) struct Dashboard {
    pub(crate) file: String,
    pub(crate) content: Value,
}

/// A query of a dashboard.
#[derive(Debug)]
pub(crate) struct Query {
    /// The dashboard and the panel.
    pub(crate) panel: String,
    pub(crate) expression: String,
}

pub(crate) fn dashboards() -> Vec<Dashboard> {
    let folder = root("deployments/kai-scheduler/files/dashboards");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let dashboard = |path: &std::path::PathBuf| Dashboard {
        file: path.file_name().unwrap().to_string_lossy().into_owned(),
        content: serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap(),
    };
    files.iter().map(dashboard).collect()
}

impl Dashboard {
    pub(crate) fn panels(&self) -> impl Iterator<Item = &Value> {
        let panels = self.content["panels"].as_array().unwrap();
        panels.iter().filter(|panel| panel["type"] != "row")
    }

    pub(crate) fn queries(&self) -> Vec<Query> {
        let queries = self.panels().flat_map(|panel| {
            let name = format!("{}: {}", self.file, panel["title"].as_str().unwrap());
            let targets = panel["targets"].as_array().unwrap();
            targets.iter().map(move |target| Query {
                panel: name.clone(),
                expression: target["expr"].as_str().unwrap().to_owned(),
            })
        });
        queries.collect()
    }

    /// The queries of the variables, as `label_values(METRIC, LABEL)`.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let variables = self.content["templating"]["list"].as_array().unwrap();
        let queried = variables.iter().filter(|variable| variable["type"] == "query");
        let named = queried.map(|variable| {
            let text = |path: &str| variable.pointer(path).unwrap().as_str().unwrap().to_owned();
            (text("/name"), text("/query/query"))
        });
        named.collect()
    }
}

/// The expression as Grafana sends it with all values of each variable. The interval of rates is longer than the run, so that it contains
/// the whole story on a slow machine, too.
pub(crate) fn with_all_values(expression: &str) -> String {
    expression
        .replace("$__rate_interval", "30m")
        .replace("$queue", ".*")
        .replace("$node", ".*")
}
