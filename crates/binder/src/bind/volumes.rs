//! The volumes of a pod whose claims have none yet: does what the scheduler decided about each claim, and checks that all are bound.
//!
//! The protocol is that of kube-scheduler. A volume that exists gets the claim as its `claimRef`; for a new one the claim gets the node
//! as its annotation `selected-node`. The controllers of Kubernetes and the provisioner do the rest, or refuse the node by removing the
//! annotation. An attempt never waits for them: it ends, and a later one looks again.

use std::time::Duration;

use kai_api::{BindRequest, Object, ObjectKey, PersistentVolume, PersistentVolumeClaim, SelectedVolume, keys};
use kai_cluster::{Part, Patch, Target};
use serde_json::{Value, json};

use crate::bind::attempt::RETRY_SOON;
use crate::bind::failure::BindFailure;
use crate::error::NotBound;
use crate::node::allocations::is_active;
use crate::shell::run::Binder;

/// Pauses between two looks at claims that are not bound yet: an eighth of the time so far, within these bounds. A provisioner takes
/// seconds or minutes, and many binds may wait for it.
const POLL_MIN: Duration = Duration::from_millis(500);
const POLL_MAX: Duration = Duration::from_secs(5);
/// How often a change is tried again after another writer changed the object.
const TRIES_MAX: u32 = 5;

/// How far the volume of a claim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeState {
    Bound,
    Waiting,
}

impl Binder {
    /// Asks for the volumes that the scheduler chose, and checks that all claims are bound to volumes that the node can use.
    pub(crate) async fn bind_volumes(&self, request: &BindRequest) -> Result<(), NotBound> {
        let mut waiting = Vec::new();
        for selected in request.selected_volumes() {
            if self.bind_volume(request, selected).await? == VolumeState::Waiting {
                waiting.push(selected.claim_name.to_string());
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let elapsed = self.progress.elapsed(&ObjectKey::of(request));
        if elapsed >= self.settings.volume_binding_timeout {
            return Err(BindFailure::VolumesNotBound {
                claims: waiting,
                limit: self.settings.volume_binding_timeout,
            }
            .into());
        }
        Err(NotBound::RetryAfter((elapsed / 8).clamp(POLL_MIN, POLL_MAX)))
    }

    async fn bind_volume(&self, request: &BindRequest, selected: &SelectedVolume) -> Result<VolumeState, NotBound> {
        let (namespace, name) = (request.metadata.namespace(), &*selected.claim_name);
        let claim: Option<PersistentVolumeClaim> = self.client.get(namespace, name).await?;
        let claim = claim.filter(|claim| !claim.metadata.is_terminating());
        let Some(claim) = claim else {
            return Err(BindFailure::ClaimGone { claim: name.to_owned() }.into());
        };
        if claim.is_bound() {
            self.check_node_of_volume(request, &claim).await?;
            return Ok(VolumeState::Bound);
        }
        match &selected.volume_name {
            Some(volume) => self.reserve_volume(&claim, volume).await?,
            None => self.request_volume(request, &claim).await?,
        }
        Ok(VolumeState::Waiting)
    }

    /// Checks that the node can use the volume that the claim is bound to: a provisioner may have made it for another node, or somebody
    /// else has bound the claim.
    async fn check_node_of_volume(&self, request: &BindRequest, claim: &PersistentVolumeClaim) -> Result<(), NotBound> {
        let name = claim.volume_name().unwrap_or_default();
        let claim = claim.metadata.plain_name().to_owned();
        let volume: Option<PersistentVolume> = self.client.get("", name).await?;
        let Some(volume) = volume else {
            let volume = name.to_owned();
            return Err(BindFailure::VolumeGone { volume, claim }.into());
        };
        let node = request.selected_node();
        let labels = self.informers.nodes().get(&ObjectKey::new("", node));
        let Some(labels) = labels.map(|node| node.metadata().labels.to_labels()) else {
            return Err(BindFailure::NodeGone { node: node.to_owned() }.into());
        };
        let terms = volume.node_terms().unwrap_or(Some(Vec::new()));
        if terms.is_none_or(|terms| terms.iter().any(|term| term.matches(node, &labels))) {
            return Ok(());
        }
        Err(BindFailure::VolumeElsewhere {
            volume: name.to_owned(),
            claim,
            node: node.to_owned(),
        }
        .into())
    }

    /// Writes the claim into a volume that exists.
    async fn reserve_volume(&self, claim: &PersistentVolumeClaim, name: &str) -> Result<(), NotBound> {
        let of_claim = claim.metadata.plain_name();
        let Some(volume) = self.client.get::<PersistentVolume>("", name).await? else {
            let (volume, claim) = (name.to_owned(), of_claim.to_owned());
            return Err(BindFailure::VolumeGone { volume, claim }.into());
        };
        let uid = claim.metadata.uid.as_deref();
        let key = ObjectKey::of(claim);
        match volume.claim().map(|(namespace, name)| ObjectKey::new(namespace, name)) {
            Some(other) if other == key && volume.claim_uid() == uid => return Ok(()),
            // Somebody reserved the volume for the claim before it existed.
            Some(other) if other == key && volume.claim_uid().is_none() => {}
            Some(other) => {
                let volume = name.to_owned();
                return Err(BindFailure::VolumeTaken { volume, claim: other }.into());
            }
            None if volume.is_free() => {}
            None => {
                let (volume, claim) = (name.to_owned(), of_claim.to_owned());
                return Err(BindFailure::VolumeGone { volume, claim }.into());
            }
        }
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": &*key.namespace, "name": of_claim, "uid": uid,
            "resourceVersion": claim.metadata.resource_version.as_deref(),
        });
        let body = json!({
            "metadata": {
                "resourceVersion": volume.metadata.resource_version.as_deref(),
                "annotations": { keys::VOLUME_BOUND_BY_CONTROLLER: "yes" },
            },
            "spec": { "claimRef": reference },
        });
        self.patch_unchanged(Target::of::<PersistentVolume>("", name), body)
            .await
    }

