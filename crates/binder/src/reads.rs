//! Fresh reads: what binds and care decide on. Watches are asked nothing here, except where it is said.

use kai_api::{BindRequest, Node, Object, Pod, PodCondition, keys};
use kai_cluster::{Selection, Target};
use tokio::time::Instant;

use crate::books::{Books, Reading, is_active, is_reservation};
use crate::devices::{NodeFacts, operator_uses_cdi};
use crate::run::Binder;
use crate::step::Reservation;
use crate::{Choice, GroupKey, reservation_name};

/// Longest value of a label. Names of nodes may be longer; requests of such nodes can't be selected by label.
const LABEL_VALUE_BYTES_MAX: usize = 63;
/// How long the GPU operator's policy is taken to stay as it is.
const POLICY_SECONDS_MAX: u64 = 60;

impl Binder {
    /// The group's reservation pod.
    pub(crate) async fn reservation(&self, key: &GroupKey) -> Result<Option<Reservation>, kai_cluster::Error> {
        let name = reservation_name(key);
        let target = Target::of::<Pod>(&self.settings.reservation_namespace, &name);
        Ok(self.client.get_value(target).await?.as_ref().map(Reservation::read))
    }

    /// What the node is like; `None` if it is gone.
    pub(crate) async fn node_facts(&self, node: &str) -> Result<Option<NodeFacts>, kai_cluster::Error> {
        let node = self.client.get_value(Target::of::<Node>("", node)).await?;
        Ok(node.as_ref().map(NodeFacts::of))
    }

    /// The books of the node; `about` are the groups whose announced pods matter.
    ///
    /// Requests are read before pods: a request that succeeds in between shows as a bound pod, not as neither.
    pub(crate) async fn books(
        &self,
        node: &str,
        memory_mib: Option<i64>,
        about: &[GroupKey],
    ) -> Result<Books, kai_cluster::Error> {
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
            labelled.extend(self.labelled(key, &requests).await?);
        }
        let reading = Reading {
            node,
            memory_mib,
            pods: &pods,
            labelled: &labelled,
            requests: &requests,
        };
        Ok(Books::new(reading, self.settings.identity()))
    }

    /// Pods with the group's label. Nobody is asked unless two requests are about the group: there is none to find.
    async fn labelled(&self, key: &GroupKey, requests: &[BindRequest]) -> Result<Vec<Pod>, kai_cluster::Error> {
        let names = |request: &&BindRequest| {
            is_active(request)
                && request.selected_node() == &*key.node
                && request.gpu_groups().iter().any(|group| **group == *key.group)
        };
        let rivals: Vec<&BindRequest> = requests.iter().filter(names).collect();
        let mut found = Vec::new();
        if rivals.len() < 2 {
            return Ok(found);
        }
        let group = &key.group;
        let single = (rivals.iter().any(|request| request.gpu_groups().len() == 1))
            .then(|| format!("{}={group}", keys::GPU_GROUP));
        let several = (rivals.iter().any(|request| request.gpu_groups().len() > 1))
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

    /// Groups of reservation pods that have ended.
    pub(crate) async fn ended_reservations(&self) -> Result<Vec<GroupKey>, kai_cluster::Error> {
        let selection = Selection {
            namespace: Some(self.settings.reservation_namespace.clone()),
            fields: "status.phase!=Pending,status.phase!=Running".to_owned(),
            ..Selection::default()
        };
        let pods: Vec<Pod> = self.client.list(&selection).await?;
        let identity = self.settings.identity();
        let reservations = pods.iter().filter(|pod| is_reservation(pod, identity));
        Ok(reservations.map(|pod| Reservation::of(pod).key()).collect())
    }

    /// Whether watches know of a request that may still need the group.
    pub(crate) fn is_awaited_by_watch(&self, key: &GroupKey) -> bool {
        let requests = self.informers.bind_requests().all();
        requests.iter().any(|request| {
            request.selected_node() == &*key.node
                && is_active(request)
                && request.gpu_groups().iter().any(|group| **group == *key.group)
        })
    }

    /// Whether a cluster autoscaler was asked for a node and has not brought it yet: a reservation made now may take the GPU that the
    /// asking pod waits for.
    pub(crate) async fn is_scaling_up(&self) -> Result<bool, kai_cluster::Error> {
        let selection = Selection {
            namespace: Some(self.settings.scale_adjust_namespace.clone()),
            ..Selection::default()
        };
        let pods: Vec<Pod> = self.client.list(&selection).await?;
        let unscheduled = |pod: &Pod| pod.condition(PodCondition::SCHEDULED).is_some();
        Ok(pods.iter().any(|pod| !pod.is_of_no_interest() && unscheduled(pod)))
    }

    /// Whether the GPU operator's plugin names CDI devices. Its absence is fine.
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
                Ok(policies) => operator_uses_cdi(&policies),
                Err(error) if error.is_refused() => false,
                Err(error) => return Err(error),
            },
            None => false,
        };
        *self.operator_cdi.lock().await = Some((uses, Instant::now()));
        Ok(uses)
    }
}
