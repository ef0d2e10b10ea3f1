//! Collects the Kubernetes objects of a scenario, in any order.
//!
//! The collector keeps the slim objects as they are; the mirror of the scheduler translates them when the run begins. It only adds what an
//! API server would have added: namespace, creation time, and the uid of bind requests.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use kai_api::{
    BindRequest, ConfigMap, CsiDriver, CsiNode, CsiStorageCapacity, Metadata, Node, Object, ObjectKey,
    PersistentVolume, PersistentVolumeClaim, Pod, PodGroup, PodIdentity, PriorityClass, Queue, Scope, StorageClass,
    Text, Topology,
};
use kai_engine::model::{Millis, PodKind, PodPhase, Usage};
use kai_mirror::MirrorSettings;
use rustc_hash::FxHashSet;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::checks::check_references;
use super::snapshot::CompleteKinds;
use super::{Author, ObjectFiles, Warnings};

/// The kinds that the scheduler reads.
pub(super) const KINDS: &str = "Node, Queue, PodGroup, Pod, PriorityClass, BindRequest, Topology, PersistentVolume, \
                                PersistentVolumeClaim, StorageClass, CSINode, CSIDriver, CSIStorageCapacity and ConfigMap";
/// The lists of `objects` in a case, with the kinds of their objects.
const LISTS: [(&str, &str); 14] = [
    ("nodes", "Node"),
    ("queues", "Queue"),
    ("topologies", "Topology"),
    ("podGroups", "PodGroup"),
    ("pods", "Pod"),
    ("priorityClasses", "PriorityClass"),
    ("bindRequests", "BindRequest"),
    ("persistentVolumes", "PersistentVolume"),
    ("persistentVolumeClaims", "PersistentVolumeClaim"),
    ("storageClasses", "StorageClass"),
    ("csiNodes", "CSINode"),
    ("csiDrivers", "CSIDriver"),
    ("csiStorageCapacities", "CSIStorageCapacity"),
    ("configMaps", "ConfigMap"),
];
const LIST_NAMES: [&str; LISTS.len()] = {
    let mut names = [""; LISTS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = LISTS[at].0;
        at += 1;
    }
    names
};

/// The kind of the objects in a list of `objects`.
pub(super) fn kind_of_list(list: &str) -> Option<&'static str> {
    LISTS.iter().find(|(name, _)| *name == list).map(|(_, kind)| *kind)
}

/// The list of `objects` for the objects of a kind.
pub(super) fn list_of_kind(kind: &str) -> Option<&'static str> {
    LISTS
        .iter()
        .find(|(_, of_list)| *of_list == kind)
        .map(|(list, _)| *list)
}

/// The Kubernetes objects of a cluster, as the mirror takes them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Queues.
    pub queues: Vec<Queue>,
    /// Topologies.
    pub topologies: Vec<Topology>,
    /// Priority classes.
    pub priority_classes: Vec<Arc<PriorityClass>>,
    /// Pod groups.
    pub pod_groups: Vec<Arc<PodGroup>>,
    /// Pods.
    pub pods: Vec<Arc<Pod>>,
    /// Bind requests.
    pub bind_requests: Vec<Arc<BindRequest>>,
    /// Persistent volumes.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// Persistent volume claims.
    pub volume_claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Storage classes.
    pub storage_classes: Vec<Arc<StorageClass>>,
    /// CSINodes.
    pub csi_nodes: Vec<CsiNode>,
    /// CSIDrivers.
    pub csi_drivers: Vec<CsiDriver>,
    /// CSIStorageCapacities.
    pub storage_capacities: Vec<CsiStorageCapacity>,
    /// ConfigMaps.
    pub config_maps: Vec<ObjectKey>,
    /// Historic usage, which no Kubernetes object has.
    pub usage: Vec<Usage>,
    /// Pod groups that a controller created from a workload of the files.
    pub(crate) generated_groups: FxHashSet<ObjectKey>,
    /// The kinds of which a snapshot has all objects.
    pub(crate) complete: CompleteKinds,
}

/// The source of the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Origin {
    /// A case. Unusual objects are intended there and get no warning.
    #[default]
    Case,
    /// Manifests of a user.
    Manifests,
}

/// Collects the objects of a scenario.
#[derive(Debug, Default)]
pub(super) struct ObjectCollector {
    pub(super) warnings: Warnings,
    origin: Origin,
    identity: PodIdentity,
    mirror: MirrorSettings,
    objects: Objects,
}

impl ObjectCollector {
    /// A collector for manifests, with the priority classes of an installation unless a snapshot has all classes.
    pub(super) fn of_manifests(mirror: &MirrorSettings, complete: CompleteKinds) -> ObjectCollector {
        let classes = (!complete.priority_classes).then(PriorityClass::installed);
        ObjectCollector {
            origin: Origin::Manifests,
            identity: mirror.identity(),
            mirror: mirror.clone(),
            objects: Objects {
                priority_classes: classes.into_iter().flatten().map(Arc::new).collect(),
                complete,
                ..Objects::default()
            },
            ..ObjectCollector::default()
        }
    }

