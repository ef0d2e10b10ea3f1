//! MIG partitions of the fake GPUs: a table of profiles and a small search for placements. Real GPUs do not use it.

use crate::{GpuError, MigAttributes, Placement};

/// A partition's shape, the same on every MIG-capable datacenter GPU: slices out of seven, memory out of eight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MigShape {
    /// One slice.
    One,
    /// One slice with the media engines.
    OneMedia,
    /// One slice with twice the memory.
    OneWide,
    /// Two slices.
    Two,
    /// Three slices.
    Three,
    /// Four slices.
    Four,
    /// The whole GPU.
    Seven,
}

impl MigShape {
    /// Compute slices.
    pub fn slices(self) -> u32 {
        match self {
            MigShape::One | MigShape::OneMedia | MigShape::OneWide => 1,
            MigShape::Two => 2,
            MigShape::Three => 3,
            MigShape::Four => 4,
            MigShape::Seven => 7,
        }
    }

    /// Memory slices.
    pub fn memory_slices(self) -> u32 {
        match self {
            MigShape::One | MigShape::OneMedia => 1,
            MigShape::OneWide | MigShape::Two => 2,
            MigShape::Three | MigShape::Four => 4,
            MigShape::Seven => 8,
        }
    }

    /// Memory slices at which it may begin.
    pub fn starts(self) -> &'static [u32] {
        match self {
            MigShape::One | MigShape::OneMedia => &[0, 1, 2, 3, 4, 5, 6],
            MigShape::OneWide => &[0, 2, 4, 6],
            MigShape::Two => &[0, 2, 4],
            MigShape::Three => &[0, 4],
            MigShape::Four | MigShape::Seven => &[0],
        }
    }

    /// How many fit on a GPU at most.
    pub fn count_max(self) -> u32 {
        match self {
            MigShape::One => 7,
            MigShape::OneWide => 4,
            MigShape::Two => 3,
            MigShape::Three => 2,
            MigShape::OneMedia | MigShape::Four | MigShape::Seven => 1,
        }
    }

    /// NVML's constant for this GPU instance profile (`NVML_GPU_INSTANCE_PROFILE_*`).
    pub fn nvml_gpu_instance_profile(self) -> u32 {
        match self {
            MigShape::One => 0,
            MigShape::Two => 1,
            MigShape::Three => 2,
            MigShape::Four => 3,
            MigShape::Seven => 4,
            MigShape::OneMedia => 7,
            MigShape::OneWide => 9,
        }
    }

    /// NVML's constant for a compute instance that fills it (`NVML_COMPUTE_INSTANCE_PROFILE_*`).
    pub fn nvml_compute_instance_profile(self) -> u32 {
        match self {
            MigShape::One | MigShape::OneMedia | MigShape::OneWide => 0,
            MigShape::Two => 1,
            MigShape::Three => 2,
            MigShape::Four => 3,
            MigShape::Seven => 4,
        }
    }

    /// The driver's id of the profile.
    pub fn profile_id(self) -> u32 {
        match self {
            MigShape::Seven => 0,
            MigShape::Four => 5,
            MigShape::Three => 9,
            MigShape::Two => 14,
            MigShape::OneWide => 15,
            MigShape::One => 19,
            MigShape::OneMedia => 20,
        }
    }
}

/// One profile as a GPU offers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigProfile {
    /// Profile name: `1g.5gb`.
    pub name: &'static str,
    /// Its shape.
    pub shape: MigShape,
    /// Memory of the partition.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

impl MigProfile {
    /// Sizes, for labels and NVML's attributes.
    pub fn attributes(&self) -> MigAttributes {
        let slices = self.shape.slices();
        let media = matches!(self.shape, MigShape::OneMedia | MigShape::Seven);
        MigAttributes {
            multiprocessors: self.multiprocessors,
            gpu_instance_slices: slices,
            compute_instance_slices: slices,
            copy_engines: slices,
            decoders: match self.shape {
                MigShape::One | MigShape::OneWide => 0,
                MigShape::OneMedia | MigShape::Two => 1,
                MigShape::Three | MigShape::Four => 2,
                MigShape::Seven => 5,
            },
            encoders: 0,
            jpeg_engines: u32::from(media),
            ofa_engines: u32::from(media),
        }
    }
}

/// Finds placements for `layout`. Tries all combinations of starts, since a partition of three slices at the front may block a layout that
/// fits with it at the back. A GPU has at most seven partitions, so the search is small.
pub(crate) fn place(
    offered: &[MigProfile],
    layout: &[String],
    origin: &str,
) -> Result<Vec<(MigProfile, Placement)>, GpuError> {
    let refuse = |detail: String| GpuError::FakeSettings {
        origin: origin.to_owned(),
        detail,
    };
    let mut profiles = Vec::with_capacity(layout.len());
    for name in layout {
        let Some(profile) = offered.iter().find(|profile| profile.name == name) else {
            let names: Vec<&str> = offered.iter().map(|profile| profile.name).collect();
            return Err(refuse(format!(
                "no MIG profile {name:?}; this GPU offers: {}",
                names.join(", ")
            )));
        };
        profiles.push(*profile);
    }
    let slices: u32 = profiles.iter().map(|profile| profile.shape.slices()).sum();
    let crowded = |profile: &MigProfile| {
        let same = profiles.iter().filter(|other| other.shape == profile.shape).count();
        same > profile.shape.count_max() as usize
    };
    let mut starts = Vec::with_capacity(profiles.len());
    if slices > 7 || profiles.iter().any(crowded) || !find_starts(&profiles, 0, &mut starts) {
        return Err(refuse(format!(
            "the MIG layout {} does not fit into one GPU",
            layout.join(", ")
        )));
    }
    let placement = |(profile, start): (&MigProfile, u32)| Placement {
        start,
        size: profile.shape.memory_slices(),
    };
    Ok(profiles
        .iter()
        .zip(starts)
        .map(|(profile, start)| (*profile, placement((profile, start))))
        .collect())
}

