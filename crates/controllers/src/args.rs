//! The flags of the controllers, and the settings that they result in.

use std::collections::BTreeMap;

use clap::ArgAction::Set;
use kai_api::keys;
use kai_engine::model::GpuFraction;

use crate::grouper::{self, GroupingOptions};
use crate::scale_adjuster;
use crate::{Error, status};

/// Billionths in a GPU.
const GPU_BILLIONTHS: f64 = 1e9;

/// Flags of the controllers: KAI's flags of the pod grouper, the pod-group controller, the queue controller and the node-scale adjuster.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Run the pod grouper, which creates pod groups for pods.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub pod_grouper: bool,
    /// Run the pod-group controller, which writes the status of pod groups.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub pod_group_controller: bool,
    /// Run the queue controller, which writes the status and metrics of queues.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub queue_controller: bool,
    /// Run the node-scale adjuster, which makes cluster autoscalers add nodes for pods that share GPUs. It needs the namespace of
    /// --scale-adjust-namespace and the right to create pods there.
    #[arg(long, action = Set, default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub node_scale_adjuster: bool,
    /// Create the default queues if there is no queue, and the priority classes that are missing.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub create_defaults: bool,
    /// The controllers handle pods whose spec.schedulerName is this name.
    #[arg(long, default_value = keys::SCHEDULER_NAME)]
    pub scheduler_name: String,
    /// Label that names the node pool.
    #[arg(long, default_value = keys::NODE_POOL)]
    pub nodepool_label_key: String,
    /// Label that names the queue.
    #[arg(long, default_value = keys::QUEUE)]
    pub queue_label_key: String,
    /// Objects reconciled at a time.
    #[arg(long, default_value_t = 10)]
    pub max_concurrent_reconciles: usize,
    /// Keep existing pod groups with names of older versions.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub search_legacy_pg: bool,
    /// Treat the pods of a Knative revision as a gang.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub knative_gang_schedule: bool,
    /// Give the pods of a Deployment one pod group; otherwise each pod has its own.
    #[arg(long, action = Set, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub deployment_gang_schedule: bool,
    /// ConfigMap with priority classes and preemptibility by kind.
    #[arg(long, default_value = "")]
    pub default_priorities_configmap_name: String,
    /// Namespace of the ConfigMap of --default-priorities-configmap-name.
    #[arg(long, default_value = "")]
    pub default_priorities_configmap_namespace: String,
    /// ConfigMap with grouping rules for kinds of workloads that kai does not know.
    #[arg(long, default_value = grouper::RULES_CONFIG_MAP)]
    pub grouping_rules_configmap_name: String,
    /// Namespace of the ConfigMap of --grouping-rules-configmap-name: that of kai.
    #[arg(long, default_value = "kai-scheduler", env = "NAMESPACE")]
    pub grouping_rules_configmap_namespace: String,
    /// Group only pods with these labels: key=value,key=value.
    #[arg(long, default_value = "")]
    pub pod_label_selector: String,
    /// Group only pods in namespaces with these labels: key=value,key=value.
    #[arg(long, default_value = "")]
    pub namespace_label_selector: String,
    /// Prefix of the queue metrics' names.
    #[arg(long, default_value = "kai")]
    pub metrics_namespace: String,
    /// Labels of queues that become labels of metrics: queue-label=metric_label,...
    #[arg(long, default_value = "")]
    pub queue_label_to_metric_label: String,
    /// Values of these metric labels for queues without the queue label: queue-label=value,...
    #[arg(long, default_value = "")]
    pub queue_label_to_default_metric_value: String,
    /// Image of scaling pods: kai's.
    #[arg(long, default_value = "registry/local/kai-scheduler/kai:0.0.0")]
    pub scaling_pod_image: String,
    /// When kubelets pull the image of scaling pods: Always, IfNotPresent or Never.
    #[arg(long, default_value = "IfNotPresent")]
    pub scaling_pod_image_pull_policy: String,
    /// Namespace of scaling pods.
    #[arg(long, default_value = keys::SCALE_ADJUST_NAMESPACE)]
    pub scale_adjust_namespace: String,
    /// Service account of scaling pods, which get no token.
    #[arg(long, default_value = keys::SCALE_ADJUST_NAMESPACE)]
    pub scaling_pod_service_account: String,
    /// The part of a GPU that a pod with a request of GPU memory counts as when the node-scale adjuster counts GPUs.
    #[arg(long, default_value_t = 0.1)]
    pub gpu_memory_to_fraction_ratio: f64,
    #[command(flatten)]
    ignored_flags: IgnoredFlags,
}

