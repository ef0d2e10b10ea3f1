//! The shard's configuration file: translates KAI's YAML into the engine's policy. Unsupported settings lead to warnings. An unknown action
//! or an invalid value is an error, since the scheduler would act otherwise than configured.

mod search_budgets;

use std::collections::BTreeMap;

use kai_api::crd::UsageDbConfig;
use kai_engine::model::{
    Action, Config, GpuJobOrder, Millis, MinRuntimeResolve, PlacementStrategies, PlacementStrategy,
};
use kai_mirror::BackgroundSelector;
use kai_usage::UsageSettings;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::search_budgets::SearchBudgets;
use crate::Error;

/// A parsed configuration file.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    /// Without the settings that come from flags.
    pub(crate) config: Config,
    /// Which pods are background pods.
    pub(crate) background: BackgroundSelector,
    /// Where usage over time comes from; `None` = fair shares follow present usage only.
    pub(crate) usage: Option<UsageSettings>,
    pub(crate) warnings: Vec<String>,
    /// The file as JSON, for snapshots.
    pub(crate) json: serde_json::Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Raw {
    actions: Option<String>,
    tiers: Option<Vec<Tier>>,
    queue_depth_per_action: Option<BTreeMap<String, u32>>,
    #[serde(rename = "usageDBConfig")]
    usage_db_config: Option<UsageDbConfig>,
    scenario_search_budgets: Option<SearchBudgets>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tier {
    plugins: Vec<Plugin>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Plugin {
    name: String,
    arguments: Option<BTreeMap<String, serde_json::Value>>,
    /// KAI's switches for parts of a plugin, such as `disableNodeOrder`.
    #[serde(flatten)]
    switches: BTreeMap<String, serde_json::Value>,
}

/// Ignored arguments of one plugin that are told.
const ARGUMENTS_TOLD_MAX: usize = 8;
/// The longest name of an argument in a warning.
const ARGUMENT_CHARS_MAX: usize = 60;

/// Plugins whose function the engine has built in. Their position in the list has no effect.
const BUILT_IN: [&str; 20] = [
    "predicates",
    "proportion",
    "priority",
    "nodeavailability",
    "resourcetype",
    "elastic",
    "kubeflow",
    "ray",
    "subgrouporder",
    "taskorder",
    "nominatednode",
    "dynamicresources",
    "topology",
    "snapshot",
    "sg-nodelocalgreedy",
    "sg-multinodegang",
    "gpusharingorder",
    "reflectjoborder",
    "gpupack",
    "gpuspread",
];

/// The arguments that plugins have here; other plugins have none.
const ARGUMENTS: [(&str, &[&str]); 5] = [
    ("proportion", &["kValue", "relcaimerSaturationMultiplier"]),
    (
        "minruntime",
        &[
            "defaultReclaimMinRuntime",
            "defaultPreemptMinRuntime",
            "reclaimResolveMethod",
        ],
    ),
    ("nodeplacement", &["gpu", "cpu"]),
    ("backgroundpods", &["labelSelector"]),
    ("gpujoborder", &["mode"]),
];

/// Switches of KAI that kai does not have. Off, they change nothing.
const MISSING_SWITCHES: [(&str, &str); 1] = [("proportion", "queuePriorityInQuotaReclaim")];

/// Reads the file; the defaults if there is none.
pub(crate) fn load(path: &str) -> Result<ConfigFile, Error> {
    if path.is_empty() {
        return read("{}").map_err(|message| fail(path, message));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fail(path, error.to_string()))?;
    read(&text).map_err(|message| fail(path, message))
}

fn fail(path: &str, message: String) -> Error {
    Error::Config {
        path: path.to_owned(),
        message,
    }
}

/// The plugins that `listed` leaves out although the engine can't switch them off, and the choices of the GPU on a node that follow
/// `nodeplacement` alone. The scheduler would act otherwise than configured, so they are one warning.
fn left_out(listed: &[Plugin], placement: PlacementStrategies) -> Option<String> {
    let is_listed = |name: &str| listed.iter().any(|plugin| plugin.name == name);
    let expected = expected(placement).into_iter();
    let missing: Vec<&str> = expected.filter(|name| !is_listed(name)).collect();
    (!missing.is_empty()).then(|| {
        let names = missing.join(", ");
        format!("plugins: {names}: left out or disabled, but built in here; they stay on")
    })
}

/// The plugins that can't be switched off.
fn expected(placement: PlacementStrategies) -> Vec<&'static str> {
    let of_placement: &[&str] = match placement.gpu {
        PlacementStrategy::Binpack | PlacementStrategy::Frag => &["gpupack", "gpusharingorder"],
        PlacementStrategy::Spread => &["gpuspread"],
    };
    let is_expected = |name: &&str| match *name {
        "reflectjoborder" => false,
        "gpupack" | "gpuspread" | "gpusharingorder" => of_placement.contains(name),
        _ => true,
    };
    let built_in = BUILT_IN.into_iter().filter(is_expected);
    built_in.chain(["nodeplacement", "minruntime"]).collect()
}

/// Reads the text of a file.
pub(crate) fn parse(text: &str) -> Result<ConfigFile, Error> {
    read(text).map_err(|message| fail("of the shard", message))
}

/// Reads the configuration of a snapshot; null is the default.
pub(crate) fn of_json(json: serde_json::Value) -> Result<ConfigFile, Error> {
    if json.is_null() {
        return parse("");
    }
    let raw = Raw::deserialize(&json).map_err(|error| error.to_string());
    raw.and_then(|raw| build(raw, json))
        .map_err(|message| fail("of the snapshot", message))
}

/// The configuration in effect, for snapshots: the file with the defaults of what it leaves out. KAI's snapshot tool has no defaults of its own
/// and runs the listed actions and plugins only; it takes arguments as strings.
pub(crate) fn effective(file: &Value, config: &Config) -> Value {
    let mut effective = match file {
        Value::Object(fields) => fields.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    effective.retain(|_, value| !value.is_null());
    if !effective.contains_key("actions") {
        let names: Vec<&str> = config.actions.iter().map(|action| action.name()).collect();
        effective.insert("actions".to_owned(), names.join(", ").into());
    }
    let tiers = effective.entry("tiers").or_insert_with(default_tiers);
    let tiers = tiers.as_array_mut().into_iter().flatten();
    let plugins = tiers
        .filter_map(|tier| tier.get_mut("plugins")?.as_array_mut())
        .flatten();
    let arguments = plugins.filter_map(|plugin| plugin.get_mut("arguments")?.as_object_mut());
    for value in arguments.flat_map(Map::values_mut).filter(|value| !value.is_string()) {
        *value = value.to_string().into();
    }
    Value::Object(effective)
}

/// The plugins of an installation that names none.
fn default_tiers() -> Value {
    let defaults = Config::default().placement;
    let built_in = expected(defaults).into_iter().map(|name| match name {
        "nodeplacement" => {
            let strategy = |strategy: PlacementStrategy| match strategy {
                PlacementStrategy::Binpack => "binpack",
                PlacementStrategy::Spread => "spread",
                PlacementStrategy::Frag => "frag",
            };
            json!({ "name": name, "arguments": { "gpu": strategy(defaults.gpu), "cpu": strategy(defaults.cpu) } })
        }
        _ => json!({ "name": name }),
    });
    let optional = ["podaffinity", "backgroundpods"].map(|name| json!({ "name": name }));
    let plugins: Vec<Value> = built_in.chain(optional).collect();
    json!([{ "plugins": plugins }])
}

fn read(text: &str) -> Result<ConfigFile, String> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let raw: Raw = kai_yaml::from_str(text)?;
    let json = kai_yaml::from_str(text)?;
    build(raw, json)
}

fn build(raw: Raw, json: serde_json::Value) -> Result<ConfigFile, String> {
    let mut file = ConfigFile {
        config: Config::default(),
        background: BackgroundSelector::default(),
        usage: None,
        warnings: Vec::new(),
        json,
    };
    if let Some(actions) = &raw.actions {
        file.config.actions = parse_actions(actions)?;
    }
    for (name, depth) in raw.queue_depth_per_action.into_iter().flatten() {
        file.config.queue_depth.push((parse_action(&name)?, depth));
    }
    if let Some(tiers) = raw.tiers {
        let plugins: Vec<Plugin> = tiers.into_iter().flat_map(|tier| tier.plugins).collect();
        // A plugin that is missing from the list is disabled.
        let is_listed = |name: &str| plugins.iter().any(|plugin| plugin.name == name);
        file.config.score_pod_affinity = is_listed("podaffinity");
        if !is_listed("backgroundpods") {
            file.background = BackgroundSelector::none();
        }
        for plugin in &plugins {
            apply_plugin(plugin, &mut file)?;
            let set = plugin.switches.iter().filter(|(_, value)| **value == true);
            let warning =
                |(switch, _)| format!("plugin {}: {switch}: ignored; a plugin has no parts here", plugin.name);
            file.warnings.extend(set.map(warning));
            file.warnings.extend(ignored_arguments(plugin));
        }
        file.warnings.extend(left_out(&plugins, file.config.placement));
    }
    // A written kValue asks for fairness over time; without an address the scheduler keeps the history itself. KAI's default of kValue alone
    // changes nothing there, nor here.
    if let Some(config) = &raw.usage_db_config {
        let read = kai_usage::settings::read(config).map_err(|error| format!("usageDBConfig: {error}"))?;
        file.usage = Some(read);
    }
    file.warnings
        .extend(raw.scenario_search_budgets.and_then(|budgets| budgets.warning()));
    Ok(file)
}

fn parse_actions(list: &str) -> Result<Vec<Action>, String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(parse_action).collect()
}

