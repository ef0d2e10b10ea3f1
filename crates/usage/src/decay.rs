//! Exponential decay: an amount counts half after each half-life.

use std::f64::consts::LN_2;

use kai_engine::model::Millis;

/// The weight of the past; without a half-life all of it counts the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay {
    half_life: Option<Millis>,
}

impl Decay {
    /// Decay with this half-life. None, or one that is not positive, is no decay.
    pub fn new(half_life: Option<Millis>) -> Decay {
        Decay {
            half_life: half_life.filter(|half_life| half_life.0 > 0),
        }
    }

    /// The half-life.
    pub fn half_life(self) -> Option<Millis> {
        self.half_life
    }

    /// The weight of something so long ago.
    pub fn weight(self, age: Millis) -> f64 {
        self.half_life
            .map_or(1.0, |half_life| (-(age.0.max(0) as f64) / half_life.0 as f64).exp2())
    }

    /// The sum of the weights of each millisecond of a stretch that ends now: its length, if nothing decays.
    pub fn stretch(self, length: Millis) -> f64 {
        let length = length.0.max(0) as f64;
        self.half_life.map_or(length, |half_life| {
            // The integral of 0.5^(age / half-life); `exp_m1` is exact for stretches that are short against the half-life.
            let scale = half_life.0 as f64 / LN_2;
            -scale * (-length / scale).exp_m1()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    #[test]
    fn half_is_left_after_each_half_life() {
        let decay = Decay::new(Some(Millis(HOUR)));
        assert_eq!(
            [0, 1, 2, 10].map(|hours| decay.weight(Millis(hours * HOUR))),
            [1.0, 0.5, 0.25, 1.0 / 1024.0]
        );
        assert_eq!(decay.weight(Millis(-HOUR)), 1.0, "the future is now");
        for none in [None, Some(Millis(0)), Some(Millis(-1))] {
            assert_eq!(
                (
                    Decay::new(none).weight(Millis(HOUR)),
                    Decay::new(none).stretch(Millis(7))
                ),
                (1.0, 7.0)
            );
        }
    }

    #[test]
    fn a_stretch_is_the_sum_of_its_parts() {
        let decay = Decay::new(Some(Millis(HOUR)));
        let whole = decay.stretch(Millis(3 * HOUR));
        let parts = decay.stretch(Millis(2 * HOUR)) * decay.weight(Millis(HOUR)) + decay.stretch(Millis(HOUR));
        assert!((whole - parts).abs() < 1e-6, "{whole} {parts}");
        // One millisecond against a year: the naive difference of two exponentials would lose half of the digits.
        let year = Decay::new(Some(Millis(365 * 24 * HOUR)));
        assert!((year.stretch(Millis(1)) - 1.0).abs() < 1e-9);
    }
}
