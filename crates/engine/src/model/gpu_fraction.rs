//! A part of one GPU, along its whole way: from the annotation `gpu-fraction` over requests, charges and BindRequests to the container.

use std::fmt;

/// A part of one GPU, from nothing to the whole, exact to a billionth.
///
/// `kai_api` parses it from text. Its [`Display`](fmt::Display) is the decimal of BindRequests and of the environment variable
/// `GPU_PORTION`: two digits after the point as in KAI, and more only where the value has more.
///
/// ```
/// use kai_engine::model::GpuFraction;
///
/// let third = GpuFraction::from_billionths(333_333_333);
/// assert_eq!(third.nearest_hundredths(), 33);
/// assert_eq!(third.of_mib(40_000), 13_333);
/// assert_eq!(GpuFraction::from_hundredths(50).to_string(), "0.50");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuFraction {
    /// 0 to [`BILLIONTHS`].
    billionths: i64,
}

const BILLIONTHS: i64 = 1_000_000_000;
const BILLIONTHS_PER_HUNDREDTH: i64 = BILLIONTHS / 100;

impl GpuFraction {
    /// Nothing.
    pub const ZERO: GpuFraction = GpuFraction { billionths: 0 };
    /// The whole GPU.
    pub const WHOLE: GpuFraction = GpuFraction { billionths: BILLIONTHS };

    /// `billionths` / 1,000,000,000; less than nothing is nothing, and more than the whole is the whole.
    pub const fn from_billionths(billionths: i64) -> GpuFraction {
        match billionths {
            ..0 => GpuFraction::ZERO,
            0..=BILLIONTHS => GpuFraction { billionths },
            _ => GpuFraction::WHOLE,
        }
    }

    /// `hundredths` / 100, within the same bounds.
    pub const fn from_hundredths(hundredths: i64) -> GpuFraction {
        GpuFraction::from_billionths(hundredths.saturating_mul(BILLIONTHS_PER_HUNDREDTH))
    }

    /// In billionths.
    pub const fn billionths(self) -> i64 {
        self.billionths
    }

    /// In hundredths, rounded to the nearest: the amount that queues are charged.
    pub const fn nearest_hundredths(self) -> i64 {
        (self.billionths + BILLIONTHS_PER_HUNDREDTH / 2) / BILLIONTHS_PER_HUNDREDTH
    }

    /// In whole percent, rounded down.
    pub const fn percent(self) -> i64 {
        self.billionths / BILLIONTHS_PER_HUNDREDTH
    }

    /// MiB of a GPU with this memory, rounded down.
    pub fn of_mib(self, memory_mib: i64) -> i64 {
        // Placement divides for every node and pod, and a division of 128 bits is slow.
        match self.billionths.checked_mul(memory_mib) {
            Some(product) => product / BILLIONTHS,
            None => (i128::from(self.billionths) * i128::from(memory_mib) / i128::from(BILLIONTHS)) as i64,
        }
    }

    /// This fraction less the other one; nothing if the other one is larger.
    pub const fn minus(self, other: GpuFraction) -> GpuFraction {
        GpuFraction::from_billionths(self.billionths - other.billionths)
    }
}

impl fmt::Display for GpuFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:09}", self.billionths % BILLIONTHS);
        let (hundredths, finer) = digits.split_at(2);
        let finer = finer.trim_end_matches('0');
        write!(f, "{}.{hundredths}{finer}", self.billionths / BILLIONTHS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_have_two_digits_or_as_many_as_needed() {
        let check = |billionths: i64, text: &str| {
            assert_eq!(GpuFraction::from_billionths(billionths).to_string(), text);
        };
        check(-1, "0.00");
        check(0, "0.00");
        check(50_000_000, "0.05");
        check(500_000_000, "0.50");
        check(333_333_333, "0.333333333");
        check(125_000_000, "0.125");
        check(1_000_000_000, "1.00");
        check(i64::MAX, "1.00");
    }

    #[test]
    fn charges_are_rounded_to_the_nearest_hundredth() {
        let check = |billionths: i64, hundredths: i64| {
            assert_eq!(
                GpuFraction::from_billionths(billionths).nearest_hundredths(),
                hundredths
            );
        };
        check(1, 0);
        check(4_999_999, 0);
        check(5_000_000, 1);
        check(333_333_333, 33);
        check(335_000_000, 34);
        check(994_999_999, 99);
        check(995_000_000, 100);
        check(1_000_000_000, 100);
    }

    proptest! {
        #[test]
        fn hundredths_are_exact(hundredths in 0i64..=100, memory_mib in 0i64..1 << 40) {
            let fraction = GpuFraction::from_hundredths(hundredths);
            prop_assert_eq!((fraction.nearest_hundredths(), fraction.percent()), (hundredths, hundredths));
            prop_assert_eq!(fraction.of_mib(memory_mib), hundredths * memory_mib / 100);
        }

        #[test]
        fn a_fraction_is_never_more_than_the_gpu(billionths: i64, memory_mib in 0i64..) {
            let fraction = GpuFraction::from_billionths(billionths);
            prop_assert!((GpuFraction::ZERO..=GpuFraction::WHOLE).contains(&fraction));
            prop_assert!((0..=memory_mib).contains(&fraction.of_mib(memory_mib)));
            prop_assert!((0..=100).contains(&fraction.nearest_hundredths()));
        }
    }
}