    pub(super) fn node(&mut self, node: Node) {
        if self.accepts(&node, node.kind.as_ref()) {
            self.objects.nodes.push(node);
        }
    }

    pub(super) fn queue(&mut self, queue: Queue) {
        if self.accepts(&queue, queue.kind.as_ref()) {
            self.objects.queues.push(queue);
        }
    }

    pub(super) fn topology(&mut self, topology: Topology) {
        if self.accepts(&topology, topology.kind.as_ref()) {
            self.objects.topologies.push(topology);
        }
    }

    pub(super) fn priority_class(&mut self, class: PriorityClass) {
        if self.accepts(&class, class.kind.as_ref()) {
            self.objects.priority_classes.push(Arc::new(class));
        }
    }

    pub(super) fn bind_request(&mut self, mut request: BindRequest) {
        if self.accepts(&request, request.kind.as_ref()) {
            set_namespace(&mut request.metadata);
            let uid = || request.metadata.qualified_name();
            // The mirror tells bind requests apart by their uids.
            if request.metadata.uid.as_deref().is_none_or(str::is_empty) {
                request.metadata.uid = Some(uid().into());
            }
            self.objects.bind_requests.push(Arc::new(request));
        }
    }

    pub(super) fn volume(&mut self, volume: PersistentVolume) {
        if self.accepts(&volume, volume.kind.as_ref()) {
            self.objects.volumes.push(Arc::new(volume));
        }
    }

    pub(super) fn volume_claim(&mut self, mut claim: PersistentVolumeClaim) {
        if self.accepts(&claim, claim.kind.as_ref()) {
            set_namespace(&mut claim.metadata);
            self.objects.volume_claims.push(Arc::new(claim));
        }
    }

    pub(super) fn storage_class(&mut self, class: StorageClass) {
        if self.accepts(&class, class.kind.as_ref()) {
            self.objects.storage_classes.push(Arc::new(class));
        }
    }

    pub(super) fn csi_node(&mut self, node: CsiNode) {
        if self.accepts(&node, node.kind.as_ref()) {
            self.objects.csi_nodes.push(node);
        }
    }

    pub(super) fn csi_driver(&mut self, driver: CsiDriver) {
        if self.accepts(&driver, driver.kind.as_ref()) {
            self.objects.csi_drivers.push(driver);
        }
    }

    pub(super) fn storage_capacity(&mut self, mut capacity: CsiStorageCapacity) {
        if self.accepts(&capacity, capacity.kind.as_ref()) {
            set_namespace(&mut capacity.metadata);
            self.objects.storage_capacities.push(capacity);
        }
    }

    pub(super) fn config_map(&mut self, mut config_map: ConfigMap) {
        if self.accepts(&config_map, config_map.kind.as_ref()) {
            set_namespace(&mut config_map.metadata);
            self.objects.config_maps.push(ObjectKey::of(&config_map));
        }
    }

    pub(super) fn pod_group(&mut self, mut group: PodGroup, author: Author) {
        if self.accepts(&group, group.kind.as_ref()) {
            set_namespace(&mut group.metadata);
            if author == Author::Controller {
                self.objects.generated_groups.insert(ObjectKey::of(&group));
            }
            self.objects.pod_groups.push(Arc::new(group));
        }
    }

    pub(super) fn pod(&mut self, mut pod: Pod, author: Author) {
        if !self.accepts(&pod, pod.kind.as_ref()) {
            return;
        }
        set_namespace(&mut pod.metadata);
        let waits = pod.node_name().is_none() && pod.phase() == PodPhase::Pending;
        if self.origin == Origin::Manifests
            && author != Author::Cluster
            && waits
            && pod.kind(&self.identity) == PodKind::Foreign
        {
            let (name, scheduler) = (pod.metadata.qualified_name(), pod.scheduler_name());
            let remedy = format!("set it to {} to have the pod scheduled", self.identity.scheduler_name);
            self.warnings.push(format!(
                "Pod {name}: spec.schedulerName: {scheduler:?} is another scheduler; {remedy}"
            ));
        }
        self.objects.pods.push(Arc::new(pod));
    }

    /// Whether the object has the expected kind. Warns of objects in a node pool, which the mirror leaves out.
    fn accepts<T: Object>(&mut self, object: &T, stated: Option<&Text>) -> bool {
        let (kind, metadata) = (&*T::RESOURCE.kind, object.metadata());
        let name = || match T::RESOURCE.scope {
            Scope::Cluster => metadata.plain_name().to_owned(),
            Scope::Namespaced => metadata.qualified_name(),
        };
        if let Some(stated) = stated.filter(|stated| &***stated != kind) {
            self.warnings.push(format!(
                "{kind} {}: kind: {:?} is not {kind} (the object is skipped)",
                name(),
                &**stated
            ));
            return false;
        }
        let partition = &self.mirror.partition;
        if !partition.contains(metadata) && matches!(kind, "Node" | "Queue" | "PodGroup") {
            let (label, _) = partition.label_key_and_value();
            let name = name();
            self.warnings.push(match (metadata.labels.text(label), partition.label()) {
                (Some(pool), None) => format!(
                    "{kind} {name}: metadata.labels.{label}: it is in node pool {pool:?}; only objects without this label are run \
                     here (it is skipped)"
                ),
                (_, wanted) => {
                    let wanted = wanted.map_or("", |(_, value)| value);
                    format!("{kind} {name}: metadata.labels.{label}: the snapshot is of node pool {wanted:?} (it is skipped)")
                }
            });
        }
        true
    }

