//! Which rules a workload is grouped by. One file per family of kinds; what has no rules of its own is grouped by the base rules:
//! one group per top owner, of which one pod has to start.

mod azure;
mod deployment;
mod job;
mod job_set;
mod knative;
mod kubeflow;
mod leader_worker_set;
mod mpi;
mod pod;
mod pytorch;
mod ray;
mod run_ai;
mod skip;

use kai_api::keys;

use super::base;
use super::plan::Plan;
use super::workload::{Owner, Stop, Workload};

/// Replicas or segments that get a subgroup each. The remaining subgroups that a pod group may have are for those above them.
pub(super) const SUB_GROUPS_MAX: i64 = kai_api::SUB_GROUPS_MAX as i64 - 96;

/// How a kind is grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Base,
    /// Like the base, with another priority class where none is named.
    BaseWithPriority(&'static str),
    Pod,
    Deployment,
    Job,
    CronJob,
    JobSet,
    LeaderWorkerSet,
    Kubeflow(kubeflow::Replicas),
    Mpi,
    PyTorch,
    RayCluster,
    RayJob,
    RayService,
    Knative,
    AmlJob,
    RunaiJob,
    /// The next owner down decides.
    SkipTop,
}

impl Family {
    fn of(owner: &Owner) -> Family {
        match (owner.group(), owner.version(), owner.kind.as_str()) {
            ("", "v1", "Pod") => Family::Pod,
            ("apps", "v1", "Deployment") => Family::Deployment,
            ("batch", "v1", "Job") => Family::Job,
            ("batch", "v1", "CronJob") => Family::CronJob,
            ("jobset.x-k8s.io", "v1alpha2", "JobSet") => Family::JobSet,
            ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet") => Family::LeaderWorkerSet,
            ("kubeflow.org", "v1", "TFJob") => Family::Kubeflow(kubeflow::TENSORFLOW),
            ("kubeflow.org", "v1", "XGBoostJob") => Family::Kubeflow(kubeflow::XGBOOST),
            ("kubeflow.org", "v1", "JAXJob") => Family::Kubeflow(kubeflow::JAX),
            ("kubeflow.org", "v1" | "v2beta1", "MPIJob") => Family::Mpi,
            ("kubeflow.org", "v1", "PyTorchJob") => Family::PyTorch,
            ("kubeflow.org", "v1" | "v1beta1", "Notebook") => Family::BaseWithPriority(keys::PRIORITY_BUILD),
            ("ray.io", "v1" | "v1alpha1", "RayCluster") => Family::RayCluster,
            ("ray.io", "v1" | "v1alpha1", "RayJob") => Family::RayJob,
            ("ray.io", "v1" | "v1alpha1", "RayService") => Family::RayService,
            ("serving.knative.dev", "v1", "Service") => Family::Knative,
            ("amlarc.azureml.com", "v1alpha1", "AmlJob") => Family::AmlJob,
            ("egx.nvidia.io", "v1", "SPOTRequest") => Family::BaseWithPriority(keys::PRIORITY_INFERENCE),
            ("run.ai", "v1", "RunaiJob") => Family::RunaiJob,
            ("argoproj.io", "v1alpha1", "Workflow")
            | ("trainer.kubeflow.org", "v1alpha1", "TrainJob")
            | ("nvidia.com", _, "DynamoGraphDeployment")
            | (
                "run.ai",
                _,
                "TrainingWorkload"
                | "InteractiveWorkload"
                | "DistributedWorkload"
                | "InferenceWorkload"
                | "DistributedInferenceWorkload",
            ) => Family::SkipTop,
            _ => Family::Base,
        }
    }
}

/// The pod group of a pod, or what is needed to say.
pub fn group(workload: &Workload<'_>) -> Result<Plan, Stop> {
    let mut plan = match workload.owners.last() {
        None => by(Family::Pod, workload, &Owner::of_pod(workload.pod), &[])?,
        Some(top) => by(Family::of(top), workload, top, workload.owners)?,
    };
    let pool_label = &workload.rules.node_pool_label;
    if let Some(pool) = workload.label(pool_label) {
        plan.labels.entry(pool_label.clone()).or_insert_with(|| pool.to_owned());
    }
    Ok(plan)
}

fn by(family: Family, workload: &Workload<'_>, top: &Owner, owners: &[Owner]) -> Result<Plan, Stop> {
    let this = std::slice::from_ref(top);
    let owners = if owners.is_empty() { this } else { owners };
    match family {
        Family::Base => Ok(base::plan(workload, top, owners, keys::DEFAULT_PRIORITY_CLASS)),
        Family::BaseWithPriority(class) => Ok(base::plan(workload, top, this, class)),
        Family::Pod => Ok(pod::plan(workload, top)),
        Family::Deployment => Ok(deployment::plan(workload, top)),
        Family::Job => job::plan(workload, top),
        Family::CronJob => job::plan_of_cron_job(workload, top, owners),
        Family::JobSet => job_set::plan(workload, top),
        Family::LeaderWorkerSet => leader_worker_set::plan(workload, top),
        Family::Kubeflow(replicas) => kubeflow::plan(workload, top, &replicas),
        Family::Mpi => mpi::plan(workload, top),
        Family::PyTorch => pytorch::plan(workload, top),
        Family::RayCluster => ray::plan(workload, top, &[]),
        Family::RayJob => ray::plan(workload, top, ray::OF_JOB),
        Family::RayService => ray::plan(workload, top, ray::OF_SERVICE),
        Family::Knative => knative::plan(workload),
        Family::AmlJob => azure::plan(workload, top),
        Family::RunaiJob => Ok(run_ai::plan(workload, top)),
        Family::SkipTop => skip::plan(workload, top, owners),
    }
}

/// The base rules with this owner alone, as most kinds begin.
fn begin(workload: &Workload<'_>, top: &Owner) -> Plan {
    base::plan(workload, top, std::slice::from_ref(top), keys::DEFAULT_PRIORITY_CLASS)
}

/// A whole number in an annotation.
fn parse_count(text: &str) -> Option<i32> {
    text.parse().ok().filter(|count| *count >= 0)
}
