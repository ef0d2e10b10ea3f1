//! The flags of the admission role, and the settings that they result in. Parsing only.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction::Set;
use kai_api::{GpuSharingMode, ReservationPods, keys};

use super::trusted_users::{InvalidUserMatcher, UserMatcher};

/// What admission does about quotas of queues that exceed their parent's, alone or together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum QuotaViolation {
    /// Nothing.
    #[value(name = "None")]
    None,
    /// A warning to the author of the change.
    #[default]
    #[value(name = "Warning")]
    Warning,
    /// The change is refused.
    #[value(name = "Block")]
    Block,
}

/// The flags of the admission role: KAI's flags with KAI's defaults first, then our own.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Admission reviews pods whose `spec.schedulerName` is this name.
    #[arg(long, default_value = keys::SCHEDULER_NAME)]
    pub scheduler_name: String,
    /// Port that the webhooks are served on.
    #[arg(long = "webhook-addr", default_value_t = 9443)]
    pub webhook_port: u16,
    /// How pods share GPUs: NonMemoryEnforced, HamiCore, NvFractions, or Disabled. Without this flag and --gpu-sharing-enabled:
    /// NonMemoryEnforced.
    #[arg(long, value_name = "MODE")]
    pub gpu_sharing_mode: Option<GpuSharingMode>,
    /// The flag before --gpu-sharing-mode: true is NonMemoryEnforced, false is Disabled.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub gpu_sharing_enabled: Option<bool>,
    /// Add the memory limit that HAMi's library reads to pods that share GPUs.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub hami_core_enabled: bool,
    /// Hide all GPUs from containers that request none.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub block_nvidia_visible_devices: bool,
    /// Add a share device (resource kai.scheduler/gpu-share) to pods that share GPUs. The node agent hands out the GPU through the
    /// share device, without NVIDIA's runtime. Nodes that offer no share devices ignore the request.
    #[arg(long, visible_alias = "gpu-share-slots", action = Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub gpu_share_devices: bool,
    /// Runtime class of pods that share GPUs. Empty: admission sets none. Without this flag: nvidia, if the cluster has that class.
    #[arg(long)]
    pub gpu_fraction_runtime_class_name: Option<String>,
    /// The old name of --gpu-fraction-runtime-class-name.
    #[arg(long, hide = true)]
    pub gpu_pod_runtime_class_name: Option<String>,
    /// Require the parents of queues to exist.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub enable_quota_validation: bool,
    /// Quotas of queues that exceed their parent's, alone or together: None ignores them, Warning warns, Block refuses the change.
    #[arg(long, value_enum, ignore_case = true, default_value_t = QuotaViolation::Warning)]
    pub enforce_quota_violation: QuotaViolation,
    /// Check in-place resizes of pods against the limits and quotas of their queues.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub validate_pod_resize_quota: bool,
    /// Refuse every resize to more CPU or memory in queues that have a limit, or for non-preemptible pods a quota. Two resizes at the same
    /// moment could exceed it together otherwise.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub block_upsize_on_bounded_queues: bool,
    /// Validate queues.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub enable_queue_webhook: bool,
    /// Validate pod groups.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub enable_podgroup_webhook: bool,
    /// Refuse to delete a queue that other queues name as their parent.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub protect_parent_queues: bool,
    /// Label of pods and namespaces that names the queue.
    #[arg(long, default_value = keys::QUEUE)]
    pub queue_label_key: String,
    /// Review only pods in namespaces that have the queue label.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub queue_label_selector: bool,
    /// Review only pods in namespaces with these labels: k=v,k=v.
    #[arg(long, default_value = "")]
    pub namespace_label_selector: String,
    /// Review only pods with these labels: k=v,k=v.
    #[arg(long, default_value = "")]
    pub pod_label_selector: String,
    /// Namespace of KAI's own components; admission trusts its service accounts.
    #[arg(long, default_value = keys::SYSTEM_NAMESPACE)]
    pub namespace: String,
    /// Namespace of reservation pods; admission trusts its service accounts.
    #[arg(long, default_value = keys::RESERVATION)]
    pub resource_reservation_namespace: String,
    /// Value of the label app on reservation pods; tenants may not use it.
    #[arg(long, default_value = keys::RESERVATION)]
    pub resource_reservation_app_label: String,
    /// Service through which the API server reaches the webhooks.
    #[arg(long, default_value = "admission")]
    pub webhook_service: String,
    /// Port of the service of --webhook-service.
    #[arg(long, default_value_t = 443)]
    pub webhook_service_port: u16,
    /// Base URL under which the API server reaches the webhooks, instead of a service. For API servers outside the cluster's network.
    #[arg(long)]
    pub webhook_url: Option<String>,
    /// Further users who may write the scheduler's labels and annotations: a user name, a prefix followed by *, or group:NAME.
    #[arg(long, value_delimiter = ',')]
    pub trusted_users: Vec<String>,
    /// Directory with tls.crt and tls.key, and with ca.crt if another certificate authority signed. Without it, admission generates its
    /// certificates.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Lifetime of a generated serving certificate, in hours.
    #[arg(long, default_value_t = 24)]
    pub cert_hours: u32,
    /// Lifetime of a generated certificate authority, in hours.
    #[arg(long, default_value_t = 168)]
    pub ca_hours: u32,
    /// Name of this replica, which marks its certificate authority in the CA bundle.
    #[arg(long, env = "HOSTNAME", default_value = "admission")]
    pub identity: String,
    /// Register webhooks and policies with the API server. With false, the installation registers them (deploy/admission-webhooks.yaml
    /// and admission-policies.yaml), the service account needs no right to write them, and --cert-dir has the certificate.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub register: bool,

    // KAI's manifests may pass these flags. They have no effect: there is no client-side rate limit, every replica serves, and the
    // process serves probes and metrics.
    /// Ignored.
    #[arg(long, hide = true)]
    pub rate_limiter_base_delay: Option<u64>,
    /// Ignored.
    #[arg(long, hide = true)]
    pub rate_limiter_max_delay: Option<u64>,
    /// Ignored.
    #[arg(long, hide = true, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub fake_gpu_nodes: bool,
}

