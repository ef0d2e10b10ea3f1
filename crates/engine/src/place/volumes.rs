//! Volumes for claims that have none yet: which nodes can give a pod one, and which volumes it takes there.
//!
//! A claim names a pool: the free volumes that suit it, and where a new one can be made. Volumes that the same nodes can use form a
//! segment of the pool, so that the check of a node looks at the few segments of that node. Which volumes are taken is in the ledger.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ids::{NodeId, PodId};
use crate::ledger::Ledger;
use crate::model::{FreeVolume, Labels, NewVolumes, NodeSelectorTerm, Operator, StorageRequest, VolumePoolSpec};
use crate::reasons::Check;
use crate::steps;
use crate::tables::{ChosenVolume, ChosenVolumes, Placement};

/// All pools by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumePools {
    pools: FxHashMap<Box<str>, Pool>,
    /// Nodes by the value of a label, for the labels that terms of volumes name.
    nodes_by_label: FxHashMap<Box<str>, FxHashMap<Box<str>, Vec<NodeId>>>,
}

#[derive(Clone, Debug)]
struct Pool {
    spec: VolumePoolSpec,
    /// `None` until the pool is used after a change of it or of nodes.
    reach: Option<Reach>,
}

/// Which nodes can use which volumes of a pool.
#[derive(Clone, Debug)]
struct Reach {
    segments: Vec<Segment>,
    /// By node: the segments whose volumes it can use, apart from those of all nodes.
    by_node: FxHashMap<NodeId, SmallVec<[u32; 1]>>,
    /// Segments that all nodes can use: one at most.
    everywhere: SmallVec<[u32; 1]>,
    /// Whether a new volume can be made, by node.
    new_volumes: Vec<bool>,
    /// `None` = nobody counts the storage of new volumes.
    storage: Option<StorageReach>,
}

/// Which nodes the segments of storage serve.
#[derive(Clone, Debug, Default)]
struct StorageReach {
    /// Free bytes as reported, by segment.
    reported: Vec<i64>,
    /// By node: its segments, apart from those of all nodes.
    by_node: FxHashMap<NodeId, SmallVec<[u32; 1]>>,
    everywhere: SmallVec<[u32; 1]>,
}

impl StorageReach {
    fn segments_of(&self, node: NodeId) -> impl Iterator<Item = usize> {
        let of_node = self.by_node.get(&node).into_iter().flatten();
        of_node.chain(&self.everywhere).map(|segment| *segment as usize)
    }
}

/// Free volumes with their positions in the pool: the best one first.
type FreeVolumes = SmallVec<[(u32, Arc<str>); 1]>;

/// Volumes that the same nodes can use, the best one first.
#[derive(Clone, Debug)]
struct Segment {
    /// With the position in the pool.
    volumes: Vec<(u32, Arc<str>)>,
}

impl VolumePools {
    pub(crate) fn insert(&mut self, spec: VolumePoolSpec) {
        let name = spec.name.as_str().into();
        self.pools.insert(name, Pool { spec, reach: None });
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.pools.remove(name);
    }

    /// Nodes were added, removed or changed their labels.
    pub(crate) fn nodes_changed(&mut self) {
        self.nodes_by_label.clear();
        for pool in self.pools.values_mut() {
            pool.reach = None;
        }
    }

    /// Brings the pools of a pod up to date. [`VolumeRules`] read them.
    pub(crate) fn update_for(&mut self, ledger: &Ledger, pod: PodId) {
        for claim in &ledger.shape_of(pod).constraints.claims {
            let VolumePools { pools, nodes_by_label } = self;
            let Some(pool) = pools.get_mut(claim.pool.as_str()) else {
                continue;
            };
            if pool.reach.is_none() {
                pool.reach = Some(Reach::of(&pool.spec, ledger, nodes_by_label));
            }
        }
    }

    fn reach(&self, name: &str) -> Option<&Reach> {
        self.pools.get(name)?.reach.as_ref()
    }
}

