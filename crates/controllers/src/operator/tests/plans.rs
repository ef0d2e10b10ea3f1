//! Snapshots of plans.

use super::*;

#[test]
fn an_empty_config_runs_every_role_with_its_defaults() {
    let plan = deployments(json!({}), &[shard("default", json!({}))]);
    insta::assert_snapshot!(arguments(&plan));
    assert_eq!(plan.ignored, [""; 0]);
    let names: Vec<String> = objects(&plan)
        .iter()
        .map(|object| format!("{} {}", object.resource.kind, object.name))
        .collect();
    insta::assert_snapshot!(names.join("\n"));
}

#[test]
fn the_deployment_of_a_shard_has_its_configuration_file() {
    let plan = deployments(json!({}), &[shard("default", json!({}))]);
    let of_shard = objects(&plan)
        .into_iter()
        .filter(|object| object.name == "kai-scheduler-default");
    let yaml: Vec<String> = of_shard
        .map(|object| serde_saphyr::to_string(&object.fields).unwrap())
        .collect();
    insta::assert_snapshot!(yaml.join("---\n"));
}

#[test]
fn names_are_the_same_in_all_roles() {
    let config = json!({
        "global": {
            "schedulerName": "ours", "queueLabelKey": "q", "nodePoolLabelKey": "pool", "jsonLog": true,
            "namespaceLabelSelector": { "a": "b" }, "podLabelSelector": { "c": "d", "e": "f" },
        },
        "binder": {
            "cdiEnabled": true, "plugins": { "hamicore": { "enabled": true } },
            "resourceReservation": { "namespace": "r", "appLabel": "l", "image": { "name": "reservation" } },
        },
        "admission": { "gpuSharing": true, "gpuPodRuntimeClassName": "nvidia" },
        "queueController": { "metricsNamespace": "m", "webhooks": { "enableValidation": false } },
    });
    let plan = deployments(
        config,
        &[shard(
            "a100",
            json!({ "partitionLabelValue": "a100", "args": { "v": "4" } }),
        )],
    );
    insta::assert_snapshot!(arguments(&plan));
}

#[test]
fn the_gpu_operators_cdi_reaches_the_binder_unless_the_config_decides() {
    let check = |config: Value, gpu_operator_cdi: bool, expect: Option<&str>| {
        let facts = ClusterFacts {
            gpu_operator_cdi,
            ..ClusterFacts::default()
        };
        let plan = plan_of(config, &[], Runner::Deployments, facts);
        let plugins: Option<Value> = plan.components[0]
            .role_flags
            .get("plugins")
            .map(|text| serde_json::from_str(text).unwrap());
        let cdi = plugins.map(|plugins| plugins["gpusharing"]["arguments"]["cdiEnabled"].clone());
        assert_eq!(cdi, expect.map(Value::from));
    };
    check(json!({}), false, None);
    check(json!({}), true, Some("true"));
    check(json!({ "binder": { "cdiEnabled": false } }), true, Some("false"));
    let plugin = json!({ "gpusharing": { "arguments": { "cdiEnabled": "false" } } });
    check(json!({ "binder": { "plugins": plugin } }), true, Some("false"));
}

#[test]
fn the_time_that_volumes_may_take_reaches_the_binder() {
    let plan = deployments(json!({ "binder": { "volumeBindingTimeoutSeconds": 30 } }), &[]);
    assert!(arguments(&plan).contains("--volume-binding-timeout=30"));
    assert_eq!(plan.ignored, [""; 0]);
    for seconds in [-1, 0] {
        let plan = deployments(json!({ "binder": { "volumeBindingTimeoutSeconds": seconds } }), &[]);
        assert!(!arguments(&plan).contains("--volume-binding-timeout"));
        let ignored =
            "binder.volumeBindingTimeoutSeconds (it must be at least 1; the binder waits for its default time)";
        assert_eq!(plan.ignored, [ignored]);
    }
}

#[test]
fn the_mode_of_gpu_sharing_reaches_admission_binder_and_schedulers() {
    let modes = |config: Value| {
        let plan = deployments(config, &[shard("default", json!({}))]);
        let lines = arguments(&plan);
        let mut found: Vec<String> = lines
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("--gpu-sharing-mode=").map(str::to_owned))
            .collect();
        assert!(!lines.contains("gpu-sharing-enabled"), "{lines}");
        assert!(found.is_empty() || found.len() == 3, "{lines}");
        found.dedup();
        found.join(" ")
    };
    let global = |mode: &str| json!({ "global": { "gpuSharingMode": mode } });
    assert_eq!(modes(json!({})), "");
    assert_eq!(modes(global("")), "");
    assert_eq!(modes(global("NvFractions")), "NvFractions");
    assert_eq!(
        modes(json!({ "admission": { "gpuSharing": true } })),
        "NonMemoryEnforced"
    );
    assert_eq!(modes(json!({ "admission": { "gpuSharing": false } })), "Disabled");
    let both = json!({ "global": { "gpuSharingMode": "HamiCore" }, "admission": { "gpuSharing": false } });
    assert_eq!(modes(both), "HamiCore");
}

