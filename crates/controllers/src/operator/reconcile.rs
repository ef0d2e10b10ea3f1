//! Applies the objects of the plan, deletes owned objects that the plan does not have, and writes the conditions.
//!
//! Every write is a server-side apply of the fields that the plan has, so a change of these fields by others is undone, and other fields
//! are left alone: an autoscaler may set the replicas that no Config sets.
//!
//! The objects have the anchor of the installation as their owner: an uninstallation removes them and leaves Config and shards. In an
//! installation without an anchor the Config or the shard owns them, as in KAI.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kai_api::{Metadata, Object, Resource, SchedulingShard};
use kai_cluster::{Client, Context, Dependents, InstallationOwner, Part, Patch, Target};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::conditions::Conditions;
use super::inputs::{Installation, SchedulerFlags};
use super::objects::{DEPLOYMENT, DesiredObject, Owner, objects};
use super::owned::{self, OwnedObject, Watches};
use super::plan::{Plan, plan};
use super::shard::{ShardPlan, ShardScheduler};
use super::state::{State, read_state};
use crate::Error;

const FIELD_MANAGER: &str = "kai-operator";
/// The operator reads everything again after this time. No watch tells it that a CRD has appeared: that of the GPU operator, or that of
/// the autoscaler.
const RESYNC: Duration = Duration::from_secs(30);
/// Changes within this time are handled together: a rollout changes a Deployment several times a second.
const GATHER: Duration = Duration::from_millis(500);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(5);
const HEALTH: &str = "operator";

/// The settings of the operator.
#[derive(Clone)]
pub struct Settings {
    /// The installation that the operator belongs to.
    pub installation: Installation,
    /// What `kai scheduler` accepts.
    pub scheduler_flags: Arc<dyn SchedulerFlags>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.installation.fmt(f)
    }
}

/// Runs the operator until dropped. It is ready once all Deployments are available: then pods are scheduled, and `helm install --wait`
/// returns.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    let wake = Arc::new(Notify::new());
    let namespace = &settings.installation.namespace;
    let mut watches = Watches::start(&context.client, Some(namespace), &wake);
    context.health.announce(HEALTH, RESYNC * 4);
    let first_rollout = context.health.hold("availability of the roles");
    loop {
        watches.clear();
        let pause = match reconcile(&context, &settings, &mut watches).await {
            Ok(rollout) => {
                context.health.alive(HEALTH);
                if rollout == Rollout::Complete {
                    first_rollout.release();
                }
                RESYNC
            }
            Err(error) => {
                tracing::warn!(%error, "reconciling the installation failed");
                RETRY
            }
        };
        // A failure waits in full: the change that woke up the operator may be its own.
        let _ = tokio::time::timeout(pause, wake.notified()).await;
        tokio::time::sleep(GATHER).await;
    }
}

/// Whether the roles run as planned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rollout {
    Complete,
    Incomplete,
}

async fn reconcile(context: &Context, settings: &Settings, watches: &mut Watches) -> Result<Rollout, Error> {
    let client = &context.client;
    let state = read_state(client).await?;
    watches.follow(&state);
    let installation = &settings.installation;
    let anchor = match client.installation_owner().await? {
        InstallationOwner::Present(reference) => Some(reference),
        InstallationOwner::Absent => None,
        // kai is being uninstalled; the garbage collector deletes its objects.
        InstallationOwner::Deleted(_) => return Ok(Rollout::Incomplete),
    };
    let Some(config) = &state.config else {
        let mut progress = Progress::new(Conditions::without_config(&state.shards));
        let owners = Owners::default();
        progress
            .delete_unwanted(client, &installation.namespace, &[], &state, &owners)
            .await;
        progress.conditions.write(context).await?;
        return Ok(Rollout::Incomplete);
    };
    let flags = &*settings.scheduler_flags;
    let plan = plan(&config.spec, &state.shards, installation, state.facts, flags);
    let owners = Owners::of(&config.metadata, &state.shards, anchor);
    let mut progress = Progress::of(&plan);
    let desired = objects(&plan);
    let replaced = progress
        .remove_objects_of_kai(client, &installation.namespace, &state, &owners)
        .await;
    for object in &desired {
        let is_same = |(resource, name): &(&Resource, String)| *resource == object.resource && *name == object.name;
        if replaced.iter().any(is_same) {
            let waits = format!(
                "{} {} of KAI-Scheduler is being removed",
                object.resource.kind, object.name
            );
            progress.conditions.of_owner(&object.owner).unavailable.push(waits);
            continue;
        }
        progress.apply(client, object, &owners).await;
    }
    let namespaces = BTreeSet::from([&plan.namespace, &installation.namespace]);
    for namespace in namespaces {
        progress
            .delete_unwanted(client, namespace, &desired, &state, &owners)
            .await;
    }
    progress.conditions.write(context).await?;
    Ok(match progress.conditions.are_available() {
        true => Rollout::Complete,
        false => Rollout::Incomplete,
    })
}