fn parse_action(name: &str) -> Result<Action, String> {
    Action::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = Action::ALL.into_iter().map(Action::name).collect();
        format!("{name:?} is not an action; known are {}", known.join(", "))
    })
}

fn apply_plugin(plugin: &Plugin, file: &mut ConfigFile) -> Result<(), String> {
    let empty = BTreeMap::new();
    let arguments = Arguments {
        plugin: &plugin.name,
        values: plugin.arguments.as_ref().unwrap_or(&empty),
    };
    let config = &mut file.config;
    match plugin.name.as_str() {
        "proportion" => {
            if let Some(value) = arguments.number("kValue")? {
                config.usage_weight_millionths = millionths(value.max(0.0));
                if value > 0.0 {
                    file.usage = Some(UsageSettings::default());
                }
            }
            if let Some(value) = arguments.number("relcaimerSaturationMultiplier")? {
                config.saturation_multiplier_millionths = millionths(value.max(1.0));
            }
        }
        "minruntime" => {
            if let Some(runtime) = arguments.millis("defaultReclaimMinRuntime")? {
                config.reclaim_min_runtime = runtime;
            }
            if let Some(runtime) = arguments.millis("defaultPreemptMinRuntime")? {
                config.preempt_min_runtime = runtime;
            }
            config.reclaim_min_runtime_resolve = match arguments.text("reclaimResolveMethod").as_deref() {
                Some("queue") => MinRuntimeResolve::Queue,
                None | Some("lca" | "") => MinRuntimeResolve::LowestCommonAncestor,
                Some(other) => return Err(arguments.unknown("reclaimResolveMethod", other, "lca and queue")),
            };
        }
        "nodeplacement" => {
            config.placement = PlacementStrategies {
                gpu: arguments.strategy("gpu")?,
                cpu: arguments.strategy("cpu")?,
            };
        }
        "podaffinity" => {}
        "backgroundpods" => {
            if let Some(selector) = arguments.text("labelSelector").filter(|text| !text.is_empty()) {
                let parsed = selector.parse::<BackgroundSelector>();
                file.background = parsed.map_err(|error| format!("plugin backgroundpods: labelSelector: {error}"))?;
            }
        }
        "gpujoborder" => {
            config.gpu_job_order = match arguments.text("mode").as_deref() {
                None | Some("" | "prefer-larger") => Some(GpuJobOrder::PreferLarger),
                Some("prefer-smaller") => Some(GpuJobOrder::PreferSmaller),
                Some(other) => return Err(arguments.unknown("mode", other, "prefer-larger and prefer-smaller")),
            };
        }
        known if BUILT_IN.contains(&known) => {}
        other => file
            .warnings
            .push(format!("plugin {other}: unknown here; it is ignored")),
    }
    Ok(())
}

