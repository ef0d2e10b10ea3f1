//! PersistentVolumes: binds existing volumes to claims, and provisions volumes of StorageClasses with the simulated provisioner. Nothing
//! is stored on disk. Pure functions choose the volume of a claim.
//!
//! Claims of a class that waits for the first consumer follow the protocol of Kubernetes: a scheduler reserves a volume for the claim
//! (`claimRef`), or names a node on the claim; the provisioner makes a volume for that node, or refuses the node by removing its name.
//! The parameters of a class say how its provisioner behaves (see [`Provisioner`]).

use kai_api::{Object, ObjectKey, VolumeBinding};
use kai_cluster::{Error, Part, Patch, Selection, Severity, Target};
use serde_json::{Value, json};

use super::objects::{Claim, Volume, Workload};
use super::reconcile::{RequeueAfter, ignore_conflict};
use super::{Inner, Kind};

/// The provisioner of simulated volumes.
pub const PROVISIONER: &str = "sim.kai.scheduler/volumes";
/// Claim annotation: the node that the scheduler chose for the claim's pod.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Volume annotation: the provisioner.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

impl Inner {
    pub(super) async fn claim(&self, key: &ObjectKey) -> Result<RequeueAfter, Error> {
        let Some(claim) = self.claims.get(key) else {
            // The volume of the deleted claim becomes released.
            self.enqueue_all(&self.volumes, Kind::Volume);
            return Ok(None);
        };
        let claim = &claim.0;
        if claim.metadata.is_terminating() {
            return Ok(None);
        }
        let volumes = self
            .context
            .client
            .list_values(&Volume::RESOURCE, &Selection::default())
            .await?;
        let volumes: Vec<Workload> = volumes.into_iter().filter_map(Workload::of).collect();
        if claim.status["phase"] == "Bound" {
            let name = claim.spec["volumeName"].as_str().unwrap_or_default();
            if !volumes.iter().any(|volume| volume.name() == name) {
                let status = json!({ "phase": "Lost" });
                self.write_status(target_of(key), claim, status).await?;
                let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
                self.warn(claim, "ClaimLost", message.to_owned()).await;
            }
            return Ok(None);
        }
        let waits = class_name(claim).is_some_and(|name| {
            let class = self.classes.get(&ObjectKey::new("", name));
            class.is_some_and(|class| class.volume_binding() == VolumeBinding::WaitForFirstConsumer)
        });
        match suitable(claim, &volumes, waits) {
            Some(volume) => self.bind(key, claim, volume).await?,
            None => self.provision(key, claim).await?,
        }
        Ok(None)
    }