    /// Asks the provisioner for a volume that the node can use.
    async fn request_volume(&self, request: &BindRequest, claim: &PersistentVolumeClaim) -> Result<(), NotBound> {
        let (node, key) = (request.selected_node(), ObjectKey::of(request));
        let name = claim.metadata.plain_name().to_owned();
        match claim.selected_node() {
            Some(selected) if selected == node || claim.is_for_many_nodes() => {
                self.progress.volume_requested(&key, &name);
                return Ok(());
            }
            Some(other) => {
                let node = other.to_owned();
                return Err(BindFailure::ClaimForOtherNode { claim: name, node }.into());
            }
            None if self.progress.is_volume_requested(&key, &name) => {
                let node = node.to_owned();
                return Err(BindFailure::ProvisioningRefused { claim: name, node }.into());
            }
            None => {}
        }
        let body = json!({ "metadata": {
            "resourceVersion": claim.metadata.resource_version.as_deref(),
            "annotations": { keys::VOLUME_SELECTED_NODE: node },
        } });
        let target = Target::of::<PersistentVolumeClaim>(claim.metadata.namespace(), &name);
        self.patch_unchanged(target, body).await?;
        self.progress.volume_requested(&key, &name);
        Ok(())
    }

    /// A patch of the object as read. If it has changed, the attempt starts over.
    async fn patch_unchanged(&self, target: Target<'_>, body: Value) -> Result<(), NotBound> {
        match self.client.patch(target, Part::Object, Patch::Merge(body)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_conflict() => Err(NotBound::RetryAfter(RETRY_SOON)),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes back what the request asked for claims that are not bound, so that they can get a volume on another node.
    pub(crate) async fn roll_back_volumes(&self, request: &BindRequest) -> Result<(), kai_cluster::Error> {
        for selected in request.selected_volumes() {
            if self.is_used_by_other_request(request, selected) {
                continue;
            }
            let mut tries = 0;
            loop {
                tries += 1;
                match self.roll_back_volume(request, selected).await {
                    Err(error) if error.is_not_found() => break,
                    Err(error) if error.is_conflict() && tries < TRIES_MAX => {}
                    result => break result?,
                }
            }
        }
        Ok(())
    }

    /// Whether another pod with the claim is being bound: it needs what this request asked for.
    fn is_used_by_other_request(&self, request: &BindRequest, selected: &SelectedVolume) -> bool {
        let is_other = |other: &BindRequest| {
            other.metadata.namespace() == request.metadata.namespace()
                && other.metadata.uid != request.metadata.uid
                && is_active(other)
                && other
                    .selected_volumes()
                    .iter()
                    .any(|other| other.claim_name == selected.claim_name)
        };
        self.informers.bind_requests().all().iter().any(|other| is_other(other))
    }

    async fn roll_back_volume(
        &self,
        request: &BindRequest,
        selected: &SelectedVolume,
    ) -> Result<(), kai_cluster::Error> {
        let (namespace, name) = (request.metadata.namespace(), &*selected.claim_name);
        let Some(claim) = self.client.get::<PersistentVolumeClaim>(namespace, name).await? else {
            return Ok(());
        };
        if claim.volume_name().is_some() {
            return Ok(());
        }
        let Some(volume) = &selected.volume_name else {
            if claim.selected_node() != Some(request.selected_node()) {
                return Ok(());
            }
            let body = json!({ "metadata": {
                "resourceVersion": claim.metadata.resource_version.as_deref(),
                "annotations": { keys::VOLUME_SELECTED_NODE: null },
            } });
            let target = Target::of::<PersistentVolumeClaim>(namespace, name);
            self.client.patch(target, Part::Object, Patch::Merge(body)).await?;
            return Ok(());
        };
        let Some(object) = self.client.get::<PersistentVolume>("", volume).await? else {
            return Ok(());
        };
        // Who reserves a volume by hand does not write the annotation.
        let is_ours = object.claim() == Some((namespace, name))
            && object.claim_uid() == claim.metadata.uid.as_deref()
            && object
                .metadata
                .annotations
                .contains_key(keys::VOLUME_BOUND_BY_CONTROLLER)
            && !object.is_bound();
        if !is_ours {
            return Ok(());
        }
        // If the controller of volumes binds the claim meanwhile, one of both writes fails on the version.
        let body = json!({
            "metadata": {
                "resourceVersion": object.metadata.resource_version.as_deref(),
                "annotations": { keys::VOLUME_BOUND_BY_CONTROLLER: null },
            },
            "spec": { "claimRef": null },
        });
        let target = Target::of::<PersistentVolume>("", volume);
        self.client.patch(target, Part::Object, Patch::Merge(body)).await?;
        Ok(())
    }
}