/// The settings of the admission role.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Admission reviews pods whose `spec.schedulerName` is this name.
    pub scheduler_name: String,
    /// Port of the webhook server.
    pub webhook_port: u16,
    /// How pods share GPUs.
    pub gpu_sharing: GpuSharingMode,
    /// Whether pods that share GPUs get HAMi's memory limit.
    pub hami_core: Feature,
    /// Whether containers that request no GPU get `NVIDIA_VISIBLE_DEVICES=void`.
    pub block_visible_devices: Feature,
    /// Whether admission adds a share device to pods that share GPUs.
    pub share_devices: Feature,
    /// Runtime class of pods that share GPUs.
    pub runtime_class: RuntimeClassChoice,
    /// Whether admission requires the parent queue to exist.
    pub quota_validation: Feature,
    /// What admission does about quotas that do not add up.
    pub quota_violation: QuotaViolation,
    /// Whether admission checks in-place resizes.
    pub resize_validation: Feature,
    /// Whether pods in queues with a limit or quota may be resized to more CPU or memory.
    pub upsize_on_bounded_queues: Feature,
    /// Whether admission refuses to delete a queue with children.
    pub parent_queue_protection: Feature,
    /// Whether the API server asks admission about queues.
    pub queue_webhook: Feature,
    /// Whether the API server asks admission about pod groups.
    pub pod_group_webhook: Feature,
    /// Label that names the queue.
    pub queue_label: String,
    /// Namespaces whose pods the webhooks review.
    pub namespaces: NamespaceChoice,
    /// The webhooks review only pods with all of these labels.
    pub pod_labels: Vec<(String, String)>,
    /// Namespace of KAI's own components.
    pub system_namespace: String,
    /// Which pods are reservation pods.
    pub reservation_pods: ReservationPods,
    /// How the API server reaches the webhooks.
    pub endpoint: Endpoint,
    /// Users who may write the scheduler's labels and annotations.
    pub trusted_users: Vec<UserMatcher>,
    /// Where the serving certificate comes from.
    pub certificates: CertificateSource,
    /// Name of this replica.
    pub identity: String,
    /// Whether this role registers webhooks and policies, or the installation does.
    pub register: bool,
}

/// Whether a feature is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// On.
    On,
    /// Off.
    Off,
}

impl From<bool> for Feature {
    fn from(on: bool) -> Feature {
        if on { Feature::On } else { Feature::Off }
    }
}

/// Namespaces whose pods the webhooks review. kube-system and the system namespace are always excluded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceChoice {
    /// Only namespaces with all of these labels.
    pub labels: Vec<(String, String)>,
    /// Only namespaces that have this label, with any value.
    pub with_label: Option<String>,
}

/// How the API server reaches the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Through this service of the system namespace.
    Service {
        /// Name.
        name: String,
        /// Port.
        port: u16,
    },
    /// At this base URL: scheme, host and port, without a path.
    Url(String),
}

