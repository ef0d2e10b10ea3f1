//! StatefulSets: pods with ordinals, created in order unless `podManagementPolicy` is `Parallel`; rolling updates from the highest
//! ordinal down. Pure.

use jiff::Timestamp;
use kai_api::Object;
use serde_json::{Value, json};

use super::objects::{StatefulSet, Workload};
use super::pods::{Counts, OwnedPod};
use super::replica_set::Plan;
use super::revisions::{HASH, Revisions};

pub(super) fn plan(set: &Workload, owned: &[OwnedPod], revisions: &Revisions, now: Timestamp) -> Plan {
    let ordered = set.spec["podManagementPolicy"] != "Parallel";
    let wanted = numbers(set);
    let name = |number: i64| format!("{}-{number}", set.name());
    let find = |number: i64| owned.iter().find(|pod| pod.name == name(number));
    let mut plan = Plan::default();
    // Updates wait until every ordinal has a ready pod.
    let mut complete = true;
    for number in wanted.clone() {
        let pod = find(number);
        match pod {
            None => plan.create.push(new_pod(set, revisions, number)),
            Some(pod) if pod.has_ended() && !pod.terminating => plan.delete.push(pod.name.clone()),
            Some(_) => {}
        }
        complete &= pod.is_some_and(|pod| pod.is_active() && pod.is_ready());
        if !complete && ordered {
            break;
        }
    }
    let surplus = surplus(set, owned);
    if let Some(last) = surplus.last()
        && (complete || !ordered)
    {
        let leaving = if ordered {
            std::slice::from_ref(last)
        } else {
            &surplus[..]
        };
        let names = leaving
            .iter()
            .filter(|pod| !pod.terminating)
            .map(|pod| pod.name.clone());
        plan.delete.extend(names);
    } else if complete {
        plan.delete.extend(outdated(set, owned, revisions));
    }
    (plan.status, plan.requeue_after) = status(set, owned, revisions, now);
    plan
}

/// The ordinals of the set.
fn numbers(set: &Workload) -> std::ops::Range<i64> {
    let start = set.spec["ordinals"]["start"].as_i64().unwrap_or(0);
    start..start.saturating_add(set.replicas())
}

fn number_of(set: &Workload, pod: &OwnedPod) -> Option<i64> {
    pod.name.strip_prefix(set.name())?.strip_prefix('-')?.parse().ok()
}

/// Pods beyond the wanted ordinals, the highest last.
fn surplus<'a>(set: &Workload, owned: &'a [OwnedPod]) -> Vec<&'a OwnedPod> {
    let wanted = numbers(set);
    let numbered = owned.iter().filter_map(|pod| Some((number_of(set, pod)?, pod)));
    let mut surplus: Vec<(i64, &OwnedPod)> = numbered.filter(|(number, _)| !wanted.contains(number)).collect();
    surplus.sort_by_key(|(number, _)| *number);
    surplus.into_iter().map(|(_, pod)| pod).collect()
}

fn partition(set: &Workload) -> i64 {
    set.spec["updateStrategy"]["rollingUpdate"]["partition"]
        .as_i64()
        .unwrap_or(0)
}

/// The pod of an old template with the highest ordinal. The next one follows once its replacement is ready.
fn outdated(set: &Workload, owned: &[OwnedPod], revisions: &Revisions) -> Option<String> {
    if set.spec["updateStrategy"]["type"] == "OnDelete" {
        return None;
    }
    let old = owned
        .iter()
        .filter(|pod| pod.revision != revisions.update && !pod.terminating);
    let numbered = old.filter_map(|pod| Some((number_of(set, pod)?, pod)));
    let updated = numbered.filter(|(number, _)| *number >= partition(set));
    updated
        .max_by_key(|(number, _)| *number)
        .map(|(_, pod)| pod.name.clone())
}

fn new_pod(set: &Workload, revisions: &Revisions, number: i64) -> Value {
    let old = revisions.current_template.as_ref().filter(|_| number < partition(set));
    let (template, hash) = match old {
        Some(template) => (template, &revisions.current),
        None => (&set.spec["template"], &revisions.update),
    };
    let mut pod = set.pod_of(&StatefulSet::RESOURCE, template);
    let name = format!("{}-{number}", set.name());
    let labels = &mut pod["metadata"]["labels"];
    labels[HASH] = hash.as_str().into();
    labels["statefulset.kubernetes.io/pod-name"] = name.as_str().into();
    labels["apps.kubernetes.io/pod-index"] = number.to_string().into();
    pod["spec"]["hostname"] = name.as_str().into();
    if let Some(service) = set.spec["serviceName"].as_str().filter(|service| !service.is_empty()) {
        pod["spec"]["subdomain"] = service.into();
    }
    let mut volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    for template in claim_templates(set) {
        let volume = template["metadata"]["name"].as_str().unwrap_or_default();
        volumes.retain(|present| present["name"] != *volume);
        let claim = json!({ "claimName": format!("{volume}-{name}") });
        volumes.push(json!({ "name": volume, "persistentVolumeClaim": claim }));
    }
    if !volumes.is_empty() {
        pod["spec"]["volumes"] = volumes.into();
    }
    pod["metadata"]["name"] = name.into();
    pod
}

fn claim_templates(set: &Workload) -> impl Iterator<Item = &Value> {
    set.spec["volumeClaimTemplates"].as_array().into_iter().flatten()
}

