//! MPI jobs. With `WaitForWorkersReady` the launcher is created after the workers are ready, so the gang does not wait for it.

use kai_api::keys;

use super::super::desired_pod_group::DesiredPodGroup;
use super::super::field::Field;
use super::super::workload::{GroupingError, Owner, Workload};
use super::kubeflow::{self, Replicas};

const REPLICAS: Replicas = Replicas {
    field: "mpiReplicaSpecs",
    mandatory: &["Launcher", "Worker"],
};
const LAUNCHER_ROLE: &str = "launcher";

pub(super) fn desired(workload: &Workload<'_>, top: &Owner) -> Result<DesiredPodGroup, GroupingError> {
    let mut desired = kubeflow::desired(workload, top, &REPLICAS)?;
    let job = Field::of(workload.object(top.reference())?);
    let late = job.at("spec").at("launcherCreationPolicy").text()? == Some("WaitForWorkersReady");
    if late && !has_launcher(workload, top) {
        let launchers = job.at("spec").at(REPLICAS.field).at("Launcher").at("replicas");
        let launchers = launchers.count()?.unwrap_or(1);
        let min = desired.spec.min_member.unwrap_or_default();
        desired.min_member(
            (min - launchers).max(0),
            "spec.mpiReplicaSpecs, without the launcher, which waits for the workers",
        );
    }
    Ok(desired)
}

fn has_launcher(workload: &Workload<'_>, job: &Owner) -> bool {
    let pods = workload
        .cluster
        .pods_labelled(workload.namespace(), keys::KUBEFLOW_JOB_NAME, &job.name);
    pods.iter()
        .any(|pod| pod.metadata.labels.text(keys::KUBEFLOW_JOB_ROLE) == Some(LAUNCHER_ROLE) && !pod.is_terminating())
}
