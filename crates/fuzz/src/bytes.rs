//! Mutations of byte strings: flipped bits, numbers at overflow bounds, parts that are cut, doubled and spliced, dictionary tokens at
//! random positions.

use crate::{BYTES_MAX, Random};

/// Numbers at the bounds of integer types.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

pub(crate) fn mutated(corpus: &[Vec<u8>], dictionary: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut input = random.pick(corpus).clone();
    for _ in 0..=random.below(8) {
        mutate(&mut input, corpus, dictionary, random);
        input.truncate(BYTES_MAX);
    }
    input
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], dictionary: &[&[u8]], random: &mut Random) {
    let at = random.below(input.len());
    match random.below(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.number() as u8,
        2 | 3 => {
            let number = random.pick(&NUMBERS).wrapping_add(random.below(3) as u64);
            let length = *random.pick(&[1, 2, 4, 8]);
            // Most formats align their fields.
            let at = if random.chance(70) { at - at % length } else { at };
            for (byte, value) in input[at..].iter_mut().zip(number.to_le_bytes()).take(length) {
                *byte = value;
            }
        }
        4 => input.truncate(at),
        5 => {
            let end = at + random.below(input.len() - at + 1);
            drop(input.drain(at..end));
        }
        6 => {
            let end = at + random.below(input.len() - at + 1).min(256);
            let part = input[at..end].to_vec();
            let times = *random.pick(&[1, 1, 1, 2, 40]);
            insert(input, at, &part.repeat(times));
        }
        7 if !dictionary.is_empty() => {
            let token: &&[u8] = random.pick(dictionary);
            insert(input, at, token);
        }
        _ => {
            let other = random.pick(corpus);
            let from = random.below(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    drop(input.splice(at..at, part.iter().copied()));
}
