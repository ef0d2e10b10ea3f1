//! Limits of GPU memory on a node with cgroup v2: the runtime runs our hook, which sets them in the fake driver.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kai_api::{GpuLimits, keys};
use serde_json::{Value, json};

use crate::limit_records::{Limit, hook_times};
use crate::machine::{Duty, Machine};
use crate::pods::{ending, fraction, whole, workload};
use crate::scenes::scene;

/// The container runtimes. Their names are those of runtime classes.
pub(crate) const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// Memory of a fake A100.
const GPU_MIB: u64 = 40960;

/// Fake GPUs whose driver has the calls for limits.
const ABLE: &str = "memoryLimitCalls: both\n";

/// `NVML_ERROR_NO_PERMISSION` for every limit.
const REFUSING: &str = "memoryLimitCalls: both\ngpus: {'*': {memoryLimits: {setCode: 4}}}\n";

/// Role and binding of an agent that evicts pods.
const EVICTS: &str = "kai-node-agent-evicts";

/// Runs a pod's containers by this runtime.
fn under(runtime: &str, mut pod: Value) -> Value {
    pod["spec"]["runtimeClassName"] = runtime.into();
    pod
}

/// The memory of the GPUs that NVML shows to a container.
fn seen_mib(text: &str) -> Option<u64> {
    let label = format!("{}=", keys::NODE_GPU_MEMORY);
    text.lines()
        .find_map(|line| line.trim().strip_prefix(&label)?.parse().ok())
}

pub(crate) async fn the_node_limits_by_the_driver(machine: &mut Machine) {
    scene("the node limits by the driver: label, condition, KAI's condition");
    for runtime in RUNTIMES {
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": runtime }, "handler": runtime,
        });
        machine.kubectl_with(&class.to_string(), &["apply", "-f", "-"]);
    }
    machine.control(ABLE);
    start_agent(machine, &[]).await;
    println!("{}", machine.until_enforces("driver").await);
    machine
        .until("KAI's condition is true", async || {
            let node = machine.node().await?;
            let conditions = node["status"]["conditions"].as_array()?;
            let found = conditions
                .iter()
                .find(|condition| condition["type"] == keys::NODE_GPU_FRACTIONING_READY)?;
            (found["status"] == "True").then_some(())
        })
        .await;
}

/// On the cgroups of most of these machines.
pub(crate) async fn a_node_without_cgroup_v2_has_a_lower_tier(machine: &mut Machine) {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        eprintln!("skipped: this machine has no cgroup version 1");
        return;
    }
    scene("on cgroup version 1 the agent chooses a lower tier, and says why");
    machine.control(ABLE);
    start_agent(machine, &[]).await;
    let words = machine
        .until("the node's condition says why it has no limits", async || {
            let node = machine.node().await?;
            let tier = node["metadata"]["labels"][keys::GPU_ENFORCEMENT].as_str()?;
            let conditions = node["status"]["conditions"].as_array()?;
            let condition = conditions
                .iter()
                .find(|condition| condition["type"] == keys::NODE_GPU_LIMITS)?;
            assert_ne!(tier, "driver", "{condition}");
            let words = condition["message"].as_str()?;
            (condition["status"] == "False" && words.contains("cgroup version")).then(|| words.to_owned())
        })
        .await;
    println!("   {words}");
    machine.control("");
}

/// Starts the agent with more flags, or restarts it, and waits until the node offers its GPUs.
async fn start_agent(machine: &mut Machine, flags: &[&str]) {
    let registered = machine.registrations();
    machine.start_agent_with(Duty::Agent, &[&["--enforce-audit-seconds", "1"], flags].concat());
    machine.until_registered(registered + 1).await;
}

