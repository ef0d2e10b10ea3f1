//! What pods use of volumes that are bound or will be: claims that one pod alone can use, and the volumes that drivers attach to each
//! node. Both are amounts by the status of the pods, which the journal covers like every other amount.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Ledger;
use super::journal::Undo;
use crate::ids::{NodeId, PodId, Symbol};
use crate::model::AttachLimits;
use crate::reasons::Check;
use crate::report::Status;
use crate::tables::{DriverVolumes, PodVolumes, When};

/// Claims in use, volumes on nodes and the limits of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attachments {
    /// Pods by claim that one pod alone can use.
    exclusive_claims: FxHashMap<Arc<str>, Users>,
    by_node: FxHashMap<NodeId, NodeAttachments>,
    /// By volume: on how many nodes it is.
    nodes: FxHashMap<Arc<str>, u32>,
    /// By name of the node, whether or not the engine has that node.
    limits: FxHashMap<Symbol, Limits>,
}

/// By driver: how many volumes a node takes.
type Limits = Box<[(Arc<str>, u32)]>;

/// What of a pod's volumes decides whether it fits where another pod does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VolumeSignature {
    /// Claims that one pod alone can use, and volumes that are on nodes already.
    named: Vec<Arc<str>>,
    /// How many volumes are to be attached, by driver.
    attached: Vec<(Arc<str>, usize)>,
}

/// Pods by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Users {
    active: u32,
    releasing: u32,
    pipelined: u32,
}

impl Users {
    fn add(&mut self, status: Status, sign: i32) {
        let count = match status {
            Status::Releasing => &mut self.releasing,
            Status::Pipelined => &mut self.pipelined,
            _ => &mut self.active,
        };
        *count = count
            .checked_add_signed(sign)
            .expect("a placement takes away only what it added");
    }

    /// Whether one of them has the volume.
    fn is_any(self, when: When) -> bool {
        match when {
            When::Now => self.active + self.releasing > 0,
            When::AfterRelease => self.active + self.pipelined > 0,
        }
    }
}

/// The volumes on one node.
#[derive(Clone, Debug, Default)]
struct NodeAttachments {
    volumes: FxHashMap<Arc<str>, Users>,
    drivers: SmallVec<[VolumeCount; 1]>,
}

/// How many different volumes of a driver are on a node.
#[derive(Clone, Debug)]
struct VolumeCount {
    driver: Arc<str>,
    now: u32,
    after_release: u32,
}

impl NodeAttachments {
    /// Returns by how much the number of nodes with the volume changes.
    fn count(&mut self, driver: &Arc<str>, volume: &Arc<str>, status: Status, sign: i32) -> i32 {
        let users = self.volumes.entry(Arc::clone(volume)).or_default();
        let before = *users;
        users.add(status, sign);
        let after = *users;
        if after == Users::default() {
            self.volumes.remove(volume);
        }
        let at = self.drivers.iter().position(|known| known.driver == *driver);
        let at = at.unwrap_or_else(|| {
            self.drivers.push(VolumeCount {
                driver: Arc::clone(driver),
                now: 0,
                after_release: 0,
            });
            self.drivers.len() - 1
        });
        let of_driver = &mut self.drivers[at];
        for (count, when) in [
            (&mut of_driver.now, When::Now),
            (&mut of_driver.after_release, When::AfterRelease),
        ] {
            *count = *count + u32::from(after.is_any(when)) - u32::from(before.is_any(when));
        }
        if self.volumes.is_empty() {
            self.drivers.clear();
        }
        i32::from(after != Users::default()) - i32::from(before != Users::default())
    }

    fn has(&self, volume: &str, when: When) -> bool {
        self.volumes.get(volume).is_some_and(|users| users.is_any(when))
    }

    fn volumes_of(&self, driver: &str, when: When) -> u32 {
        let of_driver = self.drivers.iter().find(|known| *known.driver == *driver);
        of_driver.map_or(0, |known| match when {
            When::Now => known.now,
            When::AfterRelease => known.after_release,
        })
    }
}

impl Attachments {
    /// Sets how many volumes of each driver a node takes.
    pub(crate) fn set_limits(&mut self, node: Symbol, limits: &AttachLimits) {
        if limits.volumes.is_empty() {
            self.limits.remove(&node);
            return;
        }
        let limits = limits
            .volumes
            .iter()
            .map(|(driver, max)| (driver.as_str().into(), *max));
        self.limits.insert(node, limits.collect());
    }

    fn count(&mut self, volumes: &PodVolumes, node: Option<NodeId>, status: Status, sign: i32) {
        for claim in &volumes.exclusive_claims {
            let users = self.exclusive_claims.entry(Arc::clone(claim)).or_default();
            users.add(status, sign);
            if *users == Users::default() {
                self.exclusive_claims.remove(claim);
            }
        }
        let Some(node) = node.filter(|_| !volumes.attached.is_empty()) else {
            return;
        };
        let on_node = self.by_node.entry(node).or_default();
        for DriverVolumes { driver, volumes } in &volumes.attached {
            for volume in volumes {
                let change = on_node.count(driver, volume, status, sign);
                let nodes = self.nodes.entry(Arc::clone(volume)).or_default();
                *nodes = nodes
                    .checked_add_signed(change)
                    .expect("a volume leaves only a node that it was on");
                if *nodes == 0 {
                    self.nodes.remove(volume);
                }
            }
        }
        if on_node.volumes.is_empty() {
            self.by_node.remove(&node);
        }
    }

