//! The Helm chart without Helm: its generated files are current, its pods have the permissions that the documentation states, and
//! `kai manifests` prints its objects. With `KAI_HELM` (programs, separated by spaces) `kai manifests` is compared with `helm template`.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(text: &str) -> Vec<Value> {
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents.retain(|document| !document.is_null());
    documents
}

/// The objects of `kai manifests` with these flags.
fn manifests(flags: &[&str]) -> Vec<Value> {
    let output = support::command(".", &[&["manifests"], flags].concat())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    documents(&String::from_utf8(output.stdout).unwrap())
}

const MODES: [&str; 2] = ["all-in-one", "roles"];

#[test]
fn the_chart_has_copies_of_deploy() {
    for file in ["rbac.yaml", "autoscaling.yaml", "priority-classes.yaml"] {
        let copy = read(&format!("deployments/kai-scheduler/files/{file}"));
        assert_eq!(copy, read(&format!("deploy/{file}")), "run .ci/chart --update");
    }
}

/// A key of values.yaml with its default and its description.
struct Key {
    path: String,
    default: String,
    text: String,
}

/// The keys whose value stands on their own line. Maps in block style are sections.
fn keys(values: &str) -> Vec<Key> {
    let (mut keys, mut sections, mut text) = (Vec::new(), Vec::<&str>::new(), String::new());
    for line in values.lines() {
        let content = line.trim_start();
        if content.is_empty() {
            text.clear();
        } else if let Some(comment) = content.strip_prefix("# ") {
            text.push_str(comment);
        } else {
            let (key, default) = content.split_once(':').unwrap();
            sections.truncate((line.len() - content.len()) / 2);
            if default.is_empty() {
                sections.push(key);
            } else {
                let path = [sections.as_slice(), &[key]].concat().join(".");
                let (default, text) = (default.trim().to_owned(), std::mem::take(&mut text));
                keys.push(Key { path, default, text });
            }
            text.clear();
        }
    }
    keys
}

/// The keys without effect by mode; `any` is both modes.
fn keys_without_effect() -> BTreeMap<String, Vec<Value>> {
    serde_saphyr::from_str(&read("deployments/kai-scheduler/files/no-effect.yaml")).unwrap()
}

/// `KAI_UPDATE=1` writes the page.
#[test]
fn the_page_of_values_is_current() {
    let mut page = "# Values of the chart\n\nGenerated from `deployments/kai-scheduler/values.yaml`; see `crates/cli/tests/chart.rs`. The chart refuses \
                    unknown keys.\nKeys of one role apply to mode `roles`, unless their description says otherwise.\n\n\
                    | key | default | meaning |\n|---|---|---|\n"
        .to_owned();
    for Key { path, default, text } in keys(&read("deployments/kai-scheduler/values.yaml")) {
        assert!(
            text.ends_with('.'),
            "values.yaml: {path} needs a comment that ends with a period"
        );
        page.push_str(&format!("| `{path}` | `{default}` | {} |\n", text.replace('|', "\\|")));
    }
    page.push_str(
        "\n## Keys without effect\n\nThe chart accepts these keys, because KAI's values files have them. `helm install` prints a warning for each \
         one that is set to another\nvalue than its default.\n\n| key | mode | reason |\n|---|---|---|\n",
    );
    for (mode, keys) in [("any", "both"), ("all-in-one", "all-in-one"), ("roles", "roles")] {
        for key in &keys_without_effect()[mode] {
            let text = |field: &str| key[field].as_str().unwrap().to_owned();
            page.push_str(&format!("| `{}` | {keys} | {} |\n", text("key"), text("reason")));
        }
    }
    if std::env::var_os("KAI_UPDATE").is_some() {
        std::fs::write(root("docs/values.md"), &page).unwrap();
    }
    assert_eq!(read("docs/values.md"), page, "run .ci/chart --update");
}

#[test]
fn keys_without_effect_have_the_defaults_of_the_chart() {
    let values: Value = serde_saphyr::from_str(&read("deployments/kai-scheduler/values.yaml")).unwrap();
    for key in keys_without_effect().values().flatten() {
        let path = format!("/{}", key["key"].as_str().unwrap().replace('.', "/"));
        assert_eq!(values.pointer(&path), Some(&key["default"]), "{path}");
    }
}

/// Pod specs by the name of their controller.
fn pod_specs(objects: &[Value]) -> Vec<(&str, &Value)> {
    let pods = objects.iter().filter_map(|object| {
        let spec = object.pointer("/spec/template/spec")?;
        Some((object["metadata"]["name"].as_str()?, spec))
    });
    pods.collect()
}

/// The rules of Pod Security `restricted` that concern fields of our pods.
fn is_restricted(spec: &Value) -> bool {
    let volumes = spec["volumes"].as_array().unwrap();
    let containers = spec["containers"].as_array().unwrap();
    spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        && spec["hostNetwork"].is_null()
        && spec["hostPID"].is_null()
        && volumes.iter().all(|volume| volume["hostPath"].is_null())
        && containers.iter().all(|container| {
            let context = &container["securityContext"];
            context["allowPrivilegeEscalation"] == false
                && context["runAsNonRoot"] == true
                && context["capabilities"]["drop"] == serde_json::json!(["ALL"])
        })
}

