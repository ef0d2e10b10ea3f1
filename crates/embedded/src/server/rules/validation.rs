//! Validation of built-in kinds other than pods, with Kubernetes' messages. Pure.

use serde_json::{Value, json};

use super::names;
use super::pod_spec::{self, FieldPath, check_word, items, text};
use crate::server::kinds::Kind;
use crate::server::object::meta_text;
use crate::server::selector::Selector;
use crate::server::status_error::Cause;

/// The highest value of a user's PriorityClass.
const USER_PRIORITY_MAX: i64 = 1_000_000_000;
/// The size limit of a ConfigMap or Secret.
const DATA_BYTES_MAX: usize = 1024 * 1024;

pub(super) fn check(kind: &Kind, old: Option<&Value>, new: &Value) -> Vec<Cause> {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("scheduling.k8s.io", "priorityclasses") => check_priority_class(old, new),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") => check_workload(kind, old, new),
        ("batch", "jobs") => check_job(old, new),
        ("batch", "cronjobs") => check_cron_job(new),
        ("", "configmaps" | "secrets") => check_data(old, new),
        ("", "services") => check_service(new),
        ("", "persistentvolumeclaims") => check_claim(new),
        ("", "nodes") => pod_spec::check_taints(&new["spec"]["taints"]),
        ("", "events") => check_event(old, new),
        ("coordination.k8s.io", "leases") => {
            let seconds = &new["spec"]["leaseDurationSeconds"];
            let bad = seconds.as_i64().is_some_and(|seconds| seconds <= 0);
            cause_if(bad, || {
                Cause::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
            })
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => super::custom::check_definition(new),
        _ => Vec::new(),
    }
}

fn cause_if(bad: bool, cause: impl FnOnce() -> Cause) -> Vec<Cause> {
    if bad { vec![cause()] } else { Vec::new() }
}

fn check_priority_class(old: Option<&Value>, new: &Value) -> Vec<Cause> {
    if let Some(old) = old {
        return cause_if(old["value"] != new["value"], || {
            Cause::forbidden("value", "may not be changed in an update.")
        });
    }
    let name = meta_text(new, "name");
    if crate::server::store::is_system_class(name) {
        return Vec::new();
    }
    let mut causes = cause_if(name.starts_with("system-"), || {
        let why = format!(
            "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known \
             system priority class"
        );
        Cause::forbidden("metadata.name", why)
    });
    causes.extend(cause_if(new["value"].as_i64().unwrap_or(0) > USER_PRIORITY_MAX, || {
        let why = format!("maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}");
        Cause::forbidden("value", why)
    }));
    causes
}

fn check_workload(kind: &Kind, old: Option<&Value>, new: &Value) -> Vec<Cause> {
    let spec = &new["spec"];
    let mut causes = not_negative(spec, &["replicas", "minReadySeconds", "revisionHistoryLimit"]);
    causes.extend(check_selector(kind, old, spec));
    if kind.plural == "deployments" {
        let strategy = &spec["strategy"];
        let known = matches!(text(&strategy["type"]), "" | "Recreate" | "RollingUpdate");
        causes.extend(cause_if(!known, || {
            let shown = json!({"Type": strategy["type"], "RollingUpdate": strategy["rollingUpdate"]});
            Cause::unsupported("spec.strategy", &shown, &["Recreate", "RollingUpdate"])
        }));
    }
    causes.extend(check_template(spec, &["Always"]));
    causes
}

fn check_selector(kind: &Kind, old: Option<&Value>, spec: &Value) -> Vec<Cause> {
    let selector = &spec["selector"];
    if old.is_some_and(|old| old["spec"]["selector"] != *selector) {
        return vec![Cause::invalid("spec.selector", selector, "field is immutable")];
    }
    let mut causes = Vec::new();
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    } else if *selector == json!({}) {
        let why = format!("empty selector is invalid for {}", kind.singular);
        return vec![Cause::invalid("spec.selector", selector, why)];
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let selects = Selector::of_object(selector).is_some_and(|s| s.matches_labels(labels)) && !selector.is_null();
    causes.extend(cause_if(!selects, || {
        let why = "`selector` does not match template `labels`";
        Cause::invalid("spec.template.metadata.labels", labels, why)
    }));
    causes
}

