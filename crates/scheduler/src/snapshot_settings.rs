//! The settings of the scheduler that made a snapshot: the inverse of what `/get-snapshot` writes. Snapshots of KAI have the same
//! parameters. A parameter that can't be used is a warning, and the default applies.

use kai_engine::model::Millis;
use kai_mirror::WorkerLabels;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{Error, Partition, Settings, config};

/// Parameters that have no effect on decisions.
const WITHOUT_EFFECT: [&str; 5] = [
    "numOfStatusRecordingWorkers",
    "schedulePeriod",
    "updatePodEvictionCondition",
    "detailedFitErrors",
    "queueLabelKey",
];

/// `partitionParams`, whose fields KAI writes with these names.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartitionParameters {
    #[serde(default)]
    node_pool_label_key: String,
    #[serde(default)]
    node_pool_label_value: String,
}

impl Settings {
    /// The configuration in effect.
    pub(crate) fn snapshot_config(&self) -> Value {
        config::effective(&self.config_file, &self.config)
    }

    /// KAI's parameters of these settings.
    pub(crate) fn snapshot_parameters(&self) -> Value {
        let (key, value) = self.partition.label_key_and_value();
        let config = &self.config;
        let nanos = |millis: i64| millis.saturating_mul(1_000_000);
        let period = i64::try_from(self.schedule_period.as_nanos()).unwrap_or(i64::MAX);
        json!({
            "schedulerName": self.scheduler_name,
            "restrictSchedulingNodes": self.restrict_nodes.is_some(),
            "partitionParams": { "NodePoolLabelKey": key, "NodePoolLabelValue": value },
            "maxNumberConsolidationPreemptees": config.consolidation_preemptees_max.map_or(-1, i64::from),
            "scheduleCSIStorage": self.counts_storage,
            "useSchedulingSignatures": config.use_signatures,
            "fullHierarchyFairness": self.full_hierarchy_fairness,
            "allowConsolidatingReclaim": config.allow_consolidating_reclaim,
            "numOfStatusRecordingWorkers": self.status_workers,
            "globalDefaultStalenessGracePeriod": config.staleness_grace.map_or(-1_000_000_000, |grace| nanos(grace.0)),
            "schedulePeriod": period,
            "stuckInReleasingThreshold": nanos(config.stuck_in_releasing.0),
            "detailedFitErrors": false,
            "updatePodEvictionCondition": self.update_pod_eviction_condition,
            "queueLabelKey": self.queue_label_key,
        })
    }

    /// Settings that decide and that KAI's snapshots do not have, and the time of the snapshot.
    pub(crate) fn snapshot_extensions(&self, taken_at: Millis) -> Value {
        json!({
            "takenAt": kai_api::format_time(taken_at),
            "resourceReservationNamespace": self.reservation_pods.namespace,
            "resourceReservationAppLabel": self.reservation_pods.app_label,
            "migWorkerNodeLabelKey": self.mig_label,
            "gpuSharingMode": self.gpu_sharing.name(),
            "gpuWorkerNodeLabelKey": self.restrict_nodes.as_ref().map(|labels| &labels.gpu),
            "cpuWorkerNodeLabelKey": self.restrict_nodes.as_ref().map(|labels| &labels.cpu),
        })
    }

