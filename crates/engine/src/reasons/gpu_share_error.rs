//! Errors of the annotations that ask for a part of a GPU with a limit, as data.

/// What is wrong with one of the annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuShareError {
    /// Not an amount of GPU memory of at least one MiB.
    NotMemory(String),
    /// An amount of GPU memory without a unit: bytes or MiB can be meant.
    NoUnit(String),
    /// Not a limit as a part of a GPU.
    NotAPortion(String),
    /// A limit as a part of a GPU that is not above the request.
    LimitNotAbove {
        /// The limit as written.
        limit: String,
        /// The request.
        request: String,
    },
    /// A limit in memory below the request.
    LimitBelow {
        /// The limit as written.
        limit: String,
        /// The request.
        request: String,
    },
    /// A limit as a part of a GPU beside a request in memory.
    PortionWithoutFraction,
    /// A limit in memory beside a fraction.
    MemoryLimitOfFraction,
    /// The annotation of a container says another amount than the annotation of the pod.
    Differs {
        /// The annotation of the pod.
        from: &'static str,
        /// Its value.
        value: String,
    },
    /// The annotation of a container beside an annotation of the pod that excludes it.
    Beside {
        /// The annotation of the pod.
        other: &'static str,
        /// The annotation to write instead.
        instead: &'static str,
    },
    /// A setting of a GPU share without a GPU share.
    WithoutShare,
    /// A key with the prefix of annotations for one container, which nothing reads.
    UnknownKey,
    /// Annotations name several containers, and one container of a pod can get the GPU share.
    OtherContainer {
        /// The container in this annotation.
        container: String,
        /// The container with the GPU share.
        share: String,
    },
}