/// The line of arguments with these words.
fn line_of(config: Value, words: &str) -> String {
    let plan = deployments(config, &[shard("default", json!({}))]);
    let lines = arguments(&plan);
    let line = lines.lines().find(|line| line.contains(words));
    line.unwrap_or_else(|| panic!("no {words}: {lines}")).to_owned()
}

#[test]
fn the_policy_for_quotas_that_do_not_add_up_reaches_admission() {
    let admission = |policy: Value| {
        let line = line_of(json!({ "queueController": policy }), "admission ");
        let flag = line
            .split_whitespace()
            .find(|word| word.starts_with("--enforce-quota-violation"));
        flag.map(str::to_owned)
    };
    assert_eq!(admission(json!({})), None);
    assert_eq!(admission(json!({ "enforceQuotaViolation": "" })), None);
    for policy in ["None", "Warning", "Block"] {
        let flag = format!("--enforce-quota-violation={policy}");
        assert_eq!(admission(json!({ "enforceQuotaViolation": policy })), Some(flag));
    }
}

#[test]
fn gangs_of_deployments_can_be_switched_off() {
    let grouper = |args: Value| {
        let line = line_of(json!({ "podGrouper": { "args": args } }), "--pod-grouper=true");
        let flag = line
            .split_whitespace()
            .find(|word| word.starts_with("--deployment-gang-schedule"));
        flag.map(str::to_owned)
    };
    assert_eq!(grouper(json!({})), None);
    for on in [true, false] {
        let flag = format!("--deployment-gang-schedule={on}");
        assert_eq!(grouper(json!({ "gangScheduleDeployment": on })), Some(flag));
    }
}

#[test]
fn a_disabled_role_has_no_objects() {
    let off = json!({ "service": { "enabled": false } });
    let config = json!({ "binder": off, "admission": off, "scheduler": off, "queueController": off });
    let plan = deployments(config, &[shard("default", json!({}))]);
    let names: Vec<String> = objects(&plan).into_iter().map(|object| object.name).collect();
    assert_eq!(names, ["pod-grouper", "podgroup-controller"]);
}

