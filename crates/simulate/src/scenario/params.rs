//! Scheduler parameters of a case, by KAI's names.

use std::collections::BTreeMap;

use kai_api::{GpuSharingMode, Text, TextMap, parse_duration};
use kai_engine::model::{
    Action, Config, GpuJobOrder, Millis, MinRuntimeResolve, PlacementStrategies, PlacementStrategy, Usage,
};
use kai_mirror::MirrorSettings;
use kai_yaml::suggestion;
use serde::Deserialize;
use serde_json::Value;

use super::Warnings;
use super::parse::{Fields, typed};

/// `params` of a case, untyped, so that a message can name each wrong one.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Params(Option<BTreeMap<String, Value>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlacement {
    gpu: Option<Text>,
    cpu: Option<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawUsage {
    cpu: f64,
    memory: f64,
    gpu: f64,
}

impl Params {
    /// Applies the parameters to the configuration. An invalid value is a warning and keeps the default. An unknown name is an error with
    /// the name and the problem.
    pub(super) fn apply(
        &self,
        config: &mut Config,
        mirror: &mut MirrorSettings,
        usage: &mut Vec<Usage>,
        warnings: &mut Warnings,
    ) -> Result<(), (String, String)> {
        for (name, value) in self.0.iter().flatten() {
            match set(config, mirror, usage, name, value) {
                Ok(()) => {}
                Err(Wrong::Value(problem)) => {
                    warnings.push(format!("case: params.{name}: {problem} (the default is used)"));
                }
                Err(Wrong::Name) => {
                    let problem = format!("there is no such parameter{}", suggestion(name, NAMES.into_iter()));
                    return Err((name.clone(), problem));
                }
            }
        }
        Ok(())
    }
}

/// The problem of a parameter.
enum Wrong {
    Name,
    Value(String),
}

impl From<String> for Wrong {
    fn from(problem: String) -> Wrong {
        Wrong::Value(problem)
    }
}

/// The names of all parameters.
const NAMES: [&str; 15] = [
    "useSchedulingSignatures",
    "allowConsolidatingReclaim",
    "maxNumberConsolidationPreemptees",
    "defaultStalenessGracePeriod",
    "stuckInReleasingThreshold",
    "defaultPreemptMinRuntime",
    "defaultReclaimMinRuntime",
    "reclaimResolveMethod",
    "placementStrategy",
    "gpuJobOrder",
    "gpuSharingMode",
    "kValue",
    "reclaimerSaturationMultiplier",
    "queueDepthPerAction",
    "queueUsage",
];

fn set(
    config: &mut Config,
    mirror: &mut MirrorSettings,
    usage: &mut Vec<Usage>,
    name: &str,
    value: &Value,
) -> Result<(), Wrong> {
    match name {
        "useSchedulingSignatures" => config.use_signatures = read(value)?,
        "allowConsolidatingReclaim" => config.allow_consolidating_reclaim = read(value)?,
        "maxNumberConsolidationPreemptees" => {
            let preemptees: i64 = read(value)?;
            config.consolidation_preemptees_max =
                (preemptees >= 0).then(|| u32::try_from(preemptees).unwrap_or(u32::MAX));
        }
        "defaultStalenessGracePeriod" => {
            let grace = duration(value)?;
            config.staleness_grace = (grace.0 >= 0).then_some(grace);
        }
        "stuckInReleasingThreshold" => config.stuck_in_releasing = duration(value)?,
        "defaultPreemptMinRuntime" => config.preempt_min_runtime = duration(value)?.max(Millis(0)),
        "defaultReclaimMinRuntime" => config.reclaim_min_runtime = duration(value)?.max(Millis(0)),
        "reclaimResolveMethod" => {
            config.reclaim_min_runtime_resolve = match read::<Text>(value)?.as_ref() {
                "lca" => MinRuntimeResolve::LowestCommonAncestor,
                "queue" => MinRuntimeResolve::Queue,
                other => return Err(format!("{other:?} is unknown; known are lca and queue").into()),
            };
        }
        "placementStrategy" => config.placement = placement(config.placement, value)?,
        "gpuJobOrder" => {
            config.gpu_job_order = match read::<Text>(value)?.as_ref() {
                "prefer-larger" => Some(GpuJobOrder::PreferLarger),
                "prefer-smaller" => Some(GpuJobOrder::PreferSmaller),
                other => {
                    return Err(format!("{other:?} is unknown; known are prefer-larger and prefer-smaller").into());
                }
            };
        }
        "gpuSharingMode" => {
            let mode = read::<Text>(value)?.parse::<GpuSharingMode>();
            mirror.gpu_sharing = mode.map_err(|error| error.to_string())?;
        }
        "kValue" => config.usage_weight_millionths = millionths(read(value)?)?,
        // KAI reads the first spelling, which has a typo; the second one is the intended name.
        "relcaimerSaturationMultiplier" | "reclaimerSaturationMultiplier" => {
            config.saturation_multiplier_millionths = millionths(read(value)?)?.max(1_000_000);
        }
        "queueDepthPerAction" => config.queue_depth = queue_depth(value)?,
        "queueUsage" => *usage = queue_usage(value)?,
        _ => return Err(Wrong::Name),
    }
    Ok(())
}

fn read<'v, T: Deserialize<'v>>(value: &'v Value) -> Result<T, String> {
    typed(value).map_err(|(_, problem)| problem)
}

