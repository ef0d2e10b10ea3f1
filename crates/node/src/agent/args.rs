//! The agent's options (`Args`) and their meaning (`Settings`). Opens nothing; of the machine it checks only whether the host root exists.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use kai_cluster::ClientConfig;
use kai_gpu::linker::Machine;
use kai_gpu::platform::MemoryReserve;
use kai_gpu::{DriverChoice, OpenOptions, Roots};

use crate::Error;
use crate::allocator::inject::Mode;
use crate::allocator::plan::{GPU_RESOURCE, MigStrategy, Policy};
use crate::allocator::prefer::SharedPolicy;
use crate::allocator::register::{PLUGIN_DIR, RetryPolicy};
use crate::allocator::sharing::{REPLICAS_MAX, Rename, Sharing};
use crate::driver_files::collect::Search;
use crate::driver_files::csv::CSV_DIR;
use crate::driver_files::prepare::FakeFiles;
use crate::driver_files::store::CDI_DIR;
use crate::enforcement::audit::EVICT_AFTER;
use crate::enforcement::facts::EnforcementSettings;
use crate::enforcement::hold::EnforcePolicy;
use crate::enforcement::mps::launch::THIS_PROGRAM;
use crate::enforcement::promise::UnifiedMemoryLimit;
use crate::enforcement::tier::Enforce;
use crate::enforcement::watch::run::{GRACE_DEFAULT, PACE as WATCH_PACE};
use crate::enforcement::watch::{ProcessFiles, Repair};
use crate::health::{IGNORED_XIDS, Rules, STICKY_XIDS};
use crate::metrics::FractioningMetrics;
use crate::plugin_config::{ConfigSource, FallbackStrategy};
use crate::share_devices::offer::{SHARE_DEVICES_DEFAULT, SHARE_DEVICES_MAX};

/// Where this process finds the host's files and its driver. Shared by the agent, `kai doctor` and the reservation process.
#[derive(Debug, Clone, clap::Args)]
pub struct HostArgs {
    /// Where the host's / is mounted here.
    #[arg(long, default_value = "/", env = "KAI_HOST_ROOT")]
    pub host_root: PathBuf,
    /// Where the NVIDIA driver is installed, as the host names it; another root than / means a driver container.
    #[arg(long, default_value = "/", env = "KAI_DRIVER_ROOT")]
    pub driver_root: PathBuf,
    /// Where the device tree is mounted here (it is masked in unprivileged pods). Default: found under the host root.
    #[arg(long)]
    pub device_tree: Option<PathBuf>,
    /// Further directory of the host with driver libraries. May be given more than once.
    #[arg(long = "library-dir")]
    pub library_dirs: Vec<String>,
    /// Directory of the host with Tegra's lists.
    #[arg(long, default_value = CSV_DIR)]
    pub csv_dir: String,
    /// NVML library to use instead of searching for one.
    #[arg(long, env = kai_gpu::NVML_LIBRARY_ENV)]
    pub nvml_library: Option<PathBuf>,
    /// Which driver to use: auto, nvml, tegra, or `fake:<profile>[:<count>][,...]` with the profiles t4, a100-40, a100-80, h100, h200,
    /// b200, gb200, l40s, rtx-6000-ada, orin-nano, orin-agx, thor and gb10.
    #[arg(long, default_value = "auto", env = "KAI_GPU_DRIVER")]
    pub driver: String,
    /// Directory in which fake GPUs keep memory limits, for several processes.
    #[arg(long, env = "KAI_FAKE_RECORD_DIR", hide = true)]
    pub fake_record_dir: Option<PathBuf>,
    /// YAML file with the settings of the fake driver, instead of a list in --driver.
    #[arg(long)]
    pub fake_config: Option<PathBuf>,
    /// Faults and loads of the fake GPUs: a control file, which is polled, or its content in braces:
    /// `{gpus: {0: {state: lost}}}`.
    #[arg(long, env = "KAI_FAKE_CONTROL")]
    pub fake_control: Option<String>,
    /// Memory in MiB kept from GPU workloads where GPU and CPU share it. Default: a tenth, at least 512 and at most 2048.
    #[arg(long)]
    pub memory_reserve_mib: Option<u64>,
    /// CPU of the host whose files are read. Only in tests with recorded machines does it differ from the CPU of this process.
    #[arg(skip)]
    pub machine: Option<Machine>,
}