/// The owners of the plan's objects.
#[derive(Default)]
struct Owners {
    references: BTreeMap<Owner, Value>,
    /// The anchor of the installation, which owns all objects if it exists.
    anchor: Option<Value>,
}

impl Owners {
    fn of(config: &Metadata, shards: &[SchedulingShard], anchor: Option<Value>) -> Owners {
        let reference = |kind: &str, metadata: &Metadata| {
            json!({
                "apiVersion": kai_api::Config::RESOURCE.api_version(),
                "kind": kind,
                "name": metadata.plain_name(),
                "uid": metadata.uid.as_deref().unwrap_or_default(),
                "controller": true,
                "blockOwnerDeletion": false,
            })
        };
        let of_shards = shards.iter().map(|shard| {
            let owner = Owner::Shard(shard.metadata.plain_name().to_owned());
            (owner, reference("SchedulingShard", &shard.metadata))
        });
        let of_config = std::iter::once((Owner::Config, reference("Config", config)));
        Owners {
            references: of_config.chain(of_shards).collect(),
            anchor,
        }
    }

    /// The owner reference of an object that is for `owner`.
    fn reference(&self, owner: &Owner) -> Option<&Value> {
        self.anchor.as_ref().or_else(|| self.references.get(owner))
    }

    /// The Config or shard that the object is for; `None` if the object is not the operator's.
    fn of_object(&self, object: &OwnedObject) -> Option<Owner> {
        let uid = object.controller.as_deref();
        let mut controllers = self
            .references
            .iter()
            .filter(|(_, reference)| reference["uid"].as_str() == uid);
        let controller = controllers.next().map(|(owner, _)| owner.clone());
        controller.or_else(|| object.mark.clone())
    }
}

/// The work on the objects of one plan.
struct Progress {
    conditions: Conditions,
    /// Shards with invalid settings. They keep their objects.
    invalid: BTreeSet<Owner>,
}

impl Progress {
    fn new(conditions: Conditions) -> Progress {
        Progress {
            conditions,
            invalid: BTreeSet::new(),
        }
    }

    fn of(plan: &Plan) -> Progress {
        let is_invalid = |shard: &&ShardPlan| matches!(shard.scheduler, ShardScheduler::Invalid(_));
        let invalid = plan.shards.iter().filter(is_invalid);
        Progress {
            invalid: invalid.map(|shard| Owner::Shard(shard.shard.clone())).collect(),
            ..Progress::new(Conditions::of(plan))
        }
    }

