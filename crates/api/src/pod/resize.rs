//! In-place resizes (KEP-1287, KEP-5419). While a pod is resized, its spec, what the kubelet has allocated to it and what its containers
//! run with may differ. The pod counts with the largest of the three, as in kube-scheduler: the node has to hold each of them. A resize
//! that the kubelet calls infeasible never happens, so then the spec does not count.
//!
//! Kept is only what differs from the spec: nearly all pods are not being resized.

use std::borrow::Cow;

use super::conditions::PodCondition;
use super::container_statuses::ReportedRequests;
use super::template::Template;
use crate::error::FieldError;
use crate::resources::{Amounts, RawResources};

/// The resize of a pod, as the kubelet reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Resize {
    /// Whether the kubelet has refused the resize for good. A deferred one is tried again.
    is_infeasible: bool,
    /// The containers whose requests differ from the spec, sorted by name. Init containers that end can't be resized.
    containers: Box<[ReportedRequests]>,
    /// The requests of the whole pod, if they differ from those in the spec.
    pod: Option<ReportedRequests>,
}

impl Resize {
    /// `None` if the kubelet reports no other requests than those of the spec.
    pub(super) fn of(
        spec: &Template,
        pending: Option<&PodCondition>,
        mut containers: Vec<ReportedRequests>,
        pod: ReportedRequests,
    ) -> Option<Box<Resize>> {
        containers.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let sidecars = spec.init_containers.iter().filter(|container| container.is_sidecar());
        let mut differing = Vec::new();
        for container in spec.containers.iter().chain(sidecars) {
            if let Ok(at) = find(&containers, &container.name)
                && !containers[at].are_those_of(&container.resources.requests)
            {
                // The emptied entry keeps its name, so that the list stays sorted.
                let name = containers[at].name.clone();
                let kept = std::mem::replace(
                    &mut containers[at],
                    ReportedRequests {
                        name,
                        ..ReportedRequests::default()
                    },
                );
                differing.push(kept);
            }
        }
        differing.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        // Without requests of the whole pod in its spec, the statuses of the containers say everything.
        let pod_level = spec
            .resources
            .as_ref()
            .filter(|resources| !resources.requests.is_empty());
        // The kubelet reports the requests of the whole pod with its overhead, so with an overhead equal texts are different amounts.
        let differs = |requests: &RawResources| match spec.overhead.is_empty() {
            true => !pod.are_those_of(requests),
            false => !pod.is_empty(),
        };
        let pod = pod_level
            .is_some_and(|resources| differs(&resources.requests))
            .then_some(pod);
        if differing.is_empty() && pod.is_none() {
            return None;
        }
        Some(Box::new(Resize {
            is_infeasible: pending.is_some_and(PodCondition::is_infeasible),
            containers: differing.into(),
            pod,
        }))
    }

    /// What a container counts with, given the requests in its spec.
    pub(super) fn container<'a>(&'a self, name: &str, spec: Amounts<'a>, errors: &mut Vec<FieldError>) -> Amounts<'a> {
        match find(&self.containers, name) {
            Ok(at) => {
                let field = format!("status.containerStatuses[{name}]");
                let reported = reported(&self.containers[at], &field, errors);
                self.effective(spec, &reported)
            }
            Err(_) => spec,
        }
    }

    /// What the whole pod counts with, given the pod-level requests in its spec. The kubelet reports them with the overhead.
    pub(super) fn pod<'a>(
        &'a self,
        spec: Amounts<'a>,
        overhead: &Amounts<'a>,
        errors: &mut Vec<FieldError>,
    ) -> Amounts<'a> {
        match &self.pod {
            Some(pod) => {
                let mut reported = reported(pod, "status", errors);
                reported.lower_by(overhead);
                self.effective(spec, &reported)
            }
            None => spec,
        }
    }

    fn effective<'a>(&self, mut spec: Amounts<'a>, reported: &Amounts<'a>) -> Amounts<'a> {
        match self.is_infeasible {
            false => spec.raise_to(reported),
            true => reported
                .iter()
                .for_each(|(name, amount)| spec.set(Cow::Owned(name.to_owned()), amount)),
        }
        spec
    }
}

fn find(containers: &[ReportedRequests], name: &str) -> Result<usize, usize> {
    containers.binary_search_by(|container| (*container.name).cmp(name))
}

/// The larger of what is allocated and what the containers run with.
fn reported<'a>(requests: &'a ReportedRequests, field: &str, errors: &mut Vec<FieldError>) -> Amounts<'a> {
    let mut listed = |list: &'a RawResources, name: &str| Amounts::listed(list, &format!("{field}.{name}"), errors);
    let mut most = listed(&requests.allocated, "allocatedResources");
    most.raise_to(&listed(&requests.actual, "resources.requests"));
    most
}