    /// Binds claim and volume to each other. The volume is written first, so that no other claim takes it meanwhile.
    async fn bind(&self, key: &ObjectKey, claim: &Workload, volume: &Workload) -> Result<(), Error> {
        let client = &self.context.client;
        let reference = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": key.namespace.to_string(),
            "name": claim.name(), "uid": claim.uid(),
        });
        let of_volume = Target::of::<Volume>("", volume.name());
        let version = volume.metadata.resource_version.as_deref();
        let body = json!({ "metadata": { "resourceVersion": version }, "spec": { "claimRef": reference } });
        client.patch(of_volume, Part::Object, Patch::Merge(body)).await?;
        let bound = json!({ "status": { "phase": "Bound" } });
        client.patch(of_volume, Part::Status, Patch::Merge(bound)).await?;
        let marks = json!({ "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" });
        let body = json!({ "metadata": { "annotations": marks }, "spec": { "volumeName": volume.name() } });
        client.patch(target_of(key), Part::Object, Patch::Merge(body)).await?;
        let status = json!({
            "phase": "Bound", "accessModes": volume.spec["accessModes"], "capacity": volume.spec["capacity"],
        });
        self.write_status(target_of(key), claim, status).await
    }

    /// Creates a volume for the claim, or records an event with the reason why not.
    async fn provision(&self, key: &ObjectKey, claim: &Workload) -> Result<(), Error> {
        let Some(name) = class_name(claim) else {
            let message = "no persistent volumes available for this claim and no storage class is set";
            self.warn(claim, "FailedBinding", message.to_owned()).await;
            return Ok(());
        };
        let Some(class) = self.classes.get(&ObjectKey::new("", name)) else {
            let message = format!("storageclass.storage.k8s.io {name:?} not found");
            self.warn(claim, "ProvisioningFailed", message).await;
            return Ok(());
        };
        let waits = class.volume_binding() == VolumeBinding::WaitForFirstConsumer;
        if waits && claim.metadata.annotations.text(SELECTED_NODE).is_none() {
            let message = "waiting for first consumer to be created before binding";
            self.emit(claim, &Claim::RESOURCE, "WaitForFirstConsumer", message.to_owned())
                .await;
            return Ok(());
        }
        match class.provisioner() {
            Some(PROVISIONER) => {}
            Some(other) => {
                let message = format!(
                    "waiting for a volume to be created by the provisioner {other:?}, which is not part of this cluster; use a \
                     class with the provisioner {PROVISIONER}, or create a PersistentVolume"
                );
                self.warn(claim, "ExternalProvisioning", message).await;
                return Ok(());
            }
            None => {
                let message = "no persistent volumes available for this claim; create a PersistentVolume that fits it";
                self.warn(claim, "FailedBinding", message.to_owned()).await;
                return Ok(());
            }
        }
        let client = &self.context.client;
        let class = client
            .get_value(Target::of::<kai_api::StorageClass>("", name))
            .await?
            .unwrap_or_default();
        let provisioner = Provisioner::of(&class);
        let node = claim.metadata.annotations.text(SELECTED_NODE).unwrap_or_default();
        if provisioner.never_answers {
            return Ok(());
        }
        if provisioner.full_nodes.iter().any(|full| full == node) {
            let message = format!("failed to provision volume: no capacity on node {node}");
            self.warn(claim, "ProvisioningFailed", message).await;
            let refuse = json!({ "metadata": { "annotations": { SELECTED_NODE: null } } });
            client.patch(target_of(key), Part::Object, Patch::Merge(refuse)).await?;
            return Ok(());
        }
        let mut volume = new_volume(&key.namespace, claim, &class);
        if let Some(label) = provisioner.topology_key {
            let node = client.get_metadata(Target::of::<kai_api::Node>("", node)).await?;
            let value = node.and_then(|node| node.labels.text(&label).map(str::to_owned));
            let term = json!({ "matchExpressions": [{ "key": label, "operator": "In", "values": [value.unwrap_or_default()] }] });
            volume["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [term] } });
        }
        let message = format!(
            "Successfully provisioned volume {}",
            volume["metadata"]["name"].as_str().unwrap_or_default()
        );
        ignore_conflict(client.create(&Volume::RESOURCE, "", volume).await)?;
        // The change of the volume enqueues the claim again.
        self.emit(claim, &Claim::RESOURCE, "ProvisioningSucceeded", message)
            .await;
        Ok(())
    }

    pub(super) async fn volume(&self, key: &ObjectKey) -> Result<RequeueAfter, Error> {
        let Some(volume) = self.volumes.get(key) else {
            // `claim` handles claims whose volume is gone.
            return Ok(None);
        };
        let volume = &volume.0;
        let target = Target::of::<Volume>("", &key.name);
        let reference = &volume.spec["claimRef"];
        let uid = reference["uid"].as_str().unwrap_or_default();
        if uid.is_empty() {
            let status = json!({ "phase": "Available" });
            return self.write_status(target, volume, status).await.map(|()| None);
        }
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        let claim = Target::of::<Claim>(text("namespace"), text("name"));
        let claim = self.context.client.get_metadata(claim).await?;
        if claim.is_some_and(|claim| claim.uid.as_deref() == Some(uid)) {
            return Ok(None);
        }
        let ours = volume.metadata.annotations.text(PROVISIONED_BY) == Some(PROVISIONER);
        if ours && volume.spec["persistentVolumeReclaimPolicy"] == "Delete" {
            self.context
                .client
                .delete(target, &kai_cluster::Deletion::default())
                .await?;
            return Ok(None);
        }
        let status = json!({ "phase": "Released" });
        self.write_status(target, volume, status).await.map(|()| None)
    }

    async fn warn(&self, claim: &Workload, reason: &'static str, message: String) {
        self.record(claim, &Claim::RESOURCE, Severity::Warning, reason, message)
            .await;
    }
}