fn duration(value: &Value) -> Result<Millis, String> {
    parse_duration(&read::<Text>(value)?).map_err(|error| error.to_string())
}

/// A number in millionths. As in KAI, a negative number counts as zero.
fn millionths(value: f64) -> Result<i64, String> {
    if !value.is_finite() || value > 1e6 {
        return Err(format!("{value} is not a usable number; write one from 0 to 1000000"));
    }
    Ok((value.max(0.0) * 1e6).round() as i64)
}

/// A placement strategy by its name.
pub(super) fn strategy(name: &str) -> Result<PlacementStrategy, String> {
    PlacementStrategy::by_name(name)
        .ok_or_else(|| format!("{name:?} is unknown; known are {}", PlacementStrategy::NAMES))
}

fn placement(before: PlacementStrategies, value: &Value) -> Result<PlacementStrategies, String> {
    if let Value::String(name) = value {
        let strategy = strategy(name)?;
        return Ok(PlacementStrategies {
            gpu: strategy,
            cpu: strategy,
        });
    }
    let Fields(RawPlacement { gpu, cpu }) = read(value)?;
    Ok(PlacementStrategies {
        gpu: gpu.map_or(Ok(before.gpu), |name| strategy(&name))?,
        cpu: cpu.map_or(Ok(before.cpu), |name| strategy(&name))?,
    })
}

fn queue_depth(value: &Value) -> Result<Vec<(Action, u32)>, String> {
    let mut depths = Vec::new();
    for (name, depth) in read::<TextMap<u32>>(value)?.iter() {
        let action = Action::by_name(name).ok_or_else(|| format!("{name:?} is not an action"))?;
        depths.push((action, *depth));
    }
    depths.sort();
    Ok(depths)
}

fn queue_usage(value: &Value) -> Result<Vec<Usage>, String> {
    let billionths = |share: f64| {
        let valid = (0.0..=1e3).contains(&share);
        valid
            .then(|| (share * 1e9).round() as i64)
            .ok_or_else(|| format!("{share} is not a share; write one from 0 to 1"))
    };
    let mut all = Vec::new();
    for (queue, Fields(raw)) in read::<TextMap<Fields<RawUsage>>>(value)?.iter() {
        all.push(Usage {
            queue: queue.to_owned(),
            cpu_billionths: billionths(raw.cpu)?,
            memory_billionths: billionths(raw.memory)?,
            gpu_billionths: billionths(raw.gpu)?,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(params: &str) -> (Config, Vec<String>) {
        let params: Params = serde_json::from_str(params).unwrap();
        let (mut config, mut usage, mut warnings) = (Config::default(), Vec::new(), Warnings::default());
        let mut mirror = MirrorSettings::default();
        params
            .apply(&mut config, &mut mirror, &mut usage, &mut warnings)
            .unwrap();
        (config, warnings.lines().collect())
    }

    #[test]
    fn known_parameters() {
        let (config, warnings) = apply(
            r#"{"useSchedulingSignatures":false,"allowConsolidatingReclaim":false,"maxNumberConsolidationPreemptees":-1,
                "defaultStalenessGracePeriod":"-1s","kValue":0.5,"placementStrategy":{"gpu":"spread"},
                "queueDepthPerAction":{"reclaim":5},"defaultPreemptMinRuntime":"5m","reclaimResolveMethod":"queue"}"#,
        );
        assert_eq!(warnings, Vec::<String>::new());
        assert!(!config.use_signatures && !config.allow_consolidating_reclaim);
        assert_eq!(
            (config.consolidation_preemptees_max, config.staleness_grace),
            (None, None)
        );
        assert_eq!(config.usage_weight_millionths, 500_000);
        assert_eq!(
            config.placement,
            PlacementStrategies {
                gpu: PlacementStrategy::Spread,
                cpu: PlacementStrategy::Binpack
            }
        );
        assert_eq!(config.queue_depth, [(Action::Reclaim, 5)]);
        assert_eq!(config.preempt_min_runtime, Millis::seconds(300));
    }

    #[test]
    fn wrong_parameters_are_named() {
        let (config, warnings) = apply(r#"{"kValue":"much","defaultStalenessGracePeriod":"soon"}"#);
        assert_eq!(config, Config::default());
        assert_eq!(
            warnings,
            [
                "case: params.defaultStalenessGracePeriod: \"soon\" is not a duration; write it as in 90s, 5m or 1h30m (the \
                 default is used)",
                "case: params.kValue: invalid type: string \"much\", expected a number (the default is used)",
            ]
        );
    }

    #[test]
    fn an_unknown_parameter_is_an_error_with_the_nearest_one() {
        let params: Params = serde_json::from_str(r#"{"kvalue":1}"#).unwrap();
        let applied = params.apply(
            &mut Config::default(),
            &mut MirrorSettings::default(),
            &mut Vec::new(),
            &mut Warnings::default(),
        );
        let problem = "there is no such parameter; did you mean kValue?".to_owned();
        assert_eq!(applied, Err(("kvalue".to_owned(), problem)));
        for name in NAMES {
            let known = set(
                &mut Config::default(),
                &mut MirrorSettings::default(),
                &mut Vec::new(),
                name,
                &Value::Null,
            );
            assert!(!matches!(known, Err(Wrong::Name)), "{name}");
        }
    }
}