impl Default for HostArgs {
    fn default() -> Self {
        Self {
            host_root: "/".into(),
            driver_root: "/".into(),
            device_tree: None,
            library_dirs: Vec::new(),
            csv_dir: CSV_DIR.to_owned(),
            nvml_library: None,
            driver: "auto".to_owned(),
            fake_record_dir: None,
            fake_config: None,
            fake_control: None,
            memory_reserve_mib: None,
            machine: None,
        }
    }
}

impl HostArgs {
    /// The host's directories as seen from here.
    pub fn roots(&self) -> Roots {
        let mut roots = Roots::under(&self.host_root);
        if let Ok(inside) = self.driver_root.strip_prefix("/") {
            roots.driver = self.host_root.join(inside);
        }
        if let Some(device_tree) = &self.device_tree {
            roots.device_tree = device_tree.clone();
        }
        roots
    }

    /// How to open the hardware. Fake GPUs get their identity from `seed`.
    pub fn open_options(&self, seed: &str) -> Result<OpenOptions, Error> {
        if !self.host_root.is_dir() {
            let problem = format!(
                "{} is no directory; mount the host's / there, or name the directory where it is mounted",
                self.host_root.display()
            );
            return Err(Error::Option {
                option: "--host-root",
                problem,
            });
        }
        let mut driver = match (&self.fake_config, self.driver.as_str()) {
            (Some(path), "fake" | "auto") => DriverChoice::Fake(Box::new(kai_gpu::fake::Settings::from_file(path)?)),
            (None, "fake") => {
                let problem = format!(
                    "say which GPUs to make up: --driver fake:t4:2, or --fake-config with a file; the profiles are: {}",
                    kai_gpu::fake::profile_names()
                );
                return Err(Error::Option {
                    option: "--driver",
                    problem,
                });
            }
            (_, text) => text.parse()?,
        };
        if let DriverChoice::Fake(settings) = &mut driver {
            if settings.seed.is_empty() {
                settings.seed = seed.to_owned();
            }
            if self.fake_record_dir.is_some() {
                settings.record_dir = self.fake_record_dir.clone();
            }
            if let Some(control) = &self.fake_control {
                **settings = std::mem::take(&mut **settings).controlled(control)?;
            }
        }
        Ok(OpenOptions {
            roots: self.roots(),
            driver,
            nvml_library: self.nvml_library.clone(),
            memory_reserve: self.memory_reserve_mib.map_or(MemoryReserve::Auto, MemoryReserve::Mib),
            ..OpenOptions::default()
        })
    }

    /// How to look for driver files.
    pub fn search(&self) -> Search {
        let mut search = Search::new(self.roots());
        search.library_dirs = self.library_dirs.clone();
        search.csv_dir = self.csv_dir.clone();
        search.machine = self.machine.unwrap_or(search.machine);
        if self.driver_root != std::path::Path::new("/") {
            search.driver_root_on_host = self.driver_root.display().to_string();
        }
        search
    }
}

/// Where the agent keeps its state, if it is not told otherwise.
pub const STATE_DIR: &str = "/var/lib/kai";

