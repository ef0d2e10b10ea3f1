//! Answers GetPreferredAllocation: which of the free devices a container should get. Whole GPUs should be well connected; replicas and MIG
//! devices are spread over GPUs or packed. Pure and deterministic. The kubelet may ignore the answer, so no guarantee depends on it.

use std::collections::{BTreeMap, BTreeSet};

use kai_gpu::{Inventory, PciPath, Peer};
use serde::{Deserialize, Serialize};

use super::plan::{Resource, device_uuid};

/// How replicas of shared devices are spread over GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharedPolicy {
    /// The least used GPU first.
    #[default]
    Spread,
    /// The most used GPU first, keeping others free.
    Packed,
}

/// Up to this many sets of candidate GPUs are searched exhaustively (8 of 16 GPUs are 12,870 sets); beyond, the search is greedy.
const EXHAUSTIVE_SETS_MAX: u128 = 20_000;

/// The kubelet's request for one container, with the agent's hints.
#[derive(Debug, Clone, Copy)]
pub struct PreferenceQuery<'a> {
    /// Free device ids.
    pub available: &'a [String],
    /// Device ids that must be in the answer.
    pub required: &'a [String],
    /// How many device ids the answer should have.
    pub size: usize,
    /// UUIDs of GPUs that pods share and that the binder is about to reserve again. The kubelet does not say for which pod it asks: a
    /// request for one GPU most likely is for the reservation pod and gets one of these; larger requests avoid them.
    pub wanted_gpus: &'a BTreeSet<String>,
    /// UUIDs of GPUs whose reservation pod was deleted a moment ago. Pods may still share them, so they are given out last.
    pub released_gpus: &'a BTreeSet<String>,
}

/// The preferred device ids, `required` first; fewer than `size` if not enough are free.
pub fn preferred(
    resource: &Resource,
    inventory: &Inventory,
    policy: SharedPolicy,
    query: PreferenceQuery,
) -> Vec<String> {
    let mut chosen: Vec<String> = query.required.iter().take(query.size).cloned().collect();
    let mut free: Vec<&String> = query.available.iter().filter(|id| !chosen.contains(id)).collect();
    free.sort_by_key(|id| hardware_order(resource, id));
    let wanted = query.size - chosen.len();
    let is_wanted = |id: &str| query.wanted_gpus.contains(device_uuid(id));
    if wanted == 1
        && resource.replicas == 1
        && let Some(id) = free.iter().find(|id| is_wanted(id))
    {
        chosen.push((*id).clone());
        return chosen;
    }
    let is_avoided = |id: &str| is_wanted(id) || query.released_gpus.contains(device_uuid(id));
    if free.iter().filter(|id| !is_avoided(id)).count() >= wanted {
        free.retain(|id| !is_avoided(id));
    }
    let whole_gpus = resource.replicas == 1 && resource.units.iter().all(|unit| unit.mig.is_none());
    if whole_gpus {
        add_best_connected(resource, inventory, &mut chosen, &free, wanted);
    } else {
        add_balanced(resource, policy, &mut chosen, free, wanted);
    }
    chosen
}

/// Sort key in hardware order, which breaks ties.
fn hardware_order(resource: &Resource, id: &str) -> (u32, usize, u32) {
    let uuid = device_uuid(id);
    let at = resource.units.iter().position(|unit| unit.uuid == uuid);
    let replica = id.split_once("::").and_then(|(_, n)| n.parse().ok()).unwrap_or(0);
    (
        at.map_or(u32::MAX, |at| resource.units[at].gpu_index),
        at.unwrap_or(usize::MAX),
        replica,
    )
}

