//! The metrics of a running cluster: docs/operations.md lists all of them, and the alerts and dashboards of the chart use no others. With
//! `KAI_PROMETHEUS` (the program) a real Prometheus scrapes the cluster and evaluates every expression; `.ci/metrics` runs that.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

mod cluster;
mod inventory;
mod prometheus;
mod rules;
#[path = "../support/mod.rs"]
mod support;

use cluster::{Cluster, TOKEN, await_until, get, own_address, read};
use inventory::{Inventory, differences, documented, exported, metrics_in};
use prometheus::Prometheus;
use rules::{alerts, dashboards, with_all_values};

/// Metrics that the cluster of this test has not: of the node-scale adjuster, which is off by default; of containers with a limit or in the
/// watch, also by KAI's names. A test beside `kai_node::metrics` compares the rows of the agent's metrics with what it serves.
const ABSENT: [&str; 12] = [
    "kai_node_scale_adjuster_reconciles_total",
    "kai_gpu_limit_bytes",
    "kai_gpu_limit_used_bytes",
    "kai_gpu_limit_enforced",
    "kai_gpu_limit_failures_total",
    "kai_gpu_share_bytes",
    "kai_gpu_share_used_bytes",
    "kai_gpu_share_exceeded",
    "gpu_fractioning_gpu_memory_used_bytes",
    "gpu_fractioning_daemon_ready_nodes",
    "gpu_fractioning_nodes_ready",
    "gpu_fractioning_nodes_degraded",
];

/// The metrics of all processes.
fn scrape(cluster: &Cluster) -> Inventory {
    let mut all = Inventory::new();
    for address in [cluster.roles, cluster.agent] {
        let (status, text) = get(address, "/metrics", None).unwrap();
        assert_eq!(status, 200, "{text}");
        all.append(&mut exported(&text));
    }
    all
}

#[test]
fn the_metrics_of_a_cluster_are_those_of_the_page_and_prometheus_has_data_for_every_query() {
    let mut cluster = Cluster::start();
    let prometheus = std::env::var("KAI_PROMETHEUS").map(|program| Prometheus::start(&program, &cluster));
    cluster.await_story();
    check_inventory(&cluster);
    if let Ok(prometheus) = prometheus {
        check_expressions(&cluster, &prometheus);
        check_usage(&cluster, &prometheus);
    }
}

