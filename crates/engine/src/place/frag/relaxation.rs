//! The relaxed problem: how much of a mix of pods a cluster can hold if pods could be cut in pieces. Its prices tell what a place is worth.
//!
//! Unknown is the greatest load, so that the GPUs and the CPU of each kind of node suffice for all pods of the mix at this load. A GPU holds
//! *patterns*: pods that fit on one GPU together, where a pod of k GPUs counts as a k-th of a pod on each. Pods without GPUs take CPU of
//! any kind of node. The prices (dual variables) are: the value of hosting a pod of each type, the price of CPU and of GPUs by kind.
//! Patterns are found when they are worth more than they cost, by [`BestFill`]; the program over them is solved by [`LinearProgram`].

use crate::place::frag::knapsack::{BestFill, Item};
use crate::place::frag::mix::{Mix, NodeKind, PodType};
use crate::place::frag::simplex::LinearProgram;

/// The most pivots, so that the largest problem takes well below a second. What the pivots so far give is good enough then: every solution has prices.
const PIVOTS_MAX: u32 = 6_000;
/// The most searches for patterns; each adds one per kind of node.
const ROUNDS_MAX: u32 = 200;
/// The search ends when no solution can be better than the one found by more than this part.
const GAP: f64 = 1e-4;
/// Bounds of 0 are raised by this part of the demand, each by another amount: else many pivots would change nothing.
const PERTURBATION: f64 = 1e-5;

/// The solution.
#[derive(Clone, Debug)]
pub(super) struct Relaxed {
    /// By type of the mix: the value of hosting one pod, in GPUs.
    pub(super) values: Vec<f64>,
    /// A load that no placement of this mix exceeds without refusing a pod: 1 = the pods request all GPUs of the cluster.
    pub(super) load_bound: f64,
    /// Pivots that it took.
    pub(super) pivots: u32,
}

/// The rows of the program.
struct Rows {
    types: usize,
    kinds: usize,
}

impl Rows {
    /// The CPU of pods without GPUs.
    fn cpu_pods(&self) -> usize {
        self.types
    }

    fn gpus_of(&self, kind: usize) -> usize {
        self.types + 1 + kind
    }

    fn cpu_of(&self, kind: usize) -> usize {
        self.types + 1 + self.kinds + kind
    }

    fn count(&self) -> usize {
        self.types + 1 + 2 * self.kinds
    }
}

/// The problem with its program.
struct Problem<'m> {
    mix: &'m Mix,
    kinds: &'m [NodeKind],
    rows: Rows,
    /// By type: pods at a load of 1.
    demand: Vec<f64>,
    /// Cores of pods without GPUs at a load of 1.
    cpu_demand: f64,
    program: LinearProgram,
}

/// Solves the problem; `None` if the mix has no pods with GPUs, or the cluster no GPUs.
pub(super) fn solve(mix: &Mix, kinds: &[NodeKind]) -> Option<Relaxed> {
    let gpus: i64 = kinds.iter().map(NodeKind::gpus).sum();
    if gpus == 0 || mix.gpu_steps() == 0 {
        return None;
    }
    // Rare types are part of the load but not of the problem: the bound holds all the same.
    let requested = mix.gpu_steps() + mix.rare_gpu_steps;
    let scale = gpus as f64 * f64::from(super::STEPS) / requested as f64;
    let mut problem = Problem::new(mix, kinds, scale);
    let mut pivots = PIVOTS_MAX;
    let mut load_bound = f64::INFINITY;
    for _ in 0..ROUNDS_MAX {
        problem.program.maximise(&mut pivots);
        let duals = problem.program.duals();
        let (bound, added) = problem.add_patterns(&duals);
        load_bound = load_bound.min(bound);
        if added == 0 || pivots == 0 || load_bound - problem.program.objective() < GAP * load_bound {
            break;
        }
    }
    let duals = problem.program.duals();
    Some(Relaxed {
        values: duals[..mix.types.len()]
            .iter()
            .map(|value| value.max(0.0) * gpus as f64)
            .collect(),
        load_bound,
        pivots: PIVOTS_MAX - pivots,
    })
}

