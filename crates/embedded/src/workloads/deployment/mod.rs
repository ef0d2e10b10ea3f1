//! Deployments: scales the ReplicaSet of the present template up and the old ones down, within `maxSurge` and `maxUnavailable`. Pure;
//! `reconcile` carries the plan out.

mod status;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use kai_api::Object;
use serde_json::{Map, Value, json};

use super::objects::{Deployment, Workload, copy_present, int_or_percent, template_hash};

/// Annotation of Deployments and ReplicaSets: the revision number for `kubectl rollout`.
const REVISION: &str = "deployment.kubernetes.io/revision";
const HASH: &str = "pod-template-hash";
/// Annotations of a Deployment that its ReplicaSets do not get.
const NOT_COPIED: [&str; 2] = [REVISION, "kubectl.kubernetes.io/last-applied-configuration"];

/// The writes for a Deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// The ReplicaSet of the present template.
    pub(super) create: Option<Value>,
    /// Changes of ReplicaSets, by name.
    pub(super) change: Vec<(String, Change)>,
    /// ReplicaSets beyond the history limit.
    pub(super) delete: Vec<String>,
    /// The changed annotations of the Deployment.
    pub(super) annotations: Map<String, Value>,
    pub(super) status: Value,
    /// When the passing of time changes the status.
    pub(super) requeue_after: Option<Duration>,
}

/// A change of a replica set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Change {
    pub(super) replicas: Option<i64>,
    pub(super) annotations: Map<String, Value>,
}

/// A Deployment and its ReplicaSets.
struct Rollout<'a> {
    deployment: &'a Workload,
    /// The ReplicaSet of the present template.
    new: Option<&'a Workload>,
    /// The other ReplicaSets, the oldest first.
    old: Vec<&'a Workload>,
    surge: i64,
    unavailable: i64,
}

pub(super) fn plan(deployment: &Workload, sets: &[Workload], now: Timestamp) -> Plan {
    let rollout = Rollout::of(deployment, sets);
    let mut plan = Plan::default();
    let paused = deployment.spec["paused"] == true;
    let revision = rollout.new_revision();
    if !paused {
        let number = Value::from(revision.to_string());
        if let Some(set) = rollout.new.filter(|set| number != *annotation(set, REVISION)) {
            plan.change_of(set)
                .annotations
                .insert(REVISION.to_owned(), number.clone());
        }
        if number != *annotation(deployment, REVISION) {
            plan.annotations.insert(REVISION.to_owned(), number);
        }
        plan.delete = rollout.surplus_history();
    }
    match (paused, deployment.spec["strategy"]["type"] == "Recreate") {
        (true, _) => rollout.scale_while_paused(&mut plan),
        (false, true) => rollout.recreate(&mut plan, revision),
        (false, false) => rollout.roll(&mut plan, revision),
    }
    rollout.set_status(&mut plan, now);
    plan
}