impl Reach {
    fn of(
        spec: &VolumePoolSpec,
        ledger: &Ledger,
        nodes_by_label: &mut FxHashMap<Box<str>, FxHashMap<Box<str>, Vec<NodeId>>>,
    ) -> Reach {
        let mut reach = Reach {
            segments: Vec::new(),
            by_node: FxHashMap::default(),
            everywhere: SmallVec::new(),
            new_volumes: Vec::new(),
            storage: None,
        };
        let mut by_terms: FxHashMap<&Option<Vec<NodeSelectorTerm>>, usize> = FxHashMap::default();
        for (position, volume) in spec.volumes.iter().enumerate() {
            let FreeVolume { name, nodes } = &**volume;
            let segment = *by_terms.entry(nodes).or_insert_with(|| {
                let id = reach.segments.len() as u32;
                reach.segments.push(Segment { volumes: Vec::new() });
                match nodes {
                    None => reach.everywhere.push(id),
                    Some(terms) => {
                        for node in nodes_matching(terms, ledger, nodes_by_label) {
                            reach.by_node.entry(node).or_default().push(id);
                        }
                    }
                }
                id as usize
            });
            let volume = (position as u32, Arc::clone(name));
            reach.segments[segment].volumes.push(volume);
        }
        reach.new_volumes = match &spec.new_volumes {
            NewVolumes::Nowhere => Vec::new(),
            NewVolumes::Everywhere => vec![true; ledger.nodes.len()],
            NewVolumes::On(terms) => {
                let mut nodes = vec![false; ledger.nodes.len()];
                for node in nodes_matching(terms, ledger, nodes_by_label) {
                    nodes[node.index()] = true;
                }
                nodes
            }
        };
        reach.storage = spec.storage.as_ref().map(|segments| {
            let mut storage = StorageReach::default();
            for (id, segment) in segments.iter().enumerate() {
                storage.reported.push(segment.bytes);
                match &segment.nodes {
                    None => storage.everywhere.push(id as u32),
                    Some(terms) => {
                        for node in nodes_matching(terms, ledger, nodes_by_label) {
                            storage.by_node.entry(node).or_default().push(id as u32);
                        }
                    }
                }
            }
            steps::count(segments.len() + storage.by_node.len());
            storage
        });
        // Not a cycle's work, which must not depend on what earlier cycles computed. The mirror bounds the pools of a namespace.
        steps::count(spec.volumes.len() + reach.by_node.len());
        reach
    }

    fn makes_new_on(&self, node: NodeId) -> bool {
        self.new_volumes.get(node.index()).is_some_and(|can| *can)
    }

    fn segments_of(&self, node: NodeId) -> impl Iterator<Item = u32> {
        let of_node = self.by_node.get(&node).into_iter().flatten();
        of_node.chain(&self.everywhere).copied()
    }

    fn reaches(&self, node: NodeId, volume: &str) -> bool {
        self.segments_of(node).any(|segment| {
            let volumes = &self.segments[segment as usize].volumes;
            volumes.iter().any(|(_, name)| **name == *volume)
        })
    }
}

