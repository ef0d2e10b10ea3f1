//! What the free GPUs and the free CPU of a node are worth, as a potential: the smaller, the more the node is worth.
//!
//! The worth of a node is that of the best pods for it at the prices of the [relaxed problem](super::relaxation). How its free CPU is
//! divided between its GPUs need not be searched: at a price for CPU each GPU has its best pods for itself, and the price at which the sum
//! is smallest gives the worth.
//!
//! These prices are those of many pods. The next single pod may fit or not, and so a tenth of two things that hinder it is added: the
//! *fragmentation* of FGD (Weng et al., "Beware of Fragmentation", USENIX ATC '23), the GPUs that the next pod of the mix can't use in
//! expectation, though not rounded to points as there; and the GPUs for which the node has less CPU left than the mix needs.

use smallvec::SmallVec;

use crate::place::frag::knapsack::BestFill;
use crate::place::frag::mix::{Mix, NodeKind, PodType};
use crate::place::frag::{Gpu, STEPS, relaxation};
use crate::tables::{Node, When};

/// Unit of worth: a millionth of a GPU.
const MICRO: i64 = 1_000_000;
const MICRO_PER_STEP: i64 = MICRO / STEPS as i64;
/// How many prices of CPU are tried, the first of them 0.
const CPU_PRICES: usize = 24;
/// The second price of CPU, as a part of what GPUs cost per CPU that the mix needs for them, and how much each is above the one before.
const CPU_PRICE_LOWEST: f64 = 0.05;
const CPU_PRICE_RATIO: f64 = 1.22;
/// Fragmentation and GPUs without CPU count a tenth: of 1/20, 1/10 and 1/5 that packs best (docs/placement.md).
const HINDRANCE_DIVISOR: i64 = 10;
/// The part of the pods that fragmentation looks at, in percent, as FGD does: the most frequent types.
const TYPICAL_PERCENT: u64 = 95;
/// Fixed point of CPU prices and of frequencies.
const FIXED_BITS: u32 = 16;

/// What is free on a node.
#[derive(Clone, Debug)]
pub(super) struct FreeNode {
    pub(super) cpu_milli: i64,
    /// Free GPUs.
    pub(super) whole: i64,
    /// By GPU group that holds its GPU: the free steps.
    pub(super) parts: SmallVec<[u8; 16]>,
}

impl FreeNode {
    /// What is free once all releasing pods have left.
    pub(super) fn of(node: &Node) -> FreeNode {
        let when = When::AfterRelease;
        let total = node.free.total();
        let held = node.gpu_groups.iter().filter(|group| group.holds_gpu(when));
        FreeNode {
            cpu_milli: total.cpu_milli,
            whole: total.gpus,
            parts: held
                .map(|group| FreeNode::steps_of(group.available_mib(node.memory_mib, when), node.memory_mib))
                .collect(),
        }
    }

    /// Free steps of a GPU with this much free memory.
    pub(super) fn steps_of(free_mib: i64, memory_mib: i64) -> u8 {
        let steps = free_mib.max(0) * i64::from(STEPS) / memory_mib.max(1);
        steps.min(i64::from(STEPS)) as u8
    }

    /// The node after a share of this GPU is taken.
    pub(super) fn with(&self, gpu: Gpu) -> FreeNode {
        let mut after = self.clone();
        match gpu {
            Gpu::Joined { at, left } => after.parts[at] = left,
            Gpu::Opened { left } => {
                after.whole -= 1;
                after.parts.push(left);
            }
        }
        after
    }

    fn steps(&self) -> i64 {
        let parts: i64 = self.parts.iter().map(|steps| i64::from(*steps)).sum();
        self.whole.max(0) * i64::from(STEPS) + parts
    }
}

/// The worth of a GPU by free steps and price of CPU, in millionths of a GPU.
type Worth = Vec<[i64; CPU_PRICES]>;

/// A typical pod on the nodes of a class.
#[derive(Clone, Copy, Debug)]
struct Typical {
    /// Position in [`Class::levels`]; `None` = the pod can't run there.
    level: Option<u8>,
    devices: u8,
    cpu_milli: i64,
    /// Its part of the typical pods, fixed-point.
    frequency: i64,
}

/// Kinds of nodes on which the same pods can run.
#[derive(Clone, Debug)]
struct Class {
    worth: Worth,
    /// The distinct steps that typical pods take of a GPU.
    levels: SmallVec<[u8; 32]>,
    typical: Vec<Typical>,
}

/// The potential of nodes.
#[derive(Clone, Debug)]
pub(super) struct Potential {
    /// By kind of node.
    class_of: Vec<usize>,
    classes: Vec<Class>,
    /// Prices of a milli-core, fixed-point millionths of a GPU.
    cpu_prices: [i64; CPU_PRICES],
    /// GPUs that the mix needs a milli-core for, fixed-point millionths of a GPU.
    gpus_per_cpu: i64,
}

fn fixed(value: f64) -> i64 {
    (value * f64::from(1u32 << FIXED_BITS)).round() as i64
}

