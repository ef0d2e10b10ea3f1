//! The GPU memory of a node, from its label.

/// A label with this value or more is in bytes: GPU feature discovery once wrote bytes by mistake.
const BYTES_FROM: i64 = 1 << 20;
/// MiB are rounded down to a multiple of this, so that GPUs of almost equal memory count as equal.
const STEP_MIB: i64 = 100;

/// MiB per GPU from the label's value, with bytes corrected. `None` if the value is no amount above 0.
pub fn gpu_memory_mib(label: &str) -> Option<i64> {
    let value: i64 = label.parse().ok()?;
    let mib = if value >= BYTES_FROM { value >> 20 } else { value };
    (mib > 0).then_some(mib)
}

/// MiB per GPU from the label's value, with bytes corrected and rounded down to hundreds. `None` if the value is invalid or rounds to 0.
pub fn normalise_gpu_memory_mib(label: &str) -> Option<i64> {
    let mib = gpu_memory_mib(label)?;
    let mib = mib - mib.rem_euclid(STEP_MIB);
    (mib > 0).then_some(mib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        for (label, mib) in [
            ("100", Some(100)),
            ("81559", Some(81500)),
            ("40960", Some(40900)),
            ("85899345920", Some(81900)),
            ("1048576", None),
            ("99", None),
            ("0", None),
            ("-4096", None),
            ("80Gi", None),
            ("", None),
        ] {
            assert_eq!(normalise_gpu_memory_mib(label), mib, "{label}");
        }
    }
}