fn check_inventory(cluster: &Cluster) {
    let documented = documented();
    assert!(documented.len() > 60, "the tables of docs/operations.md were not found");
    let mut last = Vec::new();
    // The gauges of queues and nodes are set every five seconds.
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_secs(20) {
        last = differences(&documented, &scrape(cluster));
        last.retain(|difference| {
            !ABSENT
                .iter()
                .any(|name| difference.starts_with(&format!("{name} is in")))
        });
        if last.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(last.is_empty(), "{}", last.join("\n"));

    let remote = std::net::SocketAddr::new(own_address(), cluster.roles.port());
    if !remote.ip().is_loopback() {
        await_until("a reader on another machine needs a token", || {
            let answered = |token| get(remote, "/metrics", token).map(|(status, _)| status).ok();
            (answered(None) == Some(401) && answered(Some(TOKEN)) == Some(200)).then_some(())
        });
    }
}

#[test]
fn alerts_and_dashboards_use_documented_metrics() {
    let documented = documented();
    let expressions = alerts()
        .into_iter()
        .map(|alert| (alert.name.clone(), alert.text("/expr").to_owned()));
    let queries = dashboards().into_iter().flat_map(|dashboard| {
        let variables = dashboard.variables().into_iter();
        let of_panels = dashboard
            .queries()
            .into_iter()
            .map(|query| (query.panel, query.expression));
        variables.chain(of_panels).collect::<Vec<_>>()
    });
    for (place, expression) in expressions.chain(queries) {
        for name in metrics_in(&expression) {
            assert!(
                documented.contains_key(&name),
                "{place}: {name} is not in docs/operations.md"
            );
        }
    }
}

/// The URL fragment of a heading in Markdown.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

#[test]
fn every_alert_has_a_severity_a_remedy_and_a_test() {
    let page = read("docs/operations.md");
    let tests = read(".ci/metrics-tests/alerts.yaml");
    for alert in alerts() {
        let name = &alert.name;
        assert!(
            ["critical", "warning"].contains(&alert.text("/labels/severity")),
            "{name}"
        );
        for text in ["summary", "description"] {
            assert!(
                !alert.text(&format!("/annotations/{text}")).is_empty(),
                "{name} has no {text}"
            );
        }
        assert_eq!(
            alert.text("/annotations/runbook"),
            format!("docs/operations.md#{}", anchor(name))
        );
        assert!(
            page.lines().any(|line| line == format!("### {name}")),
            "{name} has no section in docs/operations.md"
        );
        assert!(
            tests.contains(&format!("alertname=\"{name}\"")),
            "no test in .ci/metrics-tests lets {name} fire"
        );
    }
    let known: Vec<String> = alerts().into_iter().map(|alert| alert.name).collect();
    for heading in page.lines().filter_map(|line| line.strip_prefix("### Kai")) {
        assert!(
            known.contains(&format!("Kai{heading}")),
            "there is no alert Kai{heading}"
        );
    }
}

#[test]
fn dashboards_are_well_formed() {
    let all = dashboards();
    assert_eq!(all.len(), 4);
    for dashboard in &all {
        let (file, content) = (&dashboard.file, &dashboard.content);
        assert_eq!(content["uid"], format!("kai-{}", file.trim_end_matches(".json")));
        let mut cells = std::collections::BTreeSet::new();
        let mut ids = std::collections::BTreeSet::new();
        for panel in content["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(
                ids.insert(panel["id"].as_u64().unwrap()),
                "{file}: {title}: its id is not unique"
            );
            let number = |field: &str| panel["gridPos"][field].as_u64().unwrap();
            assert!(number("x") + number("w") <= 24, "{file}: {title} is too wide");
            for x in number("x")..number("x") + number("w") {
                for y in number("y")..number("y") + number("h") {
                    assert!(cells.insert((x, y)), "{file}: {title} overlaps another panel");
                }
            }
        }
        // A data source by name or uid exists at one site only.
        for panel in dashboard.panels() {
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{file}: {}",
                panel["title"]
            );
        }
    }
}

/// Panels whose queries may have no data in a cluster without problems, with the reason.
const MAY_BE_EMPTY: [(&str, &str); 2] = [
    ("cluster.json: Firing alerts", "no alert fires in a healthy cluster"),
    (
        "nodes.json: Idle GPUs that a pod holds",
        "the node agent of this test has no kubelet, which says which pods hold GPUs",
    ),
];

fn check_expressions(cluster: &Cluster, prometheus: &Prometheus) {
    prometheus.await_scrapes();
    // A histogram has no quantile where nothing happened after the first scrape, and the story may be faster.
    cluster.share_a_gpu();
    let mut problems = Vec::new();
    let mut evaluated = 0;
    for alert in alerts() {
        evaluated += 1;
        if let Err(error) = prometheus.query(alert.text("/expr")) {
            problems.push(format!("{}: {error}", alert.name));
        }
        let metrics = metrics_in(alert.text("/expr"));
        for name in metrics.iter().filter(|name| !ABSENT.contains(&name.as_str())) {
            let found = prometheus.query(&format!("{{__name__=~\"{name}(_count)?\"}}"));
            if found.is_ok_and(|series| series.is_empty()) {
                problems.push(format!("{}: Prometheus has no metric {name}", alert.name));
            }
        }
    }
    for dashboard in dashboards() {
        for (variable, query) in dashboard.variables() {
            let inner = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')'));
            let (metric, label) = inner.and_then(|inner| inner.split_once(", ")).unwrap();
            let found = prometheus.query(&format!("count by ({label}) ({metric}{{{label}!=\"\"}})"));
            if !found.as_ref().is_ok_and(|series| !series.is_empty()) {
                problems.push(format!("{}: variable {variable}: {found:?}", dashboard.file));
            }
        }
        for query in dashboard.queries() {
            evaluated += 1;
            let expression = with_all_values(&query.expression);
            assert!(
                !expression.contains('$'),
                "{}: an unknown variable in {expression}",
                query.panel
            );
            let may_be_empty = MAY_BE_EMPTY.iter().any(|(panel, _)| *panel == query.panel);
            // Some gauges are set every few seconds.
            match await_data(prometheus, &expression, may_be_empty) {
                Ok(true) => {}
                Ok(false) => problems.push(format!("{}: no data: {expression}", query.panel)),
                Err(error) => problems.push(format!("{}: {error}", query.panel)),
            }
        }
    }
    let rules = prometheus.ask("/api/v1/rules").unwrap();
    for rule in rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        if rule["health"] == "err" {
            problems.push(format!("{}: {}", rule["name"], rule["lastError"]));
        }
        // Prometheus shows a broken template as text.
        if rule["alerts"].to_string().contains("<error") {
            problems.push(format!("{}: {}", rule["name"], rule["alerts"]));
        }
    }
    assert!(problems.is_empty(), "{}\n{}", problems.join("\n"), cluster.log());
    println!("{evaluated} expressions evaluated");
}

