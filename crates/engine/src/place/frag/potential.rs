//! What the free GPUs and the free CPU of a node are worth, as a potential: the smaller, the more the node is worth.
//!
//! The worth of a node is that of the best pods for it at the prices of the [relaxed problem](super::relaxation). How its free CPU is
//! divided between its GPUs need not be searched: at a price for CPU each GPU has its best pods for itself, and the price at which the sum
//! is smallest gives the worth.
//!
//! These prices are those of many pods. The next single pod may fit or not, and so a tenth of two things that hinder it is added: the
//! *fragmentation* of FGD (Weng et al., "Beware of Fragmentation", USENIX ATC '23), the GPUs that the next pod of the mix can't use in
//! expectation; and the GPUs for which the node has less CPU left than the mix needs.

use smallvec::SmallVec;

use crate::place::frag::knapsack::BestFill;
use crate::place::frag::mix::{Mix, NodeKind, PodType};
use crate::place::frag::{STEPS, relaxation};
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
/// Fixed point of CPU prices and of frequencies.
const FIXED_BITS: u32 = 16;

/// What is free on a node, and sums over its free GPUs.
#[derive(Clone, Debug)]
pub(super) struct NodeProfile {
    cpu_milli: i64,
    /// By GPU group that holds its GPU, in the order of the node: the free steps.
    pub(super) parts: SmallVec<[u8; 16]>,
    /// Free steps of all GPUs.
    steps: i64,
    /// By price of CPU: the worth of all GPUs.
    worth: [i64; CPU_PRICES],
    /// By level of the class.
    room: SmallVec<[Room; 24]>,
}

/// The GPUs of a node by one level.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// GPUs with so many free steps or more.
    gpus: i64,
    /// The free steps of the others.
    less: i64,
}

/// GPUs that lose free steps. Nothing = no GPU does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// How many GPUs.
    pub(super) gpus: i64,
    /// The free steps of each before.
    pub(super) before: u8,
    /// The free steps of one of them after; the others have none.
    pub(super) after: u8,
}

/// Free steps of a GPU with this much free memory.
pub(super) fn steps_of(free_mib: i64, memory_mib: i64) -> u8 {
    let steps = free_mib.max(0) * i64::from(STEPS) / memory_mib.max(1);
    steps.min(i64::from(STEPS)) as u8
}

/// The worth of a GPU by free steps and price of CPU, in millionths of a GPU.
type Worth = Vec<[i64; CPU_PRICES]>;

/// A type of pods that can run on the nodes of a class.
#[derive(Clone, Copy, Debug)]
struct Typical {
    /// Position in [`Class::levels`].
    level: u8,
    devices: i64,
    cpu_milli: i64,
    /// Its part of the mix, fixed-point.
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

    /// What is free on a node of this kind once all releasing pods have left.
    pub(super) fn profile(&self, kind: usize, node: &Node) -> NodeProfile {
        let when = When::AfterRelease;
        let class = &self.classes[self.class_of[kind]];
        let total = node.free.total();
        let mut profile = NodeProfile {
            cpu_milli: total.cpu_milli,
            parts: SmallVec::new(),
            steps: 0,
            worth: [0; CPU_PRICES],
            room: class.levels.iter().map(|_| Room { gpus: 0, less: 0 }).collect(),
        };
        class.count(&mut profile, STEPS, total.gpus.max(0));
        for group in node.gpu_groups.iter().filter(|group| group.holds_gpu(when)) {
            let steps = steps_of(group.available_mib(node.memory_mib, when), node.memory_mib);
            class.count(&mut profile, steps, 1);
            profile.parts.push(steps);
        }
        profile
    }

    /// Takes GPUs of a profile; not those of groups, whose `parts` the caller keeps.
    pub(super) fn take(&self, kind: usize, profile: &mut NodeProfile, taken: Taken) {
        let class = &self.classes[self.class_of[kind]];
        class.count(profile, taken.before, -taken.gpus);
        class.count(profile, taken.after, 1);
    }

