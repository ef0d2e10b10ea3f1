//! The pools of volumes that unbound claims of pending pods get theirs from. Claims that ask for the same share a pool, so that a change of
//! a volume changes a few pools and no pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use kai_api::{Object, ObjectKey, PersistentVolume, StorageClass, VolumeRequest};
use kai_engine::model::{
    FreeVolume, NewVolumes, NodeSelectorTerm, Operator, Requirement, StorageSegment, VolumePoolSpec,
};
use kai_engine::steps;
use rustc_hash::{FxHashMap, FxHashSet};

use super::storage::Storage;

/// Different requests of the waiting claims of one namespace. Each volume of the class is compared with each of them whenever one changes, and
/// tenants write the claims. Further claims wait until another request of their namespace is met.
pub(super) const REQUESTS_MAX: usize = 32;

/// Where the volume of a claim comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Any volume that is as requested.
    Request(Box<VolumeRequest>),
    /// The volume that names the claim.
    Reserved(Box<str>),
    /// The volume that the provisioner makes for this node: a pod with the claim was to run there.
    MadeFor(Box<str>),
}

impl Source {
    /// The name of the pool, the same for equal sources.
    fn pool_name(&self) -> String {
        match self {
            Source::Request(request) => format!("request {request:?}"),
            Source::Reserved(volume) => format!("volume {volume}"),
            Source::MadeFor(node) => format!("node {node}"),
        }
    }
}

/// The objects that pools are made of.
pub(super) struct Objects<'o> {
    pub(super) volumes: &'o FxHashMap<Box<str>, Arc<PersistentVolume>>,
    pub(super) classes: &'o FxHashMap<Box<str>, Arc<StorageClass>>,
    pub(super) described: &'o FxHashMap<Box<str>, Arc<FreeVolume>>,
    pub(super) by_class: &'o FxHashMap<Box<str>, FxHashSet<Box<str>>>,
    pub(super) storage: &'o Storage,
}

/// All pools that claims of pending pods use.
#[derive(Debug, Default)]
pub(super) struct Pools {
    by_name: FxHashMap<Arc<str>, Pool>,
    of_claim: FxHashMap<ObjectKey, Arc<str>>,
    /// Names of pools by storage class.
    of_class: FxHashMap<Box<str>, FxHashSet<Arc<str>>>,
    /// By namespace: how many of its claims use each request's pool.
    requests: FxHashMap<Box<str>, FxHashMap<Arc<str>, usize>>,
    /// By namespace: claims above [`REQUESTS_MAX`].
    postponed: FxHashMap<Box<str>, BTreeSet<ObjectKey>>,
    /// Claims that were postponed, and may ask for their pool again.
    admitted: Vec<ObjectKey>,
    /// Pools whose objects changed since the engine got them.
    changed: FxHashSet<Arc<str>>,
    /// Pools that the engine has and no claim uses.
    unused: Vec<String>,
}

#[derive(Debug)]
struct Pool {
    source: Source,
    claims: usize,
    /// As the engine has it.
    sent: Option<VolumePoolSpec>,
}

impl Pools {
    /// Counts the claim among the users of its pool; returns the pool's name. `None` = the namespace of the claim has too many requests.
    pub(super) fn join(&mut self, claim: &ObjectKey, source: Source) -> Option<String> {
        let name = source.pool_name();
        if self.of_claim.get(claim).is_some_and(|known| **known == *name) {
            return Some(name);
        }
        self.leave(claim);
        let shared: Arc<str> = name.as_str().into();
        if let Source::Request(request) = &source {
            let of_namespace = self.requests.entry((*claim.namespace).into()).or_default();
            if of_namespace.len() >= REQUESTS_MAX && !of_namespace.contains_key(&shared) {
                let postponed = self.postponed.entry((*claim.namespace).into()).or_default();
                postponed.insert(claim.clone());
                return None;
            }
            *of_namespace.entry(Arc::clone(&shared)).or_default() += 1;
            let of_class = self.of_class.entry(request.class.as_str().into()).or_default();
            of_class.insert(Arc::clone(&shared));
        }
        let pool = self.by_name.entry(Arc::clone(&shared)).or_insert_with(|| Pool {
            source,
            claims: 0,
            sent: None,
        });
        pool.claims += 1;
        if pool.sent.is_none() {
            self.changed.insert(Arc::clone(&shared));
        }
        self.of_claim.insert(claim.clone(), shared);
        Some(name)
    }

