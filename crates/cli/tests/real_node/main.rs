//! A real node: kubelet, kube-proxy, containerd and the node agent with fake GPUs on this machine, all of kai on a real API server, pods of
//! kai's image. `.ci/node` prepares it and runs this test; elsewhere it is skipped.

#![allow(clippy::unwrap_used)]

mod commands;
mod doctor;
mod limit_records;
mod limits;
mod machine;
mod manifests;
mod memory;
mod pods;
mod process;
mod releases;
mod scenes;

use machine::{Machine, Run};

/// Helm releases of the chart. Each test begins and ends without kai on the cluster.
#[tokio::test]
async fn the_chart_for_real() {
    let Some(mut machine) = Machine::start(Run::EachContainerd).await else {
        return;
    };
    releases::all_in_one(&mut machine).await;
    releases::roles(&mut machine).await;
}

/// kai as plain processes, which the scenes kill and restart. They run one after the other.
#[tokio::test]
async fn a_node_for_real() {
    let Some(mut machine) = Machine::start(Run::EachContainerd).await else {
        return;
    };
    manifests::apply(&machine);
    machine.start_kai().await;
    scenes::a_reservation_finds_its_gpu_by_nvml_where_the_agent_does_not_tell(&mut machine).await;
    scenes::the_kubelet_takes_the_devices(&mut machine).await;
    limits::a_node_without_cgroup_v2_has_a_lower_tier(&mut machine).await;
    scenes::a_container_sees_its_own_gpus_and_no_others(&mut machine).await;
    scenes::two_pods_share_a_gpu(&mut machine).await;
    scenes::a_lost_reservation_gets_the_same_gpu_again(&mut machine).await;
    scenes::a_container_that_starts_again_gets_its_gpu_again(&mut machine).await;
    scenes::restarts_are_survived(&mut machine).await;
    scenes::a_gpu_fails_and_returns(&mut machine).await;
    doctor::a_job_runs_the_doctor(&mut machine).await;
    scenes::an_annotation_is_enough_for_cdi(&mut machine).await;
    machine.stop_kai();
    manifests::delete(&machine);
}

/// Limits of GPU memory that runc and crun set by our hook, on cgroup v2.
#[tokio::test]
async fn limits_for_real() {
    let Some(mut machine) = Machine::start(Run::Limits).await else {
        return;
    };
    manifests::apply(&machine);
    machine.start_kai().await;
    limits::the_node_limits_by_the_driver(&mut machine).await;
    for runtime in limits::RUNTIMES {
        limits::a_share_is_a_limit(&mut machine, runtime).await;
        limits::a_restarted_container_is_limited_again(&mut machine, runtime).await;
        limits::an_agent_that_restarts_before_the_hook_changes_nothing(&mut machine, runtime).await;
        limits::without_its_limit_a_container_does_not_start(&mut machine, runtime).await;
        limits::a_lost_limit_is_told(&mut machine, runtime).await;
        limits::a_hook_that_did_not_run_is_found(&mut machine, runtime).await;
    }
    limits::an_open_policy_starts_it(&mut machine).await;
    limits::a_lost_limit_ends_in_an_eviction(&mut machine).await;
    limits::a_pod_cannot_choose_its_limit(&mut machine).await;
    machine.stop_kai();
    manifests::delete(&machine);
}

/// The memory of an installation without work. It says something about users only if KAI_NODE_PROGRAM is an optimised program.
#[tokio::test]
#[ignore = "a measurement: KAI_NODE_PROGRAM=target/release/kai .ci/node --ignored idle_memory"]
async fn idle_memory() {
    let Some(mut machine) = Machine::start(Run::EachContainerd).await else {
        return;
    };
    memory::measure_idle(&mut machine).await;
}
