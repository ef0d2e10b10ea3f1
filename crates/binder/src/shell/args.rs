//! The flags, with the names and defaults of KAI's, and their translation to [`Settings`]. Flags of KAI without a meaning here are
//! accepted and ignored, so that manifests written for KAI work.

use std::collections::BTreeMap;
use std::time::Duration;

use kai_api::{Backoff, GpuSharingMode, PodIdentity, ReservationPods, keys};
use serde::Deserialize;
use serde_json::Value;

use crate::{Choice, Error, ReservationMode, Settings, TegraMode};

/// Options of the binder.
#[derive(Clone, Debug, clap::Args)]
#[allow(missing_docs)]
pub struct Args {
    /// Scheduler whose pods the binder binds.
    #[arg(long, default_value = keys::SCHEDULER_NAME)]
    pub scheduler_name: String,
    /// Namespace of reservation pods.
    #[arg(long, default_value = keys::RESERVATION)]
    pub resource_reservation_namespace: String,
    /// Service account of reservation pods.
    #[arg(long, default_value = keys::RESERVATION)]
    pub resource_reservation_service_account: String,
    /// Value of the label `app` of reservation pods.
    #[arg(long, default_value = keys::RESERVATION)]
    pub resource_reservation_app_label: String,
    /// Image of reservation pods.
    #[arg(long, default_value = "registry/local/kai-scheduler/resource-reservation")]
    pub resource_reservation_pod_image: String,
    /// When kubelets pull the image of reservation pods: `Always`, `IfNotPresent` or `Never`.
    #[arg(long, default_value = "IfNotPresent")]
    pub resource_reservation_pod_image_pull_policy: String,
    /// Arguments of reservation pods on nodes without the node agent, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "resource-reservation")]
    pub resource_reservation_args: Vec<String>,
    /// Arguments of reservation pods on nodes with the node agent, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "resource-reservation,--sleep")]
    pub resource_reservation_sleeper_args: Vec<String>,
    /// Which process annotates a reservation pod with its GPU: the node agent, or the pod itself by NVML.
    #[arg(long, value_enum, default_value_t)]
    pub resource_reservation_mode: ReservationMode,
    /// Seconds that a reservation pod may take to get its GPU.
    #[arg(long, default_value_t = 40, value_name = "SECONDS")]
    pub resource_reservation_allocation_timeout: u64,
    /// Seconds that the volume claims of a pod may take to get their volumes. Without this flag KAI's argument bindTimeoutSeconds of the
    /// plugin volumebinding in --plugins, else 120.
    #[arg(long, value_name = "SECONDS")]
    pub volume_binding_timeout: Option<u64>,
    /// CPU and memory of reservation pods, as JSON with `requests` and `limits`. Missing amounts have defaults; a request equals its
    /// limit.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "JSON")]
    pub resource_reservation_pod_resources: String,
    /// Priority class of reservation pods; empty for none. If the class does not exist, the binder logs a warning and the pods have none.
    #[arg(long, default_value = keys::RESERVATION_PRIORITY_CLASS)]
    pub resource_reservation_pod_priority_class: String,
    /// Security context of reservation pods, as JSON.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "JSON")]
    pub resource_reservation_pod_security_context: String,
    /// Security context of the container in reservation pods, as JSON.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "JSON")]
    pub resource_reservation_container_security_context: String,
    /// Runtime class of reservation pods on nodes without the node agent.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub runtime_class_name: String,
    /// Which reservation pods get library path, device directory and privileges for a Jetson.
    #[arg(long, value_enum, default_value_t)]
    pub tegra: TegraMode,
    /// Directories of the driver's libraries on Jetsons, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "/usr/lib/aarch64-linux-gnu/nvidia")]
    pub tegra_library_path: Vec<String>,
    /// Directory of the device nodes on Jetsons.
    #[arg(long, default_value = "/dev")]
    pub tegra_device_path: String,
    /// Namespace of the pods that make a cluster autoscaler add nodes.
    #[arg(long, default_value = keys::SCALE_ADJUST_NAMESPACE)]
    pub scale_adjust_namespace: String,
    /// Whether containers get GPUs as CDI devices. By default it depends on the GPU operator's ClusterPolicy and on the node.
    #[arg(long, value_enum)]
    pub cdi_enabled: Option<Choice>,
    /// How pods share GPUs: NonMemoryEnforced, HamiCore, NvFractions, or Disabled. Without this flag HamiCore if --plugins has hamicore, else
    /// NonMemoryEnforced.
    #[arg(long, value_name = "MODE")]
    pub gpu_sharing_mode: Option<GpuSharingMode>,
    /// Plugins as JSON: names with `enabled`, `priority` and `arguments`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "JSON")]
    pub plugins: String,
    /// Whether the nodes have fake GPUs, so that reservation pods only sleep.
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub fake_gpu_nodes: bool,
    /// Number of bind requests in work at a time.
    #[arg(long, default_value_t = 10)]
    pub max_concurrent_reconciles: usize,
    /// Seconds to wait after the first failure of a bind request.
    #[arg(long, default_value_t = 1, value_name = "SECONDS")]
    pub rate_limiter_base_delay: u64,
    /// Seconds to wait at most after failures of a bind request.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub rate_limiter_max_delay: u64,
}

