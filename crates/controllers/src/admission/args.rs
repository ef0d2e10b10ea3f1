//! What was typed, and what it means. Parsing only.

use std::path::PathBuf;
use std::time::Duration;

use clap::ArgAction::Set;
use kai_api::keys;

use super::trusted_users::{InvalidUserMatcher, UserMatcher};

/// The flags of the admission role: KAI's names and defaults, and ours after them.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Pods that ask for this scheduler are ours.
    #[arg(long, default_value = keys::SCHEDULER_NAME)]
    pub scheduler_name: String,
    /// Port that the webhooks are served on.
    #[arg(long = "webhook-addr", default_value_t = 9443)]
    pub webhook_port: u16,
    /// Accept pods that ask for a part of a GPU.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub gpu_sharing_enabled: bool,
    /// Give pods that share GPUs the memory limit that HAMi's library reads.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub hami_core_enabled: bool,
    /// Hide all GPUs from containers that ask for none.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub block_nvidia_visible_devices: bool,
    /// Let pods that share GPUs request a slot of the node agent, by which they get their GPU without NVIDIA's runtime. Nodes without
    /// slots ignore it.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub gpu_share_slots: bool,
    /// Runtime class of pods that share GPUs; empty leaves them as they are. Without this flag it is nvidia where the cluster has that
    /// class.
    #[arg(long)]
    pub gpu_fraction_runtime_class_name: Option<String>,
    /// The old name of --gpu-fraction-runtime-class-name.
    #[arg(long, hide = true)]
    pub gpu_pod_runtime_class_name: Option<String>,
    /// Warn when the quotas of queues exceed those of their parents, and require the parents to exist.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub enable_quota_validation: bool,
    /// Refuse to delete a queue that other queues name as their parent.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub protect_parent_queues: bool,
    /// Label of pods and namespaces that names the queue.
    #[arg(long, default_value = keys::QUEUE)]
    pub queue_label_key: String,
    /// Look only at pods in namespaces that have the queue label.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub queue_label_selector: bool,
    /// Look only at pods in namespaces with these labels: k=v,k=v.
    #[arg(long, default_value = "")]
    pub namespace_label_selector: String,
    /// Look only at pods with these labels: k=v,k=v.
    #[arg(long, default_value = "")]
    pub pod_label_selector: String,
    /// Namespace of the system; its service accounts are trusted.
    #[arg(long, default_value = keys::SYSTEM_NAMESPACE)]
    pub namespace: String,
    /// Namespace of reservation pods; its service accounts are trusted.
    #[arg(long, default_value = keys::RESERVATION)]
    pub resource_reservation_namespace: String,
    /// Service in front of the webhooks.
    #[arg(long, default_value = "admission")]
    pub webhook_service: String,
    /// Port of that service.
    #[arg(long, default_value_t = 443)]
    pub webhook_service_port: u16,
    /// Base URL under which the API server reaches the webhooks, instead of the service. For API servers outside the cluster's network.
    #[arg(long)]
    pub webhook_url: Option<String>,
    /// Who may write the scheduler's labels and annotations, in addition: a user, a beginning followed by *, or group:NAME.
    #[arg(long, value_delimiter = ',')]
    pub trusted_users: Vec<String>,
    /// Directory with tls.crt and tls.key (and ca.crt, if another authority signed). Without it certificates are made here.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// How long a certificate made here is good, in hours.
    #[arg(long, default_value_t = 24)]
    pub cert_hours: u32,
    /// How long the authority made here is good, in hours.
    #[arg(long, default_value_t = 168)]
    pub ca_hours: u32,
    /// Name of this replica, for its entry in the bundle of authorities.
    #[arg(long, env = "HOSTNAME", default_value = "admission")]
    pub identity: String,
    /// Register webhooks and policies with the API server. With false, whoever installs does (deploy/admission-webhooks.yaml and
    /// admission-policies.yaml), the account needs no right to write them, and --cert-dir has the certificate.
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub register: bool,

    // KAI's manifests may pass these. They mean nothing here: there is no client-side rate limit, every replica serves, and probes
    // and metrics are the process's.
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

/// What admission goes by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Pods that ask for this scheduler are ours.
    pub scheduler_name: String,
    /// Port to serve on.
    pub webhook_port: u16,
    /// Whether a pod may ask for a part of a GPU.
    pub gpu_sharing: Feature,
    /// Whether pods that share GPUs get HAMi's memory limit.
    pub hami_core: Feature,
    /// Whether GPUs are hidden from containers that ask for none.
    pub block_visible_devices: Feature,
    /// Whether pods that share GPUs request a slot of the node agent.
    pub share_devices: Feature,
    /// Runtime class of pods that share GPUs.
    pub runtime_class: RuntimeClassChoice,
    /// Whether quotas of queues are compared with those of their parents.
    pub quota_validation: Feature,
    /// Whether a queue with children is kept from being deleted.
    pub parent_queue_protection: Feature,
    /// Label that names the queue.
    pub queue_label: String,
    /// Which namespaces' pods the webhooks look at.
    pub namespaces: NamespaceChoice,
    /// Only pods with all of these labels.
    pub pod_labels: Vec<(String, String)>,
    /// Namespace of the system.
    pub system_namespace: String,
    /// Namespace of reservation pods.
    pub reservation_namespace: String,
    /// Where the API server finds the webhooks.
    pub endpoint: Endpoint,
    /// Who may write the scheduler's keys.
    pub trusted_users: Vec<UserMatcher>,
    /// Where certificates come from.
    pub certificates: CertificateSource,
    /// Name of this replica.
    pub identity: String,
    /// Whether webhooks and policies are registered from here.
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

