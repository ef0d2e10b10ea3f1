//! Random numbers from a seed. All randomness of a run comes from here, so that the run repeats.

/// Splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    pub(crate) fn new(seed: u64) -> SeededRandom {
        SeededRandom(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }

    /// True in this percentage of calls.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.roll(100) < chance
    }

    /// One of the choices.
    pub(crate) fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.roll(choices.len() as u64)).unwrap()].clone()
    }
}

/// Mixes all bits of a number.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