/// The arguments without an effect: one of KAI that does not exist here would be missed, and so would a misspelt one. The warning about an
/// unknown plugin covers its arguments.
fn ignored_arguments(plugin: &Plugin) -> Vec<String> {
    let name = plugin.name.as_str();
    let known = ARGUMENTS.iter().find(|(of, _)| *of == name).map(|(_, known)| *known);
    if known.is_none() && !BUILT_IN.contains(&name) && name != "podaffinity" {
        return Vec::new();
    }
    let known = known.unwrap_or_default();
    let is_off = |argument: &str, value: &serde_json::Value| {
        MISSING_SWITCHES.contains(&(name, argument)) && (*value == false || *value == "false")
    };
    let given = plugin.arguments.iter().flatten();
    let ignored = given.filter(|(argument, value)| !known.contains(&argument.as_str()) && !is_off(argument, value));
    let warning = |(argument, _): (&String, _)| {
        let argument = kai_yaml::shortened(argument, ARGUMENT_CHARS_MAX);
        let remedy = match (kai_yaml::nearest(&argument, known.iter().copied()), known) {
            (Some(near), _) => format!("did you mean {near}?"),
            (None, []) => "it has none; remove it".to_owned(),
            (None, known) => format!("remove it; known are {}", known.join(", ")),
        };
        format!("plugin {name}: {argument}: ignored; the plugin has no such argument here: {remedy}")
    };
    ignored.take(ARGUMENTS_TOLD_MAX).map(warning).collect()
}