/// Adds the `wanted` GPUs that are connected best among each other and with the GPUs chosen already.
/// Of equally good sets, the set that leaves the best-connected remainder wins, so that a pair does not split a group of four.
fn add_best_connected(
    resource: &Resource,
    inventory: &Inventory,
    chosen: &mut Vec<String>,
    free: &[&String],
    wanted: usize,
) {
    let wanted = wanted.min(free.len());
    let index = |id: &str| resource.unit(id).map(|unit| unit.gpu_index);
    let fixed: Vec<Option<u32>> = chosen.iter().map(|id| index(id)).collect();
    let candidates: Vec<Option<u32>> = free.iter().map(|id| index(id)).collect();
    let score = |a: Option<u32>, b: Option<u32>| a.zip(b).map_or(0, |(a, b)| affinity(inventory, a, b));
    let n = candidates.len();
    let mut pair = vec![0; n * n];
    for a in 0..n {
        for b in 0..n {
            pair[a * n + b] = if a == b { 0 } else { score(candidates[a], candidates[b]) };
        }
    }
    let with_fixed: Vec<u64> = candidates
        .iter()
        .map(|a| fixed.iter().map(|b| score(*a, *b)).sum())
        .collect();
    let within = |set: &[usize]| -> u64 {
        set.iter()
            .enumerate()
            .map(|(i, a)| set[i + 1..].iter().map(|b| pair[a * n + b]).sum::<u64>())
            .sum()
    };
    let picked = if combinations(n, wanted) <= EXHAUSTIVE_SETS_MAX {
        let rate = |set: &[usize]| {
            let rest: Vec<usize> = (0..n).filter(|at| !set.contains(at)).collect();
            (
                within(set) + set.iter().map(|at| with_fixed[*at]).sum::<u64>(),
                within(&rest),
            )
        };
        best_set(n, wanted, rate)
    } else {
        greedy_set(n, wanted, &with_fixed, &pair)
    };
    chosen.extend(picked.into_iter().map(|at| free[at].clone()));
}

fn best_set(n: usize, size: usize, rate: impl Fn(&[usize]) -> (u64, u64)) -> Vec<usize> {
    let mut set: Vec<usize> = (0..size).collect();
    let (mut best, mut best_rate) = (set.clone(), rate(&set));
    while next_combination(&mut set, n) {
        let rate = rate(&set);
        if rate > best_rate {
            (best, best_rate) = (set.clone(), rate);
        }
    }
    best
}

/// The next larger combination in lexical order, in place.
fn next_combination(set: &mut [usize], n: usize) -> bool {
    let size = set.len();
    let Some(at) = (0..size).rev().find(|at| set[*at] < n - size + at) else {
        return false;
    };
    set[at] += 1;
    for later in at + 1..size {
        set[later] = set[later - 1] + 1;
    }
    true
}

fn greedy_set(n: usize, size: usize, with_fixed: &[u64], pair: &[u64]) -> Vec<usize> {
    let mut set: Vec<usize> = Vec::new();
    for _ in 0..size {
        let gain = |at: usize| with_fixed[at] + set.iter().map(|other| pair[at * n + other]).sum::<u64>();
        // `max_by_key` takes the last of equals; reversed, the first in hardware order wins.
        let next = (0..n).rev().filter(|at| !set.contains(at)).max_by_key(|at| gain(*at));
        set.extend(next);
    }
    set
}

fn combinations(n: usize, k: usize) -> u128 {
    (0..k.min(n)).fold(1, |count: u128, i| {
        count.saturating_mul((n - i) as u128) / (i as u128 + 1)
    })
}

/// How well two GPUs are connected: first by NVLinks, then by their distance on PCI, then by a common NUMA node.
fn affinity(inventory: &Inventory, a: u32, b: u32) -> u64 {
    let device = |index: u32| inventory.devices.iter().find(|device| device.index == index);
    let (Some(first), Some(second)) = (device(a), device(b)) else {
        return 0;
    };
    let peer = |peers: &[Peer], index: u32| peers.iter().find(|peer| peer.index == index).cloned();
    let link = peer(&first.peers, b).or_else(|| peer(&second.peers, a));
    let nvlinks = link.as_ref().map_or(0, |peer| u64::from(peer.nvlinks) * 100);
    let same_board = first.board_id.is_some() && first.board_id == second.board_id;
    let path = match link.and_then(|peer| peer.path) {
        _ if same_board => 60,
        Some(PciPath::SameBoard) => 60,
        Some(PciPath::SingleSwitch) => 50,
        Some(PciPath::MultipleSwitches) => 40,
        Some(PciPath::HostBridge) => 30,
        Some(PciPath::SameNode) => 20,
        Some(PciPath::System) => 10,
        None if first.numa_node.is_some() && first.numa_node == second.numa_node => 20,
        None => 10,
    };
    nvlinks + path
}