/// KAI's preset of the time that volumes may take.
const VOLUME_BINDING_SECONDS: u64 = 120;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Plugin {
    enabled: Option<bool>,
    arguments: BTreeMap<String, Value>,
}

impl Args {
    /// Checks the flags and translates them.
    pub fn settings(self) -> Result<Settings, Error> {
        let plugins: BTreeMap<String, Plugin> = json("plugins", &self.plugins)?.unwrap_or_default();
        let resources = json(
            "resource-reservation-pod-resources",
            &self.resource_reservation_pod_resources,
        )?;
        let mode = match (self.fake_gpu_nodes, self.resource_reservation_mode) {
            (true, ReservationMode::Auto) => ReservationMode::Agent,
            (_, mode) => mode,
        };
        let volume_seconds = self.volume_binding_timeout.or_else(|| volume_argument(&plugins));
        Ok(Settings {
            volume_binding_timeout: Duration::from_secs(volume_seconds.unwrap_or(VOLUME_BINDING_SECONDS)),
            cdi: self.cdi_enabled.or_else(|| cdi_argument(&plugins)).unwrap_or_default(),
            gpu_sharing: gpu_sharing(self.gpu_sharing_mode, &plugins),
            pod_security_context: json(
                "resource-reservation-pod-security-context",
                &self.resource_reservation_pod_security_context,
            )?,
            container_security_context: json(
                "resource-reservation-container-security-context",
                &self.resource_reservation_container_security_context,
            )?,
            reservation_resources: resources.unwrap_or_default(),
            reservation_mode: mode,
            reservation_priority_class: self.resource_reservation_pod_priority_class,
            identity: PodIdentity {
                scheduler_name: self.scheduler_name,
                reservation_pods: ReservationPods {
                    namespace: self.resource_reservation_namespace,
                    app_label: self.resource_reservation_app_label,
                },
            },
            reservation_service_account: self.resource_reservation_service_account,
            reservation_image: self.resource_reservation_pod_image,
            reservation_pull_policy: self.resource_reservation_pod_image_pull_policy,
            reservation_arguments: self.resource_reservation_args,
            sleeper_arguments: self.resource_reservation_sleeper_args,
            allocation_timeout: Duration::from_secs(self.resource_reservation_allocation_timeout),
            runtime_class: self.runtime_class_name,
            tegra: self.tegra,
            tegra_library_paths: self.tegra_library_path,
            tegra_device_path: self.tegra_device_path,
            scale_adjust_namespace: self.scale_adjust_namespace,
            workers_max: self.max_concurrent_reconciles.max(1),
            backoff: Backoff {
                first: Duration::from_secs(self.rate_limiter_base_delay),
                longest: Duration::from_secs(self.rate_limiter_max_delay),
            },
        })
    }
}

/// Before the mode, KAI's plugin alone turned HAMi's limits on; with the default mode it still does.
fn gpu_sharing(mode: Option<GpuSharingMode>, plugins: &BTreeMap<String, Plugin>) -> GpuSharingMode {
    let plugin = plugins.get("hamicore");
    match (
        mode.unwrap_or_default(),
        plugin.is_some_and(|plugin| plugin.enabled.unwrap_or(true)),
    ) {
        (GpuSharingMode::NonMemoryEnforced, true) => GpuSharingMode::HamiCore,
        (mode, _) => mode,
    }
}

