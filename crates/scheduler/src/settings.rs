//! The settings of the scheduler, from flags and configuration file.

use std::time::Duration;

use kai_api::{GpuSharingMode, ReservationPods};
use kai_engine::model::{Config, Millis};

use crate::config::{self, ConfigFile};
use crate::{Args, Error};
use kai_mirror::{BackgroundSelector, MirrorSettings, ObjectList, Partition, WorkerLabels};

/// Which pods are bound through a BindRequest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BindRequests {
    /// Pods that need preparation by the binder. Others are bound directly, with one write instead of several.
    #[default]
    WhenNeeded,
    /// All pods, as in KAI.
    Always,
}

/// The settings of the scheduler. Fixed for the lifetime of the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine's policy.
    pub config: Config,
    /// Warnings about the configuration file and flags, for the log.
    pub warnings: Vec<String>,
    /// The configuration file as JSON, for snapshots.
    pub config_file: serde_json::Value,
    /// The `schedulerName` of pods to schedule.
    pub scheduler_name: String,
    /// Which pods are reservation pods.
    pub reservation_pods: ReservationPods,
    /// The part of the cluster to schedule.
    pub partition: Partition,
    /// Label key of the queue, for snapshots.
    pub queue_label_key: String,
    /// Prefix of the names of metrics.
    pub metrics_namespace: String,
    /// If set, GPU pods need a node with the GPU worker label, and other pods one with the CPU worker label.
    pub restrict_nodes: Option<WorkerLabels>,
    /// The node label that says whether MIG is enabled.
    pub mig_label: String,
    /// Which pods are background pods.
    pub background: BackgroundSelector,
    /// Where usage over time comes from; `None` = fair shares follow present usage only.
    pub usage: Option<kai_usage::UsageSettings>,
    /// The mode of GPU sharing.
    pub gpu_sharing: GpuSharingMode,
    /// Whether fair shares follow the hierarchy of queues. Otherwise all leaf queues are siblings.
    pub full_hierarchy_fairness: bool,
    /// Whether new volumes are bounded by the free storage that their drivers report.
    pub counts_storage: bool,
    /// Which pods get a BindRequest.
    pub bind_requests: BindRequests,
    /// Longest time between the starts of two cycles.
    pub schedule_period: Duration,
    /// Time between a change and the cycle that it triggers.
    pub gather_period: Duration,
    /// Time between two audits of the watches; `None` = no audits.
    pub audit_period: Option<Duration>,
    /// Whether evicted pods get the condition `DisruptionTarget` first.
    pub update_pod_eviction_condition: bool,
    /// Number of workers that write conditions and events.
    pub status_workers: usize,
    /// Conditions and events per second, and the burst.
    pub status_rate: (u32, u32),
}

impl TryFrom<Args> for Settings {
    type Error = Error;

    fn try_from(args: Args) -> Result<Settings, Error> {
        let file = config::load(&args.scheduler_conf)?;
        Settings::new(args, file)
    }
}

impl Settings {
    /// The settings of a shard: `config` is the content of its configuration file, in place of `--scheduler-conf`.
    pub fn of_shard(args: Args, config: &str) -> Result<Settings, Error> {
        Settings::new(args, config::parse(config)?)
    }

    fn new(args: Args, file: ConfigFile) -> Result<Settings, Error> {
        let warnings = file.warnings.into_iter().chain(args.warnings()).collect();
        let mut config = file.config;
        config.consolidation_preemptees_max = u32::try_from(args.max_consolidation_preemptees).ok();
        config.use_signatures = args.use_scheduling_signatures;
        config.allow_consolidating_reclaim = args.allow_consolidating_reclaim;
        let grace = parse_millis("default-staleness-grace-period", &args.default_staleness_grace_period)?;
        config.staleness_grace = (grace.0 >= 0).then_some(grace);
        config.stuck_in_releasing = parse_millis("stuck-in-releasing-threshold", &args.stuck_in_releasing_threshold)?;
        let audit_period = parse_period("audit-period", &args.audit_period)?;
        let schedule_period = parse_period("schedule-period", &args.schedule_period)?;
        Ok(Settings {
            config,
            warnings,
            config_file: file.json,
            scheduler_name: args.scheduler_name,
            reservation_pods: ReservationPods {
                namespace: args.resource_reservation_namespace,
                app_label: args.resource_reservation_app_label,
            },
            partition: Partition::new(&args.nodepool_label_key, &args.partition_label_value),
            queue_label_key: args.queue_label_key,
            metrics_namespace: args.metrics_namespace,
            restrict_nodes: args.restrict_node_scheduling.then_some(WorkerLabels {
                gpu: args.gpu_worker_node_label_key,
                cpu: args.cpu_worker_node_label_key,
            }),
            mig_label: args.mig_worker_node_label_key,
            gpu_sharing: args.gpu_sharing_mode,
            background: file.background,
            usage: file.usage,
            full_hierarchy_fairness: args.full_hierarchy_fairness,
            counts_storage: args.schedule_csi_storage,
            bind_requests: args.bind_requests,
            // With a period of zero, cycles would starve the other tasks.
            schedule_period: schedule_period.max(Duration::from_millis(1)),
            gather_period: parse_period("gather-period", &args.gather_period)?,
            audit_period: (!audit_period.is_zero()).then_some(audit_period),
            update_pod_eviction_condition: args.update_pod_eviction_condition,
            status_workers: args.num_of_status_recording_workers.max(1),
            status_rate: (args.qps.max(1), args.burst.max(1)),
        })
    }

