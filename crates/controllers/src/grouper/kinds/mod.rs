//! The grouping rule of each kind of workload, a file per family of kinds. Kinds without a rule of their own use the default rules: one
//! pod group per top owner, of which one pod has to start.

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
mod skip_top_owner;

use kai_api::keys;

use super::default_rules;
use super::desired_pod_group::DesiredPodGroup;
use super::rules::{self, NamedRule, RuleOfKind};
use super::workload::{GroupingError, Owner, Workload};

/// Replicas or segments that get a subgroup each. The rest of `kai_api::SUB_GROUPS_MAX` is for their parents.
pub(super) const SUB_GROUPS_MAX: i64 = kai_api::SUB_GROUPS_MAX as i64 - 96;

/// The rule for a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupingRule {
    Default,
    /// The default rules with another default priority class.
    DefaultWithPriority(&'static str),
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
    /// The owner below the top owner selects the rule.
    SkipTop,
}

impl GroupingRule {
    /// For people.
    fn words(self, owner: &Owner) -> String {
        match self {
            GroupingRule::Default => "default, as for every kind without a rule".to_owned(),
            GroupingRule::SkipTop => format!("built in for {}: by the owner below", owner.kind),
            GroupingRule::DefaultWithPriority(_)
            | GroupingRule::Pod
            | GroupingRule::Deployment
            | GroupingRule::Job
            | GroupingRule::CronJob
            | GroupingRule::JobSet
            | GroupingRule::LeaderWorkerSet
            | GroupingRule::Kubeflow(_)
            | GroupingRule::Mpi
            | GroupingRule::PyTorch
            | GroupingRule::RayCluster
            | GroupingRule::RayJob
            | GroupingRule::RayService
            | GroupingRule::Knative
            | GroupingRule::AmlJob
            | GroupingRule::RunaiJob => format!("built in for {}", owner.kind),
        }
    }

    fn of(group: &str, version: &str, kind: &str) -> GroupingRule {
        match (group, version, kind) {
            ("", "v1", "Pod") => GroupingRule::Pod,
            ("apps", "v1", "Deployment") => GroupingRule::Deployment,
            ("batch", "v1", "Job") => GroupingRule::Job,
            ("batch", "v1", "CronJob") => GroupingRule::CronJob,
            ("jobset.x-k8s.io", "v1alpha2", "JobSet") => GroupingRule::JobSet,
            ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet") => GroupingRule::LeaderWorkerSet,
            ("kubeflow.org", "v1", "TFJob") => GroupingRule::Kubeflow(kubeflow::TENSORFLOW),
            ("kubeflow.org", "v1", "XGBoostJob") => GroupingRule::Kubeflow(kubeflow::XGBOOST),
            ("kubeflow.org", "v1", "JAXJob") => GroupingRule::Kubeflow(kubeflow::JAX),
            ("kubeflow.org", "v1" | "v2beta1", "MPIJob") => GroupingRule::Mpi,
            ("kubeflow.org", "v1", "PyTorchJob") => GroupingRule::PyTorch,
            ("kubeflow.org", "v1" | "v1beta1", "Notebook") => GroupingRule::DefaultWithPriority(keys::PRIORITY_BUILD),
            ("ray.io", "v1" | "v1alpha1", "RayCluster") => GroupingRule::RayCluster,
            ("ray.io", "v1" | "v1alpha1", "RayJob") => GroupingRule::RayJob,
            ("ray.io", "v1" | "v1alpha1", "RayService") => GroupingRule::RayService,
            ("serving.knative.dev", "v1", "Service") => GroupingRule::Knative,
            ("amlarc.azureml.com", "v1alpha1", "AmlJob") => GroupingRule::AmlJob,
            ("egx.nvidia.io", "v1", "SPOTRequest") => GroupingRule::DefaultWithPriority(keys::PRIORITY_INFERENCE),
            ("run.ai", "v1", "RunaiJob") => GroupingRule::RunaiJob,
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
            ) => GroupingRule::SkipTop,
            _ => GroupingRule::Default,
        }
    }
}

/// The versions in which the code knows kinds.
const VERSIONS: [&str; 5] = ["v1", "v1alpha1", "v1alpha2", "v1beta1", "v2beta1"];

/// Whether the code has a rule for the kind; without a version, in any of its versions.
pub(super) fn groups_in_code(group: &str, version: Option<&str>, kind: &str) -> bool {
    let versions = version.as_ref().map_or(&VERSIONS[..], std::slice::from_ref);
    let mut rules = versions.iter().map(|version| GroupingRule::of(group, version, kind));
    rules.any(|rule| rule != GroupingRule::Default)
}

/// The rule that groups a workload.
enum Choice<'r> {
    Code(GroupingRule),
    Declared(&'r NamedRule),
}

/// The rule for a kind; `None` if only the default rules know it. A declared rule for a kind of the code overrides the code, which its
/// validation requires it to say.
fn choice<'r>(workload: &Workload<'r>, owner: &Owner) -> Result<Option<Choice<'r>>, GroupingError> {
    let code = GroupingRule::of(owner.group(), owner.version(), &owner.kind);
    match (workload.options.rules.rule_of(owner), code) {
        (Some(RuleOfKind::Valid(rule)), _) => Ok(Some(Choice::Declared(rule))),
        (Some(RuleOfKind::Broken(problem)), GroupingRule::Default) => {
            let reason = format!("pods of {} {} wait for a valid rule: {problem}", owner.kind, owner.name);
            Err(workload.refuse_pod("metadata.ownerReferences".to_owned(), reason))
        }
        (None, GroupingRule::Default) => Ok(None),
        (None | Some(RuleOfKind::Broken(_)), code) => Ok(Some(Choice::Code(code))),
    }
}