/// `--volume-binding-timeout` as KAI has it: an argument of the plugin `volumebinding`.
fn volume_argument(plugins: &BTreeMap<String, Plugin>) -> Option<u64> {
    let value = plugins.get("volumebinding")?.arguments.get("bindTimeoutSeconds")?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.parse().ok()
}

/// `--cdi-enabled` as KAI has it: an argument of the plugin `gpusharing`.
fn cdi_argument(plugins: &BTreeMap<String, Plugin>) -> Option<Choice> {
    let value = plugins.get("gpusharing")?.arguments.get("cdiEnabled")?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match &*text {
        "true" => Some(Choice::True),
        "false" => Some(Choice::False),
        _ => None,
    }
}

fn json<T: serde::de::DeserializeOwned>(flag: &'static str, text: &str) -> Result<Option<T>, Error> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text).map_err(|error| Error::Flag {
        flag,
        message: format!("it is no JSON of the expected form: {error}"),
    })
}

#[cfg(test)]
pub(crate) use tests::tests_settings;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, Error> {
        Program::parse_from([&["binder"], flags].concat()).args.settings()
    }

    pub(crate) fn tests_settings(flags: &[&str]) -> Settings {
        settings(flags).unwrap()
    }

    #[test]
    fn presets_are_those_of_kai() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.identity, PodIdentity::default());
        assert_eq!(settings.allocation_timeout, Duration::from_secs(40));
        assert_eq!(settings.volume_binding_timeout, Duration::from_secs(120));
        assert_eq!(settings.workers_max, 10);
        assert_eq!((settings.cdi, settings.tegra), (Choice::Auto, TegraMode::Auto));
        assert_eq!(settings.sleeper_arguments, ["resource-reservation", "--sleep"]);
        assert_eq!(settings.gpu_sharing, GpuSharingMode::NonMemoryEnforced);
    }

    #[test]
    fn flags_of_a_kai_manifest_are_taken() {
        let found = settings(&[
            "--fake-gpu-nodes",
            r#"--resource-reservation-pod-resources={"requests":{"cpu":"1m"}}"#,
            r#"--resource-reservation-container-security-context={"runAsUser":10000}"#,
            r#"--plugins={"gpusharing":{"enabled":true,"priority":100,"arguments":{"cdiEnabled":"true"}},"hamicore":{"enabled":true}}"#,
        ])
        .unwrap();
        assert_eq!(found.reservation_mode, ReservationMode::Agent);
        assert_eq!(found.reservation_resources["requests"]["cpu"], "1m");
        assert_eq!(found.container_security_context.unwrap()["runAsUser"], 10000);
        assert_eq!(found.cdi, Choice::True);
        assert_eq!(found.gpu_sharing, GpuSharingMode::HamiCore);
        let mode = |flags: &[&str]| settings(flags).unwrap().gpu_sharing;
        let hami = r#"--plugins={"hamicore":{}}"#;
        assert_eq!(mode(&["--gpu-sharing-mode=NvFractions"]), GpuSharingMode::NvFractions);
        assert_eq!(
            mode(&["--gpu-sharing-mode=NonMemoryEnforced", hami]),
            GpuSharingMode::HamiCore
        );
        assert_eq!(
            mode(&["--gpu-sharing-mode=NvFractions", hami]),
            GpuSharingMode::NvFractions
        );
        assert_eq!(
            mode(&[r#"--plugins={"hamicore":{"enabled":false}}"#]),
            GpuSharingMode::NonMemoryEnforced
        );
        let volumes = r#"--plugins={"volumebinding":{"priority":300,"arguments":{"bindTimeoutSeconds":"30"}}}"#;
        let limit = |flags: &[&str]| settings(flags).unwrap().volume_binding_timeout.as_secs();
        assert_eq!(
            (limit(&[volumes]), limit(&[volumes, "--volume-binding-timeout=20"])),
            (30, 20)
        );
        let over = settings(&[
            "--cdi-enabled=false",
            r#"--plugins={"gpusharing":{"arguments":{"cdiEnabled":true}}}"#,
        ]);
        assert_eq!(over.unwrap().cdi, Choice::False);
    }

    #[test]
    fn bad_json_names_its_flag() {
        let error = settings(&["--plugins={"]).unwrap_err().to_string();
        assert!(error.starts_with("reading the flag --plugins: "), "{error}");
    }
}
