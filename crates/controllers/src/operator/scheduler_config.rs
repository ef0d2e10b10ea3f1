//! The configuration file of a shard's scheduler, as KAI's operator writes it: actions and plugins by priority, with the shard's
//! switches and arguments.

use std::collections::BTreeMap;

use kai_api::crd::{PlacementStrategy, PluginConfig, SchedulingShardSpec, UsageDbConfig};
use serde_json::{Value, json};

use super::component::to_json;

const BINPACK: &str = "binpack";
/// A strategy that KAI does not have. Of the plugins that KAI chooses by strategy it has those that pack.
const FRAG: &str = "frag";
const SPREAD: &str = "spread";

/// The default plugins with their priorities. Plugins run in the order of falling priority; ties are in the order of names.
const PLUGINS: [(&str, i64); 23] = [
    ("predicates", 1900),
    ("proportion", 1800),
    ("priority", 1700),
    ("nodeavailability", 1600),
    ("resourcetype", 1500),
    ("podaffinity", 1400),
    ("elastic", 1300),
    ("kubeflow", 1200),
    ("ray", 1100),
    ("subgrouporder", 1000),
    ("taskorder", 900),
    ("nominatednode", 800),
    ("dynamicresources", 700),
    ("minruntime", 600),
    ("topology", 500),
    ("snapshot", 400),
    ("sg-nodelocalgreedy", 360),
    ("sg-multinodegang", 350),
    ("gpupack", 300),
    ("gpuspread", 300),
    ("nodeplacement", 200),
    ("gpusharingorder", 100),
    ("backgroundpods", 50),
];

/// The default actions with their priorities.
const ACTIONS: [(&str, i64); 5] = [
    ("allocate", 500),
    ("consolidation", 400),
    ("reclaim", 300),
    ("preempt", 200),
    ("stalegangeviction", 100),
];

/// A plugin or an action of the file.
#[derive(Clone, Debug, Default)]
struct Entry {
    enabled: bool,
    priority: i64,
    arguments: BTreeMap<String, String>,
}

/// The file as JSON. `prometheus_url` is the address of the Config's external Prometheus server, if it has one.
pub(super) fn scheduler_config(shard: &SchedulingShardSpec, prometheus_url: Option<&str>) -> Value {
    let actions = sorted(actions(shard)).into_iter().map(|(name, _)| name);
    let actions: Vec<String> = actions.collect();
    let plugins = sorted(plugins(shard)).into_iter().map(|(name, entry)| {
        let mut plugin = json!({ "name": name });
        if !entry.arguments.is_empty() {
            plugin["arguments"] = to_json(&entry.arguments);
        }
        plugin
    });
    let mut file = json!({ "actions": actions.join(", "), "tiers": [{ "plugins": plugins.collect::<Vec<_>>() }] });
    if !shard.queue_depth_per_action.is_empty() {
        file["queueDepthPerAction"] = to_json(&shard.queue_depth_per_action);
    }
    for (key, section) in [
        ("usageDBConfig", to_json(&usage_db(shard, prometheus_url))),
        ("scenarioSearchBudgets", to_json(&shard.scenario_search_budgets)),
    ] {
        if !section.is_null() {
            file[key] = section;
        }
    }
    file
}

/// The shard's `usageDBConfig`. Without an address it gets the one of the Config; if that has none, the scheduler keeps the history itself.
fn usage_db(shard: &SchedulingShardSpec, prometheus_url: Option<&str>) -> Option<UsageDbConfig> {
    let mut config = shard.usage_db_config.clone()?;
    if config.client_type == "prometheus"
        && config.connection_string_env_var.is_none()
        && config.connection_string.is_none()
    {
        config.connection_string = prometheus_url.map(str::to_owned);
    }
    Some(config)
}

/// The names of the enabled actions.
pub(super) fn enabled_actions(shard: &SchedulingShardSpec) -> Vec<String> {
    sorted(actions(shard)).into_iter().map(|(name, _)| name).collect()
}

fn sorted(entries: BTreeMap<String, Entry>) -> Vec<(String, Entry)> {
    let mut enabled: Vec<(String, Entry)> = entries.into_iter().filter(|(_, entry)| entry.enabled).collect();
    // Stable: ties keep the order of names.
    enabled.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.priority));
    enabled
}