/// Where the serving certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// An operator or cert-manager writes the files of this directory; admission reads them again when they change.
    Directory(PathBuf),
    /// Admission generates and rotates a certificate authority and a serving certificate.
    Generated {
        /// Lifetime of the serving certificate.
        serving: Duration,
        /// Lifetime of the certificate authority.
        ca: Duration,
    },
}

/// A flag that admission does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// An entry of --trusted-users is invalid.
    #[error("--trusted-users: {0}")]
    Users(#[from] InvalidUserMatcher),
    /// A label selector is invalid.
    #[error("--{flag}: {text:?} is no label; write key=value, several separated by commas")]
    Labels {
        /// The flag.
        flag: &'static str,
        /// The value of the flag.
        text: String,
    },
    /// --webhook-url is invalid.
    #[error("--webhook-url: {0:?} is no base url; write https://host:port")]
    Url(String),
    /// The lifetimes do not fit each other.
    #[error("--ca-hours {authority}: the authority has to outlive three certificates of --cert-hours {leaf}")]
    Lifetimes {
        /// Hours of the serving certificate.
        leaf: u32,
        /// Hours of the certificate authority.
        authority: u32,
    },
    /// --register=false lacks --cert-dir.
    #[error(
        "--register=false: whoever registers the webhooks has to know their authority; give certificate, key and authority with --cert-dir"
    )]
    Unregistered,
    /// --gpu-sharing-enabled says another thing than --gpu-sharing-mode.
    #[error("--gpu-sharing-enabled contradicts --gpu-sharing-mode={0}; remove it")]
    GpuSharing(GpuSharingMode),
    /// The value is used in CEL expressions and has a character that would end the string.
    #[error("--{flag}: {text:?} has a quote, a backslash or a control character; write a plain name")]
    Name {
        /// The flag.
        flag: &'static str,
        /// The value of the flag.
        text: String,
    },
}

impl Args {
    /// The settings that the flags result in, or the first invalid flag.
    pub fn settings(&self) -> Result<Settings, ArgsError> {
        for (flag, text) in [
            ("scheduler-name", &self.scheduler_name),
            ("queue-label-key", &self.queue_label_key),
            ("resource-reservation-app-label", &self.resource_reservation_app_label),
        ] {
            if text.contains(|c: char| c.is_control() || matches!(c, '\'' | '"' | '\\')) {
                return Err(ArgsError::Name {
                    flag,
                    text: text.clone(),
                });
            }
        }
        let gpu_sharing = GpuSharingMode::of(self.gpu_sharing_mode, self.gpu_sharing_enabled);
        if self
            .gpu_sharing_enabled
            .is_some_and(|enabled| enabled != gpu_sharing.shares())
        {
            return Err(ArgsError::GpuSharing(gpu_sharing));
        }
        let mut trusted_users = vec![
            UserMatcher::accounts_of(&self.namespace),
            UserMatcher::accounts_of(&self.resource_reservation_namespace),
        ];
        for text in &self.trusted_users {
            trusted_users.push(text.parse()?);
        }
        let runtime_class = self
            .gpu_fraction_runtime_class_name
            .as_ref()
            .or(self.gpu_pod_runtime_class_name.as_ref());
        Ok(Settings {
            scheduler_name: self.scheduler_name.clone(),
            webhook_port: self.webhook_port,
            gpu_sharing,
            hami_core: (self.hami_core_enabled || gpu_sharing == GpuSharingMode::HamiCore).into(),
            block_visible_devices: self.block_nvidia_visible_devices.into(),
            share_devices: self.gpu_share_devices.into(),
            runtime_class: RuntimeClassChoice::from_flag(runtime_class.map(String::as_str)),
            quota_validation: self.enable_quota_validation.into(),
            quota_violation: self.enforce_quota_violation,
            resize_validation: self.validate_pod_resize_quota.into(),
            upsize_on_bounded_queues: (!self.block_upsize_on_bounded_queues).into(),
            parent_queue_protection: self.protect_parent_queues.into(),
            queue_webhook: self.enable_queue_webhook.into(),
            pod_group_webhook: self.enable_podgroup_webhook.into(),
            queue_label: self.queue_label_key.clone(),
            namespaces: NamespaceChoice {
                labels: labels("namespace-label-selector", &self.namespace_label_selector)?,
                with_label: self.queue_label_selector.then(|| self.queue_label_key.clone()),
            },
            pod_labels: labels("pod-label-selector", &self.pod_label_selector)?,
            system_namespace: self.namespace.clone(),
            reservation_pods: ReservationPods {
                namespace: self.resource_reservation_namespace.clone(),
                app_label: self.resource_reservation_app_label.clone(),
            },
            endpoint: self.endpoint()?,
            trusted_users,
            certificates: self.certificates()?,
            identity: self.identity.clone(),
            register: self.register,
        })
    }