/// The scheduler knows what a queue held from Prometheus, and the queries of every kind of window have answers.
fn check_usage(cluster: &Cluster, prometheus: &Prometheus) {
    await_until("past usage comes from Prometheus", || {
        let used = prometheus
            .query("max(kai_queue_gpu_usage) > 0 and on () sum(kai_usage_query_latency_milliseconds_count) > 0");
        let stale = prometheus.query("max(kai_usage_stale) > 0");
        (used.is_ok_and(|series| !series.is_empty()) && stale.is_ok_and(|series| series.is_empty())).then_some(())
    });
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now = kai_engine::model::Millis(i64::try_from(now.as_millis()).unwrap());
    let last_hour = "2026-01-01T00:00:00Z";
    for params in [
        serde_json::json!({ "windowSize": "5m" }),
        serde_json::json!({ "windowSize": "5m", "halfLifePeriod": "1m" }),
        serde_json::json!({ "windowType": "tumbling", "windowSize": "3h", "tumblingWindowStartTime": last_hour, "halfLifePeriod": "1m" }),
        serde_json::json!({ "windowType": "tumbling", "windowSize": "3h", "tumblingWindowStartTime": last_hour }),
        serde_json::json!({ "windowType": "cron", "cronString": "0 0 * * *" }),
    ] {
        let mut given = params.clone();
        given["extraParams"] = cluster::usage_metrics();
        let config =
            serde_json::json!({ "clientType": "prometheus", "connectionString": "http://p", "usageParams": given });
        let settings = kai_usage::settings::read(&serde_json::from_value(config).unwrap()).unwrap();
        let kai_usage::Source::Prometheus(server) = &settings.source else {
            panic!("the address is set")
        };
        // Those of GPUs: no other capacity is scraped here.
        for query in server.queries(&settings, now).into_iter().skip(4) {
            let series = prometheus
                .query(&query.text)
                .unwrap_or_else(|error| panic!("{}: {error}\n{}", query.text, cluster.log()));
            let sum: f64 = series
                .iter()
                .filter_map(|series| series["value"][1].as_str()?.parse::<f64>().ok())
                .sum();
            assert!(sum > 0.0, "{params}: {}: {series:?}", query.text);
        }
    }
}

/// Whether the query has data now or within some seconds.
fn await_data(prometheus: &Prometheus, expression: &str, may_be_empty: bool) -> Result<bool, String> {
    let start = std::time::Instant::now();
    loop {
        let series = prometheus.query(expression)?;
        // A quotient of nothing is NaN: there is a series, and nothing to see.
        let has_data = series.iter().any(|series| series["value"][1] != "NaN");
        if has_data || may_be_empty {
            return Ok(true);
        }
        if start.elapsed() > std::time::Duration::from_secs(10) {
            return Ok(false);
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}