impl Potential {
    /// The potential for a mix of pods, where hosting a pod of each type has this value in GPUs.
    pub(super) fn new(mix: &Mix, kinds: &[NodeKind], values: &[f64]) -> Potential {
        let cpu_milli: i64 = mix.types.iter().map(|(of, count)| of.cpu_milli * *count as i64).sum();
        let steps = mix.gpu_steps().max(1) as f64;
        let cpu_per_gpu = ((cpu_milli + mix.cpu_pods_milli) as f64 / steps * f64::from(STEPS)).max(1.0);
        let gpus_per_cpu = MICRO as f64 / cpu_per_gpu;
        let mut cpu_prices = [0.0; CPU_PRICES];
        let mut price = CPU_PRICE_LOWEST * gpus_per_cpu;
        for of in &mut cpu_prices[1..] {
            *of = price;
            price *= CPU_PRICE_RATIO;
        }
        let typical = typical(mix);
        let mut classes: Vec<(Vec<Option<u8>>, Class)> = Vec::new();
        let class_of = (0..kinds.len()).map(|kind| {
            let steps: Vec<Option<u8>> = mix.types.iter().map(|(of, _)| of.steps[kind]).collect();
            if let Some(known) = classes.iter().position(|(of, _)| *of == steps) {
                return known;
            }
            let class = Class {
                worth: worth(mix, kind, values, &cpu_prices),
                ..Class::of(&typical, kind)
            };
            classes.push((steps, class));
            classes.len() - 1
        });
        Potential {
            class_of: class_of.collect(),
            classes: classes.into_iter().map(|(_, class)| class).collect(),
            cpu_prices: cpu_prices.map(fixed),
            gpus_per_cpu: fixed(gpus_per_cpu),
        }
    }

    /// The potential of a node of this kind.
    pub(super) fn of(&self, kind: usize, free: &FreeNode) -> i64 {
        let class = &self.classes[self.class_of[kind]];
        let cpu_milli = free.cpu_milli.max(0);
        let worth = class.worth(free, &self.cpu_prices.map(|price| (price * cpu_milli) >> FIXED_BITS));
        let steps = free.steps();
        let with_cpu = (self.gpus_per_cpu * cpu_milli) >> FIXED_BITS;
        let without_cpu = (steps * MICRO_PER_STEP - with_cpu).max(0);
        (class.fragmentation(free, steps) + without_cpu) / HINDRANCE_DIVISOR - worth
    }
}

/// The typical types with their frequencies: the most frequent ones. Pods without GPUs have a part of the frequencies but are no type.
fn typical(mix: &Mix) -> Vec<(&PodType, i64)> {
    let pods = mix.pods();
    let mut counted = mix.cpu_pods;
    let mut chosen: Vec<(&PodType, u64)> = Vec::new();
    for (of, count) in &mix.types {
        if counted * 100 >= pods * TYPICAL_PERCENT {
            break;
        }
        counted += count;
        chosen.push((of, *count));
    }
    let frequency = |count: u64| fixed(count as f64 / counted.max(1) as f64);
    chosen.into_iter().map(|(of, count)| (of, frequency(count))).collect()
}

/// The worth of a GPU of the kind.
fn worth(mix: &Mix, kind: usize, values: &[f64], cpu_prices: &[f64; CPU_PRICES]) -> Worth {
    let mut worth = vec![[0; CPU_PRICES]; usize::from(STEPS) + 1];
    for (at, price) in cpu_prices.iter().enumerate() {
        let (_, items) = relaxation::items(mix, kind, |of_type, of| {
            (values[of_type] * MICRO as f64 - price * of.cpu_milli as f64) / of.devices as f64
        });
        let best = BestFill::of(&items);
        for (by_price, value) in worth.iter_mut().zip(best.values()) {
            by_price[at] = value.round() as i64;
        }
    }
    worth
}

impl Class {
    /// A class without worth, with the typical pods on a kind of nodes.
    fn of(typical: &[(&PodType, i64)], kind: usize) -> Class {
        let mut levels: SmallVec<[u8; 32]> = typical.iter().filter_map(|(of, _)| of.steps[kind]).collect();
        levels.sort_unstable();
        levels.dedup();
        let row = |(of, frequency): &(&PodType, i64)| Typical {
            level: of.steps[kind].and_then(|steps| levels.binary_search(&steps).ok()).map(|at| at as u8),
            devices: u8::try_from(of.devices).unwrap_or(u8::MAX),
            cpu_milli: of.cpu_milli,
            frequency: *frequency,
        };
        let typical = typical.iter().map(row).collect();
        Class {
            worth: Vec::new(),
            levels,
            typical,
        }
    }

    /// The worth of the best pods for the node; `cpu_worth` = that of its free CPU at each price.
    fn worth(&self, free: &FreeNode, cpu_worth: &[i64; CPU_PRICES]) -> i64 {
        let mut sums = *cpu_worth;
        let whole = free.whole.max(0);
        for (sum, worth) in sums.iter_mut().zip(&self.worth[usize::from(STEPS)]) {
            *sum += whole * worth;
        }
        for part in &free.parts {
            for (sum, worth) in sums.iter_mut().zip(&self.worth[usize::from(*part)]) {
                *sum += worth;
            }
        }
        sums.into_iter().min().unwrap_or(0)
    }

    /// The free GPUs that the next typical pod can't use, in expectation; `steps` = all free ones. What a pod without GPUs can't use is the
    /// rest of the frequencies.
    fn fragmentation(&self, free: &FreeNode, steps: i64) -> i64 {
        let whole = free.whole.max(0);
        // By level: GPUs with so much room, and the steps of those with less.
        let mut room: SmallVec<[(i64, i64); 32]> = SmallVec::new();
        for level in &self.levels {
            let (mut gpus, mut less) = (whole, 0);
            for part in &free.parts {
                let has_room = i64::from(part >= level);
                gpus += has_room;
                less += (1 - has_room) * i64::from(*part);
            }
            room.push((gpus, less));
        }
        let mut fragments = steps << FIXED_BITS;
        for of in &self.typical {
            let Some(level) = of.level else { continue };
            let (gpus, less) = room[usize::from(level)];
            if gpus >= i64::from(of.devices) && free.cpu_milli >= of.cpu_milli {
                fragments -= of.frequency * (steps - less);
            }
        }
        (fragments * MICRO_PER_STEP) >> FIXED_BITS
    }
}