    /// The settings of the scheduler that made a snapshot, from its configuration file, its parameters, and our extensions (null in KAI's
    /// snapshots).
    pub fn of_snapshot(config: &Value, parameters: &Value, extensions: &Value) -> Result<Settings, Error> {
        let mut settings = Settings::default();
        let file = config::of_json(config.clone())?;
        (settings.config, settings.warnings, settings.config_file) = (file.config, file.warnings, file.json);
        settings.background = file.background;
        let mut parameters = Parameters::new("schedulerParams", parameters, &mut settings.warnings);
        parameters.read("schedulerName", &mut settings.scheduler_name);
        parameters.read("fullHierarchyFairness", &mut settings.full_hierarchy_fairness);
        parameters.read("useSchedulingSignatures", &mut settings.config.use_signatures);
        let reclaim = &mut settings.config.allow_consolidating_reclaim;
        parameters.read("allowConsolidatingReclaim", reclaim);
        if let Some(preemptees) = parameters.take::<i64>("maxNumberConsolidationPreemptees") {
            let preemptees = (preemptees >= 0).then(|| u32::try_from(preemptees).unwrap_or(u32::MAX));
            settings.config.consolidation_preemptees_max = preemptees;
        }
        if let Some(nanos) = parameters.take::<i64>("globalDefaultStalenessGracePeriod") {
            settings.config.staleness_grace = (nanos >= 0).then_some(Millis(nanos / 1_000_000));
        }
        if let Some(nanos) = parameters.take::<i64>("stuckInReleasingThreshold") {
            settings.config.stuck_in_releasing = Millis(nanos / 1_000_000);
        }
        if let Some(partition) = parameters.take::<PartitionParameters>("partitionParams") {
            let PartitionParameters {
                node_pool_label_key: key,
                node_pool_label_value: value,
            } = partition;
            if !key.is_empty() {
                settings.partition = Partition::new(&key, &value);
            } else if !value.is_empty() {
                settings.partition = Partition::new(kai_api::keys::NODE_POOL, &value);
            }
        }
        let restricts = parameters.take::<bool>("restrictSchedulingNodes") == Some(true);
        parameters.read("scheduleCSIStorage", &mut settings.counts_storage);
        WITHOUT_EFFECT
            .iter()
            .for_each(|name| drop(parameters.values.remove(*name)));
        parameters.warn_of_the_rest();
        let mut extensions = Parameters::new("kai-rs", extensions, &mut settings.warnings);
        extensions.read("resourceReservationNamespace", &mut settings.reservation_pods.namespace);
        extensions.read("resourceReservationAppLabel", &mut settings.reservation_pods.app_label);
        extensions.read("migWorkerNodeLabelKey", &mut settings.mig_label);
        if let Some(mode) = extensions.take::<String>("gpuSharingMode") {
            match mode.parse() {
                Ok(mode) => settings.gpu_sharing = mode,
                Err(error) => extensions.warn("gpuSharingMode", &format!("{error} (the default is used)")),
            }
        }
        let (gpu, cpu) = (
            extensions.take("gpuWorkerNodeLabelKey"),
            extensions.take("cpuWorkerNodeLabelKey"),
        );
        settings.restrict_nodes = restricts.then(|| WorkerLabels {
            gpu: gpu.unwrap_or_else(|| WorkerLabels::default().gpu),
            cpu: cpu.unwrap_or_else(|| WorkerLabels::default().cpu),
        });
        Ok(settings)
    }
}

/// The parameters that were not read yet.
struct Parameters<'w> {
    section: &'static str,
    values: Map<String, Value>,
    warnings: &'w mut Vec<String>,
}

