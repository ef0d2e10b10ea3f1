//! Defaulting of Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs.

use serde_json::{Value, json};

use super::pods;
use crate::server::kinds::Kind;
use crate::server::object::{field_mut, map_mut, meta_text};

pub(super) fn default_object(kind: &Kind, object: &mut Value) {
    if kind.plural == "cronjobs" {
        let spec = field_mut(object, "spec");
        spec.entry("concurrencyPolicy").or_insert(json!("Allow"));
        spec.entry("suspend").or_insert(json!(false));
        spec.entry("successfulJobsHistoryLimit").or_insert(json!(3));
        spec.entry("failedJobsHistoryLimit").or_insert(json!(1));
        if let Some(template) = object.pointer_mut("/spec/jobTemplate/spec/template/spec") {
            pods::default_spec(template);
        }
        return;
    }
    if kind.plural == "controllerrevisions" {
        return;
    }
    let spec = field_mut(object, "spec");
    let mut default = |field: &str, value: Value| {
        spec.entry(field).or_insert(value);
    };
    match kind.plural.as_str() {
        "deployments" => {
            default("replicas", json!(1));
            default("revisionHistoryLimit", json!(10));
            default("progressDeadlineSeconds", json!(600));
            let usual = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
            default("strategy", usual);
        }
        "replicasets" => default("replicas", json!(1)),
        "statefulsets" => {
            default("replicas", json!(1));
            default("revisionHistoryLimit", json!(10));
            default("podManagementPolicy", json!("OrderedReady"));
            let kept = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
            default("persistentVolumeClaimRetentionPolicy", kept);
            default(
                "updateStrategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
            );
        }
        "daemonsets" => {
            default("revisionHistoryLimit", json!(10));
            let usual = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
            default("updateStrategy", usual);
        }
        "jobs" => default_job(object),
        _ => {}
    }
    if object["spec"]["template"].is_object() {
        pods::default_spec(&mut object["spec"]["template"]["spec"]);
    }
}

fn default_job(job: &mut Value) {
    let spec = field_mut(job, "spec");
    // A Job without completions and parallelism runs one pod; with parallelism alone it is a work queue.
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        spec.insert("completions".to_owned(), json!(1));
    }
    spec.entry("parallelism").or_insert(json!(1));
    spec.entry("backoffLimit").or_insert(json!(6));
    spec.entry("completionMode").or_insert(json!("NonIndexed"));
    spec.entry("suspend").or_insert(json!(false));
    spec.entry("podReplacementPolicy")
        .or_insert(json!("TerminatingOrFailed"));
}

/// Sets the selector of a new Job and the labels of its pods from its uid.
pub(super) fn set_job_selector(job: &mut Value) {
    let (uid, name) = (meta_text(job, "uid").to_owned(), meta_text(job, "name").to_owned());
    let spec = field_mut(job, "spec");
    if spec.get("manualSelector") == Some(&json!(true)) {
        return;
    }
    spec.insert(
        "selector".to_owned(),
        json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}),
    );
    let template = spec.entry("template").or_insert(json!({}));
    let labels = map_mut(field_mut(template, "metadata").entry("labels").or_insert(json!({})));
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("job-name", &name),
    ] {
        labels.insert(key.to_owned(), json!(value));
    }
}