/// The nodes that one of the terms matches, each once. Terms of volumes nearly always name values of a label: then only the nodes
/// with these values are looked at.
fn nodes_matching(
    terms: &[NodeSelectorTerm],
    ledger: &Ledger,
    nodes_by_label: &mut FxHashMap<Box<str>, FxHashMap<Box<str>, Vec<NodeId>>>,
) -> Vec<NodeId> {
    let mut found = Vec::new();
    let matches = |term: &NodeSelectorTerm, id: NodeId| {
        let node = ledger.node(id);
        node.present && term.matches(&node.name, &node.labels)
    };
    for term in terms {
        let by_value = term
            .labels
            .iter()
            .find(|requirement| requirement.operator == Operator::In);
        match by_value {
            Some(requirement) => {
                let of_label = nodes_by_label
                    .entry(requirement.key.as_str().into())
                    .or_insert_with(|| nodes_by_value(ledger, &requirement.key));
                let nodes = requirement
                    .values
                    .iter()
                    .filter_map(|value| of_label.get(value.as_str()));
                found.extend(nodes.flatten().copied().filter(|id| matches(term, *id)));
            }
            None => {
                let all = (0..ledger.nodes.len()).map(NodeId::new);
                found.extend(all.filter(|id| matches(term, *id)));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn nodes_by_value(ledger: &Ledger, label: &str) -> FxHashMap<Box<str>, Vec<NodeId>> {
    let mut nodes: FxHashMap<Box<str>, Vec<NodeId>> = FxHashMap::default();
    for (at, node) in ledger.nodes.iter().enumerate().filter(|(_, node)| node.present) {
        let labels: &Labels = &node.labels;
        if let Some(value) = labels.get(label) {
            nodes.entry(value.as_str().into()).or_default().push(NodeId::new(at));
        }
    }
    nodes
}

/// The claims of one pod that have no volume yet, and what they can get.
#[derive(Debug)]
pub(crate) struct VolumeRules<'a> {
    claims: Vec<ClaimRule<'a>>,
}

#[derive(Debug)]
struct ClaimRule<'a> {
    name: &'a Arc<str>,
    request: Option<&'a StorageRequest>,
    /// `None` = there is no such pool.
    reach: Option<&'a Reach>,
    options: Options,
    /// The storage of a new volume; `None` = nobody counts it.
    storage: Option<NewStorage<'a>>,
}

/// The storage from which a claim gets a new volume.
#[derive(Debug)]
struct NewStorage<'a> {
    class: &'a str,
    bytes: i64,
    reach: &'a StorageReach,
    /// Free bytes by segment, without those that other placements take.
    free: Vec<i64>,
}

impl NewStorage<'_> {
    /// The most free storage for one node.
    fn free_on(&self, node: NodeId) -> i64 {
        let segments = self.reach.segments_of(node);
        segments.map(|segment| self.free[segment]).max().unwrap_or_default()
    }
}

/// What a claim can get.
#[derive(Debug)]
enum Options {
    /// A volume that no placement takes, or a new one. By segment: the best free volumes, as many as the pod has claims.
    Any(Vec<FreeVolumes>),
    /// The volume that another pod with the claim takes.
    Same(Arc<str>),
    /// The new volume that is made for another pod with the claim, on this node.
    SameNew { node: Option<NodeId>, many_nodes: bool },
}

