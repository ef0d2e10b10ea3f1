//! The Job that runs the doctor on a node, and the settings that it takes from the installed objects. Pure.

use serde_json::{Value, json};

/// Where the Job mounts the host's `/`.
const HOST_ROOT: &str = "/host";
/// Seconds that a finished Job stays if nothing removes it: long enough to read its log by hand.
const KEPT_SECONDS: u32 = 3600;
/// Seconds after which Kubernetes ends the Job, also if the process that created it died. The doctor needs a few seconds; the rest is for
/// the pull of the image.
const ACTIVE_SECONDS_MAX: u32 = 900;
/// The prefix of the Job's name.
const NAME: &str = "kai-doctor";
/// Characters of the node's name in the Job's name. A Job's name is a label value (63 characters); a generated suffix has 5.
const NODE_CHARS_MAX: usize = 63 - NAME.len() - 2 - 5;

/// Flags of the node agent that describe its host. The doctor has the same flags and needs the same values.
const HOST_FLAGS: [&str; 8] = [
    "--csv-dir",
    "--device-tree",
    "--driver",
    "--driver-root",
    "--fake-control",
    "--library-dir",
    "--memory-reserve-mib",
    "--nvml-library",
];

/// What the Job's pod takes from the installation, unless the user says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodSettings {
    pub(super) image: String,
    pub(super) pull_policy: Option<String>,
    pub(super) pull_secrets: Vec<Value>,
    pub(super) runtime_class: Option<String>,
    pub(super) privileged: bool,
    /// Flags of the node agent that describe its host, as `--flag=value`.
    pub(super) host_flags: Vec<String>,
}

impl PodSettings {
    /// The settings of an installed Deployment or DaemonSet, if it has a container with an image.
    pub(super) fn of_workload(workload: &Value) -> Option<PodSettings> {
        let pod = workload.pointer("/spec/template/spec")?;
        let container = pod.pointer("/containers/0")?;
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let args = container["args"].as_array().into_iter().flatten();
        Some(PodSettings {
            image: text(&container["image"])?,
            pull_policy: text(&container["imagePullPolicy"]),
            pull_secrets: pod["imagePullSecrets"].as_array().cloned().unwrap_or_default(),
            runtime_class: text(&pod["runtimeClassName"]),
            privileged: container.pointer("/securityContext/privileged") == Some(&true.into()),
            host_flags: host_flags(args.filter_map(Value::as_str)),
        })
    }
}

/// The flags among the agent's arguments that describe its host, each with its value in one word.
fn host_flags<'a>(mut arguments: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut flags = Vec::new();
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (argument, None),
        };
        if !HOST_FLAGS.contains(&flag) {
            continue;
        }
        if let Some(value) = value.or_else(|| arguments.next()) {
            flags.push(format!("{flag}={value}"));
        }
    }
    flags
}

/// Adds the agent's flags to the user's, unless the user gave the same flag.
pub(super) fn merge_flags(users: &[String], agents: &[String]) -> Vec<String> {
    let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
    let added = agents
        .iter()
        .filter(|flag| !users.iter().any(|given| name(given) == name(flag)));
    users.iter().chain(added).cloned().collect()
}

/// Everything that the Job depends on.
#[derive(Debug)]
pub(super) struct JobSettings<'a> {
    pub(super) namespace: &'a str,
    pub(super) node: &'a str,
    pub(super) pod: &'a PodSettings,
    /// The doctor's flags, without `--host-root`.
    pub(super) flags: &'a [String],
    /// The node object as the user's credentials show it, for the variable [`super::super::CLUSTER_VIEW_ENV`].
    pub(super) cluster_view: Option<String>,
}

/// The name of the Job for a node.
pub(super) fn name(node: &str) -> String {
    let label: String = node.chars().take(NODE_CHARS_MAX).collect();
    format!("{NAME}-{}", label.replace('.', "-").trim_end_matches('-'))
}

/// The Job. It bypasses the scheduler (`nodeName`) and tolerates every taint, since a node that needs the doctor is often tainted.
pub(super) fn job(settings: &JobSettings<'_>) -> Value {
    let JobSettings {
        namespace, node, pod, ..
    } = settings;
    let labels = json!({ "app": NAME });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name(node), "namespace": namespace, "labels": labels },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": ACTIVE_SECONDS_MAX,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": { "metadata": { "labels": labels }, "spec": pod_spec(settings, pod) },
        },
    })
}