/// Arguments of a plugin. KAI defines them as strings; YAML reads unquoted ones as numbers.
struct Arguments<'a> {
    plugin: &'a str,
    values: &'a BTreeMap<String, serde_json::Value>,
}

impl Arguments<'_> {
    fn text(&self, name: &str) -> Option<String> {
        match self.values.get(name)? {
            serde_json::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    fn number(&self, name: &str) -> Result<Option<f64>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(format!("plugin {}: {name}: {text:?} is not a number", self.plugin)),
        }
    }

    fn millis(&self, name: &str) -> Result<Option<Millis>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let span =
            kai_api::parse_duration(&text).map_err(|error| format!("plugin {}: {name}: {error}", self.plugin))?;
        Ok(Some(span.max(Millis(0))))
    }

    fn strategy(&self, name: &str) -> Result<PlacementStrategy, String> {
        match self.text(name).as_deref() {
            None | Some("") => Ok(PlacementStrategy::Binpack),
            Some(known) => {
                PlacementStrategy::by_name(known).ok_or_else(|| self.unknown(name, known, PlacementStrategy::NAMES))
            }
        }
    }

    fn unknown(&self, name: &str, value: &str, known: &str) -> String {
        format!(
            "plugin {}: {name}: {value:?} is unknown; known are {known}",
            self.plugin
        )
    }
}

