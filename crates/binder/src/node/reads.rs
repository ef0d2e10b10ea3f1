//! Fresh reads for the decisions of binds and garbage collection. Only `has_pending_request_in_cache` uses an informer's cache.

use kai_api::{BindRequest, Node, Object, ObjectKey, Pod, PodCondition, keys};
use kai_cluster::{Selection, Target};
use kai_engine::model::Millis;
use tokio::time::Instant;

use crate::node::allocations::{NodeAllocations, NodeObjects, is_active};
use crate::node::facts::NodeFacts;
use crate::reservation::state::Reservation;
use crate::shell::run::Binder;
use crate::{Choice, GpuGroupKey, reservation_name};

/// Longest value of a label. Names of nodes may be longer; BindRequests of such nodes can't be selected by label.
const LABEL_VALUE_BYTES_MAX: usize = 63;
/// How long the GPU operator's ClusterPolicy is cached.
const POLICY_SECONDS_MAX: u64 = 60;
/// How long a scaling pod holds up reservations. Cluster Autoscaler gives a node as long to join (`--max-node-provision-time`).
const SCALE_UP_MAX: Millis = Millis::seconds(15 * 60);

impl Binder {
    /// Reads the group's reservation pod.
    pub(crate) async fn read_reservation(&self, key: &GpuGroupKey) -> Result<Option<Reservation>, kai_cluster::Error> {
        let name = reservation_name(key);
        let target = Target::of::<Pod>(self.settings.reservation_namespace(), &name);
        Ok(self.client.get_value(target).await?.as_ref().map(Reservation::read))
    }

    /// Reads the facts of the node; `None` if it does not exist.
    pub(crate) async fn node_facts(&self, node: &str) -> Result<Option<NodeFacts>, kai_cluster::Error> {
        let node = self.client.get_value(Target::of::<Node>("", node)).await?;
        Ok(node.as_ref().map(NodeFacts::of))
    }

    /// Reads the allocations of the node; `about` are the groups whose announced pods matter.
    ///
    /// BindRequests are listed before pods: a bind that succeeds in between shows as a bound pod. In the other order it could show as
    /// neither.
    pub(crate) async fn node_allocations(
        &self,
        node: &str,
        memory_mib: Option<i64>,
        about: &[GpuGroupKey],
    ) -> Result<NodeAllocations, kai_cluster::Error> {
        let mut of_node = Selection::default();
        if node.len() <= LABEL_VALUE_BYTES_MAX {
            of_node.labels = format!("{}={node}", keys::SELECTED_NODE);
        }
        let requests: Vec<BindRequest> = self.client.list(&of_node).await?;
        let on_node = Selection {
            fields: format!("spec.nodeName={node}"),
            ..Selection::default()
        };
        let pods: Vec<Pod> = self.client.list(&on_node).await?;
        let mut labelled = Vec::new();
        for key in about {
            labelled.extend(self.pods_with_group_label(key, &requests).await?);
        }
        let objects = NodeObjects {
            node,
            memory_mib,
            pods: &pods,
            labelled: &labelled,
            requests: &requests,
        };
        Ok(NodeAllocations::new(objects, &self.settings.identity))
    }

    /// Lists the pods with the group's label. Makes no call unless two active BindRequests name the group: a single one belongs to the
    /// caller's own bind.
    async fn pods_with_group_label(
        &self,
        key: &GpuGroupKey,
        requests: &[BindRequest],
    ) -> Result<Vec<Pod>, kai_cluster::Error> {
        let names_group = |request: &&BindRequest| {
            is_active(request)
                && request.selected_node() == &*key.node
                && request.gpu_groups().iter().any(|group| **group == *key.group)
        };
        let naming: Vec<&BindRequest> = requests.iter().filter(names_group).collect();
        let mut found = Vec::new();
        if naming.len() < 2 {
            return Ok(found);
        }
        let group = &key.group;
        let single = (naming.iter().any(|request| request.gpu_groups().len() == 1))
            .then(|| format!("{}={group}", keys::GPU_GROUP));
        let several = (naming.iter().any(|request| request.gpu_groups().len() > 1))
            .then(|| format!("{}{group}={group}", keys::GPU_GROUP_PREFIX));
        for labels in [single, several].into_iter().flatten() {
            let selection = Selection {
                labels,
                ..Selection::default()
            };
            found.extend(self.client.list::<Pod>(&selection).await?);
        }
        Ok(found)
    }

