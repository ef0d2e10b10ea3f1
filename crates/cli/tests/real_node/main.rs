//! A real node: kubelet, containerd and the node agent with fake GPUs on this machine, all of kai on a real API server, pods of kai's
//! image. `.ci/node` prepares it and runs this test; elsewhere it is skipped.

#![allow(clippy::unwrap_used)]

mod install;
mod machine;
mod pods;
mod process;
mod scenes;

use machine::Machine;

/// The scenes run one after the other on the same node.
#[tokio::test]
async fn a_node_for_real() {
    let Some(mut machine) = Machine::start().await else {
        return;
    };
    scenes::a_reservation_finds_its_gpu_by_nvml_where_the_agent_does_not_tell(&mut machine).await;
    scenes::the_kubelet_takes_the_devices(&mut machine).await;
    scenes::a_container_sees_its_own_gpus_and_no_others(&mut machine).await;
    scenes::two_pods_share_a_gpu(&mut machine).await;
    scenes::a_lost_reservation_gets_the_same_gpu_again(&mut machine).await;
    scenes::a_container_that_starts_again_gets_its_gpu_again(&mut machine).await;
    scenes::restarts_are_survived(&mut machine).await;
    scenes::a_gpu_fails_and_returns(&mut machine).await;
    scenes::the_doctor_runs_in_a_pod(&mut machine).await;
    scenes::kai_itself_runs_in_pods(&mut machine).await;
    scenes::an_annotation_is_enough_for_cdi(&mut machine).await;
}