impl<'a> VolumeRules<'a> {
    /// The rules of a pod; `None` if all its claims have a volume. The pools must be up to date.
    pub(crate) fn of(ledger: &'a Ledger, pools: &'a VolumePools, pod: PodId) -> Option<VolumeRules<'a>> {
        let row = ledger.pod(pod);
        let names = row.claims.as_deref()?;
        let claims = &ledger.shape(row.shape).constraints.claims;
        let own: SmallVec<[&Placement; 2]> = [Some(&row.placement), row.old_placement.as_deref()]
            .into_iter()
            .flatten()
            .filter(|placement| placement.status.is_active_used())
            .collect();
        let rule = |(name, claim): (&'a Arc<str>, &'a crate::model::UnboundClaim)| {
            let reach = pools.reach(&claim.pool);
            let options = match choice_of_others(ledger, name, &own) {
                Some((_, Some(volume))) => Options::Same(volume),
                Some((node, None)) => Options::SameNew {
                    node,
                    many_nodes: claim.many_nodes,
                },
                None => Options::Any(
                    reach
                        .map(|reach| free_volumes(ledger, reach, &own, names.len()))
                        .unwrap_or_default(),
                ),
            };
            let counted = claim
                .storage
                .as_ref()
                .zip(reach.and_then(|reach| reach.storage.as_ref()));
            // A volume that is made for another pod with the claim takes no more storage.
            let counted = counted.filter(|_| matches!(options, Options::Any(_)));
            let storage = counted.map(|(storage, reach)| NewStorage {
                class: &storage.class,
                bytes: storage.bytes,
                reach,
                free: free_storage(ledger, reach, &storage.class, &own),
            });
            ClaimRule {
                name,
                request: claim.storage.as_ref(),
                reach,
                options,
                storage,
            }
        };
        let claims = names.iter().zip(claims).map(rule).collect();
        Some(VolumeRules { claims })
    }

    /// What each claim gets on the node; an error if the node can't give them all a volume.
    pub(crate) fn choose(&self, node: NodeId) -> Result<ChosenVolumes, Check> {
        let wishes = self
            .claims
            .iter()
            .map(|claim| claim.wish(node))
            .collect::<Result<Vec<_>, Check>>()?;
        let volumes = assign(&wishes).ok_or_else(|| self.shortage(node))?;
        self.check_storage(node, &volumes)?;
        let chosen = self.claims.iter().zip(volumes).map(|(claim, volume)| ChosenVolume {
            claim: Arc::clone(claim.name),
            storage: match &volume {
                Some(_) => None,
                None => claim
                    .request
                    .map(|request| (Arc::from(request.class.as_str()), request.bytes)),
            },
            volume,
        });
        Ok(Some(chosen.collect()))
    }

    /// What is missing where volumes that exist do not suffice.
    fn shortage(&self, node: NodeId) -> Check {
        let lacks_storage = |claim: &ClaimRule<'_>| {
            claim.reach.is_some_and(|reach| reach.makes_new_on(node)) && !claim.has_storage(node)
        };
        match self.claims.iter().any(lacks_storage) {
            true => Check::Storage,
            false => Check::VolumesToBind,
        }
    }

    /// Whether the new volumes fit together: each has room alone.
    fn check_storage(&self, node: NodeId, volumes: &[Option<Arc<str>>]) -> Result<(), Check> {
        let new = || {
            let claims = self.claims.iter().zip(volumes).filter(|(_, volume)| volume.is_none());
            claims.filter_map(|(claim, _)| claim.storage.as_ref())
        };
        for storage in new() {
            let of_class = new().filter(|other| other.class == storage.class);
            if of_class.map(|other| other.bytes).sum::<i64>() > storage.free_on(node) {
                return Err(Check::Storage);
            }
        }
        Ok(())
    }
}

/// What a claim can get on one node.
#[derive(Debug)]
struct Wish {
    /// Volumes, the best one first.
    volumes: FreeVolumes,
    can_be_new: bool,
}

impl ClaimRule<'_> {
    /// Whether the storage of the node has room for a new volume.
    fn has_storage(&self, node: NodeId) -> bool {
        let storage = self.storage.as_ref();
        storage.is_none_or(|storage| storage.free_on(node) >= storage.bytes)
    }

    /// An error if it can get nothing.
    fn wish(&self, node: NodeId) -> Result<Wish, Check> {
        let reach = self.reach.ok_or(Check::VolumesToBind)?;
        let wish = match &self.options {
            Options::Same(volume) => Wish {
                volumes: reach
                    .reaches(node, volume)
                    .then(|| (0, Arc::clone(volume)))
                    .into_iter()
                    .collect(),
                can_be_new: false,
            },
            Options::SameNew {
                node: first,
                many_nodes,
            } => Wish {
                volumes: SmallVec::new(),
                can_be_new: Some(node) == *first || (*many_nodes && reach.makes_new_on(node)),
            },
            Options::Any(free) => {
                let mut volumes: FreeVolumes = reach
                    .segments_of(node)
                    .flat_map(|segment| &free[segment as usize])
                    .cloned()
                    .collect();
                volumes.sort_unstable_by_key(|(position, _)| *position);
                Wish {
                    volumes,
                    can_be_new: reach.makes_new_on(node) && self.has_storage(node),
                }
            }
        };
        match (wish.volumes.is_empty(), wish.can_be_new) {
            (true, false) if reach.makes_new_on(node) && !self.has_storage(node) => Err(Check::Storage),
            (true, false) => Err(Check::VolumesToBind),
            (false, _) | (_, true) => Ok(wish),
        }
    }
}