fn actions(shard: &SchedulingShardSpec) -> BTreeMap<String, Entry> {
    let strategies = strategies(shard);
    let is_spread = strategies.gpu.as_deref() == Some(SPREAD) || strategies.cpu.as_deref() == Some(SPREAD);
    let default = |&(name, priority): &(&str, i64)| {
        let enabled = name != "consolidation" || !is_spread;
        let entry = Entry {
            enabled,
            priority,
            ..Entry::default()
        };
        (name.to_owned(), entry)
    };
    let mut actions: BTreeMap<String, Entry> = ACTIONS.iter().map(default).collect();
    for (name, own) in &shard.actions {
        let entry = actions.entry(name.clone()).or_insert_with(unknown);
        entry.enabled = own.enabled.unwrap_or(entry.enabled);
        entry.priority = own.priority.unwrap_or(entry.priority);
    }
    actions
}

fn plugins(shard: &SchedulingShardSpec) -> BTreeMap<String, Entry> {
    let strategies = strategies(shard);
    let packs = matches!(strategies.gpu.as_deref(), Some(BINPACK | FRAG));
    let default = |&(name, priority): &(&str, i64)| {
        let enabled = match name {
            "gpupack" | "gpusharingorder" => packs,
            "gpuspread" => !packs,
            _ => true,
        };
        let arguments = default_arguments(name, shard, &strategies);
        (
            name.to_owned(),
            Entry {
                enabled,
                priority,
                arguments,
            },
        )
    };
    let mut plugins: BTreeMap<String, Entry> = PLUGINS.iter().map(default).collect();
    for (name, own) in &shard.plugins {
        let entry = plugins.entry(name.clone()).or_insert_with(unknown);
        apply(own, entry);
    }
    plugins
}

/// KAI runs an unknown plugin last.
fn unknown() -> Entry {
    Entry {
        enabled: true,
        ..Entry::default()
    }
}

fn apply(own: &PluginConfig, entry: &mut Entry) {
    entry.enabled = own.enabled.unwrap_or(entry.enabled);
    entry.priority = own.priority.unwrap_or(entry.priority);
    if !own.arguments.is_empty() {
        entry.arguments = own.arguments.clone();
    }
}

fn default_arguments(
    plugin: &str,
    shard: &SchedulingShardSpec,
    strategies: &PlacementStrategy,
) -> BTreeMap<String, String> {
    let runtimes = shard.min_runtime.clone().unwrap_or_default();
    let arguments = match plugin {
        "proportion" => vec![("kValue", shard.k_value.map(|value| value.to_string()))],
        "minruntime" => vec![
            ("defaultPreemptMinRuntime", runtimes.preempt_min_runtime),
            ("defaultReclaimMinRuntime", runtimes.reclaim_min_runtime),
        ],
        "nodeplacement" => vec![("gpu", strategies.gpu.clone()), ("cpu", strategies.cpu.clone())],
        _ => Vec::new(),
    };
    let set = arguments
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    set.collect()
}

fn strategies(shard: &SchedulingShardSpec) -> PlacementStrategy {
    let own = shard.placement_strategy.clone().unwrap_or_default();
    let or_binpack = |strategy: Option<String>| Some(strategy.unwrap_or_else(|| BINPACK.to_owned()));
    PlacementStrategy {
        gpu: or_binpack(own.gpu),
        cpu: or_binpack(own.cpu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_past_usage_is_that_of_the_shard_else_of_the_config() {
        let address = |usage_db: Value, of_config: Option<&str>| {
            let shard = serde_json::from_value(json!({ "usageDBConfig": usage_db })).unwrap();
            scheduler_config(&shard, of_config)["usageDBConfig"]["connectionString"].clone()
        };
        let of_config = Some("http://config");
        assert_eq!(
            address(json!({ "clientType": "prometheus" }), of_config),
            "http://config"
        );
        assert_eq!(address(json!({ "clientType": "prometheus" }), None), Value::Null);
        assert_eq!(address(json!({ "clientType": "embedded" }), of_config), Value::Null);
        let own = json!({ "clientType": "prometheus", "connectionString": "http://own" });
        assert_eq!(address(own, of_config), "http://own");
        let variable = json!({ "clientType": "prometheus", "connectionStringEnvVar": "URL" });
        assert_eq!(address(variable, of_config), Value::Null);
        assert_eq!(
            scheduler_config(&SchedulingShardSpec::default(), of_config)["usageDBConfig"],
            Value::Null
        );
    }
}