    /// The potential of a node of this kind after CPU and GPUs are taken.
    pub(super) fn after(&self, kind: usize, profile: &NodeProfile, cpu_milli: i64, taken: Taken) -> i64 {
        let class = &self.classes[self.class_of[kind]];
        let cpu_milli = (profile.cpu_milli - cpu_milli).max(0);
        let worth = class.worth_after(profile, &self.cpu_prices, cpu_milli, taken);
        let steps = profile.steps - taken.gpus * i64::from(taken.before) + i64::from(taken.after);
        let fragments = class.fragments_after(profile, cpu_milli, steps, taken);
        let with_cpu = (self.gpus_per_cpu * cpu_milli) >> FIXED_BITS;
        let without_cpu = (steps * MICRO_PER_STEP - with_cpu).max(0);
        (fragments + without_cpu) / HINDRANCE_DIVISOR - worth
    }
}

/// The types of the mix with their frequencies. A type counts by the GPUs that its pods ask for: by pods, those of a whole node would be too rare
/// to keep a node free for.
fn typical(mix: &Mix) -> Vec<(&PodType, i64)> {
    let gpus = |of: &PodType, count: u64| of.devices as f64 * count as f64;
    let all: f64 = mix.types.iter().map(|(of, count)| gpus(of, *count)).sum();
    let types = mix.types.iter();
    types
        .map(|(of, count)| (of, fixed(gpus(of, *count) / all.max(1.0))))
        .collect()
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
        let typical = typical.iter().filter_map(|(of, frequency)| {
            let level = levels.binary_search(&of.steps[kind]?).ok()?;
            Some(Typical {
                level: level as u8,
                devices: of.devices,
                cpu_milli: of.cpu_milli,
                frequency: *frequency,
            })
        });
        let typical = typical.collect();
        Class {
            worth: Vec::new(),
            levels,
            typical,
        }
    }

    /// Counts GPUs of so many free steps in a profile; a negative number removes them.
    fn count(&self, profile: &mut NodeProfile, steps: u8, gpus: i64) {
        profile.steps += gpus * i64::from(steps);
        for (sum, worth) in profile.worth.iter_mut().zip(&self.worth[usize::from(steps)]) {
            *sum += gpus * worth;
        }
        for (room, level) in profile.room.iter_mut().zip(&self.levels) {
            if steps >= *level {
                room.gpus += gpus;
            } else {
                room.less += gpus * i64::from(steps);
            }
        }
    }

    /// The worth of the best pods for the node.
    fn worth_after(&self, profile: &NodeProfile, prices: &[i64; CPU_PRICES], cpu_milli: i64, taken: Taken) -> i64 {
        let (before, after) = (
            &self.worth[usize::from(taken.before)],
            &self.worth[usize::from(taken.after)],
        );
        let mut least = i64::MAX;
        for at in 0..CPU_PRICES {
            let cpu = (prices[at] * cpu_milli) >> FIXED_BITS;
            least = least.min(profile.worth[at] + cpu - taken.gpus * before[at] + after[at]);
        }
        least
    }

    /// The free GPUs that the next pod with GPUs can't use, in expectation; `steps` = all free ones.
    fn fragments_after(&self, profile: &NodeProfile, cpu_milli: i64, steps: i64, taken: Taken) -> i64 {
        let Taken { gpus, before, after } = taken;
        let mut rooms: SmallVec<[Room; 24]> = SmallVec::new();
        for (room, level) in profile.room.iter().zip(&self.levels) {
            let (before_has, after_has) = (i64::from(before >= *level), i64::from(after >= *level));
            rooms.push(Room {
                gpus: room.gpus - gpus * before_has + after_has,
                less: room.less - gpus * (1 - before_has) * i64::from(before) + (1 - after_has) * i64::from(after),
            });
        }
        let mut usable = 0;
        for of in &self.typical {
            let room = rooms[usize::from(of.level)];
            if room.gpus >= of.devices && cpu_milli >= of.cpu_milli {
                usable += of.frequency * (steps - room.less);
            }
        }
        (((steps << FIXED_BITS) - usable) * MICRO_PER_STEP) >> FIXED_BITS
    }
}