#[test]
fn all_pods_but_the_node_agent_are_restricted() {
    for mode in MODES {
        let objects = manifests(&["--mode", mode]);
        let pods = pod_specs(&objects);
        assert_eq!(pods.len(), 2);
        for (name, spec) in pods {
            assert_eq!(is_restricted(spec), name != "kai-node-agent", "{mode}: {name}");
            let read_only = &spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"];
            assert_eq!(read_only, true, "{mode}: {name}");
        }
    }
}

/// The host paths in the table of docs/node-agent.md, and the capabilities in its text.
#[test]
fn the_node_agent_has_the_documented_rights_on_the_host() {
    let objects = manifests(&[]);
    let pods = pod_specs(&objects);
    let (_, agent) = pods.iter().find(|(name, _)| *name == "kai-node-agent").unwrap();
    let page = read("docs/node-agent.md");
    let mounts = agent["containers"][0]["volumeMounts"].as_array().unwrap();
    for volume in agent["volumes"].as_array().unwrap() {
        let path = volume["hostPath"]["path"].as_str().unwrap();
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{path}`")))
            .unwrap_or_else(|| panic!("{path} is not documented"));
        let access = row.split('|').nth(2).unwrap().trim();
        let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).unwrap();
        assert_eq!(mount["readOnly"] == true, access == "read", "{path}");
    }
    let context = &agent["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(context["allowPrivilegeEscalation"], false);
}

/// A Jetson with 4 GiB has to bear the whole installation.
#[test]
fn the_installation_requests_little_memory() {
    const MEMORY_MAX_MIB: u64 = 80;
    let objects = manifests(&[]);
    let requests = pod_specs(&objects).into_iter().map(|(name, spec)| {
        let memory = spec["containers"][0]["resources"]["requests"]["memory"]
            .as_str()
            .unwrap();
        let mib = memory.strip_suffix("Mi").unwrap_or_else(|| panic!("{name}: {memory}"));
        mib.parse::<u64>().unwrap()
    });
    let sum: u64 = requests.sum();
    assert!(sum < MEMORY_MAX_MIB, "{sum} MiB");
}

#[test]
fn flags_of_kai_manifests_change_every_place() {
    let flags = [
        "--namespace",
        "gpus",
        "--image",
        "example.org/team/kai:1.2.3",
        "--image-pull-policy",
        "Never",
    ];
    for mode in MODES {
        let objects = manifests(
            &[
                &flags[..],
                &["--mode", mode, "--no-node-agent", "--gpu-sharing-mode=HamiCore"],
            ]
            .concat(),
        );
        let text = serde_json::to_string(&objects).unwrap();
        assert!(!text.contains("\"kai-node-agent\""), "{mode}");
        assert!(!text.contains("registry/local"), "{mode}");
        assert!(!text.contains("\"namespace\":\"kai-scheduler\""), "{mode}");
        assert!(text.contains("gpuSharingMode: HamiCore"), "{mode}");
        assert!(text.contains("example.org/team/kai:1.2.3"), "{mode}");
    }
    let changed = manifests(&["--gpu-sharing-mode", "Disabled"]);
    assert_eq!(
        manifests(&["--gpu-sharing"]),
        manifests(&[]),
        "the switch of earlier versions"
    );
    let digest = |objects: &[Value]| {
        let path = "/spec/template/metadata/annotations/kai.scheduler~1installation-digest";
        objects.iter().find_map(|object| object.pointer(path).cloned())
    };
    assert_ne!(digest(&changed), digest(&manifests(&[])));
}

#[test]
fn an_image_without_a_tag_is_refused() {
    insta::assert_snapshot!(support::kai_in(".", &["manifests", "--image", "example.org/kai"]));
}

/// `.ci/chart` runs the blocks by the name in the comment above them.
#[test]
fn the_commands_of_the_pages_about_installation_are_run() {
    let script = read(".ci/chart");
    let pages = ["docs/install.md", "docs/jetson.md"].map(read).join("\n");
    let lines: Vec<&str> = pages.lines().collect();
    for pair in lines.windows(2).filter(|pair| pair[1].trim() == "```sh") {
        let name = pair[0]
            .strip_prefix("<!-- run by .ci/chart: ")
            .and_then(|rest| rest.strip_suffix(" -->"));
        let name = name.unwrap_or_else(|| panic!("no script runs the block after {:?}", pair[0]));
        let listed = script
            .lines()
            .filter(|line| line.trim_start().starts_with("for block in "));
        assert!(
            listed
                .flat_map(str::split_whitespace)
                .any(|word| word.trim_end_matches(';') == name),
            "{name}"
        );
    }
}