pub(crate) async fn a_share_is_a_limit(machine: &mut Machine, runtime: &str) {
    scene(&format!(
        "{runtime}: half a GPU is half of its memory, in the container's cgroup and no other"
    ));
    for pod in [
        fraction("half", "0.5"),
        fraction("tenth", "0.1"),
        whole("whole", 1),
        workload("none"),
    ] {
        machine.create(&under(runtime, pod)).await;
    }
    let (half, tenth) = (machine.seen("half").await, machine.seen("tenth").await);
    let (whole, none) = (machine.seen("whole").await, machine.seen("none").await);
    assert_eq!(seen_mib(&half.text), Some(GPU_MIB / 2), "{}", half.text);
    assert_eq!(seen_mib(&tenth.text), Some(GPU_MIB / 10), "{}", tenth.text);
    assert_eq!(seen_mib(&whole.text), Some(GPU_MIB), "{}", whole.text);
    assert_eq!(seen_mib(&none.text), None, "{}", none.text);

    // A program that is executed later is in the container's cgroup or in one below it.
    let executed = machine.executed("half").await;
    assert_eq!(seen_mib(&executed), Some(GPU_MIB / 2), "{executed}");

    let (_, gpu) = machine.reservation().await;
    let limit = |cgroup: &PathBuf, hard_mib| Limit {
        gpu: gpu.clone(),
        cgroup: cgroup.clone(),
        hard_mib: Some(hard_mib),
    };
    let (half_leaf, tenth_leaf) = (machine.leaf("half").await, machine.leaf("tenth").await);
    let limited: BTreeSet<Limit> = machine
        .limits()
        .into_iter()
        .filter(|limit| limit.hard_mib.is_some())
        .collect();
    let expected = [limit(&half_leaf, GPU_MIB / 2), limit(&tenth_leaf, GPU_MIB / 10)];
    assert_eq!(limited, BTreeSet::from(expected));

    // What was promised, and what is true.
    let pod = machine.pod("default", "half").await.unwrap();
    let promised = pod["metadata"]["annotations"][keys::GPU_LIMITS]
        .as_str()
        .unwrap_or_default();
    assert_eq!(GpuLimits::parse(promised).unwrap().memory_mib, GPU_MIB / 2, "{pod:#}");
    assert_eq!(pod["metadata"]["annotations"][keys::GPU_ENFORCEMENT_TIER], "driver");
    let said = machine.event("half", "GPULimitSet", &[]).await;
    println!("   event: {said}");
    machine
        .until_metric("kai_gpu_limit_bytes", &["half", &gpu], |bytes| {
            bytes == ((GPU_MIB / 2) << 20) as f64
        })
        .await;
    machine
        .until_metric("kai_gpu_limit_enforced", &["half", &gpu], |held| held == 1.0)
        .await;

    let (spec, set) = (machine.share_spec("half").await, machine.limited_at(&half_leaf));
    let prepared = fs::metadata(&spec).unwrap().modified().unwrap();
    let after = set.duration_since(prepared).unwrap();
    let times = hook_times(&spec, &half_leaf);
    let (shortest, median) = (times[0], times[times.len() / 2]);
    println!(
        "   the limit was set {after:.1?} after PreStartContainer; the hook takes {median:.1?} (median; shortest {shortest:.1?})"
    );
    machine.delete(&["half", "tenth", "whole", "none"], 0).await;
}

pub(crate) async fn a_restarted_container_is_limited_again(machine: &mut Machine, runtime: &str) {
    scene(&format!(
        "{runtime}: a container that starts again has a new cgroup and a new limit"
    ));
    machine.create(&under(runtime, ending(fraction("half", "0.5")))).await;
    let first = machine.receipt("half", &[]).await;
    assert_eq!(seen_mib(&machine.seen("half").await.text), Some(GPU_MIB / 2));
    let second = machine.receipt("half", &[&first]).await;
    assert_eq!(seen_mib(&machine.seen_in("half", 1).await.text), Some(GPU_MIB / 2));
    assert_ne!(first["cgroup"], second["cgroup"]);
    machine.delete(&["half"], 0).await;
}

pub(crate) async fn an_agent_that_restarts_before_the_hook_changes_nothing(machine: &mut Machine, runtime: &str) {
    scene(&format!(
        "{runtime}: the agent restarts between PreStartContainer and the hook"
    ));
    // The script around the runtime waits while this file exists.
    let gate = machine.directory.join("runtimes/gate");
    let waiting = machine.directory.join("runtimes/waiting");
    fs::write(&gate, "").unwrap();
    machine.create(&under(runtime, fraction("half", "0.5"))).await;
    machine
        .until("the runtime is about to create the container", async || {
            waiting.exists().then_some(())
        })
        .await;
    start_agent(machine, &[]).await;
    fs::remove_file(&gate).unwrap();
    let seen = machine.seen("half").await;
    assert_eq!(seen_mib(&seen.text), Some(GPU_MIB / 2), "{}", seen.text);
    machine.event("half", "GPULimitSet", &[]).await;
    fs::remove_file(&waiting).unwrap();
    machine.delete(&["half"], 0).await;
}