impl<'w> Parameters<'w> {
    fn new(section: &'static str, values: &Value, warnings: &'w mut Vec<String>) -> Parameters<'w> {
        let values = match values {
            Value::Object(values) => values.clone(),
            Value::Null => Map::new(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                warnings.push(format!(
                    "{section}: it has to be fields with values (the defaults are used)"
                ));
                Map::new()
            }
        };
        Parameters {
            section,
            values,
            warnings,
        }
    }

    /// A parameter that is given and has the expected type.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let value = self.values.remove(name).filter(|value| !value.is_null())?;
        match T::deserialize(value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.warn(name, &format!("{error} (the default is used)"));
                None
            }
        }
    }

    fn read<T: DeserializeOwned>(&mut self, name: &str, into: &mut T) {
        if let Some(value) = self.take(name) {
            *into = value;
        }
    }

    fn warn(&mut self, name: &str, problem: &str) {
        self.warnings.push(format!("{}.{name}: {problem}", self.section));
    }

    /// Newer versions of KAI have further parameters.
    fn warn_of_the_rest(&mut self) {
        for (name, value) in std::mem::take(&mut self.values) {
            if !value.is_null() {
                self.warn(&kai_yaml::shortened(&name, 60), "unknown here (it is ignored)");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kai_engine::model::{Action, PlacementStrategy};

    use super::*;

    fn round_trip(settings: &Settings) -> Settings {
        let extensions = settings.snapshot_extensions(Millis(0));
        let parameters = settings.snapshot_parameters();
        let read = Settings::of_snapshot(&settings.snapshot_config(), &parameters, &extensions).unwrap();
        let before = Settings::of_snapshot(&settings.config_file, &parameters, &extensions).unwrap();
        assert_eq!(read.warnings, before.warnings);
        assert_eq!(format!("{:?}", read.mirror()), format!("{:?}", before.mirror()));
        assert_eq!(read.config, before.config);
        read
    }

    #[test]
    fn settings_survive_a_snapshot() {
        let config = json!({
            "actions": "allocate, reclaim", "queueDepthPerAction": { "reclaim": 7 },
            "tiers": [{ "plugins": [
                { "name": "proportion", "arguments": { "kValue": "0.5" } },
                { "name": "nodeplacement", "arguments": { "gpu": "spread" } },
            ] }],
        });
        let mut settings = Settings::of_snapshot(&config, &Value::Null, &Value::Null).unwrap();
        assert_eq!(settings.config.actions, [Action::Allocate, Action::Reclaim]);
        assert_eq!(settings.config.queue_depth, [(Action::Reclaim, 7)]);
        assert_eq!(settings.config.placement.gpu, PlacementStrategy::Spread);
        assert_eq!(settings.config.usage_weight_millionths, 500_000);
        settings.scheduler_name = "other".to_owned();
        settings.partition = Partition::new("pool", "a100");
        settings.full_hierarchy_fairness = false;
        settings.mig_label = "mig".to_owned();
        settings.reservation_pods.namespace = "holders".to_owned();
        settings.reservation_pods.app_label = "holder".to_owned();
        settings.restrict_nodes = Some(WorkerLabels {
            gpu: "gpu".to_owned(),
            cpu: "cpu".to_owned(),
        });
        settings.config.staleness_grace = None;
        settings.config.stuck_in_releasing = Millis::seconds(7);
        settings.config.consolidation_preemptees_max = None;
        settings.config.use_signatures = !settings.config.use_signatures;
        settings.config.allow_consolidating_reclaim = !settings.config.allow_consolidating_reclaim;
        let read = round_trip(&settings);
        assert_eq!(read.config, settings.config);
        assert_eq!(format!("{:?}", read.mirror()), format!("{:?}", settings.mirror()));
        settings.config.staleness_grace = Some(Millis::seconds(3));
        settings.config.consolidation_preemptees_max = Some(3);
        assert_eq!(round_trip(&settings).config, settings.config);
    }

    #[test]
    fn the_configuration_names_what_a_file_leaves_out() {
        let defaults = Settings::default();
        assert_eq!(round_trip(&defaults).config, defaults.config);
        let written = defaults.snapshot_config();
        assert_eq!(
            written["actions"],
            "allocate, consolidation, reclaim, preempt, stalegangeviction"
        );
        let names = |config: &Value| -> Vec<String> {
            let plugins = config["tiers"][0]["plugins"].as_array().unwrap().iter();
            plugins
                .map(|plugin| plugin["name"].as_str().unwrap().to_owned())
                .collect()
        };
        for name in [
            "predicates",
            "proportion",
            "nodeplacement",
            "gpupack",
            "minruntime",
            "podaffinity",
        ] {
            assert!(names(&written).iter().any(|listed| listed == name), "{name}: {written}");
        }
        // What a file says stays; KAI reads arguments as strings.
        let config = json!({ "tiers": [{ "plugins": [{ "name": "proportion", "arguments": { "kValue": 0.5 } }] }] });
        let settings = Settings::of_snapshot(&config, &Value::Null, &Value::Null).unwrap();
        let written = settings.snapshot_config();
        assert_eq!(names(&written), ["proportion"]);
        assert_eq!(
            written["tiers"][0]["plugins"][0]["arguments"],
            json!({ "kValue": "0.5" })
        );
        assert_eq!(round_trip(&settings).config.usage_weight_millionths, 500_000);
    }

    #[test]
    fn the_parameters_are_those_that_the_tool_reads() {
        let parameters = Settings::default().snapshot_parameters();
        assert_eq!(parameters["schedulePeriod"], Duration::from_secs(1).as_nanos() as u64);
        assert_eq!(parameters["stuckInReleasingThreshold"], 120_000_000_000_i64);
        assert_eq!(
            parameters["partitionParams"]["NodePoolLabelKey"],
            "kai.scheduler/node-pool"
        );
        let read = Settings::of_snapshot(&Value::Null, &parameters, &Value::Null).unwrap();
        assert_eq!(read.warnings, [""; 0], "our own parameters are known");
    }

    #[test]
    fn parameters_that_have_no_effect_are_named() {
        let parameters = json!({
            "schedulerName": 7, "scheduleCSIStorage": true, "useSchedulingSignatures": null, "newSwitch": true,
            "detailedFitErrors": true, "globalDefaultStalenessGracePeriod": 1e300,
        });
        let settings = Settings::of_snapshot(&Value::Null, &parameters, &json!([])).unwrap();
        assert_eq!(settings.config, Settings::default().config);
        assert_eq!(
            settings.warnings,
            [
                "schedulerParams.schedulerName: invalid type: integer `7`, expected a string (the default is used)",
                "schedulerParams.globalDefaultStalenessGracePeriod: invalid type: floating point `1e+300`, expected i64 (the default is used)",
                "schedulerParams.newSwitch: unknown here (it is ignored)",
                "kai-rs: it has to be fields with values (the defaults are used)",
            ]
        );
    }

    #[test]
    fn an_unknown_action_is_an_error() {
        let told = Settings::of_snapshot(&json!({ "actions": "dance" }), &Value::Null, &Value::Null).unwrap_err();
        assert!(told.to_string().contains("\"dance\" is not an action"), "{told}");
    }
}