fn find_starts(profiles: &[MigProfile], taken: u32, starts: &mut Vec<u32>) -> bool {
    let Some((profile, rest)) = profiles.split_first() else {
        return true;
    };
    for &start in profile.shape.starts() {
        let mask = ((1u32 << profile.shape.memory_slices()) - 1) << start;
        if mask & taken != 0 {
            continue;
        }
        starts.push(start);
        if find_starts(rest, taken | mask, starts) {
            return true;
        }
        starts.pop();
    }
    false
}

macro_rules! mig_profiles {
    ($($name:literal $shape:ident $memory:literal $multiprocessors:literal),* $(,)?) => {
        &[$(MigProfile { name: $name, shape: MigShape::$shape, memory_mib: $memory, multiprocessors: $multiprocessors }),*]
    };
}

pub(crate) const A100_40: &[MigProfile] = mig_profiles![
    "1g.5gb" One 4864 14, "1g.5gb+me" OneMedia 4864 14, "1g.10gb" OneWide 9984 14, "2g.10gb" Two 9984 28,
    "3g.20gb" Three 20096 42, "4g.20gb" Four 20096 56, "7g.40gb" Seven 40448 98,
];
pub(crate) const A100_80: &[MigProfile] = mig_profiles![
    "1g.10gb" One 9728 14, "1g.10gb+me" OneMedia 9728 14, "1g.20gb" OneWide 19968 14, "2g.20gb" Two 19968 28,
    "3g.40gb" Three 40192 42, "4g.40gb" Four 40192 56, "7g.80gb" Seven 80640 98,
];
pub(crate) const H100: &[MigProfile] = mig_profiles![
    "1g.10gb" One 9984 16, "1g.10gb+me" OneMedia 9984 16, "1g.20gb" OneWide 20096 26, "2g.20gb" Two 20096 32,
    "3g.40gb" Three 40448 60, "4g.40gb" Four 40448 64, "7g.80gb" Seven 81152 132,
];
pub(crate) const H200: &[MigProfile] = mig_profiles![
    "1g.18gb" One 16384 16, "1g.18gb+me" OneMedia 16384 16, "1g.35gb" OneWide 33280 26, "2g.35gb" Two 33280 32,
    "3g.71gb" Three 71424 60, "4g.71gb" Four 71424 64, "7g.141gb" Seven 142592 132,
];
pub(crate) const B200: &[MigProfile] = mig_profiles![
    "1g.23gb" One 22528 18, "1g.23gb+me" OneMedia 22528 18, "1g.45gb" OneWide 45056 30, "2g.45gb" Two 45056 36,
    "3g.90gb" Three 90112 70, "4g.90gb" Four 90112 72, "7g.180gb" Seven 182784 148,
];
pub(crate) const GB200: &[MigProfile] = mig_profiles![
    "1g.23gb" One 23296 18, "1g.23gb+me" OneMedia 23296 18, "1g.47gb" OneWide 46592 30, "2g.47gb" Two 46592 36,
    "3g.93gb" Three 93184 70, "4g.93gb" Four 93184 72, "7g.186gb" Seven 188416 152,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(layout: &[&str], expect: &[(u32, u32)]) {
        let layout: Vec<String> = layout.iter().map(|&name| name.to_owned()).collect();
        let placed: Vec<(u32, u32)> = match place(A100_40, &layout, "test") {
            Ok(placed) => placed
                .iter()
                .map(|(_, placement)| (placement.start, placement.size))
                .collect(),
            Err(error) => {
                assert!(error.to_string().contains("does not fit"), "{error}");
                Vec::new()
            }
        };
        assert_eq!(placed, expect, "{layout:?}");
    }

    #[test]
    fn layouts_fit_or_are_refused() {
        check(&["7g.40gb"], &[(0, 8)]);
        check(&["3g.20gb", "3g.20gb"], &[(0, 4), (4, 4)]);
        check(&["4g.20gb", "3g.20gb"], &[(0, 4), (4, 4)]);
        check(
            &["1g.5gb"; 7],
            &[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)],
        );
        check(
            &["2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"],
            &[(0, 2), (2, 2), (4, 2), (6, 1)],
        );
        check(
            &["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"],
            &[(4, 4), (0, 2), (2, 1), (3, 1)],
        );
        check(&["1g.5gb"; 8], &[]);
        check(&["4g.20gb", "4g.20gb"], &[]);
        check(&["7g.40gb", "1g.5gb"], &[]);
    }

    #[test]
    fn an_unknown_profile_lists_the_known_ones() {
        let error = place(A100_40, &["1g.6gb".to_owned()], "test").unwrap_err();
        assert!(error.to_string().contains("1g.5gb, 1g.5gb+me, 1g.10gb"), "{error}");
    }
}