fn pod_spec(settings: &JobSettings<'_>, pod: &PodSettings) -> Value {
    let mut spec = json!({
        "nodeName": settings.node,
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{ "operator": "Exists" }],
        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [container(settings, pod)],
        "volumes": [{ "name": "host", "hostPath": { "path": "/" } }],
    });
    if !pod.pull_secrets.is_empty() {
        spec["imagePullSecrets"] = pod.pull_secrets.clone().into();
    }
    if let Some(class) = &pod.runtime_class {
        spec["runtimeClassName"] = class.clone().into();
    }
    spec
}

fn container(settings: &JobSettings<'_>, pod: &PodSettings) -> Value {
    let fixed = ["doctor".to_owned(), format!("--host-root={HOST_ROOT}")];
    let args: Vec<&String> = fixed.iter().chain(settings.flags).collect();
    let mut env = vec![json!({ "name": "NODE_NAME", "value": settings.node })];
    if let Some(view) = &settings.cluster_view {
        env.push(json!({ "name": super::super::CLUSTER_VIEW_ENV, "value": view }));
    }
    json!({
        "name": NAME,
        "image": pod.image,
        "imagePullPolicy": pod.pull_policy.as_deref().unwrap_or("IfNotPresent"),
        "args": args,
        "env": env,
        "resources": { "requests": { "cpu": "10m", "memory": "32Mi" } },
        "securityContext": security_context(pod.privileged),
        "volumeMounts": [{ "name": "host", "mountPath": HOST_ROOT, "readOnly": true, "recursiveReadOnly": "IfPossible" }],
    })
}

/// As root, since the runtime's files on the host belong to root. The API server refuses `allowPrivilegeEscalation: false` of a privileged
/// container.
fn security_context(privileged: bool) -> Value {
    let mut context = json!({ "readOnlyRootFilesystem": true, "runAsUser": 0 });
    if privileged {
        context["privileged"] = true.into();
    } else {
        context["allowPrivilegeEscalation"] = false.into();
        context["capabilities"] = json!({ "drop": ["ALL"] });
    }
    context
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_settings_are_taken_over() {
        let agent = json!({ "spec": { "template": { "spec": {
            "imagePullSecrets": [{ "name": "registry" }],
            "runtimeClassName": "nvidia",
            "containers": [{
                "image": "registry/kai:1",
                "imagePullPolicy": "Never",
                "securityContext": { "privileged": true },
                "args": ["node-agent", "--mode=cdi", "--host-root=/host", "--driver=tegra", "--csv-dir", "/lists", "--library-dir=/a=b"],
            }],
        } } } });
        let settings = PodSettings::of_workload(&agent).unwrap();
        let expect = PodSettings {
            image: "registry/kai:1".to_owned(),
            pull_policy: Some("Never".to_owned()),
            pull_secrets: vec![json!({ "name": "registry" })],
            runtime_class: Some("nvidia".to_owned()),
            privileged: true,
            host_flags: ["--driver=tegra", "--csv-dir=/lists", "--library-dir=/a=b"]
                .map(str::to_owned)
                .to_vec(),
        };
        assert_eq!(settings, expect);
        assert_eq!(PodSettings::of_workload(&json!({})), None);
    }

    #[test]
    fn a_flag_of_the_user_replaces_the_agents() {
        let flags = |list: &[&str]| list.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>();
        let merged = merge_flags(
            &flags(&["--driver=nvml"]),
            &flags(&["--driver=tegra", "--csv-dir=/lists"]),
        );
        assert_eq!(merged, flags(&["--driver=nvml", "--csv-dir=/lists"]));
    }

    #[test]
    fn the_name_is_a_label_value() {
        assert_eq!(name("jetson-1"), "kai-doctor-jetson-1");
        assert_eq!(name("ip-10-0-0-1.ec2.internal"), "kai-doctor-ip-10-0-0-1-ec2-internal");
        let long = name(&"a.".repeat(120));
        assert!(long.len() <= 63 - 6 && long.ends_with('a'), "{long}");
    }

    #[test]
    fn the_pod_has_no_rights_but_to_read_the_host() {
        let pod = PodSettings {
            image: "registry/kai:1".to_owned(),
            ..PodSettings::default()
        };
        let flags = ["--output=table".to_owned()];
        let settings = JobSettings {
            namespace: "kai-scheduler",
            node: "jetson-1",
            pod: &pod,
            flags: &flags,
            cluster_view: None,
        };
        insta::assert_snapshot!(serde_json::to_string_pretty(&job(&settings)).unwrap());
    }

    #[test]
    fn privileges_are_given_only_on_request() {
        assert_eq!(
            security_context(true),
            json!({ "readOnlyRootFilesystem": true, "runAsUser": 0, "privileged": true })
        );
    }
}
