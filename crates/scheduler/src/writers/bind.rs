//! Binds pods: plain pods directly, others by a BindRequest that the binder executes. Both ways are idempotent.

use kai_api::{BindRequest, ComputeMode, Object, keys};
use kai_cluster::{Deletion, Error, Part, Patch, Target};
use kai_engine::model::GpuFraction;
use kai_engine::report::{Placed, Received};
use serde_json::{Value, json};

use super::{Bind, Writer};
use crate::settings::BindRequests;

/// The API server's limit for values of labels.
const LABEL_BYTES_MAX: usize = 63;
/// Attempts to create a bind request. Between them the writer deletes a stale one of the same name.
const ATTEMPTS_MAX: u32 = 3;

impl Writer {
    pub(super) async fn bind(&self, bind: &Bind) -> Result<(), Error> {
        let needs_request = match self.settings.bind_requests {
            BindRequests::Always => true,
            BindRequests::WhenNeeded => needs_preparation(&bind.placed),
        };
        if needs_request {
            return self.create_bind_request(bind).await;
        }
        let (namespace, name, uid) = (&bind.pod.namespace, &bind.pod.name, &*bind.placed.pod);
        if let Some((key, value)) = &self.settings.label {
            let body = json!({ "metadata": { "uid": uid, "labels": { key: value } } });
            let target = Target::of::<kai_api::Pod>(namespace, name);
            self.client.patch(target, Part::Status, Patch::Merge(body)).await?;
        }
        match self.client.bind(namespace, name, uid, &bind.placed.node).await {
            Err(error) if error.is_conflict() => self.confirm_binding(bind, error).await,
            result => result,
        }
    }

    /// After a conflict, checks whether the pod is bound as decided: an earlier attempt that timed out may have taken effect.
    async fn confirm_binding(&self, bind: &Bind, conflict: Error) -> Result<(), Error> {
        let pod: Option<kai_api::Pod> = self.client.get(&bind.pod.namespace, &bind.pod.name).await?;
        let same = pod.is_some_and(|pod| {
            pod.metadata().uid.as_deref() == Some(&bind.placed.pod) && pod.node_name() == Some(&bind.placed.node)
        });
        if same { Ok(()) } else { Err(conflict) }
    }

    async fn create_bind_request(&self, bind: &Bind) -> Result<(), Error> {
        let (namespace, name) = (&*bind.pod.namespace, &*bind.pod.name);
        let body = bind_request_body(name, &bind.placed, self.settings.label.as_ref());
        let mut attempt = 1;
        loop {
            let created = self
                .client
                .create(&BindRequest::RESOURCE, namespace, body.clone())
                .await;
            let failure = match created {
                Ok(_) => return Ok(()),
                Err(error) if error.is_refused() && !error.is_conflict() => return Err(error),
                Err(error) => error,
            };
            // Also a request whose answer was lost may exist. Its pod is bound then, and the engine must not give its resources to others.
            let Some(existing) = self.client.get::<BindRequest>(namespace, name).await? else {
                if attempt == ATTEMPTS_MAX || !failure.is_conflict() {
                    return Err(failure);
                }
                attempt += 1;
                continue;
            };
            if same_content(&existing, &bind.placed) {
                return Ok(());
            }
            if attempt == ATTEMPTS_MAX || !failure.is_conflict() {
                return Err(failure);
            }
            attempt += 1;
            let deletion = Deletion {
                uid: existing.metadata().uid.as_deref().map(str::to_owned),
                ..Deletion::default()
            };
            let target = Target::of::<BindRequest>(namespace, name);
            match self.client.delete(target, &deletion).await {
                Err(error) if !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
    }
}

/// Whether the binder has to prepare the pod: it reserves shared GPUs, and waits for volumes.
fn needs_preparation(placed: &Placed) -> bool {
    match placed.received {
        Received::Fraction { .. } => true,
        Received::Regular { .. } | Received::MigInstance => !placed.volumes.is_empty(),
    }
}

/// What the claims of the pod get, as names of claims and volumes; an empty name = a new volume.
fn selected_volumes(placed: &Placed) -> impl Iterator<Item = (&str, &str)> {
    placed.volumes.iter().map(|chosen| {
        let (_, claim) = chosen.claim.split_once('/').unwrap_or(("", &chosen.claim));
        (claim, chosen.volume.as_deref().unwrap_or_default())
    })
}

/// The BindRequest of a decision.
fn bind_request_body(pod: &str, placed: &Placed, label: Option<&(String, String)>) -> Value {
    let (kind, count, portion) = match placed.received {
        Received::Regular { devices: 0 } => (keys::RECEIVED_REGULAR, 0, GpuFraction::ZERO),
        Received::Regular { devices } => (keys::RECEIVED_REGULAR, devices, GpuFraction::WHOLE),
        Received::Fraction { devices, portion, .. } => (keys::RECEIVED_FRACTION, devices, portion),
        Received::MigInstance => (keys::RECEIVED_MIG, 0, GpuFraction::ZERO),
    };
    let mut labels = serde_json::Map::new();
    if placed.node.len() <= LABEL_BYTES_MAX {
        labels.insert(keys::SELECTED_NODE.to_owned(), placed.node.to_string().into());
    }
    if let Some((key, value)) = label {
        labels.insert(key.clone(), value.as_str().into());
    }
    let mut spec = json!({
        "podName": pod,
        "selectedNode": &*placed.node,
        "receivedResourceType": kind,
        "receivedGPU": { "count": count, "portion": portion.to_string() },
    });
    if !placed.gpu_groups.is_empty() {
        spec["selectedGPUGroups"] = placed.gpu_groups.clone().into();
    }
    // KAI since 0.18 reads this list, older binders the one above.
    if let Received::Fraction { compute_mode, .. } = placed.received {
        let mode = ComputeMode::from(compute_mode).name();
        let groups = placed.gpu_groups.iter();
        let groups = groups.map(|group| json!({ "id": group, "computeSharingMode": mode }));
        spec["selectedFractionalGpuGroups"] = groups.collect();
    }
    if !placed.volumes.is_empty() {
        let selected = selected_volumes(placed).map(|(claim, volume)| match volume {
            "" => json!({ "claimName": claim }),
            volume => json!({ "claimName": claim, "volumeName": volume }),
        });
        spec["selectedVolumes"] = selected.collect();
    }
    json!({
        "metadata": {
            "name": pod,
            "labels": labels,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": &*placed.pod }],
        },
        "spec": spec,
    })
}

/// Whether the existing request is the one to create: then an earlier attempt took effect.
fn same_content(request: &BindRequest, placed: &Placed) -> bool {
    let owners = &request.metadata().owner_references;
    let gpu_groups = request.gpu_groups().iter().map(|gpu_group| &**gpu_group);
    owners.iter().any(|owner| *owner.uid == *placed.pod)
        && request.selected_node() == &*placed.node
        && gpu_groups.eq(placed.gpu_groups.iter().map(String::as_str))
        && request
            .selected_volumes()
            .iter()
            .map(|selected| {
                (
                    &*selected.claim_name,
                    selected.volume_name.as_deref().unwrap_or_default(),
                )
            })
            .eq(selected_volumes(placed))
        && !request.failed_for_good()
        && !request.metadata().is_terminating()
}

#[cfg(test)]
mod tests {
    use kai_engine::model::VolumeChoice;

    use super::*;

    fn placed(received: Received, groups: &[&str]) -> Placed {
        Placed {
            pod: "u-1".into(),
            node: "n1".into(),
            gpu_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            received,
            volumes: Vec::new(),
            action: kai_engine::model::Action::Allocate,
        }
    }

    #[test]
    fn a_request_says_what_the_binder_needs() {
        let half = placed(
            Received::Fraction {
                devices: 2,
                portion: GpuFraction::from_hundredths(50),
                compute_mode: ComputeMode::SmSharing.into(),
            },
            &["a", "b"],
        );
        let half = Placed {
            volumes: vec![
                VolumeChoice {
                    claim: "ns/data".to_owned(),
                    volume: Some("v".to_owned()),
                },
                VolumeChoice {
                    claim: "ns/scratch".to_owned(),
                    volume: None,
                },
            ],
            ..half
        };
        let pool = ("kai.scheduler/node-pool".to_owned(), "big".to_owned());
        assert_eq!(
            bind_request_body("p", &half, Some(&pool)),
            json!({
                "metadata": {
                    "name": "p",
                    "labels": { "selected-node": "n1", "kai.scheduler/node-pool": "big" },
                    "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1" }],
                },
                "spec": {
                    "podName": "p",
                    "selectedNode": "n1",
                    "receivedResourceType": "Fraction",
                    "receivedGPU": { "count": 2, "portion": "0.50" },
                    "selectedGPUGroups": ["a", "b"],
                    "selectedFractionalGpuGroups": [
                        { "id": "a", "computeSharingMode": "sm-sharing" },
                        { "id": "b", "computeSharingMode": "sm-sharing" },
                    ],
                    "selectedVolumes": [{ "claimName": "data", "volumeName": "v" }, { "claimName": "scratch" }],
                },
            })
        );
    }