/// Checks the pod template; `restart` has the allowed restart policies.
fn check_template(spec: &Value, restart: &[&str]) -> Vec<Cause> {
    let template = &spec["template"]["spec"];
    let mut causes = pod_spec::check(template, "spec.template.spec");
    let policy = text(&template["restartPolicy"]);
    let known = ["", "Always", "OnFailure", "Never"].contains(&policy);
    if known && !policy.is_empty() && !restart.contains(&policy) {
        causes.push(Cause::unsupported(
            "spec.template.spec.restartPolicy",
            &json!(policy),
            restart,
        ));
    }
    causes
}

fn check_job(old: Option<&Value>, new: &Value) -> Vec<Cause> {
    let spec = &new["spec"];
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
    ];
    let mut causes = not_negative(spec, &counts);
    causes.extend(pod_spec::check(&spec["template"]["spec"], "spec.template.spec"));
    causes.extend(cause_if(
        text(&spec["template"]["spec"]["restartPolicy"]) == "Always",
        || {
            let why = "valid values: \"OnFailure\", \"Never\"";
            Cause::required("spec.template.spec.restartPolicy", why)
        },
    ));
    if let Some(old) = old {
        let indexed = spec["completionMode"] == "Indexed";
        let fixed = ["completions", "completionMode", "podFailurePolicy", "selector"];
        for field in fixed.iter().filter(|field| !(indexed && **field == "completions")) {
            let changed = old["spec"][*field] != spec[*field];
            causes.extend(cause_if(changed, || {
                Cause::invalid(format!("spec.{field}"), &spec[*field], "field is immutable")
            }));
        }
    }
    causes
}

fn check_cron_job(new: &Value) -> Vec<Cause> {
    let schedule = text(&new["spec"]["schedule"]);
    let words: Vec<&str> = schedule.split_whitespace().collect();
    if schedule.is_empty() {
        return vec![Cause::required("spec.schedule", "")];
    }
    let named = schedule.starts_with('@');
    cause_if(!named && words.len() != 5, || {
        let why = format!(
            "expected exactly 5 fields, found {}: [{}]",
            words.len(),
            words.join(" ")
        );
        Cause::invalid("spec.schedule", &json!(schedule), why)
    })
}

fn check_data(old: Option<&Value>, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut bytes = 0;
    for field in ["data", "binaryData"] {
        for (key, value) in new[field].as_object().into_iter().flatten() {
            let path = format!("{field}[{key}]");
            let problems = names::config_key(key);
            causes.extend(problems.iter().map(|why| Cause::invalid(&*path, &json!(key), why)));
            bytes += value.as_str().map_or(0, str::len);
        }
    }
    causes.extend(cause_if(bytes > DATA_BYTES_MAX, || {
        Cause::too_long("[]", DATA_BYTES_MAX)
    }));
    if let Some(old) = old.filter(|old| old["immutable"] == true) {
        let frozen = "field is immutable when `immutable` is set";
        for field in ["immutable", "data", "binaryData"] {
            causes.extend(cause_if(old[field] != new[field], || Cause::forbidden(field, frozen)));
        }
    }
    causes
}

fn check_service(new: &Value) -> Vec<Cause> {
    let spec = &new["spec"];
    let ports = items(&spec["ports"]).count();
    let needless = spec["clusterIP"] == "None" || spec["type"] == "ExternalName";
    let mut causes = cause_if(ports == 0 && !needless, || Cause::required("spec.ports", ""));
    for (at, port) in items(&spec["ports"]).enumerate() {
        let path = FieldPath::new(format!("spec.ports[{at}]"));
        causes.extend(cause_if(ports > 1 && text(&port["name"]).is_empty(), || {
            Cause::required(path.at("name"), "")
        }));
        let number = port["port"].as_i64().unwrap_or(0);
        causes.extend(pod_spec::in_range(number, 1, 65_535, path.at("port")));
        causes.extend(check_word(port, &path, "protocol", &["SCTP", "TCP", "UDP"]));
    }
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    causes.extend(check_word(spec, &FieldPath::new("spec"), "type", &kinds));
    causes
}