pub(crate) async fn without_its_limit_a_container_does_not_start(machine: &mut Machine, runtime: &str) {
    scene(&format!(
        "{runtime}: the driver refuses the limit: the container does not start, and the pod's events say why"
    ));
    machine.control(REFUSING);
    machine.create(&under(runtime, fraction("half", "0.5"))).await;
    let said = machine.event("half", "GPULimitFailed", &["ERROR_NO_PERMISSION"]).await;
    println!("   event: {said}");
    let remedy = "has to run as root with CAP_SYS_ADMIN";
    assert!(said.contains(remedy), "{said}");
    // The kubelet's event has the hook's words with runc; crun names only the program.
    let failed = machine.event("half", "Failed", &["hook"]).await;
    println!(
        "   event of the kubelet: {}",
        failed.chars().take(600).collect::<String>()
    );
    if runtime == "runc" {
        assert!(
            failed.contains("ERROR_NO_PERMISSION") && failed.contains(remedy),
            "{failed}"
        );
    }
    let pod = machine.pod("default", "half").await.unwrap();
    let status = &pod["status"]["containerStatuses"][0];
    assert!(
        status["state"]["running"].is_null() && status["lastState"]["running"].is_null(),
        "{status}"
    );
    assert_eq!(machine.output(&pod, 0).unwrap_or_default(), "", "its program never ran");
    machine
        .until_metric("kai_gpu_limit_failures_total", &["NO_PERMISSION"], |failures| {
            failures >= 1.0
        })
        .await;
    machine.control(ABLE);
    machine.delete(&["half"], 0).await;
}

pub(crate) async fn an_open_policy_starts_it(machine: &mut Machine) {
    scene("with --enforce-policy open the container starts without its limit, and the events say so");
    start_agent(machine, &["--enforce-policy", "open"]).await;
    machine.until_enforces("driver").await;
    machine.control(REFUSING);
    machine.create(&fraction("half", "0.5")).await;
    let seen = machine.seen("half").await;
    assert_eq!(seen_mib(&seen.text), Some(GPU_MIB), "{}", seen.text);
    let said = machine.event("half", "GPULimitFailed", &["ERROR_NO_PERMISSION"]).await;
    println!("   event: {said}");
    machine.control(ABLE);
    machine.delete(&["half"], 0).await;
}

pub(crate) async fn a_lost_limit_is_told(machine: &mut Machine, runtime: &str) {
    scene(&format!("{runtime}: the driver forgets a limit: event and metric"));
    start_agent(machine, &[]).await;
    machine.until_enforces("driver").await;
    machine.create(&under(runtime, fraction("half", "0.5"))).await;
    machine.event("half", "GPULimitSet", &[]).await;
    let (_, gpu) = machine.reservation().await;
    machine.control("memoryLimitCalls: both\ngpus: {'*': {memoryLimits: {teardowns: 1}}}\n");
    let said = machine.event("half", "GPULimitMissing", &[]).await;
    println!("   event: {said}");
    machine
        .until_metric("kai_gpu_limit_enforced", &["half", &gpu], |held| held == 0.0)
        .await;
    let before = machine.pod("default", "half").await.unwrap();
    assert!(
        before["metadata"]["deletionTimestamp"].is_null(),
        "nobody asked for an eviction"
    );
    machine.delete(&["half"], 0).await;
    machine.control(ABLE);
}

pub(crate) async fn a_hook_that_did_not_run_is_found(machine: &mut Machine, runtime: &str) {
    scene(&format!(
        "{runtime}: the runtime skips the hook: event, metric and condition"
    ));
    // The script around the runtime leaves the hooks out while this file exists.
    let skips = machine.directory.join("runtimes/skip-hooks");
    fs::write(&skips, "").unwrap();
    machine.create(&under(runtime, fraction("half", "0.5"))).await;
    let seen = machine.seen("half").await;
    assert_eq!(seen_mib(&seen.text), Some(GPU_MIB), "{}", seen.text);
    let said = machine
        .event("half", "GPULimitMissing", &["did not run the hook"])
        .await;
    println!("   event: {said}");
    let (_, gpu) = machine.reservation().await;
    machine
        .until_metric("kai_gpu_limit_enforced", &["half", &gpu], |held| held == 0.0)
        .await;
    fs::remove_file(&skips).unwrap();
    machine.delete(&["half"], 0).await;
}