/// Options of the node agent.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub host: HostArgs,
    /// Name of this node. Default: the host name.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Kubeconfig to use. Default: those that KUBECONFIG names, ~/.kube/config, or the pod's service account.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Address of an API server that wants no credentials.
    #[arg(long, hide = true)]
    pub api_url: Option<String>,
    /// Serve the kubelet only: no labels, no condition, no annotation of reservation pods.
    #[arg(long)]
    pub no_cluster: bool,
    /// The kubelet's device plugin directory.
    #[arg(long, default_value = PLUGIN_DIR)]
    pub plugin_dir: PathBuf,
    /// The kubelet's pod-resources socket.
    #[arg(long, default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources_socket: PathBuf,
    /// How containers get devices and driver files.
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Where CDI specs are written.
    #[arg(long, default_value = CDI_DIR)]
    pub cdi_dir: PathBuf,
    /// Where the agent keeps the last inventory and driver volumes; the same path here and on the host.
    #[arg(long, default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// How MIG devices are offered.
    #[arg(long, value_enum, default_value_t)]
    pub mig_strategy: MigStrategy,
    /// Directory of configuration files in the format of NVIDIA's device plugin: a mounted ConfigMap. The node's label
    /// nvidia.com/device-plugin.config names the file. Changes take effect at once.
    #[arg(long)]
    pub config_dir: Option<PathBuf>,
    /// `<namespace>/<name>` of the ConfigMap that is mounted at --config-dir, for messages.
    #[arg(long, requires = "config_dir")]
    pub config_map: Option<String>,
    /// The file for nodes without the label.
    #[arg(long, requires = "config_dir")]
    pub default_config: Option<String>,
    /// What to try without label and default, in this order, separated by commas: named (the file `default`), single (the only file), empty
    /// (no file).
    #[arg(long, default_value = "named,single")]
    pub fallback_strategies: String,
    /// Time slicing: `<n>` for nvidia.com/gpu, or `<resource>=<n>`. May be given more than once.
    #[arg(long)]
    pub replicas: Vec<String>,
    /// Offer shared devices as `<resource>.shared`.
    #[arg(long)]
    pub rename_shared: bool,
    /// Refuse containers that ask for more than one replica of shared devices.
    #[arg(long)]
    pub one_replica_per_container: bool,
    /// Which GPU shared requests prefer.
    #[arg(long, value_enum, default_value_t)]
    pub shared_policy: SharedPolicy,
    /// Number of share devices (kai.scheduler/gpu-share), by which containers get their GPU share in mode cdi. With 0, pods that share GPUs
    /// need NVIDIA's runtime.
    #[arg(long, visible_alias = "share-slots", default_value_t = SHARE_DEVICES_DEFAULT, value_parser = clap::value_parser!(u32).range(..=i64::from(SHARE_DEVICES_MAX)))]
    pub share_devices: u32,
    /// Xids that never make a GPU unhealthy.
    #[arg(long, value_delimiter = ',', default_values_t = IGNORED_XIDS)]
    pub ignored_xids: Vec<u64>,
    /// Xids after which a GPU is unhealthy until it has been reset.
    #[arg(long, value_delimiter = ',', default_values_t = STICKY_XIDS)]
    pub sticky_xids: Vec<u64>,
    /// Seconds between probes of each GPU.
    #[arg(long, default_value_t = 5)]
    pub probe_seconds: u64,
    /// Successful probes in a row before a failed GPU is offered again; doubles with every failure, up to 16 times.
    #[arg(long, default_value_t = 3)]
    pub good_probes: u32,
    /// By what containers are held to their GPU share: auto (the driver's limits if the node can, else watch, else none), driver (the
    /// driver's limits, else none), mps (else watch, else none), watch or none.
    #[arg(long, value_enum, default_value_t)]
    pub enforce: Enforce,
    /// What happens to a container whose limit can't be set: closed (it does not start) or open (it starts, and the agent reports it).
    #[arg(long, value_enum, default_value_t)]
    pub enforce_policy: EnforcePolicy,
    /// What happens to a container whose limit is gone, or that uses more than its share: none (the agent reports it) or evict (its pod is
    /// evicted).
    #[arg(long, value_enum, default_value_t)]
    pub enforce_repair: Repair,
    /// Seconds between audits of the limits.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub enforce_audit_seconds: u64,
    /// With tier watch: seconds for which a pod may use more GPU memory than its share.
    #[arg(long, default_value_t = GRACE_DEFAULT.as_secs())]
    pub watch_grace_seconds: u64,
    /// Where GPU and CPU share memory: limit the memory of a container with a GPU share that has no memory limit, to its memory request
    /// (1 GiB without one) and its GPU share.
    #[arg(long, default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub unified_memory_limit: bool,
    /// Also serve the used memory of pods with a GPU share, and whether the node is ready, by the metric names of KAI's GPU fractioning
    /// (gpu_fractioning_*).
    #[arg(long)]
    pub fractioning_metrics: bool,
    /// Address for /metrics, /healthz and /readyz; empty for none.
    #[arg(long, default_value = "0.0.0.0:9400")]
    pub metrics_address: String,
    /// Namespace of reservation pods.
    #[arg(long, default_value = "kai-resource-reservation")]
    pub reservation_namespace: String,
    /// A fake libnvidia-ml.so.1 on the host, mounted into containers that got fake GPUs.
    #[arg(long)]
    pub fake_library: Option<String>,
}