    /// The settings of the mirror.
    pub fn mirror(&self) -> MirrorSettings {
        MirrorSettings {
            scheduler_name: self.scheduler_name.clone(),
            reservation_pods: self.reservation_pods.clone(),
            partition: self.partition.clone(),
            restrict_nodes: self.restrict_nodes.clone(),
            mig_label: self.mig_label.clone(),
            full_hierarchy_fairness: self.full_hierarchy_fairness,
            reservation_pod_list: ObjectList::Complete,
            volume_list: ObjectList::Complete,
            counts_storage: self.counts_storage,
            config_map_list: ObjectList::Complete,
            gpu_sharing: self.gpu_sharing,
            background: self.background.clone(),
        }
    }

    /// The leader election lease of this scheduler and partition.
    pub fn lease_name(&self) -> String {
        match self.partition.label_key_and_value().1 {
            "" => self.scheduler_name.clone(),
            value => format!("{}-{value}", self.scheduler_name),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = <Line as clap::Parser>::parse_from(["scheduler"]);
        Settings::try_from(line.args).expect("the defaults of our own flags are valid")
    }
}

fn parse_millis(flag: &'static str, text: &str) -> Result<Millis, Error> {
    kai_api::parse_duration(text).map_err(|error| Error::Flag {
        flag,
        message: error.to_string(),
    })
}

fn parse_period(flag: &'static str, text: &str) -> Result<Duration, Error> {
    let millis = parse_millis(flag, text)?;
    let message = || "it is negative; write zero or more".to_owned();
    u64::try_from(millis.0)
        .map(Duration::from_millis)
        .map_err(|_| Error::Flag {
            flag,
            message: message(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: &[&str]) -> Result<Settings, String> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let line = <Line as clap::Parser>::try_parse_from(std::iter::once("scheduler").chain(flags.iter().copied()));
        let line = line.map_err(|error| error.to_string())?;
        Settings::try_from(line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_manifest_of_kai_is_understood() {
        let settings = parsed(&[
            "--schedule-period=500ms",
            "--full-hierarchy-fairness=false",
            "--restrict-node-scheduling",
            "--partition-label-value=a100",
            "--default-staleness-grace-period=-1s",
            "--max-consolidation-preemptees=-1",
            "--detailed-fit-errors=true",
            "--schedule-csi-storage=false",
            "--mig-worker-node-label-key=mig",
            "--resource-reservation-app-label=holder",
            "--gpu-sharing-mode=NvFractions",
        ])
        .unwrap();
        assert_eq!(settings.mig_label, "mig");
        assert_eq!(settings.mirror().gpu_sharing, GpuSharingMode::NvFractions);
        let expect = ReservationPods {
            app_label: "holder".to_owned(),
            ..ReservationPods::default()
        };
        assert_eq!(settings.mirror().reservation_pods, expect);
        assert_eq!(settings.warnings.len(), 1, "{:?}", settings.warnings);
        assert!(settings.warnings[0].contains("--detailed-fit-errors"));
        assert_eq!(settings.schedule_period, Duration::from_millis(500));
        assert!(!settings.full_hierarchy_fairness);
        assert_eq!(
            settings.restrict_nodes.unwrap().gpu,
            "node-role.kubernetes.io/gpu-worker"
        );
        assert_eq!(settings.partition.name(), "a100");
        assert_eq!(settings.config.staleness_grace, None);
        assert_eq!(settings.config.consolidation_preemptees_max, None);
    }

    #[test]
    fn the_defaults_are_those_of_kai() {
        let settings = Settings::default();
        assert_eq!(settings.config, Config::default());
        assert_eq!(settings.partition.name(), "default");
        assert_eq!(settings.audit_period, Some(Duration::from_secs(300)));
    }

    #[test]
    fn a_bad_value_names_its_flag() {
        let error = parsed(&["--schedule-period=soon"]).unwrap_err();
        assert!(
            error.starts_with("flag --schedule-period: \"soon\" is not a duration"),
            "{error}"
        );
    }
}