    /// The claim uses no pool any more.
    pub(super) fn leave(&mut self, claim: &ObjectKey) {
        if let Some(postponed) = self.postponed.get_mut(&*claim.namespace) {
            postponed.remove(claim);
            if postponed.is_empty() {
                self.postponed.remove(&*claim.namespace);
            }
        }
        let Some(name) = self.of_claim.remove(claim) else {
            return;
        };
        self.forget_request(&claim.namespace, &name);
        let pool = self
            .by_name
            .get_mut(&name)
            .expect("a pool is kept while a claim uses it");
        pool.claims -= 1;
        if pool.claims > 0 {
            return;
        }
        if let Some(pool) = self.by_name.remove(&name) {
            if let Source::Request(request) = &pool.source
                && let Some(names) = self.of_class.get_mut(request.class.as_str())
            {
                names.remove(&name);
                if names.is_empty() {
                    self.of_class.remove(request.class.as_str());
                }
            }
            if pool.sent.is_some() {
                self.unused.push(name.to_string());
            }
        }
        self.changed.remove(&name);
    }

    /// A claim of the namespace does not use the pool any more. If it was the last one, a postponed claim takes its turn.
    fn forget_request(&mut self, namespace: &str, pool: &Arc<str>) {
        let Some(of_namespace) = self.requests.get_mut(namespace) else {
            return;
        };
        let Some(claims) = of_namespace.get_mut(pool) else {
            return;
        };
        *claims -= 1;
        if *claims > 0 {
            return;
        }
        of_namespace.remove(pool);
        if of_namespace.is_empty() {
            self.requests.remove(namespace);
        }
        self.admit_next(namespace);
    }

    /// If the admitted claim has no use for its turn, another claim of its namespace gets it.
    pub(super) fn pass_on_turn(&mut self, claim: &ObjectKey) {
        let namespace = &*claim.namespace;
        let requests = self.requests.get(namespace).map_or(0, FxHashMap::len);
        if requests < REQUESTS_MAX && !self.of_claim.contains_key(claim) {
            self.admit_next(namespace);
        }
    }

    fn admit_next(&mut self, namespace: &str) {
        let Some(postponed) = self.postponed.get_mut(namespace) else {
            return;
        };
        self.admitted.extend(postponed.pop_first());
        if postponed.is_empty() {
            self.postponed.remove(namespace);
        }
    }

    /// The next claim whose pods may be looked at again.
    pub(super) fn next_admitted(&mut self) -> Option<ObjectKey> {
        self.admitted.pop()
    }

    /// The volume was added or removed, or changed from or to this content.
    pub(super) fn volume_changed(&mut self, name: &str, volume: &PersistentVolume) {
        self.class_changed(volume.storage_class_name().unwrap_or_default());
        let reserved = Source::Reserved(name.into()).pool_name();
        if let Some((pool, _)) = self.by_name.get_key_value(reserved.as_str()) {
            self.changed.insert(Arc::clone(pool));
        }
    }

    /// The storage class or its volumes changed.
    pub(super) fn class_changed(&mut self, class: &str) {
        let pools = self.of_class.get(class).into_iter().flatten();
        self.changed.extend(pools.cloned());
    }

    /// Names of the pools that the engine has and no claim uses.
    pub(super) fn take_unused(&mut self) -> Vec<String> {
        let mut unused = std::mem::take(&mut self.unused);
        unused.sort_unstable();
        unused
    }