    fn endpoint(&self) -> Result<Endpoint, ArgsError> {
        let Some(url) = &self.webhook_url else {
            return Ok(Endpoint::Service {
                name: self.webhook_service.clone(),
                port: self.webhook_service_port,
            });
        };
        let base = url.trim_end_matches('/');
        match base.strip_prefix("https://") {
            Some(host) if !host.is_empty() && !host.contains('/') => Ok(Endpoint::Url(base.to_owned())),
            _ => Err(ArgsError::Url(url.clone())),
        }
    }

    fn certificates(&self) -> Result<CertificateSource, ArgsError> {
        if let Some(directory) = &self.cert_dir {
            return Ok(CertificateSource::Directory(directory.clone()));
        }
        if !self.register {
            return Err(ArgsError::Unregistered);
        }
        let (leaf, authority) = (self.cert_hours, self.ca_hours);
        // `CertificateRotator` publishes a new certificate authority while the old one still covers a whole serving certificate.
        if leaf == 0 || authority < leaf.saturating_mul(3) {
            return Err(ArgsError::Lifetimes { leaf, authority });
        }
        let hours = |hours: u32| Duration::from_secs(u64::from(hours) * 3600);
        Ok(CertificateSource::Generated {
            serving: hours(leaf),
            ca: hours(authority),
        })
    }
}

impl TryFrom<Args> for Settings {
    type Error = ArgsError;

    fn try_from(args: Args) -> Result<Settings, ArgsError> {
        args.settings()
    }
}

/// The runtime class that admission sets on pods that share GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeClassChoice {
    /// Admission sets none.
    Never,
    /// Admission sets this class.
    Always(String),
    /// Admission sets `nvidia` if the cluster has that class. In a cluster where only the node agent brings GPUs into containers the
    /// class does not exist, and the API server would refuse pods that name it.
    NvidiaIfThere,
}

impl RuntimeClassChoice {
    fn from_flag(given: Option<&str>) -> RuntimeClassChoice {
        match given {
            None => RuntimeClassChoice::NvidiaIfThere,
            Some("") => RuntimeClassChoice::Never,
            Some(name) => RuntimeClassChoice::Always(name.to_owned()),
        }
    }

    /// The name of the class; `is_there` says whether the cluster has a class.
    pub(crate) fn name(&self, is_there: impl FnOnce(&str) -> bool) -> Option<&str> {
        match self {
            RuntimeClassChoice::Never => None,
            RuntimeClassChoice::Always(name) => Some(name),
            RuntimeClassChoice::NvidiaIfThere => is_there(keys::RUNTIME_CLASS).then_some(keys::RUNTIME_CLASS),
        }
    }
}

impl Default for Settings {
    /// The settings without flags.
    fn default() -> Settings {
        #[derive(clap::Parser)]
        struct NoFlags {
            #[command(flatten)]
            args: Args,
        }
        let parsed = <NoFlags as clap::Parser>::parse_from(["admission"]);
        parsed.args.settings().expect("the defaults make sense")
    }
}

impl Settings {
    /// Whether the user may write the scheduler's labels and annotations.
    pub fn trusts(&self, user: &super::review::User) -> bool {
        self.trusted_users.iter().any(|matcher| matcher.matches(user))
    }

    /// The DNS names of the webhook server, for its certificate.
    pub fn host_names(&self) -> Vec<String> {
        match &self.endpoint {
            Endpoint::Service { name, .. } => {
                let host = format!("{name}.{}.svc", self.system_namespace);
                vec![format!("{host}.cluster.local"), host]
            }
            Endpoint::Url(url) => {
                let host = url.trim_start_matches("https://");
                // An IPv6 address stands in brackets.
                let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                    Some((address, _)) => address,
                    None => host.split_once(':').map_or(host, |(host, _)| host),
                };
                vec![host.to_owned()]
            }
        }
    }
}

