//! Shapes of pods: pods with equal requests and constraints share one row.

use crate::cluster::Cluster;
use crate::ids::{ShapeId, Symbol};
use crate::model::{Constraints, GpuRequest, Gpus, Requests, ShareTerms};
use crate::tables::{GpuKind, NodeResources, Shape};

/// How many unused shapes are kept at least: they cost little, and a later pod may have the same shape.
const UNUSED_MAX: usize = 1024;

impl Cluster {
    /// Drops unused shapes once there may be many. Where every job has its own constraints, their number would grow with all jobs that
    /// ever existed. Called between cycles only, because it changes shape ids.
    pub(crate) fn drop_unused_shapes(&mut self) {
        if self.ledger.shapes.len() <= self.shapes_max.max(UNUSED_MAX) {
            return;
        }
        let mut used = vec![false; self.ledger.shapes.len()];
        for pod in &self.ledger.pods {
            used[pod.shape.index()] = true;
        }
        let mut kept = 0;
        let new_ids: Vec<Option<ShapeId>> = used
            .iter()
            .map(|used| {
                let id = used.then(|| ShapeId::new(kept));
                kept += usize::from(*used);
                id
            })
            .collect();
        let mut at = 0;
        self.ledger.shapes.retain(|_| {
            at += 1;
            used[at - 1]
        });
        for pod in &mut self.ledger.pods {
            pod.shape = new_ids[pod.shape.index()].expect("the shape of a pod is used");
        }
        self.shapes.retain(|_, id| {
            let new = new_ids[id.index()];
            *id = new.unwrap_or(*id);
            new.is_some()
        });
        self.indexes.clear();
        self.explanations.rejections.clear();
        self.shapes_max = 2 * kept + UNUSED_MAX;
    }

    /// The id of a shape. The affinity index has terms by namespace: a shape with terms therefore has one.
    pub(crate) fn shape_id(&mut self, requests: Requests, mut constraints: Constraints, namespace: Symbol) -> ShapeId {
        if !matches!(requests.gpu, GpuRequest::Fraction { .. } | GpuRequest::Memory { .. }) {
            constraints.share = ShareTerms::default();
        }
        let has_terms = !constraints.affinity.is_empty() || !constraints.anti_affinity.is_empty();
        let key = (requests, constraints, has_terms.then_some(namespace));
        if let Some(id) = self.shapes.get(&key) {
            return *id;
        }
        let (requests, constraints, _) = &key;
        let (mut extended, mut mig, mut whole) = (requests.extended.clone(), Gpus::ZERO, 0);
        let gpu = match &requests.gpu {
            GpuRequest::None => GpuKind::None,
            GpuRequest::Whole { devices } => {
                whole = *devices;
                GpuKind::Whole { devices: *devices }
            }
            GpuRequest::Fraction { fraction, devices } => GpuKind::Fraction {
                fraction: *fraction,
                devices: *devices,
            },
            GpuRequest::Memory { mib, devices } => GpuKind::Memory {
                mib: *mib,
                devices: *devices,
            },
            GpuRequest::Mig { slices, legacy } => {
                mig = slices
                    .iter()
                    .map(|(name, count)| Gpus::whole(crate::cluster::mig_slices(name)) * *count)
                    .sum();
                if !legacy {
                    extended.extend(slices.iter().cloned());
                }
                GpuKind::Mig { legacy: *legacy }
            }
        };
        let shape = Shape {
            base: NodeResources {
                cpu_milli: requests.cpu_milli,
                memory_bytes: requests.memory_bytes,
                gpus: whole,
                pods: 1,
            },
            extended: extended
                .iter()
                .map(|(name, amount)| (self.resources.intern(name), *amount))
                .collect(),
            gpu,
            mig,
            constraints: constraints.clone(),
            indexed_pods: 0,
            terms: None,
        };
        let id = ShapeId::new(self.ledger.shapes.len());
        self.ledger.shapes.push(shape);
        self.shapes.insert(key, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Config, Event, Millis, PodSpec};

    /// A pod with a node selector of its own.
    fn pod(number: usize) -> PodSpec {
        let selector = [("job".to_owned(), number.to_string())];
        PodSpec {
            constraints: Constraints {
                node_selector: selector.into(),
                ..Constraints::default()
            },
            ..PodSpec::new("n", &number.to_string())
        }
    }

    #[test]
    fn shapes_of_pods_long_gone_are_dropped_and_others_keep_theirs() {
        let mut cluster = Cluster::new();
        let stays = 3;
        for number in 0..4 * UNUSED_MAX {
            cluster.apply(Event::Pod(pod(number)));
            if number != stays {
                cluster.apply(Event::PodGone(number.to_string()));
            }
            if number % 100 == 0 {
                cluster.cycle(Millis(0), &Config::default());
            }
        }
        assert!(
            cluster.ledger.shapes.len() <= 2 * UNUSED_MAX,
            "{}",
            cluster.ledger.shapes.len()
        );
        assert!(cluster.shapes.len() <= cluster.ledger.shapes.len());
        let id = cluster.pod_ids[stays.to_string().as_str()];
        let selector = &cluster.ledger.shape_of(id).constraints.node_selector;
        assert_eq!(selector.iter().next().map(|(_, value)| value.as_str()), Some("3"));
        let known = cluster.ledger.pod(id).shape;
        let namespace = cluster.ledger.pod(id).namespace;
        let again = cluster.shape_id(Requests::default(), pod(stays).constraints, namespace);
        assert_eq!(again, known);
    }
}