    /// The pools that differ from those that the engine has.
    pub(super) fn take_changed(&mut self, objects: &Objects<'_>) -> Vec<VolumePoolSpec> {
        if self.changed.is_empty() {
            return Vec::new();
        }
        let mut names: Vec<Arc<str>> = std::mem::take(&mut self.changed).into_iter().collect();
        names.sort_unstable();
        let mut changed = Vec::new();
        for name in names {
            let Some(pool) = self.by_name.get_mut(&name) else {
                continue;
            };
            let spec = objects.pool(&name, &pool.source);
            if pool.sent.as_ref() != Some(&spec) {
                pool.sent = Some(spec.clone());
                changed.push(spec);
            }
        }
        changed
    }
}

impl Objects<'_> {
    fn pool(&self, name: &str, source: &Source) -> VolumePoolSpec {
        let (volumes, new_volumes) = match source {
            Source::Request(request) => (self.suitable(request), self.new_volumes(&request.class)),
            Source::Reserved(volume) => {
                let volume = self.described.get(volume).cloned();
                (volume.into_iter().collect(), NewVolumes::Nowhere)
            }
            Source::MadeFor(node) => (Vec::new(), NewVolumes::On(vec![is_node(node)])),
        };
        VolumePoolSpec {
            name: name.to_owned(),
            volumes,
            new_volumes,
            storage: match source {
                Source::Request(request) => self.segments(request),
                Source::Reserved(_) | Source::MadeFor(_) => None,
            },
        }
    }

    fn segments(&self, request: &VolumeRequest) -> Option<Vec<Arc<StorageSegment>>> {
        let class = self.classes.get(request.class.as_str())?;
        let is_counted = self.storage.is_counted(class);
        is_counted.then(|| self.storage.segments(&request.class, request.bytes))
    }

    fn new_volumes(&self, class: &str) -> NewVolumes {
        let class = self.classes.get(class);
        class.map_or(NewVolumes::Nowhere, |class| class.new_volumes())
    }

    /// The free volumes that are as requested, the smallest one first.
    fn suitable(&self, request: &VolumeRequest) -> Vec<Arc<FreeVolume>> {
        let of_class = self.by_class.get(request.class.as_str()).into_iter().flatten();
        let objects = of_class.filter_map(|name| self.volumes.get(name));
        let mut found: Vec<&Arc<PersistentVolume>> =
            objects.filter(|volume| is_as_requested(volume, request)).collect();
        found.sort_by(|a, b| {
            let names = || a.metadata().plain_name().cmp(b.metadata().plain_name());
            a.bytes().cmp(&b.bytes()).then_with(names)
        });
        let of_volume = |volume: &Arc<PersistentVolume>| self.described.get(volume.metadata().plain_name());
        found.into_iter().filter_map(of_volume).cloned().collect()
    }
}

fn is_as_requested(volume: &PersistentVolume, request: &VolumeRequest) -> bool {
    steps::count(1);
    volume.is_free()
        && volume.bytes() >= request.bytes
        && volume.volume_mode() == request.volume_mode
        && volume.access_modes().offer(request.access_modes)
        && request.selector.as_ref().is_none_or(|selector| {
            let labels = volume.metadata().labels.to_labels();
            selector
                .requirements
                .iter()
                .all(|requirement| requirement.matches(&labels))
        })
}

/// `None` = its node affinity can't be read, so no pod gets it.
pub(super) fn describe(volume: &PersistentVolume) -> Option<FreeVolume> {
    Some(FreeVolume {
        name: volume.metadata().plain_name().into(),
        nodes: volume.node_terms().ok()?,
    })
}

fn is_node(name: &str) -> NodeSelectorTerm {
    NodeSelectorTerm {
        labels: Vec::new(),
        fields: vec![Requirement {
            key: "metadata.name".to_owned(),
            operator: Operator::In,
            values: vec![name.to_owned()],
        }],
    }
}