    async fn apply(&mut self, client: &Client, object: &DesiredObject, owners: &Owners) {
        let mut fields = object.fields.clone();
        let reference = owners.reference(&object.owner);
        fields["metadata"]["ownerReferences"] = reference.into_iter().cloned().collect();
        owned::mark(&mut fields, &object.owner);
        let target = Target {
            resource: object.resource,
            namespace: &object.namespace,
            name: &object.name,
        };
        let patch = Patch::Apply {
            manager: FIELD_MANAGER,
            fields,
        };
        let readiness = self.conditions.of_owner(&object.owner);
        match client.patch(target, Part::Object, patch).await {
            Ok(applied) if object.resource == &DEPLOYMENT => {
                readiness.unavailable.extend(unavailable(&applied));
            }
            Ok(_) => {}
            Err(error) => readiness.errors.push(error.to_string()),
        }
    }

    /// Removes the objects that KAI's operator made, and returns those that still exist. They can't become objects of this operator: their
    /// volumes, variables and owners would stay in them. A Deployment goes after its pods, so that no program of KAI works beside its
    /// successor: without leader election, KAI's programs hold no lease.
    async fn remove_objects_of_kai(
        &mut self,
        client: &Client,
        namespace: &str,
        state: &State,
        owners: &Owners,
    ) -> Vec<(&'static Resource, String)> {
        let owned = match owned::list(client, namespace, state.facts).await {
            Ok(owned) => owned,
            Err(error) => {
                self.fail(owners, &Owner::Config, error.to_string());
                return Vec::new();
            }
        };
        let mut removed = Vec::new();
        for object in owned.into_iter().filter(OwnedObject::is_of_kai) {
            if !object.is_terminating {
                tracing::info!(
                    kind = &*object.resource.kind,
                    name = object.name,
                    "deleting: KAI-Scheduler's operator made it"
                );
                if let Err(error) = object.delete(client, Dependents::First).await {
                    self.fail(owners, &Owner::Config, error.to_string());
                }
            }
            removed.push((object.resource, object.name));
        }
        removed
    }

    async fn delete_unwanted(
        &mut self,
        client: &Client,
        namespace: &str,
        desired: &[DesiredObject],
        state: &State,
        owners: &Owners,
    ) {
        let is_wanted = |object: &OwnedObject| {
            desired.iter().any(|desired| {
                desired.resource == object.resource
                    && desired.name == object.name
                    && desired.namespace == object.namespace
            })
        };
        let owned = match owned::list(client, namespace, state.facts).await {
            Ok(owned) => owned,
            Err(error) => return self.fail(owners, &Owner::Config, error.to_string()),
        };
        for object in owned {
            let Some(owner) = owners.of_object(&object) else {
                continue;
            };
            if is_wanted(&object) || self.invalid.contains(&owner) {
                continue;
            }
            tracing::info!(
                kind = &*object.resource.kind,
                name = object.name,
                "deleting: no longer wanted"
            );
            if let Err(error) = object.delete(client, Dependents::Later).await {
                self.fail(owners, &owner, error.to_string());
            }
        }
    }

    /// Records an error with the conditions of the owner; with those of the Config, if the owner is a shard that no longer exists.
    fn fail(&mut self, owners: &Owners, owner: &Owner, error: String) {
        if owners.references.is_empty() {
            tracing::warn!(error, "an object of a deleted Config can't be removed");
            return;
        }
        let owner = if owners.references.contains_key(owner) {
            owner
        } else {
            &Owner::Config
        };
        self.conditions.of_owner(owner).errors.push(error);
    }
}

/// Why a Deployment is not available: its pods are not of the newest template, or do not run.
fn unavailable(deployment: &Value) -> Option<String> {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let updated = number(&status["updatedReplicas"]);
    let conditions = status["conditions"].as_array();
    let is_available = |condition: &Value| condition["type"] == "Available" && condition["status"] == "True";
    let available = conditions.is_some_and(|conditions| conditions.iter().any(is_available));
    let is_observed = number(&status["observedGeneration"]) >= number(&deployment["metadata"]["generation"]);
    let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
    if !is_observed || updated != wanted {
        return Some(format!("Deployment {name}: {updated} of {wanted} pods are up to date"));
    }
    let ready = number(&status["readyReplicas"]);
    (!available).then(|| format!("Deployment {name}: {ready} of {wanted} pods are ready"))
}