/// Which namespaces' pods the webhooks look at, besides the ones that are never looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceChoice {
    /// Only those with all of these labels.
    pub labels: Vec<(String, String)>,
    /// Only those that have this label.
    pub with_label: Option<String>,
}

/// Where the API server finds the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Behind this service of the system's namespace.
    Service {
        /// Name.
        name: String,
        /// Port.
        port: u16,
    },
    /// At this address, with nothing after host and port.
    Url(String),
}

/// Where certificates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// This directory.
    Directory(PathBuf),
    /// They are made here.
    Generated {
        /// How long a certificate is good.
        leaf: Duration,
        /// How long the authority is good.
        authority: Duration,
    },
}

/// Why flags make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgsError {
    /// In --trusted-users.
    #[error("--trusted-users: {0}")]
    Users(#[from] InvalidUserMatcher),
    /// In a label selector.
    #[error("--{flag}: {text:?} is no label; write key=value, several separated by commas")]
    Labels {
        /// Which flag.
        flag: &'static str,
        /// What was written.
        text: String,
    },
    /// In --webhook-url.
    #[error("--webhook-url: {0:?} is no base url; write https://host:port")]
    Url(String),
    /// In the lifetimes.
    #[error("--ca-hours {authority}: the authority has to outlive three certificates of --cert-hours {leaf}")]
    Lifetimes {
        /// Hours of a certificate.
        leaf: u32,
        /// Hours of the authority.
        authority: u32,
    },
    /// In --register.
    #[error(
        "--register=false: whoever registers the webhooks has to know their authority; give certificate, key and authority with --cert-dir"
    )]
    Unregistered,
    /// Text that can't stand in a CEL expression.
    #[error("--{flag}: {text:?} has a quote, a backslash or a control character; write a plain name")]
    Name {
        /// Which flag.
        flag: &'static str,
        /// What was written.
        text: String,
    },
}

impl Args {
    /// What the flags mean.
    pub fn settings(&self) -> Result<Settings, ArgsError> {
        for (flag, text) in [
            ("scheduler-name", &self.scheduler_name),
            ("queue-label-key", &self.queue_label_key),
        ] {
            if text.contains(|c: char| c.is_control() || matches!(c, '\'' | '"' | '\\')) {
                return Err(ArgsError::Name {
                    flag,
                    text: text.clone(),
                });
            }
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
            gpu_sharing: self.gpu_sharing_enabled.into(),
            hami_core: self.hami_core_enabled.into(),
            block_visible_devices: self.block_nvidia_visible_devices.into(),
            share_devices: self.gpu_share_slots.into(),
            runtime_class: RuntimeClassChoice::from_flag(runtime_class.map(String::as_str)),
            quota_validation: self.enable_quota_validation.into(),
            parent_queue_protection: self.protect_parent_queues.into(),
            queue_label: self.queue_label_key.clone(),
            namespaces: NamespaceChoice {
                labels: labels("namespace-label-selector", &self.namespace_label_selector)?,
                with_label: self.queue_label_selector.then(|| self.queue_label_key.clone()),
            },
            pod_labels: labels("pod-label-selector", &self.pod_label_selector)?,
            system_namespace: self.namespace.clone(),
            reservation_namespace: self.resource_reservation_namespace.clone(),
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
        // A new authority is announced while the old one still covers a whole certificate; see `certificates`.
        if leaf == 0 || authority < leaf.saturating_mul(3) {
            return Err(ArgsError::Lifetimes { leaf, authority });
        }
        let hours = |hours: u32| Duration::from_secs(u64::from(hours) * 3600);
        Ok(CertificateSource::Generated {
            leaf: hours(leaf),
            authority: hours(authority),
        })
    }
}

impl TryFrom<Args> for Settings {
    type Error = ArgsError;

    fn try_from(args: Args) -> Result<Settings, ArgsError> {
        args.settings()
    }
}

/// Which runtime class pods that share GPUs get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeClassChoice {
    /// None.
    Never,
    /// This one.
    Always(String),
    /// NVIDIA's, where the cluster has it. Where only the node agent brings GPUs into containers, nobody made that class, and pods
    /// that name it would be refused.
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

    /// The class, in a cluster that has these.
    pub(crate) fn name(&self, is_there: impl FnOnce(&str) -> bool) -> Option<&str> {
        match self {
            RuntimeClassChoice::Never => None,
            RuntimeClassChoice::Always(name) => Some(name),
            RuntimeClassChoice::NvidiaIfThere => is_there(keys::RUNTIME_CLASS).then_some(keys::RUNTIME_CLASS),
        }
    }
}

impl Default for Settings {
    /// What no flags mean.
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
    /// Whether the user is one of ours.
    pub fn trusts(&self, user: &super::review::User) -> bool {
        self.trusted_users.iter().any(|matcher| matcher.matches(user))
    }

    /// The names under which the webhooks are reached.
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
            (Feature::Off, Feature::On)
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
        assert_eq!((given.gpu_sharing, given.hami_core), (Feature::On, Feature::On));
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
        // Nobody else could know an authority that is made here.
        let error = settings(&["--register=false"]).unwrap_err();
        assert!(error.contains("--cert-dir"), "{error}");
        assert!(
            !settings(&["--register=false", "--cert-dir", "/certificates"])
                .unwrap()
                .register
        );
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