fn check_claim(new: &Value) -> Vec<Cause> {
    let spec = &new["spec"];
    let mut causes = cause_if(items(&spec["accessModes"]).next().is_none(), || {
        Cause::required("spec.accessModes", "at least 1 access mode is required")
    });
    causes.extend(cause_if(spec["resources"]["requests"]["storage"].is_null(), || {
        Cause::required("spec.resources[storage]", "")
    }));
    causes
}

fn check_event(old: Option<&Value>, new: &Value) -> Vec<Cause> {
    let about = text(&new["involvedObject"]["namespace"]);
    let own = meta_text(new, "namespace");
    // Events of cluster-wide objects are in the namespace `default`.
    let fits = about == own || about.is_empty() && matches!(own, "default" | "kube-system");
    cause_if(old.is_none() && !fits, || {
        Cause::invalid(
            "involvedObject.namespace",
            &json!(about),
            "does not match event.namespace",
        )
    })
}

fn not_negative(spec: &Value, fields: &[&str]) -> Vec<Cause> {
    let bad = |field: &&&str| spec[**field].as_i64().is_some_and(|number| number < 0);
    let cause = |field: &&str| {
        let why = "must be greater than or equal to 0";
        Cause::invalid(format!("spec.{field}"), &spec[*field], why)
    };
    fields.iter().filter(bad).map(cause).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::kinds::Kinds;

    fn problems(group: &str, plural: &str, old: Option<Value>, new: Value) -> Vec<String> {
        let kind = Kinds::built_in().preferred(group, plural).unwrap();
        let causes = check(&kind, old.as_ref(), &new);
        causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect()
    }

    fn deployment(fields: Value) -> Value {
        let mut spec = json!({
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}},
        });
        for (name, value) in fields.as_object().unwrap() {
            spec[name] = value.clone();
        }
        json!({"metadata": {"name": "d"}, "spec": spec})
    }

    #[test]
    fn workloads_have_a_selector_that_fits_and_a_template_that_could_run() {
        let of = |fields: Value| problems("apps", "deployments", None, deployment(fields));
        assert!(of(json!({})).is_empty());
        assert_eq!(
            of(json!({"replicas": -1})),
            ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
        );
        assert_eq!(of(json!({"selector": {}})).len(), 1);
        assert_eq!(of(json!({"selector": {"matchLabels": {"c": "d"}}})).len(), 1);
        assert_eq!(of(json!({"strategy": {"type": "Fast"}})).len(), 1);
        let changed = problems(
            "apps",
            "deployments",
            Some(deployment(json!({"selector": {}}))),
            deployment(json!({})),
        );
        assert!(changed[0].ends_with("field is immutable"), "{changed:?}");
    }

    #[test]
    fn small_kinds_are_checked() {
        let priority = |name: &str, value: i64| {
            let class = json!({"metadata": {"name": name}, "value": value});
            problems("scheduling.k8s.io", "priorityclasses", None, class).len()
        };
        assert_eq!(priority("high", 1_000), 0);
        assert_eq!(priority("system-mine", 1_000), 1);
        assert_eq!(priority("high", 1_000_000_001), 1);
        assert_eq!(priority("system-node-critical", 2_000_001_000), 0);
        assert_eq!(problems("", "configmaps", None, json!({"data": {"a b": "c"}})).len(), 1);
        assert_eq!(
            problems(
                "",
                "configmaps",
                None,
                json!({"data": {"a": "x".repeat(DATA_BYTES_MAX + 1)}})
            )
            .len(),
            1
        );
        assert_eq!(
            problems("", "services", None, json!({"spec": {}})),
            ["spec.ports: Required value"]
        );
        assert_eq!(
            problems(
                "",
                "nodes",
                None,
                json!({"spec": {"taints": [{"key": "a", "effect": "Odd"}]}})
            )
            .len(),
            1
        );
        assert_eq!(
            problems("batch", "cronjobs", None, json!({"spec": {"schedule": "soon"}})).len(),
            1
        );
        assert!(problems("batch", "cronjobs", None, json!({"spec": {"schedule": "@daily"}})).is_empty());
    }
}