/// For replicas and MIG devices: takes one at a time from the GPU with the fewest (or most) of its device ids in use.
fn add_balanced(
    resource: &Resource,
    policy: SharedPolicy,
    chosen: &mut Vec<String>,
    mut free: Vec<&String>,
    wanted: usize,
) {
    let gpu = |id: &str| {
        resource
            .unit(id)
            .map(|unit| unit.gpu.as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for unit in &resource.units {
        *used.entry(unit.gpu.clone()).or_default() += i64::from(resource.replicas);
    }
    for id in &free {
        *used.entry(gpu(id)).or_default() -= 1;
    }
    for _ in 0..wanted {
        let rate = |id: &str| {
            let count = used.get(&gpu(id)).copied().unwrap_or(0);
            // A container that requests several devices wants several GPUs, even under the packed policy.
            let in_this_answer = chosen.iter().filter(|other| gpu(other) == gpu(id)).count();
            match policy {
                SharedPolicy::Spread => (in_this_answer, count),
                SharedPolicy::Packed => (in_this_answer, -count),
            }
        };
        let Some(at) = (0..free.len()).min_by_key(|at| rate(free[*at])) else {
            return;
        };
        let id = free.remove(at);
        *used.entry(gpu(id)).or_default() += 1;
        chosen.push(id.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Policy, plan};
    use super::super::sharing::{Rename, Sharing};
    use super::*;
    use kai_gpu::{Device, DeviceKind, MemoryKind};

    /// Eight GPUs in two quads; within a quad, neighbours (0,1) (2,3) ... share a switch and NVLinks.
    fn two_quads() -> Inventory {
        let device = |index: u32| Device {
            index,
            uuid: format!("GPU-{index}"),
            aliases: Vec::new(),
            kind: DeviceKind::Discrete,
            minor: Some(index),
            name: "test".into(),
            memory_mib: Some(1),
            memory_kind: MemoryKind::Dedicated,
            compute_capability: None,
            pci_bus_id: None,
            numa_node: Some(index / 4),
            board_id: None,
            peers: (0..8)
                .filter(|other| *other != index)
                .map(|other| Peer {
                    index: other,
                    nvlinks: if other / 2 == index / 2 { 2 } else { 0 },
                    path: Some(if other / 4 == index / 4 {
                        PciPath::SingleSwitch
                    } else {
                        PciPath::System
                    }),
                })
                .collect(),
            mig_mode: None,
            mig_devices: Vec::new(),
        };
        Inventory {
            devices: (0..8).map(device).collect(),
            ..Inventory::default()
        }
    }

    fn ask(
        inventory: &Inventory,
        replicas: u32,
        policy: SharedPolicy,
        free: &[&str],
        must: &[&str],
        size: usize,
    ) -> String {
        let sharing = Policy {
            sharing: Sharing::of_gpus(replicas, Rename::Keep).unwrap(),
            ..Policy::default()
        };
        let resource = &plan(inventory, &sharing).resources[0];
        let texts = |list: &[&str]| list.iter().map(|id| format!("GPU-{id}")).collect::<Vec<_>>();
        let (available, required) = (texts(free), texts(must));
        let query = PreferenceQuery {
            available: &available,
            required: &required,
            size,
            wanted_gpus: &BTreeSet::new(),
            released_gpus: &BTreeSet::new(),
        };
        let mut answer = preferred(resource, inventory, policy, query);
        answer.sort_unstable();
        answer.join(" ").replace("GPU-", "")
    }

    #[test]
    fn whole_gpus_stay_together() {
        let machine = two_quads();
        let ask = |free: &[&str], must: &[&str], size| ask(&machine, 1, SharedPolicy::Spread, free, must, size);
        let all = ["0", "1", "2", "3", "4", "5", "6", "7"];
        assert_eq!(ask(&all, &[], 2), "0 1");
        assert_eq!(ask(&all, &[], 4), "0 1 2 3");
        assert_eq!(ask(&all, &["5"], 2), "4 5");
        assert_eq!(ask(&["1", "2", "4", "6", "7"], &[], 2), "6 7");
        assert_eq!(ask(&["1", "4", "5"], &[], 1), "1", "a lone GPU must not split a pair");
        assert_eq!(ask(&["1", "4"], &[], 3), "1 4", "fewer than asked is all there is");
        assert_eq!(ask(&[], &[], 1), "");
    }

    #[test]
    fn a_gpu_that_lost_its_reservation_goes_to_the_next_one_that_asks_for_one() {
        let machine = two_quads();
        let resource = &plan(&machine, &Policy::default()).resources[0];
        let available: Vec<String> = (0..5).map(|at| format!("GPU-{at}")).collect();
        let wanted_gpus = BTreeSet::from(["GPU-2".to_owned(), "GPU-7".to_owned()]);
        let ask = |size| {
            let query = PreferenceQuery {
                available: &available,
                required: &[],
                size,
                wanted_gpus: &wanted_gpus,
                released_gpus: &BTreeSet::new(),
            };
            preferred(resource, &machine, SharedPolicy::Spread, query).join(" ")
        };
        assert_eq!(ask(1), "GPU-2");
        assert_eq!(ask(2), "GPU-0 GPU-1");
        assert_eq!(ask(4), "GPU-0 GPU-1 GPU-3 GPU-4");
        assert_eq!(ask(5).split(' ').count(), 5, "what there is, if it takes all");
    }

    #[test]
    fn a_gpu_whose_reservation_just_went_is_given_last() {
        let machine = two_quads();
        let resource = &plan(&machine, &Policy::default()).resources[0];
        let available: Vec<String> = (0..3).map(|at| format!("GPU-{at}")).collect();
        let released_gpus = BTreeSet::from(["GPU-0".to_owned()]);
        let ask = |size| {
            let query = PreferenceQuery {
                available: &available,
                required: &[],
                size,
                wanted_gpus: &BTreeSet::new(),
                released_gpus: &released_gpus,
            };
            preferred(resource, &machine, SharedPolicy::Spread, query).join(" ")
        };
        assert_eq!(ask(1), "GPU-1");
        assert_eq!(ask(2), "GPU-1 GPU-2");
        assert_eq!(ask(3).split(' ').count(), 3, "what there is, if it takes all");
    }

    #[test]
    fn shared_gpus_are_spread_or_packed() {
        let machine = two_quads();
        let free = ["0::1", "1::0", "1::1", "2::0", "2::1"];
        let ask = |policy, size| ask(&machine, 2, policy, &free, &[], size);
        assert_eq!(ask(SharedPolicy::Spread, 1), "1::0");
        assert_eq!(ask(SharedPolicy::Packed, 1), "0::1");
        assert_eq!(ask(SharedPolicy::Spread, 2), "1::0 2::0");
        assert_eq!(ask(SharedPolicy::Packed, 5), "0::1 1::0 1::1 2::0 2::1");
    }

    #[test]
    fn the_best_set_is_the_same_for_any_order_of_the_question() {
        let machine = two_quads();
        let ask = |free: &[&str]| ask(&machine, 1, SharedPolicy::Spread, free, &[], 3);
        assert_eq!(ask(&["7", "3", "1", "2", "0"]), ask(&["0", "1", "2", "3", "7"]));
    }

    #[test]
    fn large_machines_are_answered_greedily() {
        assert!(combinations(64, 32) > EXHAUSTIVE_SETS_MAX);
        assert_eq!(combinations(16, 8), 12_870);
        assert_eq!(greedy_set(3, 2, &[0, 0, 0], &[0, 1, 5, 1, 0, 9, 5, 9, 0]), [0, 2]);
    }
}