/// Cores of these milli-cores.
fn cores(milli: i64) -> f64 {
    milli as f64 / 1000.0
}

/// The part of a pod that counts on one of its GPUs.
fn part(of: &PodType) -> f64 {
    1.0 / of.devices as f64
}

/// The types that can run on the kind, and what a pod of each takes of a GPU.
pub(super) fn items(mix: &Mix, kind: usize, value: impl Fn(usize, &PodType) -> f64) -> (Vec<usize>, Vec<Item>) {
    let types = mix.types.iter().enumerate();
    let items = types.filter_map(|(at, (of, _))| {
        let steps = of.steps[kind]?;
        let value = value(at, of);
        (value > 0.0).then_some((at, Item { steps, value }))
    });
    items.unzip()
}

impl<'m> Problem<'m> {
    fn new(mix: &'m Mix, kinds: &'m [NodeKind], scale: f64) -> Problem<'m> {
        let rows = Rows {
            types: mix.types.len(),
            kinds: kinds.len(),
        };
        let demand: Vec<f64> = mix.types.iter().map(|(_, count)| *count as f64 * scale).collect();
        let cpu_demand = cores(mix.cpu_pods_milli) * scale;
        let mut bounds = vec![0.0; rows.count()];
        for (row, demand) in demand.iter().chain([&cpu_demand]).enumerate() {
            let spread = 1.0 + (row as f64 * 0.618_034).fract();
            bounds[row] = PERTURBATION * spread * demand;
        }
        for (at, kind) in kinds.iter().enumerate() {
            bounds[rows.gpus_of(at)] = kind.gpus() as f64;
            bounds[rows.cpu_of(at)] = cores(kind.key.cpu_milli * kind.nodes);
        }
        let mut program = LinearProgram::new(bounds);
        let mut load: Vec<(usize, f64)> = demand.iter().copied().enumerate().collect();
        if cpu_demand > 0.0 {
            load.push((rows.cpu_pods(), cpu_demand));
            for kind in 0..kinds.len() {
                program.add_column(0.0, vec![(rows.cpu_pods(), -1.0), (rows.cpu_of(kind), 1.0)]);
            }
        }
        program.add_column(1.0, load);
        let mut problem = Problem {
            mix,
            kinds,
            rows,
            demand,
            cpu_demand,
            program,
        };
        for (at, (of, _)) in mix.types.iter().enumerate() {
            for (kind, steps) in of.steps.iter().enumerate() {
                if let Some(steps) = steps {
                    problem.add_pattern(kind, &[(at, u32::from(super::STEPS / steps))]);
                }
            }
        }
        problem
    }

    /// Adds the pattern of these pods on a GPU of the kind.
    fn add_pattern(&mut self, kind: usize, pods: &[(usize, u32)]) {
        let mut entries: Vec<(usize, f64)> = Vec::with_capacity(pods.len() + 2);
        let mut cpu = 0.0;
        for (at, times) in pods {
            let of = &self.mix.types[*at].0;
            let parts = f64::from(*times) * part(of);
            entries.push((*at, -parts));
            cpu += parts * cores(of.cpu_milli);
        }
        entries.push((self.rows.gpus_of(kind), 1.0));
        entries.push((self.rows.cpu_of(kind), cpu));
        self.program.add_column(0.0, entries);
    }

    /// Adds for each kind of node the pattern that is worth most at these prices, if it is worth more than a GPU costs. Returns a bound on
    /// the load by these prices, and how many patterns were added.
    fn add_patterns(&mut self, duals: &[f64]) -> (f64, usize) {
        let price = |row: usize| duals[row].max(0.0);
        let mut cost = 0.0;
        let mut cpu_floor = f64::INFINITY;
        let mut added = 0;
        for (at, kind) in self.kinds.iter().enumerate() {
            let cpu_price = price(self.rows.cpu_of(at));
            let (types, items) = items(self.mix, at, |of_type, of| {
                (price(of_type) - cpu_price * cores(of.cpu_milli)) * part(of)
            });
            let best = BestFill::of(&items);
            cost += best.value() * kind.gpus() as f64 + cpu_price * cores(kind.key.cpu_milli * kind.nodes);
            cpu_floor = cpu_floor.min(cpu_price);
            if best.value() > price(self.rows.gpus_of(at)) + 1e-9 {
                let chosen = best.items(&items);
                let pods: Vec<(usize, u32)> = chosen.iter().map(|(item, times)| (types[*item], *times)).collect();
                self.add_pattern(at, &pods);
                added += 1;
            }
        }
        let hosted: f64 = self
            .demand
            .iter()
            .enumerate()
            .map(|(at, demand)| price(at) * demand)
            .sum();
        let worth = hosted + cpu_floor.min(price(self.rows.cpu_pods())) * self.cpu_demand;
        let bound = if worth > 0.0 { cost / worth } else { f64::INFINITY };
        (bound, added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;
    use crate::place::frag::mix::KindKey;

    fn kind(nodes: i64, gpus: i64, cpu_milli: i64) -> NodeKind {
        NodeKind {
            key: KindKey {
                gpus,
                model: String::new(),
                memory_mib: 1000,
                cpu_milli,
            },
            nodes,
            example: NodeId::new(0),
        }
    }

    fn mix(types: &[(i64, i64, u8, u64)], cpu_pods_milli: i64) -> Mix {
        let of = |(cpu_milli, devices, steps, count): &(i64, i64, u8, u64)| {
            let of = PodType {
                cpu_milli: *cpu_milli,
                devices: *devices,
                steps: vec![Some(*steps)],
            };
            (of, *count)
        };
        Mix {
            types: types.iter().map(of).collect(),
            cpu_pods_milli,
            ..Mix::default()
        }
    }

    fn load_bound(mix: &Mix, kind: NodeKind) -> f64 {
        (solve(mix, &[kind]).unwrap().load_bound * 1e4).round() / 1e4
    }

    #[test]
    fn the_load_is_bounded_by_what_runs_out_first() {
        // GPUs: pods of a whole GPU fill all.
        assert_eq!(load_bound(&mix(&[(1000, 1, 100, 1)], 0), kind(10, 8, 64_000)), 1.0);
        // CPU: half of the GPUs find none.
        assert_eq!(load_bound(&mix(&[(16_000, 1, 100, 1)], 0), kind(10, 8, 64_000)), 0.5);
        // CPU of pods without GPUs: 8 cores per GPU are there, each GPU pod needs 4 and brings 12 more.
        assert_eq!(
            load_bound(&mix(&[(4_000, 1, 100, 1)], 12_000), kind(10, 8, 64_000)),
            0.5
        );
        // Parts: a GPU holds one of 60 steps.
        assert_eq!(load_bound(&mix(&[(0, 1, 60, 1)], 0), kind(10, 8, 64_000)), 0.6);
        // Parts that fill a GPU together.
        assert_eq!(
            load_bound(&mix(&[(0, 1, 60, 1), (0, 1, 40, 1)], 0), kind(10, 8, 64_000)),
            1.0
        );
        // A pod of four GPUs counts as a quarter on each.
        assert_eq!(load_bound(&mix(&[(64_000, 4, 100, 1)], 0), kind(10, 8, 64_000)), 0.5);
    }

    #[test]
    fn hosted_pods_are_worth_the_gpus_of_the_cluster() {
        let mix = mix(&[(1000, 1, 60, 3), (8000, 1, 40, 2), (2000, 1, 100, 5)], 0);
        let relaxed = solve(&mix, &[kind(10, 8, 64_000)]).unwrap();
        let scale = 80.0 * 100.0 / mix.gpu_steps() as f64;
        let counted = mix.types.iter().zip(&relaxed.values);
        let worth: f64 = counted.map(|((_, count), value)| *count as f64 * scale * value).sum();
        assert!((worth - 80.0).abs() < 0.01, "{worth}");
    }

    #[test]
    fn nothing_is_bounded_without_gpu_pods_or_gpus() {
        assert!(solve(&mix(&[], 1000), &[kind(10, 8, 64_000)]).is_none());
        assert!(solve(&mix(&[(1000, 1, 100, 1)], 0), &[kind(10, 0, 64_000)]).is_none());
    }
}