/// The meaning of the options: paths and policies that the agent's parts use.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// How to reach the cluster, if at all.
    pub access: Option<ClientConfig>,
    /// The kubelet's device plugin directory.
    pub plugin_dir: PathBuf,
    /// The kubelet's pod-resources socket.
    pub pod_resources_socket: PathBuf,
    /// How GPUs and driver files are injected.
    pub mode: Mode,
    /// Where CDI specs are written.
    pub cdi_dir: PathBuf,
    /// Where state is kept.
    pub state_dir: PathBuf,
    /// What is offered, by the flags.
    pub policy: Policy,
    /// The files that configure the node beside the flags.
    pub config: Option<ConfigSource>,
    /// What makes a GPU unhealthy, and for how long.
    pub rules: Rules,
    /// Where driver files are searched.
    pub search: Search,
    /// Fake library and environment for containers with fake GPUs.
    pub fake: Option<FakeFiles>,
    /// How containers are held to their GPU share.
    pub enforcement: EnforcementSettings,
    /// What happens to a container whose limit is gone.
    pub repair: Repair,
    /// With tier watch: how long a pod may be above its share.
    pub watch_grace: Duration,
    /// Whether limits are also told by KAI's metric names.
    pub fractioning_metrics: FractioningMetrics,
    /// Where to serve metrics.
    pub metrics_address: Option<String>,
    /// Namespace of reservation pods.
    pub reservation_namespace: String,
    /// Intervals of the agent's loops.
    pub pace: Pace,
}

/// Intervals of the agent's loops. Tests use short ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    /// Between probes of the GPUs.
    pub probe: Duration,
    /// Between full inventories and checks of the driver's files.
    pub refresh: Duration,
    /// Between attempts to write to the cluster or the disk after a failure.
    pub retry: Duration,
    /// Between calls of the pod-resources API while a reservation pod waits for its annotation.
    pub reservation: Duration,
    /// Between audits of the containers' limits without a new receipt.
    pub audit: Duration,
    /// From the loss of a limit to the eviction of its pod.
    pub evict_after: Duration,
    /// Between measurements of what pods use, with tier watch.
    pub watch: Duration,
    /// Timing of registrations with the kubelet.
    pub kubelet: RetryPolicy,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            probe: Duration::from_secs(5),
            refresh: Duration::from_secs(30),
            retry: Duration::from_secs(10),
            reservation: Duration::from_millis(500),
            audit: Duration::from_secs(30),
            evict_after: EVICT_AFTER,
            watch: WATCH_PACE,
            kubelet: RetryPolicy::default(),
        }
    }
}

