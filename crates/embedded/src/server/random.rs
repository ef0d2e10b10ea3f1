//! Pseudo-random name suffixes and uids, reproducible from a seed. Not for secrets.

/// The letters of Kubernetes' generated names: no vowels and no look-alikes.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters that follow a `generateName`.
const SUFFIX_LEN: usize = 5;

/// A splitmix64 generator.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn uid(&mut self) -> String {
        let (a, b) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            0x8000 | ((b >> 48) & 0x3fff),
            b & 0xffff_ffff_ffff
        )
    }

    pub(crate) fn name_suffix(&mut self) -> String {
        (0..SUFFIX_LEN)
            .map(|_| NAME_LETTERS[(self.next() % NAME_LETTERS.len() as u64) as usize] as char)
            .collect()
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_names() {
        let (mut one, mut two) = (Random::seeded(7), Random::seeded(7));
        let first = one.uid();
        assert_eq!(first, two.uid());
        assert_eq!(first.len(), 36);
        assert_ne!(first, one.uid());
        assert_eq!(one.name_suffix().len(), SUFFIX_LEN);
    }
}