    /// The latest creation time of any object: the best guess at the clock of a cluster that was dumped to files.
    pub(super) fn latest_creation(&self) -> Option<Millis> {
        let groups = self.objects.pod_groups.iter().map(|group| &group.metadata);
        let pods = self.objects.pods.iter().map(|pod| &pod.metadata);
        let queues = self.objects.queues.iter().map(|queue| &queue.metadata);
        let times = groups.chain(pods).chain(queues).filter_map(|metadata| {
            let text = metadata.creation_timestamp.as_deref()?;
            kai_api::parse_time(text).ok()
        });
        times.max()
    }

    /// Completes the objects and checks the references between them. `now` is the clock of the scenario.
    pub(super) fn finish(mut self, now: Millis, files: &ObjectFiles) -> (Objects, Warnings) {
        let mut warnings = Warnings::default();
        // Warnings about single objects of a case, which is one file.
        warnings.extend_about(files.file(""), std::mem::take(&mut self.warnings));
        set_creation_times(&mut self.objects, now);
        check_references(&mut self.objects, &self.identity, files, &mut warnings);
        (self.objects, warnings)
    }
}

/// Sets the namespace that the API server gives to objects without one.
fn set_namespace(metadata: &mut Metadata) {
    if metadata.namespace.as_deref().is_none_or(str::is_empty) {
        metadata.namespace = Some(metadata.namespace().into());
    }
}

/// Objects that were never in a cluster are created when the scenario begins.
fn set_creation_times(objects: &mut Objects, now: Millis) {
    let now: Text = kai_api::format_time(now).into();
    let unique = "nothing else refers to objects that were just read";
    let queues = objects.queues.iter_mut().map(|queue| &mut queue.metadata);
    let groups = objects.pod_groups.iter_mut();
    let groups = groups.map(|group| &mut Arc::get_mut(group).expect(unique).metadata);
    let pods = objects.pods.iter_mut();
    let pods = pods.map(|pod| &mut Arc::get_mut(pod).expect(unique).metadata);
    for metadata in queues.chain(groups).chain(pods) {
        metadata.creation_timestamp.get_or_insert_with(|| now.clone());
    }
}

/// The lists of `objects` in a case.
impl<'de> Deserialize<'de> for ObjectCollector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectCollectorVisitor)
    }
}

struct ObjectCollectorVisitor;

impl<'de> Visitor<'de> for ObjectCollectorVisitor {
    type Value = ObjectCollector;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lists of objects by kind")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectCollector, A::Error> {
        let mut all = ObjectCollector::default();
        while let Some(list) = map.next_key::<Text>()? {
            match &*list {
                "nodes" => map.next_value_seed(Each::new(|node| all.node(node)))?,
                "queues" => map.next_value_seed(Each::new(|queue| all.queue(queue)))?,
                "topologies" => map.next_value_seed(Each::new(|topology| all.topology(topology)))?,
                "podGroups" => map.next_value_seed(Each::new(|group| all.pod_group(group, Author::User)))?,
                "pods" => map.next_value_seed(Each::new(|pod| all.pod(pod, Author::User)))?,
                "priorityClasses" => map.next_value_seed(Each::new(|class| all.priority_class(class)))?,
                "bindRequests" => map.next_value_seed(Each::new(|request| all.bind_request(request)))?,
                "persistentVolumes" => map.next_value_seed(Each::new(|volume| all.volume(volume)))?,
                "persistentVolumeClaims" => map.next_value_seed(Each::new(|claim| all.volume_claim(claim)))?,
                "storageClasses" => map.next_value_seed(Each::new(|class| all.storage_class(class)))?,
                "csiNodes" => map.next_value_seed(Each::new(|node| all.csi_node(node)))?,
                "csiDrivers" => map.next_value_seed(Each::new(|driver| all.csi_driver(driver)))?,
                "csiStorageCapacities" => map.next_value_seed(Each::new(|capacity| all.storage_capacity(capacity)))?,
                "configMaps" => map.next_value_seed(Each::new(|config_map| all.config_map(config_map)))?,
                other => return Err(serde::de::Error::unknown_field(other, &LIST_NAMES)),
            }
        }
        Ok(all)
    }
}

/// Passes each element of a list to a function as soon as it is read.
struct Each<T, F>(F, PhantomData<T>);

impl<T, F: FnMut(T)> Each<T, F> {
    fn new(take: F) -> Each<T, F> {
        Each(take, PhantomData)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for Each<T, F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        while let Some(element) = seq.next_element()? {
            (self.0)(element);
        }
        Ok(())
    }
}