#[test]
fn shards_say_what_has_no_effect_and_why_they_are_invalid() {
    let shards = [
        shard(
            "a",
            json!({ "goMemLimit": "1Gi", "args": { "schedule-period": "2s", "unknown": "1", "scheduler-conf": "x" } }),
        ),
        shard(
            "b",
            json!({ "actions": { "dance": { "enabled": true } }, "partitionLabelValue": "b" }),
        ),
        shard(
            "c",
            json!({ "queueDepthPerAction": { "consolidation": 3 }, "placementStrategy": { "gpu": "spread" } }),
        ),
        shard("d", json!({})),
    ];
    let plan = deployments(json!({}), &shards);
    let lines: Vec<String> = plan
        .shards
        .iter()
        .map(|shard| {
            let invalid = match &shard.scheduler {
                super::super::ShardScheduler::Invalid(reason) => reason.as_str(),
                _ => "",
            };
            format!("{}: {invalid} {}", shard.shard, shard.warnings.join("; "))
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn images_of_kai_have_no_effect() {
    let image =
        |name: &str| json!({ "name": name, "repository": "registry/of-kai", "tag": "v0.17.0", "pullPolicy": "Always" });
    let config = json!({
        "binder": { "service": { "image": image("binder") }, "resourceReservation": { "image": image("resourcereservation") } },
        "admission": { "service": { "image": image("kai-of-this-site") } },
    });
    let plan = deployments(config, &[]);
    let images = plan
        .components
        .iter()
        .map(|component| (component.name.as_str(), component.image.as_str()));
    let images: Vec<_> = images
        .filter(|(name, _)| ["binder", "admission"].contains(name))
        .collect();
    assert_eq!(
        images,
        [
            ("binder", "registry/kai:1"),
            ("admission", "registry/of-kai/kai-of-this-site:v0.17.0"),
        ]
    );
    assert!(
        !arguments(&plan).contains("resourcereservation:v0.17.0"),
        "{}",
        arguments(&plan)
    );
    let ignored = plan.ignored.join("\n");
    for (path, is_ignored) in [
        ("binder.service.image.tag", true),
        ("binder.resourceReservation.image.name", true),
        ("binder.service.image.pullPolicy", false),
        ("admission", false),
    ] {
        assert_eq!(ignored.contains(path), is_ignored, "{path} in {ignored}");
    }
    assert!(ignored.contains("the image is KAI-Scheduler's"), "{ignored}");
}

#[test]
fn settings_of_pods_have_no_effect_inside_one_process() {
    let config = json!({
        "global": { "replicaCount": 3, "nodeSelector": { "a": "b" }, "openshift": true, "securityContext": { "runAsUser": 1 } },
        "binder": { "service": { "image": { "tag": "2" }, "k8sClientConfig": { "qps": 1 } }, "vpa": { "enabled": true } },
        "scheduler": { "GOGC": 100, "service": { "k8sClientConfig": { "qps": 1 } } },
        "prometheus": { "enabled": true }, "nodeScaleAdjuster": { "service": { "enabled": false } },
    });
    let ignored = |runner| {
        plan_of(config.clone(), &[], runner, ClusterFacts::default())
            .ignored
            .join("\n")
    };
    insta::assert_snapshot!(ignored(Runner::Deployments));
    insta::assert_snapshot!(ignored(Runner::Process));
}

#[test]
fn a_security_context_adds_to_the_restricted_one() {
    let config = json!({ "global": { "securityContext": { "runAsUser": 1234, "capabilities": { "drop": ["ALL", "NET_RAW"] } } } });
    let plan = deployments(config, &[]);
    let contexts: Vec<Value> = objects(&plan)
        .iter()
        .filter_map(|object| {
            let container = object.fields.pointer("/spec/template/spec/containers/0")?;
            Some(container["securityContext"].clone())
        })
        .collect();
    let expected = json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL", "NET_RAW"] }, "readOnlyRootFilesystem": true,
        "runAsNonRoot": true, "runAsUser": 1234, "seccompProfile": { "type": "RuntimeDefault" },
    });
    assert_eq!(contexts, vec![expected; 5]);
}

#[test]
fn reservation_pods_have_the_pull_policy_of_their_image() {
    let config = json!({ "binder": { "resourceReservation": { "image": { "pullPolicy": "Never" } } } });
    for runner in [Runner::Deployments, Runner::Process] {
        let plan = plan_of(config.clone(), &[], runner, ClusterFacts::default());
        assert!(
            arguments(&plan).contains("--resource-reservation-pod-image-pull-policy=Never"),
            "{}",
            arguments(&plan)
        );
    }
}

#[test]
fn pods_get_the_settings_of_all_and_of_their_role() {
    let term =
        |key: &str| json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": key, "operator": "Exists" }] }] });
    let config = json!({
        "global": {
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": term("all") } },
            "requireDefaultPodAntiAffinityTerm": true, "imagesPullSecret": "one", "additionalImagePullSecrets": ["two", "one"],
            "priorityClassName": "high", "replicaCount": 2, "openshift": true,
            "tolerations": [{ "operator": "Exists" }],
            "vpa": { "enabled": true, "updatePolicy": { "minReplicas": 1 } },
        },
        "binder": { "replicas": 3, "service": {
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": term("binder") } },
            "podDisruptionBudget": { "enabled": true }, "resources": { "limits": { "memory": "1Gi" } },
        } },
    });
    let facts = ClusterFacts {
        serves_vpa: true,
        ..ClusterFacts::default()
    };
    let plan = plan_of(config, &[], Runner::Deployments, facts);
    let of_binder = objects(&plan).into_iter().filter(|object| object.name == "binder");
    let yaml: Vec<String> = of_binder
        .map(|object| serde_saphyr::to_string(&object.fields).unwrap())
        .collect();
    insta::assert_snapshot!(yaml.join("---\n"));
}

#[test]
fn the_example_of_the_documentation_is_planned_as_the_page_says() {
    let page = include_str!("../../../../../docs/operator.md");
    let example = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let documents = serde_saphyr::from_multiple::<Value>(example).unwrap();
    let [config, first, second] = documents.as_slice() else {
        panic!("a Config and two shards")
    };
    let shards = [first, second].map(|shard| serde_json::from_value(shard.clone()).unwrap());
    let plan = deployments(config["spec"].clone(), &shards);
    let names = |kind: &str| -> Vec<String> {
        let of_kind = objects(&plan).into_iter().filter(|object| object.resource.kind == kind);
        of_kind.map(|object| object.name).collect()
    };
    let deployments = names("Deployment");
    assert_eq!(deployments.len(), 7);
    for name in deployments {
        assert!(
            page.contains(&format!("`{name}`")) || page.contains(name.trim_start_matches("kai-scheduler-")),
            "{name}"
        );
    }
    assert_eq!(names("PodDisruptionBudget"), ["admission"]);
    assert_eq!(names("ConfigMap"), ["kai-scheduler-a100", "kai-scheduler-default"]);
    assert_eq!(plan.ignored.len(), 1);
    assert!(page.contains(&format!("without effect: {}", plan.ignored[0])));
}