impl Args {
    /// Turns the options into settings, or returns the option that is wrong.
    pub fn settings(&self) -> Result<Settings, Error> {
        let node = self.node_name.clone().or_else(host_name).ok_or(Error::Option {
            option: "--node-name",
            problem: "the host has no name; give the node's name, or set NODE_NAME by the downward API".to_owned(),
        })?;
        let access = match (&self.api_url, &self.kubeconfig) {
            (None, None) => ClientConfig::Infer,
            (Some(url), _) => ClientConfig::Url(url.clone()),
            (None, Some(path)) => ClientConfig::Kubeconfig(path.clone()),
        };
        let fake = self.fake_library.clone().map(|library| self.fake_files(library, &node));
        let hook_environment = fake.as_ref().map(FakeFiles::hook_environment).unwrap_or_default();
        Ok(Settings {
            access: (!self.no_cluster).then_some(access),
            plugin_dir: self.plugin_dir.clone(),
            pod_resources_socket: self.pod_resources_socket.clone(),
            mode: self.mode,
            cdi_dir: self.cdi_dir.clone(),
            state_dir: self.state_dir.clone(),
            policy: Policy {
                mig: self.mig_strategy,
                sharing: sharing(self)?,
                shared_policy: self.shared_policy,
                share_devices: self.share_devices(),
            },
            config: self.config_source()?,
            rules: Rules {
                ignored_xids: self.ignored_xids.iter().copied().collect::<BTreeSet<u64>>(),
                sticky_xids: self.sticky_xids.iter().copied().collect::<BTreeSet<u64>>(),
                good_probes_needed: self.good_probes.max(1),
            },
            search: self.host.search(),
            fake,
            enforcement: EnforcementSettings {
                enforce: self.enforce,
                policy: self.enforce_policy,
                unified: match self.unified_memory_limit {
                    true => UnifiedMemoryLimit::On,
                    false => UnifiedMemoryLimit::Off,
                },
                mode: self.mode,
                share_devices: self.share_devices(),
                state_dir: self.state_dir.clone(),
                host_root: self.host.host_root.clone(),
                processes: ProcessFiles::of(&self.host.roots()),
                environment: hook_environment,
                program: None,
                launcher: THIS_PROGRAM.into(),
            },
            repair: self.enforce_repair,
            watch_grace: Duration::from_secs(self.watch_grace_seconds),
            fractioning_metrics: match self.fractioning_metrics {
                true => FractioningMetrics::On,
                false => FractioningMetrics::Off,
            },
            metrics_address: Some(self.metrics_address.clone()).filter(|address| !address.is_empty()),
            reservation_namespace: self.reservation_namespace.clone(),
            pace: Pace {
                probe: Duration::from_secs(self.probe_seconds.max(1)),
                audit: Duration::from_secs(self.enforce_audit_seconds),
                ..Pace::default()
            },
            node,
        })
    }
}

impl Args {
    /// What containers with fake GPUs, and the hook, need to see the agent's fake GPUs.
    fn fake_files(&self, library: String, node: &str) -> FakeFiles {
        let mut env = vec![
            format!("KAI_FAKE_GPUS={}", self.host.driver.trim_start_matches("fake:")),
            format!("KAI_FAKE_SEED={node}"),
        ];
        let record_dir = self
            .host
            .fake_record_dir
            .as_ref()
            .map(|path| path.display().to_string());
        env.extend(record_dir.iter().map(|path| format!("KAI_FAKE_RECORD_DIR={path}")));
        FakeFiles {
            library,
            env,
            control: self.host.fake_control.clone(),
            record_dir,
        }
    }

    fn config_source(&self) -> Result<Option<ConfigSource>, Error> {
        let words = self.fallback_strategies.split(',').map(str::trim);
        let fallback = words
            .filter(|word| !word.is_empty())
            .map(str::parse)
            .collect::<Result<Vec<FallbackStrategy>, String>>()
            .map_err(|problem| Error::Option {
                option: "--fallback-strategies",
                problem,
            })?;
        Ok(self.config_dir.clone().map(|directory| ConfigSource {
            directory,
            config_map: self.config_map.clone(),
            default: self.default_config.clone(),
            fallback,
        }))
    }

    /// Share devices need CDI specs and the cluster's reservation pods; without either the node has none.
    fn share_devices(&self) -> u32 {
        match self.mode {
            Mode::Cdi if !self.no_cluster => self.share_devices,
            Mode::Cdi | Mode::Mounts | Mode::Envvar => 0,
        }
    }
}

/// Time slicing by flags.
fn sharing(args: &Args) -> Result<Sharing, Error> {
    let rename = if args.rename_shared {
        Rename::WithSuffix
    } else {
        Rename::Keep
    };
    let mut sharing = Sharing::default();
    sharing.one_per_container = args.one_replica_per_container;
    for text in &args.replicas {
        let (resource, count) = text.split_once('=').unwrap_or((GPU_RESOURCE, text));
        let fail = |problem: String| Error::Option {
            option: "--replicas",
            problem,
        };
        let replicas = count.parse().map_err(|_| {
            fail(format!(
                "{text:?} is not <n> or <resource>=<n> with n from 1 to {REPLICAS_MAX}"
            ))
        })?;
        sharing
            .add(resource, replicas, rename)
            .map_err(|invalid| fail(format!("{text:?}: {}", invalid.problem())))?;
    }
    Ok(sharing)
}

pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_lowercase()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Settings, Error> {
        let words = ["agent", "--node-name", "n1"]
            .into_iter()
            .chain(line.split_whitespace());
        Cli::try_parse_from(words).unwrap().args.settings()
    }

    #[test]
    fn the_profiles_of_the_fake_driver_are_listed_by_help_and_by_the_error() {
        let help = <Cli as clap::CommandFactory>::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let error = Cli::try_parse_from(["agent", "--node-name", "n1", "--driver", "fake"])
            .unwrap()
            .args
            .host
            .open_options("seed")
            .unwrap_err()
            .to_string();
        for profile in kai_gpu::fake::PROFILES {
            let name = profile.id;
            assert!(help.contains(name) && error.contains(name), "{name}: {help}\n{error}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_a_plain_node() {
        let settings = parse("").unwrap();
        assert_eq!(settings.mode, Mode::Cdi);
        assert_eq!(settings.rules, Rules::default());
        let policy = Policy {
            share_devices: 512,
            ..Policy::default()
        };
        assert_eq!(settings.policy, policy);
        assert_eq!(settings.metrics_address.as_deref(), Some("0.0.0.0:9400"));
    }

    #[test]
    fn slots_need_cdi_and_a_cluster() {
        for (line, count) in [
            ("--share-devices 7", 7),
            ("--share-slots 7", 7),
            ("--share-slots 0", 0),
            ("--mode mounts", 0),
            ("--mode envvar", 0),
            ("--no-cluster", 0),
        ] {
            assert_eq!(parse(line).unwrap().policy.share_devices, count, "{line}");
        }
    }

    #[test]
    fn replicas_are_per_resource() {
        let settings = parse("--replicas 4 --replicas nvidia.com/mig-1g.5gb=2 --rename-shared").unwrap();
        let sharing = &settings.policy.sharing;
        assert_eq!(sharing.of(GPU_RESOURCE).replicas, 4);
        let mig = sharing.of("nvidia.com/mig-1g.5gb");
        assert_eq!(
            (mig.replicas, mig.rename.as_deref()),
            (2, Some("nvidia.com/mig-1g.5gb.shared"))
        );
        for bad in ["x", "0", "nvidia.com/gpu=", "100000", "nvidia.com/gpus=2"] {
            let error = parse(&format!("--replicas {bad}")).unwrap_err().to_string();
            assert!(error.contains("--replicas"), "{error}");
        }
    }

    #[test]
    fn files_are_chosen_by_the_named_strategies() {
        use FallbackStrategy::{Empty, Named, Single};
        let source = |line: &str| parse(line).unwrap().config;
        assert_eq!(source(""), None);
        assert_eq!(source("--config-dir /c").unwrap().fallback, [Named, Single]);
        assert_eq!(source("--config-dir /c --fallback-strategies=").unwrap().fallback, []);
        let all = source("--config-dir /c --fallback-strategies empty,named --default-config a --config-map ns/gpus")
            .unwrap();
        assert_eq!(
            (all.fallback.as_slice(), all.default.as_deref()),
            (&[Empty, Named][..], Some("a"))
        );
        assert_eq!(all.name(), "ConfigMap ns/gpus");
        let error = parse("--fallback-strategies named,first").unwrap_err().to_string();
        assert!(
            error.contains("--fallback-strategies") && error.contains("\"first\""),
            "{error}"
        );
    }

    #[test]
    fn fake_gpus_are_named_after_the_node() {
        let args = Cli::try_parse_from(["agent", "--driver", "fake:t4:2"]).unwrap().args;
        let DriverChoice::Fake(settings) = args.host.open_options("n1").unwrap().driver else {
            panic!("not fake")
        };
        assert_eq!(settings.seed, "n1");
        let nothing = Cli::try_parse_from(["agent", "--driver", "fake"])
            .unwrap()
            .args
            .host
            .open_options("n1");
        assert!(nothing.unwrap_err().to_string().contains("--driver fake:t4:2"));
    }
}
