//! The limits of one container, as the hook's arguments carry them: `GPU-…=<hard bytes>[:<soft bytes>]`. The hook reads them from nowhere
//! else, because only root writes the CDI spec that contains them.

use std::fmt;
use std::str::FromStr;

use kai_gpu::MemoryLimits;
use serde::{Deserialize, Serialize};

/// In place of a number of bytes: no limit.
const NO_LIMIT: &str = "max";

/// The memory limits of a container on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuLimit {
    /// UUID of the GPU.
    pub gpu: String,
    /// The most bytes that the container may allocate; `None` for no limit.
    pub hard_bytes: Option<u64>,
    /// Bytes that a multi-process server guarantees to the container.
    #[serde(default)]
    pub soft_bytes: u64,
}

impl GpuLimit {
    /// A limit without a guaranteed part. A soft limit is added to every ancestor of the cgroup and stays there when the cgroup is removed,
    /// so the agent sets none.
    pub fn hard(gpu: &str, bytes: u64) -> Self {
        Self {
            gpu: gpu.to_owned(),
            hard_bytes: Some(bytes),
            soft_bytes: 0,
        }
    }

    /// No limit on this GPU.
    pub fn none(gpu: &str) -> Self {
        Self {
            gpu: gpu.to_owned(),
            hard_bytes: None,
            soft_bytes: 0,
        }
    }

    /// The numbers, as the driver takes them.
    pub fn memory_limits(&self) -> MemoryLimits {
        MemoryLimits {
            soft_bytes: self.soft_bytes,
            hard_bytes: self.hard_bytes,
        }
    }
}

/// The hook's argument.
impl fmt::Display for GpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.gpu)?;
        match self.hard_bytes {
            Some(bytes) => write!(f, "{bytes}")?,
            None => f.write_str(NO_LIMIT)?,
        }
        match self.soft_bytes {
            0 => Ok(()),
            bytes => write!(f, ":{bytes}"),
        }
    }
}

impl FromStr for GpuLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |problem: &str| format!("{text:?} is not <GPU UUID>=<hard bytes, or {NO_LIMIT}>[:<soft bytes>]: {problem}");
        let (gpu, numbers) = text.split_once('=').ok_or_else(|| wrong("it has no ="))?;
        if gpu.is_empty() {
            return Err(wrong("the UUID is empty"));
        }
        let (hard, soft) = numbers.split_once(':').unwrap_or((numbers, "0"));
        let bytes = |number: &str| number.parse::<u64>().map_err(|_| wrong("a number of bytes is wrong"));
        let hard_bytes = match hard {
            NO_LIMIT => None,
            number => Some(bytes(number)?),
        };
        let soft_bytes = bytes(soft)?;
        if hard_bytes.is_some_and(|hard| soft_bytes > hard) {
            return Err(wrong("the soft limit is above the hard limit"));
        }
        Ok(Self {
            gpu: gpu.to_owned(),
            hard_bytes,
            soft_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_as_they_are_written() {
        for text in ["GPU-1=1048576", "GPU-1=1048576:4096", "GPU-1=max", "MIG-GPU-1/2/0=0"] {
            assert_eq!(text.parse::<GpuLimit>().unwrap().to_string(), text);
        }
        assert_eq!("GPU-1=8:0".parse(), Ok(GpuLimit::hard("GPU-1", 8)));
        assert_eq!("GPU-1=max".parse(), Ok(GpuLimit::none("GPU-1")));
    }

    #[test]
    fn wrong_arguments_are_refused_with_the_argument() {
        for (text, problem) in [
            ("GPU-1", "it has no ="),
            ("=1", "the UUID is empty"),
            ("GPU-1=", "a number of bytes is wrong"),
            ("GPU-1=-1", "a number of bytes is wrong"),
            ("GPU-1=1:max", "a number of bytes is wrong"),
            ("GPU-1=1:2", "the soft limit is above the hard limit"),
            ("GPU-1=99999999999999999999", "a number of bytes is wrong"),
        ] {
            let error = text.parse::<GpuLimit>().unwrap_err();
            assert!(
                error.contains(problem) && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
    }
}
