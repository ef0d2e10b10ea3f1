//! Errors of objects, with the messages that users see. Every message names the remedy.

use std::fmt;

/// An invalid value. Every message says what is wrong and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a quantity.
    #[error("{0:?} is not a quantity; write a number with an optional suffix, as in 500m, 4 or 16Gi")]
    NotAQuantity(String),
    /// A negative amount.
    #[error("{0:?} is negative; write an amount of zero or more")]
    Negative(String),
    /// An amount above the bound.
    #[error("{text:?} is more than any machine has (at most {max}); write the real amount")]
    TooLarge {
        /// The value as written.
        text: String,
        /// The bound.
        max: i64,
    },
    /// A fraction of a resource that only has whole units.
    #[error("{0:?} is not a whole number; for a part of a GPU use the annotation gpu-fraction or gpu-memory")]
    PartOfDevice(String),
    /// Not a fraction of a GPU.
    #[error("{0:?} is not a fraction of a GPU; write a decimal above 0 and at most 1, as in 0.5")]
    NotAFraction(String),
    /// A fraction above one.
    #[error("{0:?} is more than one GPU; for whole GPUs use the resource nvidia.com/gpu, for a part a decimal up to 1")]
    FractionAboveOne(String),
    /// Not an amount of GPU memory in MiB.
    #[error("{0:?} is not an amount of GPU memory; write MiB as a whole number above 0, as in 4096")]
    NotGpuMemory(String),
    /// Not a number of devices.
    #[error("{0:?} is not a number of GPUs; write a whole number from 1 to {max}", max = crate::gpu_request::DEVICES_MAX)]
    NotADeviceCount(String),
    /// A number of devices without a fraction or memory.
    #[error("it needs gpu-fraction or gpu-memory beside it; add one of them or remove it")]
    DevicesWithoutShare,
    /// Two GPU requests that exclude each other.
    #[error("it can't be combined with {0}; keep one of them")]
    Conflict(&'static str),
    /// Not a time.
    #[error("{0:?} is not a time; write it as in 2026-01-31T12:00:00Z")]
    NotATime(String),
    /// Not a duration.
    #[error("{0:?} is not a duration; write it as in 90s, 5m or 1h30m")]
    NotADuration(String),
    /// Not an integer.
    #[error("{0:?} is not a whole number; write one, as in 3")]
    NotAnInteger(String),
    /// A negative duration.
    #[error("{0:?} is negative; write a duration of zero or more, as in 5m")]
    NegativeDuration(String),
    /// An invalid amount of a queue.
    #[error("{0} is no amount; write -1 for unlimited, or a number of zero or more")]
    NotAQueueAmount(String),
    /// An invalid weight.
    #[error("{0} is no weight; write a number of zero or more")]
    NotAWeight(String),
    /// A priority class that does not exist.
    #[error("there is no priority class {0:?}; create it, or name one that exists")]
    NoPriorityClass(String),
    /// A topology level without a topology.
    #[error("a level is named without a topology; name the topology beside it")]
    LevelWithoutTopology,
    /// A topology without a level.
    #[error("a topology is named without a level; name a required or a preferred level beside it")]
    TopologyWithoutLevel,
    /// A minimum of subgroups above their number. KAI writes the first half of this text, and scripts search for it.
    #[error(
        "{}minSubGroup ({wanted}) exceeds the number of direct child SubGroups ({children}); add subgroups, or lower it",
        .sub_group.as_ref().map(|name| format!("subgroup {name:?}: ")).unwrap_or_default()
    )]
    TooFewSubGroups {
        /// The parent; `None` for the pod group itself.
        sub_group: Option<String>,
        /// The minimum.
        wanted: u32,
        /// The number of subgroups of the parent.
        children: usize,
    },
    /// A value outside a closed list.
    #[error("{text:?} is unknown; known are {known}")]
    Unknown {
        /// The value as written.
        text: String,
        /// The known values.
        known: &'static str,
    },
    /// A list above the bound.
    #[error("{count} entries are more than the {max} that are scheduled; leave some out")]
    TooMany {
        /// The number of entries.
        count: usize,
        /// The bound.
        max: usize,
    },
    /// A required field without a value.
    #[error("it is missing or empty; give it a value")]
    Missing,
    /// A feature that this scheduler does not support.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// An error at a field of an object. Displayed as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind and name, as in `Pod team-a/train-0`.
    pub object: String,
    /// Path of the field within the object.
    pub field: String,
    /// The error, with the remedy.
    pub error: Error,
    /// The consequence for the object.
    pub effect: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {} ({})", self.object, self.field, self.error, self.effect)
    }
}

/// An error and its field, without the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) error: Error,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, error: Error) -> FieldError {
        FieldError {
            field: field.into(),
            error,
        }
    }

    pub(crate) fn of(self, object: String, effect: &'static str) -> Problem {
        Problem {
            object,
            field: self.field,
            error: self.error,
            effect,
        }
    }
}