pub(crate) async fn a_lost_limit_ends_in_an_eviction(machine: &mut Machine) {
    scene("with --enforce-repair evict a pod whose limit the driver forgot is evicted");
    // Evictions are no permission of the manifests: RBAC can't restrict them to the agent's node.
    let account = "--serviceaccount=kai-scheduler:kai-node-agent";
    machine.kubectl(&[
        "create",
        "clusterrole",
        EVICTS,
        "--verb=create",
        "--resource=pods/eviction",
    ]);
    machine.kubectl(&["create", "clusterrolebinding", EVICTS, "--clusterrole", EVICTS, account]);
    start_agent(machine, &["--enforce-repair", "evict"]).await;
    machine.create(&fraction("half", "0.5")).await;
    // Only a pod whose limit this agent has seen is evicted.
    machine
        .until_metric("kai_gpu_limit_enforced", &["half"], |held| held == 1.0)
        .await;
    machine.control("memoryLimitCalls: both\ngpus: {'*': {memoryLimits: {teardowns: 2}}}\n");
    machine
        .until("the pod is evicted, and its GPU is free", async || {
            let gone = machine.pod("default", "half").await.is_none();
            (gone && machine.reservations().await.is_empty()).then_some(())
        })
        .await;
    machine.control(ABLE);
    machine.kubectl(&["delete", "clusterrole,clusterrolebinding", EVICTS]);
}

pub(crate) async fn a_pod_cannot_choose_its_limit(machine: &mut Machine) {
    scene("a pod sets NVIDIA's and KAI's variables and annotations by hand: the limit is that of its share");
    start_agent(machine, &[]).await;
    machine.until_enforces("driver").await;
    let mut pod = fraction("half", "0.5");
    pod["spec"]["containers"][0]["env"] = json!([
        { "name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "40960" },
        { "name": "NVIDIA_GPU_MEMORY_REQUEST", "value": "40960" },
        { "name": "KAI_FAKE_RECORD_DIR", "value": "/tmp" },
    ]);
    machine.create(&pod).await;
    let leaf = machine.leaf("half").await;
    let of_leaf = |machine: &Machine| {
        machine
            .limits()
            .into_iter()
            .find(|limit| limit.cgroup == leaf)
            .unwrap()
            .hard_mib
    };
    assert_eq!(of_leaf(machine), Some(GPU_MIB / 2));

    // What the binder writes, others can neither give to a pod nor change on a running one.
    let own = GpuLimits {
        container: "main".to_owned(),
        memory_mib: GPU_MIB,
        compute_mode: kai_api::ComputeMode::default(),
        compute_percent: None,
    };
    for (key, value, told) in [
        (keys::GPU_LIMITS, own.to_annotation(), keys::GPU_LIMITS),
        (
            "nvidia.com/container.main.gpus.devices",
            "all".to_owned(),
            "nvidia.com/container.*.gpus.devices",
        ),
    ] {
        let mut pod = fraction("greedy", "0.5");
        pod["metadata"]["annotations"][key] = value.as_str().into();
        let refused = machine.refused(&pod).await;
        println!("   refused: {refused}");
        assert!(refused.contains(told), "{refused}");
        for value in [json!(value), Value::Null] {
            let refused = machine.refused_annotation("half", key, value).await;
            println!("   refused: {refused}");
            assert!(refused.contains(told), "{refused}");
        }
    }
    for (key, value, told) in [
        (
            "nvidia.com/container.main.gpu-memory.limit",
            "39Gi",
            "nvidia.com/container.*.gpu-memory.limit",
        ),
        (keys::GPU_FRACTION, "0.9", keys::GPU_FRACTION),
        (keys::GPU_FRACTION_LIMIT, "0.9", keys::GPU_FRACTION_LIMIT),
    ] {
        let refused = machine.refused_annotation("half", key, json!(value)).await;
        assert!(refused.contains(told), "{refused}");
    }
    assert_eq!(of_leaf(machine), Some(GPU_MIB / 2));
    machine.delete(&["half"], 0).await;
}
