//! The text of errors in the annotations of a GPU share.

use std::fmt;

use crate::reasons::GpuShareError;

impl fmt::Display for GpuShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuShareError::NotMemory(text) => write!(
                f,
                "{text:?} is not an amount of GPU memory; write a quantity of at least 1Mi, as in 8Gi"
            ),
            GpuShareError::NoUnit(text) => {
                write!(f, "{text:?} has no unit; write one, as in 8Gi or 8192Mi")
            }
            GpuShareError::NotAPortion(text) => write!(
                f,
                "{text:?} is not a limit of a GPU share; write a decimal above 0 and below 1 with at most 5 digits after the point, as \
                 in 0.75"
            ),
            GpuShareError::LimitNotAbove { limit, request } => write!(
                f,
                "the limit {limit:?} is not above the request {request:?}; raise it, or remove it: without a limit the request is the limit"
            ),
            GpuShareError::LimitBelow { limit, request } => write!(
                f,
                "the limit {limit:?} is below the request {request:?}; raise it, or remove it: without a limit the request is the limit"
            ),
            GpuShareError::PortionWithoutFraction => f.write_str(
                "it limits a part of a GPU and needs gpu-fraction beside it; add gpu-fraction, or write gpu-memory.limit",
            ),
            GpuShareError::MemoryLimitOfFraction => {
                f.write_str("it can't limit a fraction; write gpu-fraction.limit, or ask by gpu-memory")
            }
            GpuShareError::Differs { from, value } => write!(
                f,
                "it says another amount than the annotation {from}, which is {value:?}; keep one of them"
            ),
            GpuShareError::Beside { other, instead } => write!(
                f,
                "it can't be combined with the annotation {other}; remove it, or write {instead}"
            ),
            GpuShareError::WithoutShare => {
                f.write_str("it is for pods that share a GPU; remove it, or add gpu-fraction or gpu-memory")
            }
            GpuShareError::UnknownKey => f.write_str(
                "nothing reads this key; known for CONTAINER are nvidia.com/container.CONTAINER.gpu-memory.request, .gpu-memory.limit and \
                 .gpu-compute.mode, and kai.scheduler/container.CONTAINER.gpu-memory.portion.limit",
            ),
            GpuShareError::OtherContainer { container, share } => write!(
                f,
                "it names container {container:?}, but the GPU share is for container {share:?}, and a pod has one; name the same \
                 container in all annotations"
            ),
        }
    }
}