/// How the simulated provisioner serves a class, by the class's parameters.
#[derive(Debug, Default)]
struct Provisioner {
    /// `topologyKey`: volumes can be used on nodes with the same value of this label as the selected node.
    topology_key: Option<String>,
    /// `fullNodes`, separated by commas: nodes for which it makes no volumes.
    full_nodes: Vec<String>,
    /// `neverAnswers: "true"`: it neither makes a volume nor refuses a node.
    never_answers: bool,
}

impl Provisioner {
    fn of(class: &Value) -> Provisioner {
        let parameter = |name: &str| class["parameters"][name].as_str().map(str::to_owned);
        let full_nodes = parameter("fullNodes").unwrap_or_default();
        Provisioner {
            topology_key: parameter("topologyKey"),
            full_nodes: full_nodes.split_terminator(',').map(str::to_owned).collect(),
            never_answers: parameter("neverAnswers").as_deref() == Some("true"),
        }
    }
}

impl Inner {
    /// Creates the claims of a pod's ephemeral volumes.
    pub(super) async fn ephemeral_claims(&self, key: &ObjectKey) -> Result<RequeueAfter, Error> {
        let Some(pod) = self
            .context
            .client
            .get_value(Target::of::<kai_api::Pod>(&key.namespace, &key.name))
            .await?
        else {
            return Ok(None);
        };
        let owner = json!([{
            "apiVersion": "v1", "kind": "Pod", "name": &*key.name, "uid": pod["metadata"]["uid"], "controller": true,
            "blockOwnerDeletion": true,
        }]);
        for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
            let template = &volume["ephemeral"]["volumeClaimTemplate"];
            if template.is_null() {
                continue;
            }
            let mut metadata = template["metadata"].as_object().cloned().unwrap_or_default();
            let name = format!("{}-{}", key.name, volume["name"].as_str().unwrap_or_default());
            metadata.insert("name".to_owned(), name.into());
            metadata.insert("ownerReferences".to_owned(), owner.clone());
            let claim = json!({ "metadata": metadata, "spec": template["spec"] });
            ignore_conflict(
                self.context
                    .client
                    .create(&Claim::RESOURCE, &key.namespace, claim)
                    .await,
            )?;
        }
        Ok(None)
    }
}

fn target_of(key: &ObjectKey) -> Target<'_> {
    Target::of::<Claim>(&key.namespace, &key.name)
}

/// The StorageClass of a claim or volume.
fn class_name(of: &Workload) -> Option<&str> {
    of.spec["storageClassName"].as_str().filter(|name| !name.is_empty())
}

/// The smallest volume that fits the claim. A volume reserved for the claim comes first; for a claim that waits for its first consumer no
/// other volume will do.
fn suitable<'a>(claim: &Workload, volumes: &'a [Workload], waits: bool) -> Option<&'a Workload> {
    let live = volumes.iter().filter(|volume| !volume.metadata.is_terminating());
    if let Some(name) = claim.spec["volumeName"].as_str().filter(|name| !name.is_empty()) {
        let mut named = live.filter(|volume| volume.name() == name);
        return named.find(|volume| is_free_for(volume, claim));
    }
    let fitting = live.filter(|volume| is_free_for(volume, claim) && fits(volume, claim));
    let fitting = fitting.filter(|volume| !waits || !volume.spec["claimRef"].is_null());
    fitting.min_by_key(|volume| (volume.spec["claimRef"].is_null(), capacity(volume), volume.name()))
}

/// Whether the volume is unbound, or reserved for this claim.
fn is_free_for(volume: &Workload, claim: &Workload) -> bool {
    let reference = &volume.spec["claimRef"];
    let uid = reference["uid"].as_str().unwrap_or_default();
    reference.is_null()
        || reference["name"] == claim.name()
            && reference["namespace"] == claim.metadata.namespace()
            && (uid.is_empty() || uid == claim.uid())
}