fn labels(flag: &'static str, text: &str) -> Result<Vec<(String, String)>, ArgsError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair = |part: &str| match part.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ArgsError::Labels {
            flag,
            text: part.to_owned(),
        }),
    };
    parts.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, String> {
        let arguments = std::iter::once(&"admission").chain(flags);
        let program = Program::try_parse_from(arguments).map_err(|error| error.to_string())?;
        program.args.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_kais() {
        let settings = settings(&[]).unwrap();
        assert_eq!(
            (settings.scheduler_name.as_str(), settings.webhook_port),
            ("kai-scheduler", 9443)
        );
        assert_eq!(
            (settings.gpu_sharing, settings.share_devices),
            (GpuSharingMode::NonMemoryEnforced, Feature::On)
        );
        assert_eq!(settings.runtime_class, RuntimeClassChoice::NvidiaIfThere);
        assert_eq!(settings.host_names()[1], "admission.kai-scheduler.svc");
        assert_eq!(settings.trusted_users.len(), 2);
    }

    #[test]
    fn flags_are_written_as_a_kai_manifest_writes_them() {
        let given = settings(&[
            "--scheduler-name",
            "s",
            "--webhook-addr",
            "8443",
            "--gpu-sharing-enabled=true",
            "--hami-core-enabled",
            "--block-nvidia-visible-devices=false",
            "--gpu-share-slots=false",
            "--gpu-pod-runtime-class-name",
            "old",
            "--namespace-label-selector",
            "a=b,c=d",
            "--trusted-users",
            "admin,group:ops",
        ])
        .unwrap();
        assert_eq!(
            (given.gpu_sharing, given.hami_core),
            (GpuSharingMode::NonMemoryEnforced, Feature::On)
        );
        assert_eq!(
            (given.block_visible_devices, given.share_devices),
            (Feature::Off, Feature::Off)
        );
        assert_eq!(given.runtime_class, RuntimeClassChoice::Always("old".into()));
        assert_eq!(given.namespaces.labels.len(), 2);
        assert_eq!(given.trusted_users.len(), 4);
        assert_eq!(
            settings(&["--gpu-fraction-runtime-class-name", ""])
                .unwrap()
                .runtime_class,
            RuntimeClassChoice::Never
        );
        let by_url = settings(&["--webhook-url", "https://[::1]:9443/"]).unwrap();
        assert_eq!(by_url.endpoint, Endpoint::Url("https://[::1]:9443".into()));
        assert_eq!(by_url.host_names(), ["::1"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_flag() {
        for (flags, words) in [
            (["--trusted-users", "*"], "--trusted-users"),
            (["--pod-label-selector", "a"], "--pod-label-selector"),
            (["--webhook-url", "http://a"], "--webhook-url"),
            (["--ca-hours", "24"], "--ca-hours"),
            (["--scheduler-name", "it's"], "--scheduler-name"),
        ] {
            let error = settings(&flags).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        // The installation could not know a certificate authority that admission generates.
        let error = settings(&["--register=false"]).unwrap_err();
        assert!(error.contains("--cert-dir"), "{error}");
        assert!(
            !settings(&["--register=false", "--cert-dir", "/certificates"])
                .unwrap()
                .register
        );
    }

    #[test]
    fn the_mode_of_gpu_sharing_and_the_flag_before_it() {
        let mode = |flags: &[&str]| settings(flags).map(|settings| (settings.gpu_sharing, settings.hami_core));
        for (flags, expect) in [
            (
                &["--gpu-sharing-enabled=false"][..],
                (GpuSharingMode::Disabled, Feature::Off),
            ),
            (
                &["--gpu-sharing-enabled"],
                (GpuSharingMode::NonMemoryEnforced, Feature::Off),
            ),
            (
                &["--gpu-sharing-mode=HamiCore"],
                (GpuSharingMode::HamiCore, Feature::On),
            ),
            (
                &["--gpu-sharing-mode=NvFractions", "--gpu-sharing-enabled=true"],
                (GpuSharingMode::NvFractions, Feature::Off),
            ),
        ] {
            assert_eq!(mode(flags), Ok(expect), "{flags:?}");
        }
        let error = mode(&["--gpu-sharing-mode=Disabled", "--gpu-sharing-enabled"]).unwrap_err();
        assert!(error.contains("--gpu-sharing-enabled contradicts"), "{error}");
        let error = mode(&["--gpu-sharing-mode=On"]).unwrap_err();
        assert!(error.contains("NvFractions"), "{error}");
    }

    #[test]
    fn nvidias_class_is_named_where_it_is() {
        let name = |choice: &RuntimeClassChoice, is_there| choice.name(|_| is_there).map(str::to_owned);
        let own = RuntimeClassChoice::Always("kata".into());
        for (choice, is_there, expect) in [
            (&RuntimeClassChoice::NvidiaIfThere, true, Some("nvidia")),
            (&RuntimeClassChoice::NvidiaIfThere, false, None),
            (&own, false, Some("kata")),
            (&RuntimeClassChoice::Never, true, None),
        ] {
            assert_eq!(name(choice, is_there).as_deref(), expect, "{choice:?}");
        }
    }
}