/// Converts a float of the configuration to the engine's integer unit.
fn millionths(value: f64) -> i64 {
    /// Beyond any sensible value, and small enough to multiply without overflow.
    const FACTOR_MAX: f64 = 1_000.0;
    (value.min(FACTOR_MAX) * 1e6).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_strategies_are_known_by_name() {
        let strategies = |gpu: &str| {
            let text =
                format!("tiers: [{{plugins: [{{name: nodeplacement, arguments: {{gpu: {gpu}, cpu: binpack}}}}]}}]");
            read(&text).map(|file| file.config.placement)
        };
        let of = |gpu| {
            Ok(PlacementStrategies {
                gpu,
                cpu: PlacementStrategy::Binpack,
            })
        };
        assert_eq!(strategies("frag"), of(PlacementStrategy::Frag));
        assert_eq!(strategies("spread"), of(PlacementStrategy::Spread));
        let problem = strategies("fragg").unwrap_err();
        assert!(problem.contains("known are binpack, spread and frag"), "{problem}");
    }

    #[test]
    fn a_file_of_the_operator_is_understood() {
        let file = read(
            r#"
actions: "allocate, reclaim, preempt"
queueDepthPerAction: {reclaim: 10}
usageDBConfig: {clientType: prometheus}
tiers:
- plugins:
  - name: predicates
    disableNodeOrder: true
    disableTaskOrder: false
  - name: proportion
    arguments: {kValue: "2.5", relcaimerSaturationMultiplier: 1.2}
  - name: minruntime
    arguments: {defaultReclaimMinRuntime: 5m, reclaimResolveMethod: queue}
  - name: nodeplacement
    arguments: {gpu: spread, cpu: binpack}
  - name: numa
"#,
        )
        .unwrap();
        let config = file.config;
        assert_eq!(config.actions, [Action::Allocate, Action::Reclaim, Action::Preempt]);
        assert_eq!(config.depth(Action::Reclaim), Some(10));
        assert_eq!(
            (config.usage_weight_millionths, config.saturation_multiplier_millionths),
            (2_500_000, 1_200_000)
        );
        assert_eq!(config.reclaim_min_runtime, Millis::seconds(300));
        assert_eq!(config.reclaim_min_runtime_resolve, MinRuntimeResolve::Queue);
        assert_eq!(config.placement.gpu, PlacementStrategy::Spread);
        assert!(!config.score_pod_affinity, "not in the list of plugins");
        assert!(file.usage.is_some());
        assert_eq!(file.warnings.len(), 3, "{:?}", file.warnings);
        assert!(
            file.warnings[0].starts_with("plugin predicates: disableNodeOrder"),
            "{:?}",
            file.warnings
        );
    }

    #[test]
    fn the_default_file_of_the_operator_is_not_remarked_on() {
        let plugins = [
            "predicates",
            "proportion",
            "priority",
            "nodeavailability",
            "resourcetype",
            "podaffinity",
            "elastic",
            "kubeflow",
            "ray",
            "subgrouporder",
            "taskorder",
            "nominatednode",
            "dynamicresources",
            "minruntime",
            "topology",
            "snapshot",
            "sg-nodelocalgreedy",
            "sg-multinodegang",
            "gpupack",
            "nodeplacement",
            "gpusharingorder",
        ];
        let list: Vec<String> = plugins.iter().map(|name| format!("  - name: {name}\n")).collect();
        let text = format!(
            "actions: allocate, consolidation, reclaim, preempt, stalegangeviction\ntiers:\n- plugins:\n{}scenarioSearchBudgets:\n  \
             maxActionSearchDuration: {{default: 5m0s}}\n  maxJobSearchDuration: 4m0s\n  minJobSearchDuration: 0s\n  \
             maxGeneratorSearchDuration: {{default: 2m0s, NodeLocalGreedy: 30s, MultiNodeGang: 2m0s}}\n",
            list.concat()
        );
        assert_eq!(read(&text).unwrap().warnings, [""; 0]);
    }

    #[test]
    fn a_plugin_that_stays_on_although_it_is_left_out_is_a_warning() {
        let listed = |left_out: &[&str]| {
            let names = BUILT_IN
                .into_iter()
                .chain(["nodeplacement", "minruntime", "podaffinity"]);
            let names = names.filter(|name| !left_out.contains(name) && *name != "gpuspread");
            let list: Vec<String> = names.map(|name| format!("  - name: {name}\n")).collect();
            read(&format!("tiers:\n- plugins:\n{}", list.concat()))
                .unwrap()
                .warnings
        };
        assert_eq!(
            listed(&["podaffinity", "reflectjoborder"]),
            [""; 0],
            "these are off then"
        );
        let told = "plugins: elastic, gpupack: left out or disabled, but built in here; they stay on";
        assert_eq!(listed(&["elastic", "gpupack"]), [told]);
    }

    #[test]
    fn an_argument_that_a_plugin_does_not_have_is_a_warning() {
        let told = |plugin: &str| {
            let file = read(&format!("tiers: [{{plugins: [{plugin}]}}]")).unwrap();
            let told = |warning: &String| warning.starts_with("plugin ");
            file.warnings.into_iter().filter(told).collect::<Vec<_>>()
        };
        assert_eq!(
            told("{name: proportion, arguments: {kValue: '1', queuePriorityInQuotaReclaim: 'true'}}"),
            [
                "plugin proportion: queuePriorityInQuotaReclaim: ignored; the plugin has no such argument here: remove it; known are kValue, \
                 relcaimerSaturationMultiplier"
            ]
        );
        for off in ["'false'", "false"] {
            let plugin = format!("{{name: proportion, arguments: {{queuePriorityInQuotaReclaim: {off}}}}}");
            assert_eq!(told(&plugin), [""; 0], "KAI's default");
        }
        assert_eq!(
            told("{name: backgroundpods, arguments: {labelselector: tier=spare}}"),
            [
                "plugin backgroundpods: labelselector: ignored; the plugin has no such argument here: did you mean labelSelector?"
            ]
        );
        assert_eq!(
            told("{name: elastic, arguments: {a: b}}"),
            ["plugin elastic: a: ignored; the plugin has no such argument here: it has none; remove it"]
        );
        assert_eq!(
            told("{name: mine, arguments: {a: b}}"),
            ["plugin mine: unknown here; it is ignored"]
        );
        for (plugin, arguments) in ARGUMENTS {
            for argument in arguments {
                let file = format!("{{name: {plugin}, arguments: {{{argument}: ''}}}}");
                let told = read(&format!("tiers: [{{plugins: [{file}]}}]")).map(|file| file.warnings);
                let text = format!("{told:?}");
                assert!(!text.contains("no such argument"), "{plugin} {argument}: {text}");
            }
        }
    }

    #[test]
    fn usage_over_time_is_asked_for_by_a_weight_or_a_database() {
        let usage = |text: &str| read(text).map(|file| file.usage.map(|usage| usage.source));
        let weight = |k: &str| {
            usage(&format!(
                "tiers: [{{plugins: [{{name: proportion, arguments: {{kValue: {k}}}}}]}}]"
            ))
        };
        assert_eq!(
            usage("actions: allocate"),
            Ok(None),
            "KAI's default of kValue has no effect without a database"
        );
        assert_eq!(weight("0.5"), Ok(Some(kai_usage::Source::Embedded)));
        assert_eq!((weight("0"), weight("-1")), (Ok(None), Ok(None)));
        assert_eq!(
            usage("usageDBConfig: {clientType: embedded}"),
            Ok(Some(kai_usage::Source::Embedded))
        );
        let server = "usageDBConfig: {clientType: prometheus, connectionString: 'http://p'}";
        assert!(matches!(usage(server), Ok(Some(kai_usage::Source::Prometheus(_)))));
        assert_eq!(
            usage("usageDBConfig: {clientType: prometheus, usageParams: {windowType: round}}"),
            Err("usageDBConfig: windowType: \"round\" is unknown; known are sliding, tumbling and cron".to_owned())
        );
    }

    #[test]
    fn gpus_order_jobs_on_request() {
        let order = |arguments: &str| {
            let file = read(&format!("tiers: [{{plugins: [{{name: gpujoborder, {arguments}}}]}}]"));
            file.map(|file| file.config.gpu_job_order)
        };
        assert_eq!(order(""), Ok(Some(GpuJobOrder::PreferLarger)));
        assert_eq!(
            order("arguments: {mode: prefer-smaller}"),
            Ok(Some(GpuJobOrder::PreferSmaller))
        );
        let refused = "plugin gpujoborder: mode: \"large\" is unknown; known are prefer-larger and prefer-smaller";
        assert_eq!(order("arguments: {mode: large}"), Err(refused.to_owned()));
        assert_eq!(read("").unwrap().config.gpu_job_order, None);
    }

    #[test]
    fn background_pods_are_selected_by_labels() {
        let selector = |plugins: &str| read(&format!("tiers: [{{plugins: [{plugins}]}}]")).map(|file| file.background);
        assert_eq!(read("").unwrap().background, BackgroundSelector::default());
        assert_eq!(selector("{name: backgroundpods}"), Ok(BackgroundSelector::default()));
        assert_eq!(
            selector("{name: elastic}"),
            Ok(BackgroundSelector::none()),
            "left out is off"
        );
        let spare = selector("{name: backgroundpods, arguments: {labelSelector: tier=spare}}");
        assert_eq!(spare, Ok("tier=spare".parse().unwrap()));
        let refused = selector("{name: backgroundpods, arguments: {labelSelector: 'tier in (a)'}}").unwrap_err();
        assert!(
            refused.starts_with("plugin backgroundpods: labelSelector: \"tier in (a)\" is not a list of labels"),
            "{refused}"
        );
    }

    #[test]
    fn nothing_written_is_the_default() {
        assert_eq!(read("").unwrap().config, Config::default());
        assert_eq!(read("actions:\n").unwrap().config, Config::default());
    }

    #[test]
    fn errors_name_no_option_of_the_yaml_parser() {
        let told = read("actions: allocate\nactions: reclaim\n").unwrap_err();
        assert!(
            told.contains("duplicate key: actions") && told.contains("line 2"),
            "{told}"
        );
        assert!(!told.contains("Policy"), "{told}");
    }

    #[test]
    fn an_unknown_action_is_an_error() {
        let error = read("actions: allocate, dance").unwrap_err();
        assert_eq!(
            error,
            "\"dance\" is not an action; known are allocate, consolidation, reclaim, preempt, stalegangeviction"
        );
    }
}