    /// Lists the groups of reservation pods that have ended.
    pub(crate) async fn ended_reservations(&self) -> Result<Vec<GpuGroupKey>, kai_cluster::Error> {
        let selection = Selection {
            namespace: Some(self.settings.reservation_namespace().to_owned()),
            fields: "status.phase!=Pending,status.phase!=Running".to_owned(),
            ..Selection::default()
        };
        let pods: Vec<Pod> = self.client.list(&selection).await?;
        let reservation_pods = &self.settings.identity.reservation_pods;
        let reservations = pods.iter().filter(|pod| reservation_pods.contains(pod));
        Ok(reservations.map(|pod| Reservation::of(pod).key()).collect())
    }

    /// Whether an active BindRequest in the informer's cache names the group.
    pub(crate) fn has_pending_request_in_cache(&self, key: &GpuGroupKey) -> bool {
        let requests = self.informers.bind_requests().all();
        requests.iter().any(|request| {
            request.selected_node() == &*key.node
                && is_active(request)
                && request.gpu_groups().iter().any(|group| **group == *key.group)
        })
    }

    /// Whether a scaling pod waits for a cluster autoscaler to add a node: a new reservation could take the GPU that another pod waits
    /// for. The scaling pod of the pod to bind does not count: that pod has found a GPU. Neither does one that has waited for long: its
    /// autoscaler adds no node, and must not hold up other pods.
    pub(crate) async fn is_scaling_up(&self, pod: &ObjectKey) -> Result<bool, kai_cluster::Error> {
        let selection = Selection {
            namespace: Some(self.settings.scale_adjust_namespace.clone()),
            ..Selection::default()
        };
        let pods: Vec<Pod> = self.client.list(&selection).await?;
        let now = Millis(self.clock.now().as_millisecond());
        let is_recent = |scaling: &Pod| {
            let created = scaling.metadata.creation_timestamp.as_deref();
            let created = created.and_then(|time| kai_api::parse_time(time).ok()).unwrap_or(now);
            now - created < SCALE_UP_MAX
        };
        let waits = |scaling: &Pod| {
            let unscheduled = scaling.condition(PodCondition::SCHEDULED).is_some();
            !scaling.is_terminal() && unscheduled && scaling.scaling_origin().as_ref() != Some(pod)
        };
        Ok(pods.iter().any(|scaling| waits(scaling) && is_recent(scaling)))
    }

    /// Whether the GPU operator's device plugin uses CDI devices; false without a GPU operator.
    pub(crate) async fn operator_cdi(&self, facts: &NodeFacts) -> Result<bool, kai_cluster::Error> {
        if facts.agent || self.settings.cdi != Choice::Auto {
            return Ok(false);
        }
        let known = *self.operator_cdi.lock().await;
        if let Some((uses, since)) = known
            && since.elapsed().as_secs() < POLICY_SECONDS_MAX
        {
            return Ok(uses);
        }
        let uses = match self.client.resource_of("nvidia.com/v1", "ClusterPolicy").await? {
            Some(resource) => match self.client.list_values(&resource, &Selection::default()).await {
                Ok(policies) => kai_api::gpu_operator_uses_cdi(&policies),
                Err(error) if error.is_refused() => false,
                Err(error) => return Err(error),
            },
            None => false,
        };
        *self.operator_cdi.lock().await = Some((uses, Instant::now()));
        Ok(uses)
    }
}