/// The desired pod group of a pod. The rule may need further objects; then the error says which.
pub fn desired_pod_group(workload: &Workload<'_>) -> Result<DesiredPodGroup, GroupingError> {
    let mut desired = match workload.owners {
        [] => apply(GroupingRule::Pod, workload, &Owner::of_pod(workload.pod), &[])?,
        owners => of_owners(workload, owners, Level::Top)?,
    };
    let pool_label = &workload.options.node_pool_label;
    if let Some(pool) = workload.label(pool_label) {
        desired
            .labels
            .entry(pool_label.clone())
            .or_insert_with(|| pool.to_owned());
    }
    Ok(desired)
}

/// Where the last of the owners stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Top,
    /// Below an owner that is skipped. Only one level is skipped.
    BelowSkipped,
}

/// The rule of the last owner, or the declared rule of the highest owner that has one.
fn of_owners(workload: &Workload<'_>, owners: &[Owner], level: Level) -> Result<DesiredPodGroup, GroupingError> {
    let Some(top) = owners.last() else {
        return apply(GroupingRule::Pod, workload, &Owner::of_pod(workload.pod), &[]);
    };
    match choice(workload, top)? {
        Some(Choice::Declared(rule)) => return rules::desired(rule, workload, top, owners),
        Some(Choice::Code(GroupingRule::SkipTop)) if level == Level::BelowSkipped => {}
        Some(Choice::Code(code)) => return apply(code, workload, top, owners),
        None => {}
    }
    for (below, owner) in owners.iter().enumerate().rev().skip(1) {
        if let Some(RuleOfKind::Valid(_) | RuleOfKind::Broken(_)) = workload.options.rules.rule_of(owner)
            && let Some(Choice::Declared(rule)) = choice(workload, owner)?
        {
            return rules::desired(rule, workload, owner, &owners[..=below]);
        }
    }
    apply(GroupingRule::Default, workload, top, owners)
}

fn apply(
    rule: GroupingRule,
    workload: &Workload<'_>,
    top: &Owner,
    owners: &[Owner],
) -> Result<DesiredPodGroup, GroupingError> {
    let this = std::slice::from_ref(top);
    let owners = if owners.is_empty() { this } else { owners };
    let mut desired = by_code(rule, workload, top, this, owners)?;
    if desired.origins.rule.is_empty() {
        desired.origins.rule = rule.words(top);
    }
    Ok(desired)
}

fn by_code(
    rule: GroupingRule,
    workload: &Workload<'_>,
    top: &Owner,
    this: &[Owner],
    owners: &[Owner],
) -> Result<DesiredPodGroup, GroupingError> {
    match rule {
        GroupingRule::Default => Ok(default_rules::desired(
            workload,
            top,
            owners,
            keys::DEFAULT_PRIORITY_CLASS,
        )),
        GroupingRule::DefaultWithPriority(class) => Ok(default_rules::desired(workload, top, this, class)),
        GroupingRule::Pod => Ok(pod::desired(workload, top)),
        GroupingRule::Deployment => deployment::desired(workload, top),
        GroupingRule::Job => job::desired(workload, top),
        GroupingRule::CronJob => job::desired_of_cron_job(workload, top, owners),
        GroupingRule::JobSet => job_set::desired(workload, top),
        GroupingRule::LeaderWorkerSet => leader_worker_set::desired(workload, top),
        GroupingRule::Kubeflow(replicas) => kubeflow::desired(workload, top, &replicas),
        GroupingRule::Mpi => mpi::desired(workload, top),
        GroupingRule::PyTorch => pytorch::desired(workload, top),
        GroupingRule::RayCluster => ray::desired(workload, top, &[]),
        GroupingRule::RayJob => ray::desired(workload, top, ray::OF_JOB),
        GroupingRule::RayService => ray::desired(workload, top, ray::OF_SERVICE),
        GroupingRule::Knative => knative::desired(workload),
        GroupingRule::AmlJob => azure::desired(workload, top),
        GroupingRule::RunaiJob => Ok(run_ai::desired(workload, top)),
        GroupingRule::SkipTop => skip_top_owner::desired(workload, top, owners),
    }
}

/// The default rules with this owner only, with which most kinds begin.
fn default_group(workload: &Workload<'_>, top: &Owner) -> DesiredPodGroup {
    default_rules::desired(workload, top, std::slice::from_ref(top), keys::DEFAULT_PRIORITY_CLASS)
}

/// The number of pods that start together, from the owner's annotation; `None` without it.
fn min_member_of(workload: &Workload<'_>, owner: &Owner, lowest: i32) -> Result<Option<i32>, GroupingError> {
    let Some(text) = owner.annotations.get(keys::BATCH_MIN_MEMBER) else {
        return Ok(None);
    };
    let min = parse_count(text).filter(|min| *min >= lowest).ok_or_else(|| {
        let field = format!("metadata.annotations.{}", keys::BATCH_MIN_MEMBER);
        let bound = if lowest == 0 { "zero" } else { "one" };
        let reason = format!("{text:?} is not a number of pods; write a whole number of {bound} or more");
        workload.refuse_owner(owner, field, reason)
    })?;
    Ok(Some(min))
}

/// The annotation of `min_member_of`, for people.
fn min_member_origin(owner: &Owner) -> String {
    format!("annotation {} of {} {}", keys::BATCH_MIN_MEMBER, owner.kind, owner.name)
}

/// Parses a count from a label or annotation.
fn parse_count(text: &str) -> Option<i32> {
    text.parse().ok().filter(|count| *count >= 0)
}