/// Gives each claim a volume of its own. Claims that can't get a new volume come first; where they compete, one gives way to another
/// as long as there is another volume for it (augmenting paths of a bipartite matching).
fn assign(wishes: &[Wish]) -> Option<Vec<Option<Arc<str>>>> {
    let mut holders: FxHashMap<&str, usize> = FxHashMap::default();
    for is_first_round in [true, false] {
        for (at, wish) in wishes.iter().enumerate() {
            if wish.can_be_new != is_first_round && !give(wishes, &mut holders, at, &mut Vec::new()) && !wish.can_be_new
            {
                return None;
            }
        }
    }
    let mut volumes = vec![None; wishes.len()];
    for (at, wish) in wishes.iter().enumerate() {
        let held = wish.volumes.iter().find(|(_, name)| holders.get(&**name) == Some(&at));
        volumes[at] = held.map(|(_, name)| Arc::clone(name));
    }
    Some(volumes)
}

/// Gives the claim a volume that nobody holds, or whose holder can have another one.
fn give<'w>(wishes: &'w [Wish], holders: &mut FxHashMap<&'w str, usize>, at: usize, tried: &mut Vec<&'w str>) -> bool {
    for (_, name) in &wishes[at].volumes {
        if tried.contains(&&**name) {
            continue;
        }
        tried.push(name);
        let holder = holders.get(&**name).copied();
        if holder.is_none_or(|holder| give(wishes, holders, holder, tried)) {
            holders.insert(name, at);
            return true;
        }
    }
    false
}

/// What placements of other pods chose for the claim: a volume before a new one, then the node with the first name, whatever the
/// order of events was.
fn choice_of_others(ledger: &Ledger, claim: &str, own: &[&Placement]) -> Option<(Option<NodeId>, Option<Arc<str>>)> {
    let of_pod = |node: Option<NodeId>, volume: &Option<Arc<str>>| {
        let chosen = own.iter().filter(|placement| placement.node == node);
        let chosen = chosen.flat_map(|placement| placement.volumes.iter().flat_map(|volumes| volumes.iter()));
        chosen
            .filter(|chosen| *chosen.claim == *claim && chosen.volume == *volume)
            .count() as u32
    };
    let uses = ledger.volumes.uses_of(claim).iter();
    let others = uses.filter(|used| used.placements > of_pod(used.node, &used.volume));
    let first = others.min_by_key(|used| {
        (
            used.volume.is_none(),
            &used.volume,
            used.node.map(|node| ledger.node(node).rank),
        )
    })?;
    Some((first.node, first.volume.clone()))
}

/// By segment: the reported bytes without those that other placements take.
fn free_storage(ledger: &Ledger, reach: &StorageReach, class: &str, own: &[&Placement]) -> Vec<i64> {
    let mut free = reach.reported.clone();
    let mut take = |node: NodeId, bytes: i64| {
        for segment in reach.segments_of(node) {
            free[segment] -= bytes;
        }
    };
    let mut nodes = 0;
    for (node, bytes) in ledger.volumes.storage_of(class) {
        nodes += 1;
        take(node, bytes);
    }
    for placement in own {
        let chosen = placement.volumes.iter().flat_map(|volumes| volumes.iter());
        let of_class = chosen.filter_map(|chosen| chosen.storage.as_ref().filter(|(other, _)| **other == *class));
        if let Some(node) = placement.node {
            of_class.for_each(|(_, bytes)| take(node, -bytes));
        }
    }
    ledger.note_work(free.len() / 4 + nodes);
    free
}

/// By segment: the first volumes that no other pod's placement takes.
fn free_volumes(ledger: &Ledger, reach: &Reach, own: &[&Placement], wanted: usize) -> Vec<FreeVolumes> {
    let by_pod = |volume: &str| {
        let chosen = own
            .iter()
            .flat_map(|placement| placement.volumes.iter().flat_map(|volumes| volumes.iter()));
        chosen.filter(|chosen| chosen.volume.as_deref() == Some(volume)).count() as u32
    };
    let is_free = |(_, name): &&(u32, Arc<str>)| ledger.volumes.placements_with(name) <= by_pod(name);
    let free = reach.segments.iter().map(|segment| {
        let free: FreeVolumes = segment.volumes.iter().filter(is_free).take(wanted).cloned().collect();
        free
    });
    ledger.note_work(reach.segments.len() / 4);
    free.collect()
}