fn fits(volume: &Workload, claim: &Workload) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let modes = list(&volume.spec["accessModes"]);
    let mode = |of: &Workload| of.spec["volumeMode"].as_str().unwrap_or("Filesystem").to_owned();
    let selector = &claim.spec["selector"];
    let labels: Value = volume
        .metadata
        .labels
        .iter()
        .map(|(key, value)| (key.to_owned(), Value::from(&**value)))
        .collect();
    let selected = selector.is_null()
        || crate::server::Selector::of_object(selector).is_some_and(|selector| selector.matches_labels(&labels));
    selected
        && class_name(volume) == class_name(claim)
        && mode(volume) == mode(claim)
        && list(&claim.spec["accessModes"]).iter().all(|mode| modes.contains(mode))
        && capacity(volume) >= quantity(&claim.spec["resources"]["requests"]["storage"])
}

fn capacity(volume: &Workload) -> i64 {
    quantity(&volume.spec["capacity"]["storage"])
}

/// Whole bytes.
fn quantity(value: &Value) -> i64 {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    kai_api::Quantity::parse(&text).map_or(0, kai_api::Quantity::units_up)
}

fn new_volume(namespace: &str, claim: &Workload, class: &Value) -> Value {
    let name = format!("pvc-{}", claim.uid());
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim.name(), "uid": claim.uid(),
    });
    let reclaim = class["reclaimPolicy"].as_str().unwrap_or("Delete");
    json!({
        "metadata": { "name": name, "annotations": { PROVISIONED_BY: PROVISIONER } },
        "spec": {
            "capacity": { "storage": claim.spec["resources"]["requests"]["storage"] },
            "accessModes": claim.spec["accessModes"],
            "persistentVolumeReclaimPolicy": reclaim,
            "storageClassName": class["metadata"]["name"],
            "volumeMode": claim.spec["volumeMode"].as_str().unwrap_or("Filesystem"),
            "claimRef": reference,
            "hostPath": { "path": format!("/simulated/{name}") },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, spec: Value) -> Workload {
        Workload::of(json!({ "metadata": { "name": name, "namespace": "default", "uid": name }, "spec": spec }))
            .unwrap()
    }

    fn volume(name: &str, storage: &str, more: Value) -> Workload {
        let mut spec =
            json!({ "capacity": { "storage": storage }, "accessModes": ["ReadWriteOnce"], "storageClassName": "slow" });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object(name, spec)
    }

    #[test]
    fn a_claim_gets_the_smallest_volume_that_suits_it() {
        let volumes = [
            volume("large", "100Gi", json!({})),
            volume("small", "10Gi", json!({})),
            volume("tiny", "1Gi", json!({})),
            volume("fast", "10Gi", json!({ "storageClassName": "fast" })),
            volume(
                "taken",
                "5Gi",
                json!({ "claimRef": { "name": "other", "namespace": "default", "uid": "other" } }),
            ),
            volume(
                "kept",
                "50Gi",
                json!({ "claimRef": { "name": "mine", "namespace": "default" }, "storageClassName": "" }),
            ),
        ];
        let check = |claim: &str, more: Value, expect: Option<&str>| {
            let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "slow",
                "resources": { "requests": { "storage": "2Gi" } } });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let claim = object(claim, spec);
            let found = suitable(&claim, &volumes, false).map(Workload::name);
            assert_eq!(found, expect, "{}", claim.spec);
            let reserved = suitable(&claim, &volumes, true).map(Workload::name);
            assert_eq!(
                reserved,
                expect.filter(|_| claim.name() == "mine" || more["volumeName"] == "large")
            );
        };
        check("c", json!({}), Some("small"));
        check("c", json!({ "storageClassName": "fast" }), Some("fast"));
        check("c", json!({ "accessModes": ["ReadWriteMany"] }), None);
        check("c", json!({ "volumeName": "large" }), Some("large"));
        check("c", json!({ "volumeName": "taken" }), None);
        check("mine", json!({ "storageClassName": "" }), Some("kept"));
        check("c", json!({ "storageClassName": "" }), None);
    }
}