impl<'a> Rollout<'a> {
    fn of(deployment: &'a Workload, sets: &'a [Workload]) -> Rollout<'a> {
        let hash = template_hash(&deployment.spec["template"]);
        let is_new = |set: &&Workload| set.metadata.labels.text(HASH) == Some(&hash);
        let mut old: Vec<&Workload> = sets.iter().filter(|set| !is_new(set)).collect();
        old.sort_by_key(|set| (set.created(), set.name()));
        let bounds = &deployment.spec["strategy"]["rollingUpdate"];
        let replicas = deployment.replicas();
        let surge = int_or_percent(&bounds["maxSurge"], replicas, true).unwrap_or(0);
        let unavailable = int_or_percent(&bounds["maxUnavailable"], replicas, false).unwrap_or(0);
        Rollout {
            deployment,
            new: sets.iter().find(is_new),
            old,
            surge,
            unavailable: match deployment.spec["strategy"]["type"] == "Recreate" {
                true => 0,
                // With both at 0 an update would never begin.
                false if surge == 0 && unavailable == 0 => 1,
                false => unavailable.min(replicas),
            },
        }
    }

    fn all(&self) -> impl Iterator<Item = &'a Workload> {
        self.old.iter().copied().chain(self.new)
    }

    /// The revision number of the present template: higher than all others.
    fn new_revision(&self) -> i64 {
        let of_old = self.old.iter().map(|set| revision_of(set)).max().unwrap_or(0);
        let of_new = self.new.map_or(0, revision_of);
        of_new.max(of_old + 1)
    }

    fn wanted_in_all(&self) -> i64 {
        self.all().map(Workload::replicas).sum()
    }

    /// The replicas of the present template that `maxSurge` allows.
    fn new_replicas(&self) -> i64 {
        let replicas = self.deployment.replicas();
        let present = self.new.map_or(0, Workload::replicas);
        if present >= replicas {
            return replicas;
        }
        let room = replicas + self.surge - self.wanted_in_all();
        present + room.clamp(0, replicas - present)
    }

    fn roll(&self, plan: &mut Plan, revision: i64) {
        let replicas = self.new_replicas();
        let Some(new) = self.new else {
            plan.create = Some(self.new_set(replicas, revision));
            return;
        };
        if new.replicas() != replicas {
            plan.change_of(new).replicas = Some(replicas);
            return;
        }
        for (set, replicas) in self.old_replicas(new) {
            plan.change_of(set).replicas = Some(replicas);
        }
    }

    /// The replicas of the old ReplicaSets that `maxUnavailable` still requires. Unavailable pods go first.
    fn old_replicas(&self, new: &Workload) -> Vec<(&'a Workload, i64)> {
        let available = |set: &Workload| set.counter("availableReplicas");
        let available_min = self.deployment.replicas() - self.unavailable;
        let new_unavailable = new.replicas() - available(new);
        let mut room = self.wanted_in_all() - available_min - new_unavailable;
        let mut left: Vec<(&Workload, i64)> = self.old.iter().map(|set| (*set, set.replicas())).collect();
        for (set, replicas) in &mut left {
            let step = (*replicas - available(set)).clamp(0, room.max(0)).min(*replicas);
            *replicas -= step;
            room -= step;
        }
        let mut surplus = (self.all().map(available).sum::<i64>() - available_min).min(room);
        for (_, replicas) in &mut left {
            let step = (*replicas).clamp(0, surplus.max(0));
            *replicas -= step;
            surplus -= step;
        }
        left.retain(|(set, replicas)| set.replicas() != *replicas);
        left
    }

    /// Deletes all old pods, then creates the new ones.
    fn recreate(&self, plan: &mut Plan, revision: i64) {
        for set in self.old.iter().filter(|set| set.replicas() > 0) {
            plan.change_of(set).replicas = Some(0);
        }
        if self
            .old
            .iter()
            .any(|set| set.replicas() > 0 || set.counter("replicas") > 0)
        {
            return;
        }
        let replicas = self.deployment.replicas();
        match self.new {
            None => plan.create = Some(self.new_set(replicas, revision)),
            Some(new) if new.replicas() != replicas => plan.change_of(new).replicas = Some(replicas),
            Some(_) => {}
        }
    }

    /// Scales a paused Deployment, if one ReplicaSet has all of its pods.
    fn scale_while_paused(&self, plan: &mut Plan) {
        let active: Vec<&Workload> = self.all().filter(|set| set.replicas() > 0).collect();
        if let [set] = active[..]
            && set.replicas() != self.deployment.replicas()
        {
            plan.change_of(set).replicas = Some(self.deployment.replicas());
        }
    }

    fn new_set(&self, replicas: i64, revision: i64) -> Value {
        let deployment = self.deployment;
        let hash = template_hash(&deployment.spec["template"]);
        let mut metadata = deployment.owner(&Deployment::RESOURCE);
        metadata["name"] = format!("{}-{hash}", deployment.name()).into();
        let mut template = deployment.spec["template"].clone();
        copy_present(&template["metadata"], &mut metadata, &["labels"]);
        metadata["labels"][HASH] = hash.as_str().into();
        let own = deployment.metadata.annotations.iter();
        let copied = own.filter(|(key, _)| !NOT_COPIED.contains(key));
        metadata["annotations"] = copied
            .map(|(key, value)| (key.to_owned(), Value::from(&**value)))
            .collect();
        metadata["annotations"][REVISION] = revision.to_string().into();
        template["metadata"]["labels"][HASH] = hash.as_str().into();
        let mut selector = deployment.spec["selector"].clone();
        selector["matchLabels"][HASH] = hash.as_str().into();
        let mut spec = json!({ "replicas": replicas, "selector": selector, "template": template });
        copy_present(&deployment.spec, &mut spec, &["minReadySeconds"]);
        json!({ "metadata": metadata, "spec": spec })
    }

    /// Old ReplicaSets without pods, beyond `revisionHistoryLimit`.
    fn surplus_history(&self) -> Vec<String> {
        let idle = |set: &&&Workload| {
            set.replicas() == 0 && set.counter("replicas") == 0 && set.counter("observedGeneration") >= set.generation
        };
        let mut idle: Vec<&&Workload> = self.old.iter().filter(idle).collect();
        idle.sort_by_key(|set| revision_of(set));
        let surplus = idle.len().saturating_sub(self.deployment.history_limit());
        idle.iter().take(surplus).map(|set| set.name().to_owned()).collect()
    }
}

impl Plan {
    fn change_of(&mut self, set: &Workload) -> &mut Change {
        let at = self.change.iter().position(|(name, _)| name == set.name());
        let at = at.unwrap_or_else(|| {
            self.change.push((set.name().to_owned(), Change::default()));
            self.change.len() - 1
        });
        &mut self.change[at].1
    }
}

fn annotation<'a>(of: &'a Workload, key: &str) -> &'a str {
    of.metadata.annotations.text(key).unwrap_or_default()
}

fn revision_of(set: &Workload) -> i64 {
    annotation(set, REVISION).parse().unwrap_or(0)
}
