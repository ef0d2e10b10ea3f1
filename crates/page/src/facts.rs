//! A view of the cluster with the lookups that rendering needs.

use std::cell::OnceCell;

use kai_view::{ClusterView, Gang, Gpu, GpuUser, Node, OTHER_WORK, Pod, Queue};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::palette::{FOREIGN, OTHER, Palette};
use crate::places::Order;

/// A view and lookups in it.
pub(crate) struct Facts<'a> {
    pub(crate) view: &'a ClusterView,
    pub(crate) palette: Palette<'a>,
    order: Option<&'a Order>,
    gangs: OnceCell<FxHashMap<(&'a str, &'a str), &'a Gang>>,
    queues_of_pods: OnceCell<FxHashMap<(&'a str, &'a str), &'a str>>,
    waiting_pods: OnceCell<FxHashMap<(&'a str, &'a str), &'a Pod>>,
    parents: FxHashSet<&'a str>,
}

impl<'a> Facts<'a> {
    pub(crate) fn new(view: &'a ClusterView, order: Option<&'a Order>) -> Facts<'a> {
        let queues = || view.queues.iter().flatten();
        let parents: FxHashSet<&str> = queues().filter_map(|queue| queue.parent.as_deref()).collect();
        let leaves = queues()
            .map(|queue| queue.name.as_str())
            .filter(|name| !parents.contains(name));
        Facts {
            view,
            palette: Palette::new(leaves),
            order,
            gangs: OnceCell::new(),
            queues_of_pods: OnceCell::new(),
            waiting_pods: OnceCell::new(),
            parents,
        }
    }

    pub(crate) fn nodes(&self) -> &'a [Node] {
        self.view.nodes.as_deref().unwrap_or_default()
    }

    /// The GPUs of a node in the order of their places.
    pub(crate) fn gpus_in_place<'n>(&'n self, node: &'n Node) -> Vec<&'n Gpu> {
        match self.order {
            Some(order) => order.gpus(node).collect(),
            None => node.gpus.iter().collect(),
        }
    }

    /// Whether the pods of a gang could be read. If not, its counts say nothing.
    pub(crate) fn knows_pods_of(&self, gang: &Gang) -> bool {
        self.view.has_pods_of(&gang.namespace)
    }

    /// The gangs that are known to wait.
    pub(crate) fn waiting_gangs(&self) -> impl Iterator<Item = &'a Gang> {
        let gangs = self.view.gangs.iter().flatten();
        gangs.filter(|gang| gang.waiting > 0)
    }

    /// How many gangs are listed whose pods could not be read.
    pub(crate) fn gangs_of_unknown_pods(&self) -> usize {
        let gangs = self.view.gangs.iter().flatten();
        gangs.filter(|gang| !self.knows_pods_of(gang)).count()
    }

    pub(crate) fn gang(&self, namespace: &str, pod_group: &str) -> Option<&'a Gang> {
        let gangs = self.gangs.get_or_init(|| {
            let gangs = self.view.gangs.iter().flatten();
            gangs
                .map(|gang| ((gang.namespace.as_str(), gang.pod_group.as_str()), gang))
                .collect()
        });
        gangs.get(&(namespace, pod_group)).copied()
    }

    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<&'a Pod> {
        let mut pods = self.view.pods.iter().flatten();
        pods.find(|pod| pod.name == name && pod.namespace == namespace)
    }

    pub(crate) fn pods_of(&self, gang: &Gang) -> impl Iterator<Item = &'a Pod> {
        let (namespace, pod_group) = (gang.namespace.clone(), gang.pod_group.clone());
        let pods = self.view.pods.iter().flatten();
        pods.filter(move |pod| pod.pod_group.as_deref() == Some(&pod_group) && pod.namespace == namespace)
    }

    /// The namespace and name of the first pod of a gang that waits.
    pub(crate) fn waiting_pod(&self, gang: &Gang) -> Option<(&'a str, &'a str)> {
        let waiting = self.waiting_pods.get_or_init(|| {
            let mut first = FxHashMap::default();
            for pod in self.view.pods.iter().flatten().filter(|pod| pod.waits()) {
                if let Some(pod_group) = &pod.pod_group {
                    first.entry((pod.namespace.as_str(), pod_group.as_str())).or_insert(pod);
                }
            }
            first
        });
        let pod = waiting.get(&(gang.namespace.as_str(), gang.pod_group.as_str()))?;
        Some((&pod.namespace, &pod.name))
    }

    /// The queue of a pod; `None` = unknown, or none.
    pub(crate) fn queue_of_pod(&self, namespace: &str, name: &str) -> Option<&'a str> {
        let queues = self.queues_of_pods.get_or_init(|| {
            let pods = self.view.pods.iter().flatten();
            let queue = |pod: &'a Pod| {
                let gang = self.gang(&pod.namespace, pod.pod_group.as_deref()?)?;
                Some(((pod.namespace.as_str(), pod.name.as_str()), gang.queue.as_str()))
            };
            pods.filter_map(queue).collect()
        });
        queues.get(&(namespace, name)).copied()
    }

    /// The class of the colour of a pod on a GPU.
    pub(crate) fn class_of(&self, user: &GpuUser) -> &'static str {
        if is_other_work(user) {
            return OTHER;
        }
        let queue = self.queue_of_pod(&user.namespace, &user.name);
        queue.map_or(FOREIGN, |queue| self.palette.class(queue))
    }

    /// Whether the queue has no queues below it: pods are in leaves.
    pub(crate) fn is_leaf(&self, queue: &Queue) -> bool {
        !self.parents.contains(queue.name.as_str())
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &'a Queue> {
        self.view.queues.iter().flatten().filter(|queue| self.is_leaf(queue))
    }
}

/// Whether this stands for work of namespaces that the caller may not see.
pub(crate) fn is_other_work(user: &GpuUser) -> bool {
    user.namespace.is_empty() && user.name == OTHER_WORK
}
