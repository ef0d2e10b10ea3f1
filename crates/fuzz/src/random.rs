//! Reproducible pseudo-random numbers (xorshift64*): the same on every machine for the same seed. Not for cryptography.

/// A pseudo-random number generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Mixes the seed, so that neighbouring seeds give unrelated numbers.
    pub fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((mixed ^ (mixed >> 31)).max(1))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        match bound {
            0 => 0,
            _ => (self.number() % bound as u64) as usize,
        }
    }

    /// True with this probability in percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.number() % 100 < percent
    }

    /// An element of the slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
