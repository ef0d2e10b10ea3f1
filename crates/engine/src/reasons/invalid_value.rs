//! Invalid values in the fields of objects, as data. `kai_api` finds them.

use super::GpuShareError;

/// An invalid value. The text says what is wrong and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidValue {
    /// Not a quantity.
    NotAQuantity(String),
    /// A negative amount.
    Negative(String),
    /// An amount above the bound.
    TooLarge {
        /// The value as written.
        text: String,
        /// The bound.
        max: i64,
    },
    /// A fraction of a resource that only has whole units.
    PartOfDevice(String),
    /// Not a fraction of a GPU.
    NotAFraction(String),
    /// A fraction above one.
    FractionAboveOne(String),
    /// Not an amount of GPU memory in MiB.
    NotGpuMemory(String),
    /// Not a number of devices.
    NotADeviceCount {
        /// The value as written.
        text: String,
        /// The bound.
        max: i64,
    },
    /// A number of devices without a fraction or memory.
    DevicesWithoutShare,
    /// Two GPU requests that exclude each other.
    Conflict(GpuConflict),
    /// An annotation of a GPU share with a limit.
    GpuShare(GpuShareError),
    /// Not a time.
    NotATime(String),
    /// Not a duration.
    NotADuration(String),
    /// Not an integer.
    NotAnInteger(String),
    /// A negative duration.
    NegativeDuration(String),
    /// An invalid amount of a queue.
    NotAQueueAmount(String),
    /// An invalid weight.
    NotAWeight(String),
    /// A priority class that does not exist.
    NoPriorityClass(String),
    /// A topology level without a topology.
    LevelWithoutTopology,
    /// A topology without a level.
    TopologyWithoutLevel,
    /// A minimum of subgroups above their number.
    TooFewSubGroups {
        /// The parent; `None` for the pod group itself.
        sub_group: Option<String>,
        /// The minimum.
        wanted: u32,
        /// The number of subgroups of the parent.
        children: usize,
    },
    /// A value outside a closed list.
    Unknown {
        /// The value as written.
        text: String,
        /// The known values.
        known: &'static str,
    },
    /// A list above the bound.
    TooMany {
        /// The number of entries.
        count: usize,
        /// The bound.
        max: usize,
    },
    /// A required field without a value.
    Missing,
    /// Devices through resource claims, which this scheduler does not support.
    ResourceClaims,
    /// Namespaces of an affinity term by their labels, which this scheduler does not support.
    NamespaceSelector,
}

/// The GPU request that excludes the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuConflict {
    /// Whole GPUs beside the annotation of a GPU share.
    WholeGpus,
    /// Whole GPUs beside MIG slices.
    WholeGpusOfPod,
    /// The annotation `gpu-fraction` beside `gpu-memory`.
    GpuFraction,
    /// MIG slices beside the annotation of a GPU share.
    MigSlices,
}

/// An error at a field of an object. Displayed as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind and name, as in `Pod team-a/train-0`.
    pub object: String,
    /// Path of the field within the object.
    pub field: String,
    /// The error, with the remedy.
    pub error: InvalidValue,
    /// The consequence for the object.
    pub effect: &'static str,
}