/// The volume claims of a pod.
pub(super) fn claims(set: &Workload, pod: &str) -> Vec<Value> {
    let made = claim_templates(set).map(|template| {
        let mut claim = json!({ "metadata": {}, "spec": template["spec"] });
        super::objects::copy_present(
            &template["metadata"],
            &mut claim["metadata"],
            &["labels", "annotations"],
        );
        let name = template["metadata"]["name"].as_str().unwrap_or_default();
        claim["metadata"]["name"] = format!("{name}-{pod}").into();
        claim
    });
    made.collect()
}

fn status(
    set: &Workload,
    owned: &[OwnedPod],
    revisions: &Revisions,
    now: Timestamp,
) -> (Value, Option<std::time::Duration>) {
    let counts = Counts::of(set, owned, now);
    let of = |hash: &str| {
        let active = owned.iter().filter(|pod| pod.is_active() && pod.revision == hash);
        i64::try_from(active.count()).unwrap_or(i64::MAX)
    };
    let updated = of(&revisions.update);
    let done = updated == set.replicas() && counts.active == updated && counts.ready == updated;
    let (current, current_count) = match done {
        true => (&revisions.update, updated),
        false => (&revisions.current, of(&revisions.current)),
    };
    let status = json!({
        "observedGeneration": set.generation,
        "replicas": counts.active,
        "readyReplicas": counts.ready,
        "availableReplicas": counts.available,
        "currentReplicas": current_count,
        "updatedReplicas": updated,
        "currentRevision": Revisions::name(set, current),
        "updateRevision": Revisions::name(set, &revisions.update),
        "collisionCount": 0,
    });
    (status, counts.next_available_in)
}

#[cfg(test)]
mod tests {
    use super::super::pods::Phase;
    use super::*;

    fn set(spec: Value) -> Workload {
        let mut set = json!({ "metadata": { "name": "web", "uid": "u" }, "spec": {
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } },
        } });
        set["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        Workload::of(set).unwrap()
    }

    fn pod(name: &str, revision: &str, ready: bool) -> OwnedPod {
        OwnedPod {
            name: name.to_owned(),
            phase: Phase::Running,
            revision: revision.to_owned(),
            ready_since: ready.then_some(Timestamp::UNIX_EPOCH),
            ..OwnedPod::default()
        }
    }

    fn check(spec: Value, owned: &[OwnedPod], created: &[&str], deleted: &[&str]) {
        let revisions = Revisions {
            update: "new".to_owned(),
            current: "old".to_owned(),
            ..Revisions::default()
        };
        let plan = plan(&set(spec), owned, &revisions, Timestamp::UNIX_EPOCH);
        let names: Vec<&str> = plan
            .create
            .iter()
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        assert_eq!(
            (
                &names[..],
                &plan.delete.iter().map(String::as_str).collect::<Vec<_>>()[..]
            ),
            (created, deleted)
        );
    }

    #[test]
    fn pods_come_one_after_the_other_unless_the_set_says_otherwise() {
        check(json!({ "replicas": 3 }), &[], &["web-0"], &[]);
        check(json!({ "replicas": 3 }), &[pod("web-0", "new", false)], &[], &[]);
        check(json!({ "replicas": 3 }), &[pod("web-0", "new", true)], &["web-1"], &[]);
        let parallel = json!({ "replicas": 3, "podManagementPolicy": "Parallel" });
        check(parallel, &[], &["web-0", "web-1", "web-2"], &[]);
    }

    #[test]
    fn the_highest_number_goes_first() {
        let pods = [
            pod("web-0", "new", true),
            pod("web-1", "new", true),
            pod("web-2", "new", true),
        ];
        check(json!({ "replicas": 1 }), &pods, &[], &["web-2"]);
        let parallel = json!({ "replicas": 1, "podManagementPolicy": "Parallel" });
        check(parallel, &pods, &[], &["web-1", "web-2"]);
    }

    #[test]
    fn an_update_replaces_one_pod_at_a_time_down_to_the_partition() {
        let pods = [pod("web-0", "old", true), pod("web-1", "old", true)];
        check(json!({ "replicas": 2 }), &pods, &[], &["web-1"]);
        let next = [pod("web-0", "old", true), pod("web-1", "new", true)];
        check(json!({ "replicas": 2 }), &next, &[], &["web-0"]);
        let waits = [pod("web-0", "old", true), pod("web-1", "new", false)];
        check(json!({ "replicas": 2 }), &waits, &[], &[]);
        let kept = json!({ "replicas": 2, "updateStrategy": { "rollingUpdate": { "partition": 1 } } });
        check(kept, &next, &[], &[]);
    }

    #[test]
    fn claims_of_a_pod_are_named_after_both() {
        let set = set(json!({ "replicas": 1, "volumeClaimTemplates": [
            { "metadata": { "name": "data" }, "spec": { "resources": { "requests": { "storage": "1Gi" } } } },
        ] }));
        assert_eq!(claims(&set, "web-0")[0]["metadata"]["name"], "data-web-0");
        let plan = plan(&set, &[], &Revisions::default(), Timestamp::UNIX_EPOCH);
        let volume = &plan.create[0]["spec"]["volumes"][0];
        assert_eq!(volume["persistentVolumeClaim"]["claimName"], "data-web-0");
    }
}
