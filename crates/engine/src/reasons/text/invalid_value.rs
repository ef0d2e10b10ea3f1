//! The text of invalid values: what is wrong, and what to write instead. Webhooks, events and conditions show the same text.

use std::fmt;

use crate::reasons::{GpuConflict, InvalidValue, Problem};

impl std::error::Error for InvalidValue {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {} ({})", self.object, self.field, self.error, self.effect)
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = |f: &mut fmt::Formatter<'_>, text: &str, rest: &str| write!(f, "{text:?} is {rest}");
        match self {
            InvalidValue::NotAQuantity(text) => {
                let rest = "not a quantity; write a number with an optional suffix, as in 500m, 4 or 16Gi";
                written(f, text, rest)
            }
            InvalidValue::Negative(text) => written(f, text, "negative; write an amount of zero or more"),
            InvalidValue::TooLarge { text, max } => write!(
                f,
                "{text:?} is more than any machine has (at most {max}); write the real amount"
            ),
            InvalidValue::PartOfDevice(text) => {
                let rest = "not a whole number; for a part of a GPU use the annotation gpu-fraction or gpu-memory";
                written(f, text, rest)
            }
            InvalidValue::NotAFraction(text) => {
                let rest = "not a fraction of a GPU; write a decimal above 0 and at most 1, as in 0.5";
                written(f, text, rest)
            }
            InvalidValue::FractionAboveOne(text) => {
                let rest =
                    "more than one GPU; for whole GPUs use the resource nvidia.com/gpu, for a part a decimal up to 1";
                written(f, text, rest)
            }
            InvalidValue::NotGpuMemory(text) => {
                let rest = "not an amount of GPU memory; write MiB as a whole number above 0, as in 4096";
                written(f, text, rest)
            }
            InvalidValue::NotADeviceCount { text, max } => write!(
                f,
                "{text:?} is not a number of GPUs; write a whole number from 1 to {max}"
            ),
            InvalidValue::DevicesWithoutShare => {
                f.write_str("it needs gpu-fraction or gpu-memory beside it; add one of them or remove it")
            }
            InvalidValue::Conflict(other) => {
                write!(f, "it can't be combined with {}; keep one of them", other.text())
            }
            InvalidValue::GpuShare(error) => error.fmt(f),
            InvalidValue::NotATime(text) => written(f, text, "not a time; write it as in 2026-01-31T12:00:00Z"),
            InvalidValue::NotADuration(text) => written(f, text, "not a duration; write it as in 90s, 5m or 1h30m"),
            InvalidValue::NotAnInteger(text) => written(f, text, "not a whole number; write one, as in 3"),
            InvalidValue::NegativeDuration(text) => {
                written(f, text, "negative; write a duration of zero or more, as in 5m")
            }
            InvalidValue::NotAQueueAmount(number) => write!(
                f,
                "{number} is no amount; write -1 for unlimited, or a number of zero or more"
            ),
            InvalidValue::NotAWeight(number) => write!(f, "{number} is no weight; write a number of zero or more"),
            InvalidValue::NoPriorityClass(name) => {
                write!(f, "there is no priority class {name:?}; create it, or name one that exists")
            }
            InvalidValue::LevelWithoutTopology => {
                f.write_str("a level is named without a topology; name the topology beside it")
            }
            InvalidValue::TopologyWithoutLevel => {
                f.write_str("a topology is named without a level; name a required or a preferred level beside it")
            }
            InvalidValue::TooFewSubGroups {
                sub_group,
                wanted,
                children,
            } => write_too_few_sub_groups(f, sub_group.as_deref(), *wanted, *children),
            InvalidValue::Unknown { text, known } => write!(f, "{text:?} is unknown; known are {known}"),
            InvalidValue::TooMany { count, max } => write!(
                f,
                "{count} entries are more than the {max} that are scheduled; leave some out"
            ),
            InvalidValue::Missing => f.write_str("it is missing or empty; give it a value"),
            InvalidValue::ResourceClaims => f.write_str(
                "devices through resource claims are not supported; ask for nvidia.com/gpu or use the annotation gpu-fraction",
            ),
            InvalidValue::NamespaceSelector => f.write_str(
                "namespaces can't be selected by their labels here; list them in namespaces, or use {} for all of them",
            ),
        }
    }
}

/// KAI writes the first half of this text, and scripts search for it.
fn write_too_few_sub_groups(
    f: &mut fmt::Formatter<'_>,
    sub_group: Option<&str>,
    wanted: u32,
    children: usize,
) -> fmt::Result {
    if let Some(name) = sub_group {
        write!(f, "subgroup {name:?}: ")?;
    }
    write!(
        f,
        "minSubGroup ({wanted}) exceeds the number of direct child SubGroups ({children}); add subgroups, or lower it"
    )
}

impl GpuConflict {
    fn text(self) -> &'static str {
        match self {
            GpuConflict::WholeGpus => "whole GPUs in the containers' resources",
            GpuConflict::WholeGpusOfPod => "whole GPUs in the same pod",
            GpuConflict::GpuFraction => "the annotation gpu-fraction",
            GpuConflict::MigSlices => "MIG slices in the containers' resources",
        }
    }
}