/// Flags of KAI that have no effect. Manifests and KAI's operator pass them with their defaults; another value results in a warning.
#[derive(Clone, Debug, clap::Args)]
struct IgnoredFlags {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    generic_karta_fallback: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_controller_name_validation: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_podgroup_webhook: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_webhook: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    enable_quota_validation: Option<bool>,
    #[arg(long, hide = true)]
    enforce_quota_violation: Option<String>,
    #[arg(long, hide = true)]
    scaling_pod_app_label: Option<String>,
}

impl IgnoredFlags {
    fn warnings(&self) -> Vec<String> {
        let webhooks = "webhooks are served by kai admission";
        let flags = [
            (
                self.enable_podgroup_webhook,
                KaiDefault::On,
                "--enable-podgroup-webhook",
            ),
            (self.enable_webhook, KaiDefault::On, "--enable-webhook"),
            (
                self.enable_quota_validation,
                KaiDefault::Off,
                "--enable-quota-validation",
            ),
        ];
        let changed = flags.into_iter().filter_map(|(value, default, flag)| {
            let value = value.filter(|value| *value != (default == KaiDefault::On))?;
            Some(format!("a flag has no effect: {flag}={value}: {webhooks}"))
        });
        let violation = self.enforce_quota_violation.iter();
        let violation = violation
            .filter(|value| *value != "Warning")
            .map(|value| format!("a flag has no effect: --enforce-quota-violation={value}: {webhooks}"));
        let label = self
            .scaling_pod_app_label
            .iter()
            .filter(|label| *label != keys::SCALING_POD);
        let label = label.map(|label| {
            format!("a flag has no effect: --scaling-pod-app-label={label}: scheduler and admission know scaling pods by app=scaling-pod")
        });
        changed.chain(violation).chain(label).collect()
    }
}

/// The default of a flag in KAI.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KaiDefault {
    On,
    Off,
}

/// The settings of the controllers.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The pod grouper; `None` if it is switched off.
    pub grouper: Option<grouper::Settings>,
    /// The pod-group controller; `None` if it is switched off.
    pub pod_groups: Option<status::pod_groups::Settings>,
    /// The queue controller; `None` if it is switched off.
    pub queues: Option<status::queues::Settings>,
    /// The node-scale adjuster; `None` if it is switched off.
    pub scale_adjuster: Option<scale_adjuster::Settings>,
    /// Whether the controllers create the priority classes that are missing.
    pub create_defaults: bool,
    /// Whether the controllers create the default queues if there is no queue; only with `create_defaults`.
    pub create_default_queues: bool,
    /// Warnings about the flags; `run` logs them.
    pub warnings: Vec<String>,
}

impl Settings {
    /// All controllers with their defaults. The node-scale adjuster is off, because few clusters have an autoscaler.
    pub fn all() -> Settings {
        Settings {
            grouper: Some(grouper::Settings::default()),
            pod_groups: Some(status::pod_groups::Settings::default()),
            queues: Some(status::queues::Settings::default()),
            scale_adjuster: None,
            create_defaults: true,
            create_default_queues: true,
            warnings: Vec::new(),
        }
    }
}

impl Args {
    /// The settings that the flags result in, or the first invalid flag.
    pub fn settings(&self) -> Result<Settings, Error> {
        Ok(Settings {
            grouper: self.pod_grouper.then(|| self.grouper()).transpose()?,
            pod_groups: self.pod_group_controller.then(|| status::pod_groups::Settings {
                scheduler_name: self.scheduler_name.clone(),
                workers_max: self.max_concurrent_reconciles.max(1),
            }),
            queues: self.queue_controller.then(|| self.queues()).transpose()?,
            scale_adjuster: self.node_scale_adjuster.then(|| self.scale_adjuster()).transpose()?,
            create_defaults: self.create_defaults,
            create_default_queues: true,
            warnings: self.ignored_flags.warnings(),
        })
    }

    fn grouper(&self) -> Result<grouper::Settings, Error> {
        let (name, namespace) = (
            &self.default_priorities_configmap_name,
            &self.default_priorities_configmap_namespace,
        );
        Ok(grouper::Settings {
            scheduler_name: self.scheduler_name.clone(),
            options: GroupingOptions {
                queue_label: self.queue_label_key.clone(),
                node_pool_label: self.nodepool_label_key.clone(),
                search_legacy: self.search_legacy_pg,
                knative_gang: self.knative_gang_schedule,
                deployment_gang: self.deployment_gang_schedule,
                ..GroupingOptions::default()
            },
            workers_max: self.max_concurrent_reconciles.max(1),
            pod_labels: pairs("pod-label-selector", &self.pod_label_selector)?,
            namespace_labels: pairs("namespace-label-selector", &self.namespace_label_selector)?,
            rules: (!self.grouping_rules_configmap_name.is_empty()).then(|| {
                let namespace = self.grouping_rules_configmap_namespace.clone();
                (namespace, self.grouping_rules_configmap_name.clone())
            }),
            kind_defaults: (!name.is_empty() && !namespace.is_empty()).then(|| (namespace.clone(), name.clone())),
        })
    }

