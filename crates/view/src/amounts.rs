//! Numbers of GPUs in JSON.

use std::fmt;

use kai_engine::model::Gpus;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MILLIONTHS: i64 = 1_000_000;

/// A number of GPUs, whole or in part. In JSON a number such as `1.5`, exact to a millionth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuAmount {
    /// Millionths of a GPU.
    pub millionths: i64,
}

impl From<Gpus> for GpuAmount {
    fn from(gpus: Gpus) -> GpuAmount {
        GpuAmount { millionths: gpus.0 }
    }
}

impl fmt::Display for GpuAmount {
    /// Whole numbers without a point, others with as few digits as are exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.millionths < 0 { "-" } else { "" };
        let amount = self.millionths.unsigned_abs();
        let (whole, rest) = (amount / MILLIONTHS.unsigned_abs(), amount % MILLIONTHS.unsigned_abs());
        if rest == 0 {
            return write!(f, "{sign}{whole}");
        }
        let digits = format!("{rest:06}");
        write!(f, "{sign}{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl Serialize for GpuAmount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.millionths % MILLIONTHS {
            0 => serializer.serialize_i64(self.millionths / MILLIONTHS),
            _ => serializer.serialize_f64(self.millionths as f64 / MILLIONTHS as f64),
        }
    }
}

impl<'de> Deserialize<'de> for GpuAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GpuAmount, D::Error> {
        let number = f64::deserialize(deserializer)?;
        // A float to integer conversion saturates.
        let millionths = (number * MILLIONTHS as f64).round() as i64;
        Ok(GpuAmount { millionths })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_exact() {
        let check = |millionths: i64, text: &str, json: &str| {
            let amount = GpuAmount { millionths };
            assert_eq!(amount.to_string(), text);
            assert_eq!(serde_json::to_string(&amount).unwrap(), json);
            assert_eq!(serde_json::from_str::<GpuAmount>(json).unwrap(), amount);
        };
        check(0, "0", "0");
        check(8_000_000, "8", "8");
        check(1_500_000, "1.5", "1.5");
        check(330_000, "0.33", "0.33");
        check(-1_250_000, "-1.25", "-1.25");
        check(1, "0.000001", "1e-6");
    }
}