    /// The amounts in an order that does not depend on history, for tests.
    #[cfg(test)]
    pub(crate) fn sorted(&self) -> Vec<String> {
        let claims = self.exclusive_claims.iter().map(|used| format!("{used:?}"));
        let nodes = self.by_node.iter().flat_map(|(node, on_node)| {
            let volumes = on_node.volumes.iter().map(move |used| format!("{node:?} {used:?}"));
            volumes.chain(on_node.drivers.iter().map(move |of| format!("{node:?} {of:?}")))
        });
        let mut all: Vec<String> = claims.chain(nodes).collect();
        all.sort_unstable();
        all
    }
}

// Few pods use volumes, and every placement and every check comes by here: only the question whether a pod uses any is inlined.
impl Ledger {
    /// Adds the volumes of a pod with this node and status (`sign` 1), or takes them away (-1).
    #[inline(always)]
    pub(super) fn use_attachments(&mut self, pod: PodId, node: Option<NodeId>, status: Status, sign: i32) {
        if let Some(volumes) = &self.pods[pod.index()].volumes
            && status.is_active_used()
        {
            let volumes = Arc::clone(volumes);
            self.count_attachments(&volumes, pod, node, status, sign);
        }
    }

    #[cold]
    fn count_attachments(&mut self, volumes: &PodVolumes, pod: PodId, node: Option<NodeId>, status: Status, sign: i32) {
        self.note_work(volumes.count());
        self.attachments.count(volumes, node, status, sign);
        self.log(Undo::Attachments {
            pod,
            node,
            status,
            sign,
        });
    }

    pub(super) fn undo_attachments(&mut self, pod: PodId, node: Option<NodeId>, status: Status, sign: i32) {
        if let Some(volumes) = &self.pods[pod.index()].volumes {
            self.attachments.count(volumes, node, status, -sign);
        }
    }

    /// Whether another pod uses a claim of the pod that one pod alone can use. A pod that is being placed uses none itself, or is leaving.
    #[inline(always)]
    pub(crate) fn has_claim_in_use(&self, pod: PodId, when: When) -> bool {
        let volumes = self.pod(pod).volumes.as_ref();
        volumes.is_some_and(|volumes| self.has_exclusive_claim_in_use(volumes, when))
    }

    #[cold]
    fn has_exclusive_claim_in_use(&self, volumes: &PodVolumes, when: When) -> bool {
        let is_used = |claim: &Arc<str>| {
            let users = self.attachments.exclusive_claims.get(claim);
            users.is_some_and(|users| users.is_any(when))
        };
        self.note_work(volumes.exclusive_claims.len());
        volumes.exclusive_claims.iter().any(is_used)
    }

    /// Whether the node can attach the volumes of the pod, besides those that it has.
    #[inline(always)]
    pub(crate) fn can_attach(&self, pod: PodId, node: NodeId, when: When) -> bool {
        let volumes = self.pod(pod).volumes.as_ref();
        volumes.is_none_or(|volumes| self.can_attach_volumes(volumes, node, when))
    }

    #[cold]
    fn can_attach_volumes(&self, volumes: &PodVolumes, node: NodeId, when: When) -> bool {
        let Some(limits) = self.attachments.limits.get(&self.node(node).symbol) else {
            return true;
        };
        let on_node = self.attachments.by_node.get(&node);
        let has_room = |DriverVolumes { driver, volumes }: &DriverVolumes| {
            let Some((_, max)) = limits.iter().find(|(limited, _)| limited == driver) else {
                return true;
            };
            let attached = on_node.map_or(0, |on_node| on_node.volumes_of(driver, when)) as usize;
            let (wanted, max) = (volumes.len(), *max as usize);
            if attached + wanted <= max {
                return true;
            }
            // Volumes that are on the node already need no room. A node holds no more of them than it has attached.
            let Some(on_node) = on_node.filter(|_| wanted <= max.max(attached)) else {
                return false;
            };
            self.note_work(wanted);
            let new = volumes.iter().filter(|volume| !on_node.has(volume, when)).count();
            new == 0 || attached + new <= max
        };
        self.note_work(volumes.attached.len());
        volumes.attached.iter().all(has_room)
    }

    /// What of the pod's volumes decides a search; `None` = nothing.
    pub(crate) fn volume_signature(&self, pod: PodId) -> Option<VolumeSignature> {
        let volumes = self.pod(pod).volumes.as_ref()?;
        self.note_work(volumes.count());
        let all = volumes.attached.iter().flat_map(|of_driver| &of_driver.volumes);
        let on_nodes = all.filter(|volume| self.attachments.nodes.contains_key(*volume));
        let count = |of_driver: &DriverVolumes| (Arc::clone(&of_driver.driver), of_driver.volumes.len());
        Some(VolumeSignature {
            named: volumes.exclusive_claims.iter().chain(on_nodes).cloned().collect(),
            attached: volumes.attached.iter().map(count).collect(),
        })
    }

    /// Whether nothing that other pods use of volumes keeps the pod from the node.
    pub(crate) fn check_attachments(&self, pod: PodId, node: NodeId, when: When) -> Result<(), Check> {
        if self.has_claim_in_use(pod, when) {
            return Err(Check::ExclusiveClaim);
        }
        if !self.can_attach(pod, node, when) {
            return Err(Check::AttachLimit);
        }
        Ok(())
    }
}
