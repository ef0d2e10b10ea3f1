//! Applies the objects of a scenario to a mirror, as the scheduler does with the initial lists of its watches.

use kai_api::{Object, ObjectKey};
use kai_engine::model::{Event, PodKind};
use kai_mirror::{ClusterMirror, MirrorSettings, ObjectList};

use super::reservations::SimulatedReservations;
use super::{Remember, RememberingEngine, SimulatedCluster};
use crate::scenario::{Objects, Scenario};

impl SimulatedCluster {
    /// The cluster of a scenario before the first cycle. Takes the objects out of the scenario.
    pub fn new(scenario: &mut Scenario) -> SimulatedCluster {
        SimulatedCluster::remembering(scenario, Remember::default())
    }

    pub(crate) fn remembering(scenario: &mut Scenario, remember: Remember) -> SimulatedCluster {
        let objects = std::mem::take(&mut scenario.objects);
        let settings = mirror_settings(&scenario.mirror, &objects);
        let mut cluster = SimulatedCluster {
            mirror: ClusterMirror::new(&settings),
            engine: RememberingEngine {
                remember,
                ..RememberingEngine::default()
            },
            hold_releasing: scenario.hold_releasing.iter().cloned().collect(),
            bind_requests: Vec::new(),
            reservations: (settings.reservation_pod_list == ObjectList::Complete)
                .then(|| SimulatedReservations::new(&settings.reservation_pods)),
            ended_pods: Vec::new(),
            problems: Vec::new(),
        };
        cluster.mirror.tick(scenario.now);
        cluster.apply_objects(objects);
        cluster.mirror.mark_synced();
        cluster.pass_events();
        cluster
    }

    /// Applies all objects, referenced objects before those that refer to them.
    fn apply_objects(&mut self, objects: Objects) {
        let mirror = &mut self.mirror;
        let mut drain = |mirror: &mut ClusterMirror| mirror.drain_event_batch(|event| self.engine.apply(event));
        for class in &objects.priority_classes {
            mirror.apply_priority_class(class);
        }
        for topology in &objects.topologies {
            mirror.apply_topology(topology);
        }
        for queue in &objects.queues {
            mirror.apply_queue(queue);
        }
        for node in objects.nodes {
            mirror.apply_node(&node);
            drain(mirror);
        }
        for class in &objects.storage_classes {
            mirror.apply_storage_class(class);
        }
        for node in &objects.csi_nodes {
            mirror.apply_csi_node(node);
        }
        for driver in &objects.csi_drivers {
            mirror.apply_csi_driver(driver);
        }
        for capacity in &objects.storage_capacities {
            mirror.apply_storage_capacity(&ObjectKey::of(capacity), capacity);
        }
        for volume in &objects.volumes {
            mirror.apply_volume(volume);
        }
        for claim in &objects.volume_claims {
            mirror.apply_volume_claim(&ObjectKey::of(&**claim), claim);
        }
        for config_map in &objects.config_maps {
            mirror.apply_config_map(config_map);
        }
        // Files without ConfigMaps leave them out; they do not say that none exists.
        if !objects.config_maps.is_empty() || objects.complete.config_maps {
            mirror.config_maps_synced();
        }
        for group in objects.pod_groups {
            mirror.apply_pod_group(&ObjectKey::of(&*group), &group);
            drain(mirror);
        }
        for request in objects.bind_requests {
            let key = ObjectKey::of(&*request);
            mirror.apply_bind_request(&key, &request);
            self.bind_requests.push(key);
        }
        for pod in objects.pods {
            mirror.apply_pod(&ObjectKey::of(&*pod), &pod);
            drain(mirror);
            if pod.is_terminal() {
                self.ended_pods.push(pod);
            }
        }
        for usage in objects.usage {
            self.engine.apply(Event::Usage(usage));
        }
    }
}

/// The settings of an installation, except for the kinds that the files leave out.
fn mirror_settings(settings: &MirrorSettings, objects: &Objects) -> MirrorSettings {
    let identity = settings.identity();
    let list = |is_given: bool| match is_given {
        true => ObjectList::Complete,
        false => ObjectList::Unknown,
    };
    let has_reservation_pods = objects
        .pods
        .iter()
        .any(|pod| pod.kind(&identity) == PodKind::Reservation);
    MirrorSettings {
        reservation_pod_list: list(has_reservation_pods || objects.complete.pods),
        volume_list: list(!objects.volumes.is_empty() || !objects.volume_claims.is_empty() || objects.complete.volumes),
        // Files have no flags: their capacities count. A snapshot has them, whether or not its scheduler counts.
        counts_storage: settings.counts_storage || (!objects.storage_capacities.is_empty() && !objects.complete.pods),
        ..settings.clone()
    }
}