/// Objects by kind, namespace and name; the files of the installation are parsed, and its digest is left out.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let mut named = BTreeMap::new();
    for mut object in objects {
        if object["metadata"]["name"] == "kai-installation" && object["kind"] == "ConfigMap" {
            for (_, file) in object["data"].as_object_mut().unwrap() {
                *file = documents(file.as_str().unwrap()).into();
            }
        }
        if let Some(annotations) = object.pointer_mut("/spec/template/metadata/annotations") {
            annotations
                .as_object_mut()
                .unwrap()
                .remove("kai.scheduler/installation-digest");
        }
        let metadata = &object["metadata"];
        let name = format!("{} {} {}", object["kind"], metadata["namespace"], metadata["name"]);
        assert!(named.insert(name.clone(), object).is_none(), "{name} occurs twice");
    }
    named
}

#[test]
fn kai_manifests_prints_what_helm_renders() {
    let Ok(programs) = std::env::var("KAI_HELM") else {
        return;
    };
    let cases = [
        ("", ""),
        ("--gpu-sharing", "--set global.gpuSharing=true"),
        ("--gpu-sharing-mode Disabled", "--set global.gpuSharing=false"),
        ("--gpu-sharing-mode HamiCore", "--set global.gpuSharingMode=HamiCore"),
        ("--gpu-sharing-mode NvFractions", "--set global.nvFractions.set=true"),
        ("--no-node-agent", "--set nodeAgent.enabled=false"),
        ("--node-agent-mode mounts", "--set nodeAgent.mode=mounts"),
        (
            "--image example.org:5000/kai:1.2.3 --image-pull-policy Never",
            "--set global.registry=example.org:5000 --set global.tag=1.2.3 --set global.imagePullPolicy=Never",
        ),
    ];
    for program in programs.split_whitespace() {
        for (mode, namespace) in MODES
            .into_iter()
            .flat_map(|mode| [(mode, "kai-scheduler"), (mode, "gpus")])
        {
            for (flags, values) in cases {
                let flags: Vec<&str> = flags
                    .split_whitespace()
                    .chain(["--mode", mode, "--namespace", namespace])
                    .collect();
                let mut printed = manifests(&flags);
                // Helm creates the namespace by a flag.
                assert_eq!(printed.remove(0)["kind"], "Namespace");
                let mut helm = Command::new(program);
                helm.args([
                    "template",
                    "kai-scheduler",
                    "-n",
                    namespace,
                    "--kube-version",
                    "1.35.0",
                    "--set",
                ]);
                helm.arg(format!("mode={mode}"))
                    .args(values.split_whitespace())
                    .arg(root("deployments/kai-scheduler"));
                let output = helm.output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let rendered = by_name(documents(&String::from_utf8(output.stdout).unwrap()));
                let printed = by_name(printed);
                assert!(
                    printed.keys().eq(rendered.keys()),
                    "{flags:?}: {:?} {:?}",
                    printed.keys(),
                    rendered.keys()
                );
                for (name, object) in &printed {
                    assert_eq!(object, &rendered[name], "{program} {flags:?}: {name}");
                }
            }
        }
    }
}

/// The objects that a Helm renders with these values.
fn rendered(helm: &str, values: &[&str]) -> Vec<Value> {
    let mut command = Command::new(helm);
    command.args(["template", "kai-scheduler", "--kube-version", "1.35.0"]);
    let sets = values.iter().flat_map(|value| ["--set", value]);
    let output = command
        .args(sets)
        .arg(root("deployments/kai-scheduler"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    documents(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn alerts_and_dashboards_are_rendered_as_the_files_have_them() {
    let Ok(programs) = std::env::var("KAI_HELM") else {
        return;
    };
    let alerts: Value = serde_saphyr::from_str(&read("deployments/kai-scheduler/files/alerts.yaml")).unwrap();
    for program in programs.split_whitespace() {
        let is_ours = |object: &&Value| {
            let name = object["metadata"]["name"].as_str().unwrap();
            object["kind"] == "PrometheusRule" || name.starts_with("kai-dashboard-")
        };
        assert_eq!(rendered(program, &[]).iter().filter(is_ours).count(), 0);
        let values = ["metrics.prometheusRule.enabled=true", "metrics.dashboards.enabled=true"];
        let objects = rendered(program, &values);
        let rule = objects
            .iter()
            .find(|object| object["kind"] == "PrometheusRule")
            .unwrap();
        assert_eq!(rule["spec"], alerts);
        let mut dashboards = 0;
        for object in objects
            .iter()
            .filter(is_ours)
            .filter(|object| object["kind"] == "ConfigMap")
        {
            assert_eq!(object["metadata"]["labels"]["grafana_dashboard"], "1");
            for (file, text) in object["data"].as_object().unwrap() {
                dashboards += 1;
                let path = format!("files/dashboards/{}", file.strip_prefix("kai-").unwrap());
                let source = read(&format!("deployments/kai-scheduler/{path}"));
                assert_eq!(text.as_str().unwrap().trim_end(), source.trim_end(), "{file}");
            }
        }
        assert_eq!(dashboards, 4);
        let fewer = [
            &values[..],
            &["metrics.prometheusRule.disabledAlerts[0]=KaiNoCycle"],
            &["metrics.prometheusRule.alertLabels.team=gpu"],
        ];
        let text = serde_json::to_string(&rendered(program, &fewer.concat())).unwrap();
        assert!(!text.contains("\"KaiNoCycle\"") && text.contains("\"team\":\"gpu\""));
    }
}