    #[test]
    fn portions_have_two_digits() {
        let portion = |received| bind_request_body("p", &placed(received, &[]), None)["spec"]["receivedGPU"].clone();
        assert_eq!(
            portion(Received::Regular { devices: 4 }),
            json!({ "count": 4, "portion": "1.00" })
        );
        assert_eq!(
            portion(Received::Regular { devices: 0 }),
            json!({ "count": 0, "portion": "0.00" })
        );
        assert_eq!(portion(Received::MigInstance), json!({ "count": 0, "portion": "0.00" }));
        let small = Received::Fraction {
            devices: 1,
            portion: GpuFraction::from_hundredths(5),
            compute_mode: ComputeMode::TimeSlicing.into(),
        };
        assert_eq!(portion(small), json!({ "count": 1, "portion": "0.05" }));
    }

    #[test]
    fn who_needs_the_binder() {
        let plain = placed(Received::Regular { devices: 1 }, &[]);
        let volumes = vec![VolumeChoice {
            claim: "ns/data".to_owned(),
            volume: None,
        }];
        let with_volume = Placed {
            volumes,
            ..plain.clone()
        };
        assert!(!needs_preparation(&plain) && needs_preparation(&with_volume));
        let stored = bind_request_body("p", &with_volume, None);
        let request: BindRequest = serde_json::from_value(stored).unwrap();
        assert!(same_content(&request, &with_volume) && !same_content(&request, &plain));
    }

    #[test]
    fn an_own_earlier_attempt_is_recognised() {
        let half = placed(
            Received::Fraction {
                devices: 1,
                portion: GpuFraction::from_hundredths(50),
                compute_mode: ComputeMode::TimeSlicing.into(),
            },
            &["a"],
        );
        let stored = bind_request_body("p", &half, None);
        let request: BindRequest = serde_json::from_value(stored.clone()).unwrap();
        assert!(same_content(&request, &half));
        let other = Placed {
            pod: "u-2".into(),
            ..half.clone()
        };
        assert!(!same_content(&request, &other), "made for another pod of this name");
        let mut failed = stored;
        failed["status"] = json!({ "phase": "Failed" });
        assert!(!same_content(&serde_json::from_value(failed).unwrap(), &half));
    }
}