    fn scale_adjuster(&self) -> Result<scale_adjuster::Settings, Error> {
        let ratio = self.gpu_memory_to_fraction_ratio;
        let billionths = (ratio * GPU_BILLIONTHS).round();
        if !(1.0..=GPU_BILLIONTHS).contains(&billionths) {
            return Err(Error::Flag {
                flag: "gpu-memory-to-fraction-ratio",
                reason: format!("{ratio} is no part of a GPU; write a number above 0 and up to 1, as in 0.1"),
            });
        }
        Ok(scale_adjuster::Settings {
            scheduler_name: self.scheduler_name.clone(),
            image: self.scaling_pod_image.clone(),
            pull_policy: self.scaling_pod_image_pull_policy.clone(),
            namespace: self.scale_adjust_namespace.clone(),
            service_account: self.scaling_pod_service_account.clone(),
            // Checked above: a whole number from 1 to a billion.
            memory_request: GpuFraction::from_billionths(billionths as i64),
        })
    }

    fn queues(&self) -> Result<status::queues::Settings, Error> {
        let labels = pairs("queue-label-to-metric-label", &self.queue_label_to_metric_label)?;
        let defaults = pairs(
            "queue-label-to-default-metric-value",
            &self.queue_label_to_default_metric_value,
        )?;
        Ok(status::queues::Settings {
            metrics_namespace: self.metrics_namespace.clone(),
            metric_labels: labels,
            metric_label_defaults: defaults.into_iter().collect::<BTreeMap<_, _>>(),
        })
    }
}

fn pairs(flag: &'static str, text: &str) -> Result<Vec<(String, String)>, Error> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let pair = |entry: &str| match entry.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Error::Flag {
            flag,
            reason: format!("{entry:?} is not key=value; write key=value,key=value"),
        }),
    };
    entries.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, Error> {
        let command = ["controllers"].into_iter().chain(flags.iter().copied());
        Command::try_parse_from(command).unwrap().args.settings()
    }

    #[test]
    fn all_parts_run_unless_switched_off() {
        let all = settings(&[]).unwrap();
        assert!(all.grouper.is_some() && all.pod_groups.is_some() && all.queues.is_some() && all.create_defaults);
        let some = settings(&["--pod-grouper=false", "--queue-controller", "--create-defaults=false"]).unwrap();
        assert!(some.grouper.is_none() && some.queues.is_some() && !some.create_defaults);
    }

    #[test]
    fn the_node_scale_adjuster_runs_on_request() {
        assert_eq!(settings(&[]).unwrap().scale_adjuster, None);
        let adjuster = settings(&["--node-scale-adjuster"]).unwrap().scale_adjuster;
        assert_eq!(adjuster, Some(scale_adjuster::Settings::default()));
        let flags = [
            "--node-scale-adjuster",
            "--gpu-memory-to-fraction-ratio=0.25",
            "--scaling-pod-app-label=other",
        ];
        let set = settings(&flags).unwrap();
        assert_eq!(set.scale_adjuster.unwrap().memory_request.billionths(), 250_000_000);
        assert!(
            set.warnings[0].contains("--scaling-pod-app-label=other"),
            "{:?}",
            set.warnings
        );
        for ratio in ["0", "-1", "1.5", "NaN"] {
            let flag = format!("--gpu-memory-to-fraction-ratio={ratio}");
            let refused = settings(&["--node-scale-adjuster", &flag]).unwrap_err();
            assert!(refused.to_string().contains("is no part of a GPU"), "{refused}");
        }
    }

    #[test]
    fn a_flag_without_effect_is_remarked_on() {
        let changed = settings(&["--enable-webhook=false", "--enable-quota-validation=false"]).unwrap();
        let warning = "a flag has no effect: --enable-webhook=false: webhooks are served by kai admission";
        assert_eq!(changed.warnings, [warning]);
    }

    #[test]
    fn what_the_operator_passes_by_default_is_not_remarked_on() {
        let defaults = settings(&[
            "--generic-karta-fallback=true",
            "--enable-podgroup-webhook=true",
            "--enable-webhook",
            "--enable-quota-validation=false",
            "--enforce-quota-violation=Warning",
            "--skip-controller-name-validation=false",
        ]);
        assert_eq!(defaults.unwrap().warnings, [""; 0]);
    }

    #[test]
    fn selectors_are_pairs() {
        let grouper = settings(&["--namespace-label-selector", "a=b, c="])
            .unwrap()
            .grouper
            .unwrap();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(grouper.namespace_labels, [pair("a", "b"), pair("c", "")]);
        let refused = settings(&["--pod-label-selector", "a"]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "--pod-label-selector: \"a\" is not key=value; write key=value,key=value"
        );
    }
}
