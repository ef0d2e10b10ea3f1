//! Collects the facts that the doctor checks: the driver, its files, the container runtime's files, the kubelet's sockets, and the node
//! object if a cluster is reachable. Reads only. Missing files or services are facts, not errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use kai_cluster::{Client, ClientConfig};
use kai_gpu::platform::{Detection, detect};
use kai_gpu::{Driver, GpuError, Inventory, PlatformKind, Roots};

use serde::{Deserialize, Serialize};

use super::{Args, bolt, go_build, shares, toml};
use crate::Error;
use crate::agent::args::STATE_DIR;
use crate::agent::files::{IntegratedGpuIdentity, LastEnforcement};
use crate::allocator::inject::Mode;
use crate::driver_files::cdi::Spec;
use crate::driver_files::collect::Search;
use crate::driver_files::csv::{self, BASE_FILES};
use crate::driver_files::files::DriverFiles;
use crate::driver_files::host_root::HostRoot;
use crate::driver_files::{collect, spec, store};
use crate::enforcement::tier::{NodeEnforcement, TierFacts};
use crate::health;

/// Longest wait for the cluster: the doctor must report even if nothing answers.
const CLUSTER_SECONDS_MAX: Duration = Duration::from_secs(5);

/// The token of a pod's service account.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The facts about one machine. Everything in it may be missing.
#[derive(Debug, Default)]
pub struct Facts {
    /// The platform, with the evidence for it.
    pub detection: Option<Detection>,
    /// Devices, or the driver's error with its remedy.
    pub inventory: Option<Result<Inventory, (String, String)>>,
    /// Whether the driver does not answer because this pod lacks the device nodes that the host has.
    pub hidden_device_nodes: bool,
    /// GPUs that the driver lists but that do not answer.
    pub unresponsive: Vec<UnresponsiveGpu>,
    /// Driver files.
    pub files: DriverFiles,
    /// Spec files in the CDI directories.
    pub specs: Vec<SpecFile>,
    /// Path and text of containerd's config, or of k3s's or RKE2's own.
    pub containerd: Option<(String, String)>,
    /// Path and text of the files that the config imports. Their settings override the config.
    pub containerd_imports: Vec<(String, String)>,
    /// TOML files that can't be parsed: path, and the parser's error with the line number.
    pub malformed: Vec<(String, String)>,
    /// Templates from which k3s or RKE2 generates its config; it uses the first one.
    pub templates: Vec<String>,
    /// `k3s` or `rke2`, if one is installed; both bring their own containerd.
    pub k3s: Option<String>,
    /// Version of containerd, from a package database or from the program itself.
    pub runtime_version: Option<String>,
    /// Path of NVIDIA's runtime on this host.
    pub nvidia_runtime: Option<String>,
    /// Mode of NVIDIA's runtime in its `config.toml`.
    pub toolkit_mode: Option<String>,
    /// Tegra's lists: file name and number of entries.
    pub lists: Vec<(String, usize)>,
    /// Which kubelet sockets exist.
    pub kubelet_sockets: BTreeMap<String, bool>,
    /// Images given by `--image`, and whether the runtime's store has them; `None` if no store is readable.
    pub images: Vec<(String, Option<bool>)>,
    /// The node object in the cluster.
    pub cluster: ClusterView,
    /// What decides whether the driver can limit the memory of containers; `None` if the driver was not asked.
    pub limits: Option<TierFacts>,
    /// What the node agent of this machine decided last; `None` if none has run here, or another directory has its state.
    pub decided: Option<NodeEnforcement>,
    /// Whether this process is in a container.
    pub in_container: bool,
    /// How the node agent injects GPUs; `None` if the agent is another process.
    pub mode: Option<Mode>,
}

/// A GPU that the driver lists but that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnresponsiveGpu {
    /// Its UUID.
    pub uuid: String,
    /// The error of the probe.
    pub error: String,
    /// What to do about it.
    pub remedy: String,
}

/// One CDI spec file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecFile {
    /// Path on the host.
    pub path: String,
    /// CDI kind of its devices, if the file is readable.
    pub kind: Option<String>,
    /// What a runtime would refuse. Only our own spec is checked.
    pub problems: Vec<String>,
    /// Host files that it mounts and that do not exist.
    pub dangling: Vec<String>,
}

/// The node object in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClusterView {
    /// No cluster is configured.
    #[default]
    NotAsked,
    /// The API server does not answer.
    Unreachable(String),
    /// The cluster has no node of this name.
    NoSuchNode(String),
    /// The cluster has the node.
    #[serde(rename_all = "camelCase")]
    Node {
        /// The node's labels.
        labels: BTreeMap<String, String>,
        /// The RuntimeClass by which pods request NVIDIA's runtime.
        runtime_class: RuntimeClass,
    },
}

impl ClusterView {
    /// The view with those labels only that checks read.
    pub(super) fn without_foreign_labels(mut self) -> Self {
        if let ClusterView::Node { labels, .. } = &mut self {
            labels.retain(|key, _| key.starts_with("nvidia.com/") || key.starts_with("kai.scheduler/"));
        }
        self
    }
}

/// The RuntimeClass object `nvidia`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuntimeClass {
    /// It exists and names this handler.
    Handler(String),
    /// It does not exist.
    Missing,
    /// It can't be read, with the error; often the permission is missing.
    Unknown(String),
}

const CRASH_REMEDY: &str = "Reinstall the driver package that owns the library (dpkg -S or rpm -qf names it), and look for a full or failing disk; \
                            kai node-agent would crash, too.";

/// The usual name of the RuntimeClass of NVIDIA's runtime.
pub(crate) const RUNTIME_CLASS: &str = "nvidia";

const KUBELET_SOCKETS: [&str; 2] = [
    "/var/lib/kubelet/device-plugins/kubelet.sock",
    "/var/lib/kubelet/pod-resources/kubelet.sock",
];

/// Config files of containerd; the first existing one is in use.
const CONTAINERD_CONFIGS: [&str; 3] = [
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/containerd/config.toml",
];

/// Config of NVIDIA's container runtime.
pub(crate) const TOOLKIT_CONFIG: &str = "/etc/nvidia-container-runtime/config.toml";

/// Templates of k3s and RKE2 beside the generated config, in order of precedence.
const TEMPLATES: [&str; 2] = ["config-v3.toml.tmpl", "config.toml.tmpl"];

/// Collects all facts about this machine.
pub fn collect_facts(args: &Args) -> Result<Facts, Error> {
    let roots = args.host.roots();
    let host = HostRoot::new(&roots.host);
    let mut facts = Facts::default();
    collect_driver(args, &roots, &mut facts)?;
    collect_files(&host, &args.host.csv_dir, &mut RuntimeVersion::default(), &mut facts);
    facts.images = args
        .images
        .iter()
        .map(|image| (image.clone(), image_in_store(&host, image)))
        .collect();
    facts.cluster = collect_cluster(args)?;
    Ok(facts)
}

/// Collects the facts for the node agent, which has opened the driver already and passes its answer. Images and the cluster are left out.
pub(crate) fn collect_beside_agent(
    search: &Search,
    mode: Mode,
    answer: Result<Inventory, (String, String)>,
    version: &mut RuntimeVersion,
) -> Facts {
    let host = HostRoot::new(&search.roots.host);
    let mut detection = detect(&search.roots);
    let mut facts = Facts {
        mode: Some(mode),
        ..Facts::default()
    };
    match &answer {
        Ok(inventory) => {
            // Where no file shows a GPU, the driver knows the platform.
            detection.platform = inventory.platform.clone();
            facts.files = collect::collect(search, inventory);
        }
        Err(_) => facts.files = files_without_driver(search, &detection),
    }
    facts.inventory = Some(answer);
    facts.detection = Some(detection);
    collect_files(&host, &search.csv_dir, version, &mut facts);
    facts
}

/// The facts in files other than the driver's.
fn collect_files(host: &HostRoot, csv_dir: &str, version: &mut RuntimeVersion, facts: &mut Facts) {
    facts.in_container = host.exists("/.dockerenv") || host.exists("/run/secrets/kubernetes.io");
    collect_specs(host, facts);
    collect_runtime(host, version, facts);
    if facts
        .detection
        .as_ref()
        .is_some_and(|detection| detection.platform.kind == PlatformKind::Tegra)
    {
        for name in BASE_FILES {
            if let Some(text) = host.text(&format!("{csv_dir}/{name}")) {
                facts.lists.push((name.to_owned(), csv::parse(&text).entries.len()));
            }
        }
    }
    facts.kubelet_sockets = KUBELET_SOCKETS
        .iter()
        .map(|path| ((*path).to_owned(), host.exists(path)))
        .collect();
}

/// Makes the same queries to the driver as [`collect_facts`] and drops the answers. A process of its own runs it, because a corrupted driver
/// library can crash the process that loads it.
pub fn probe_driver(args: &Args) {
    let opened = args.host.open_options("").map(kai_gpu::open);
    if let Ok(Ok(opened)) = opened
        && let Ok(inventory) = opened.driver.devices()
    {
        unresponsive_gpus(&*opened.driver, &inventory);
    }
}

/// Opens the driver, unless it is known to crash its process.
fn collect_driver(args: &Args, roots: &Roots, facts: &mut Facts) -> Result<(), Error> {
    let seed = args.node_name.clone().unwrap_or_default();
    let mut options = args.host.open_options(&seed)?;
    // The UUID that the node agent offered, if it ran here.
    options.integrated_uuid = IntegratedGpuIdentity::new(&roots.in_host(STATE_DIR), roots).load();
    if let Some(crash) = &args.driver_crash {
        let library = args.host.nvml_library.as_ref();
        let library = library.map_or("libnvidia-ml.so.1".to_owned(), |path| path.display().to_string());
        let error = format!("the driver library crashes the process that loads it ({library}: {crash})");
        facts.inventory = Some(Err((error, CRASH_REMEDY.to_owned())));
        let detection = detect(roots);
        facts.files = files_without_driver(&args.host.search(), &detection);
        facts.detection = Some(detection);
        return Ok(());
    }
    match kai_gpu::open(options) {
        Ok(opened) => {
            let listed = opened.driver.devices().map_err(|error| {
                facts.hidden_device_nodes = lacks_device_nodes(roots, &error);
                (error.to_string(), error.remedy().to_owned())
            });
            if let Ok(inventory) = &listed {
                facts.unresponsive = unresponsive_gpus(&*opened.driver, inventory);
                facts.files = collect::collect(&args.host.search(), inventory);
                let host = HostRoot::new(&roots.host);
                facts.limits = Some(shares::tier_facts(&*opened.driver, inventory, &facts.files, &host));
                facts.decided = LastEnforcement::new(&roots.in_host(STATE_DIR)).load();
            } else {
                facts.files = files_without_driver(&args.host.search(), &opened.detection);
            }
            facts.inventory = Some(listed);
            facts.detection = Some(opened.detection);
        }
        // The flags are wrong, not the machine.
        Err(error @ (GpuError::FakeSettings { .. } | GpuError::FakeControl { .. })) => return Err(error.into()),
        Err(error) => {
            facts.hidden_device_nodes = lacks_device_nodes(roots, &error);
            facts.inventory = Some(Err((error.to_string(), error.remedy().to_owned())));
        }
    }
    Ok(())
}

/// The driver's control node. NVML opens it first, at this path.
const CONTROL_NODE: &str = "dev/nvidiactl";

/// Whether the driver did not answer for lack of a device node that the host has and this pod has not.
fn lacks_device_nodes(roots: &Roots, error: &GpuError) -> bool {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    matches!(error, GpuError::DriverNotLoaded { .. } | GpuError::NoPermission { .. })
        && in_pod
        && roots.host.join(CONTROL_NODE).exists()
        && !Path::new("/").join(CONTROL_NODE).exists()
}

/// The driver's files can be checked even if the driver does not answer.
fn files_without_driver(search: &Search, detection: &Detection) -> DriverFiles {
    let inventory = Inventory {
        platform: detection.platform.clone(),
        driver_version: detection.driver_version.clone(),
        ..Inventory::default()
    };
    collect::collect(search, &inventory)
}

fn unresponsive_gpus(driver: &dyn Driver, inventory: &Inventory) -> Vec<UnresponsiveGpu> {
    let asked = inventory.devices.iter().filter_map(|device| {
        let error = health::probe(driver, &device.uuid).err()?;
        Some(UnresponsiveGpu {
            uuid: device.uuid.clone(),
            error: error.to_string(),
            remedy: error.remedy().to_owned(),
        })
    });
    asked.collect()
}

fn collect_specs(host: &HostRoot, facts: &mut Facts) {
    for directory in ["/etc/cdi", store::CDI_DIR] {
        for name in host.list(directory) {
            let path = format!("{directory}/{name}");
            let Some(text) = host.text(&path) else { continue };
            let ours = serde_json::from_str::<Spec>(&text)
                .ok()
                .filter(|found| found.kind == spec::KIND);
            let kind = text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim().trim_matches('"') == "kind").then(|| value.trim().trim_matches(['"', ',']).to_owned())
            });
            let mounts = ours.iter().flat_map(|spec| &spec.container_edits.mounts);
            let dangling: Vec<String> = mounts
                .map(|mount| mount.host_path.clone())
                .filter(|path| !host.exists(path))
                .collect();
            facts.specs.push(SpecFile {
                path,
                kind,
                problems: ours.map(|spec| spec.problems()).unwrap_or_default(),
                dangling,
            });
        }
    }
}

fn collect_runtime(host: &HostRoot, version: &mut RuntimeVersion, facts: &mut Facts) {
    for (name, directory) in [("k3s", "/var/lib/rancher/k3s"), ("rke2", "/var/lib/rancher/rke2")] {
        if host.exists(directory) {
            facts.k3s = Some(name.to_owned());
        }
    }
    facts.containerd = CONTAINERD_CONFIGS
        .iter()
        .find_map(|path| Some(((*path).to_owned(), host.text(path)?)));
    if let Some((path, text)) = &facts.containerd {
        facts.containerd_imports = imports(host, path, text);
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        facts.templates = TEMPLATES
            .iter()
            .map(|name| format!("{directory}/{name}"))
            .filter(|path| facts.k3s.is_some() && host.exists(path))
            .collect();
    }
    facts.runtime_version = version.read(host, facts.k3s.as_deref());
    let places = ["/usr/bin", "/usr/local/bin", "/usr/local/nvidia/toolkit"];
    facts.nvidia_runtime = places
        .iter()
        .map(|directory| format!("{directory}/nvidia-container-runtime"))
        .find(|path| host.exists(path));
    if let Some(text) = host.text(TOOLKIT_CONFIG) {
        let mode = toml::value(&text, &["nvidia-container-runtime"], "mode");
        match toml::syntax_error(&text) {
            None => facts.toolkit_mode = Some(mode.unwrap_or_else(|| "auto".to_owned())),
            Some(error) => facts.malformed.push((TOOLKIT_CONFIG.to_owned(), error)),
        }
    }
    let configs = facts.containerd.iter().chain(&facts.containerd_imports);
    let malformed = configs.filter_map(|(path, text)| Some((path.clone(), toml::syntax_error(text)?)));
    facts.malformed.extend(malformed);
}

/// The files that containerd's config imports, in order. An entry is a file or a pattern (`/etc/containerd/conf.d/*.toml`).
fn imports(host: &HostRoot, config: &str, text: &str) -> Vec<(String, String)> {
    let directory = config.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut paths = Vec::new();
    for pattern in toml::strings(text, "imports") {
        let pattern = if pattern.starts_with('/') {
            pattern
        } else {
            format!("{directory}/{pattern}")
        };
        match pattern.rsplit_once('/') {
            Some((directory, name)) if name.contains('*') => {
                let ending = name.rsplit('*').next().unwrap_or_default();
                let names = host.list(directory).into_iter().filter(|name| name.ends_with(ending));
                paths.extend(names.map(|name| format!("{directory}/{name}")));
            }
            Some(_) => paths.push(pattern),
            None => {}
        }
    }
    let read = |path: String| Some((path.clone(), host.text(&path)?));
    paths.into_iter().filter_map(read).collect()
}

/// The version of containerd as read last. A program file of k3s has 70 MB, so the agent reads it again only if a file has changed.
#[derive(Debug, Default)]
pub(crate) struct RuntimeVersion {
    read: Option<(Vec<FileStamp>, Option<String>)>,
}

/// A file, and what changes with its content; `None` if there is no such file.
type FileStamp = (String, Option<(u64, SystemTime)>);

impl RuntimeVersion {
    fn read(&mut self, host: &HostRoot, bundled: Option<&str>) -> Option<String> {
        let stamp = |path: String| {
            let file = host.resolve(&path).map(|path| host.local_path(&path));
            let about = file.and_then(|file| file.metadata().ok());
            let stamp = about.and_then(|about| Some((about.len(), about.modified().ok()?)));
            (path, stamp)
        };
        let stamps: Vec<FileStamp> = version_sources(host, bundled).into_iter().map(stamp).collect();
        match &self.read {
            Some((known, version)) if *known == stamps => version.clone(),
            Some(_) | None => {
                let version = containerd_version(host, bundled);
                self.read = Some((stamps, version.clone()));
                version
            }
        }
    }
}

/// The package database of Debian's family.
const DPKG_STATUS: &str = "/var/lib/dpkg/status";
/// Where containerd is installed without k3s and RKE2.
const CONTAINERD: [&str; 2] = ["/usr/bin/containerd", "/usr/local/bin/containerd"];

/// The programs of k3s or RKE2 that may be its containerd, the current one first.
fn bundled_containerd(host: &HostRoot, name: &str) -> Vec<String> {
    let base = format!("/var/lib/rancher/{name}");
    let mut places = vec![
        format!("{base}/data/current/bin/containerd"),
        format!("{base}/bin/containerd"),
    ];
    let versions = host.list(&format!("{base}/data")).into_iter().rev();
    places.extend(versions.map(|version| format!("{base}/data/{version}/bin/containerd")));
    places
}

/// The files from which [`containerd_version`] reads.
fn version_sources(host: &HostRoot, bundled: Option<&str>) -> Vec<String> {
    match bundled {
        Some(name) => bundled_containerd(host, name),
        None => [DPKG_STATUS].into_iter().chain(CONTAINERD).map(str::to_owned).collect(),
    }
}

/// The version of containerd, without running it: from the distribution's package database or from the program file. k3s and RKE2 run their
/// own containerd, whatever package is installed.
fn containerd_version(host: &HostRoot, bundled: Option<&str>) -> Option<String> {
    let in_program = |path: &str| {
        let path = host.resolve(path)?;
        go_build::containerd_version(&host.local_path(&path))
    };
    if let Some(name) = bundled {
        let places = bundled_containerd(host, name);
        return places.into_iter().find_map(|path| in_program(&path));
    }
    let packaged = host.text(DPKG_STATUS).and_then(|text| {
        let entry = text.split("\n\n").find(|entry| {
            let named = entry.starts_with("Package: containerd\n") || entry.starts_with("Package: containerd.io\n");
            // dpkg still lists removed packages that left config files.
            named && entry.lines().any(|line| line == "Status: install ok installed")
        })?;
        let version = entry.lines().find_map(|line| line.strip_prefix("Version: "))?;
        Some(version.to_owned())
    });
    packaged.or_else(|| CONTAINERD.into_iter().find_map(in_program))
}

/// Whether containerd's store on the node has an image; `None` if no store is readable.
fn image_in_store(host: &HostRoot, image: &str) -> Option<bool> {
    let stores = [
        "/var/lib/rancher/k3s/agent/containerd",
        "/var/lib/rancher/rke2/agent/containerd",
        "/var/lib/containerd",
    ];
    let databases: Vec<Vec<u8>> = stores
        .iter()
        .filter_map(|store| host.bytes(&format!("{store}/io.containerd.metadata.v1.bolt/meta.db")))
        .collect();
    let names = full_names(image);
    let found: Vec<bool> = databases
        .iter()
        .filter_map(|bytes| bolt::has_key(bytes, &names))
        .collect();
    (!found.is_empty()).then(|| found.contains(&true))
}

/// The full name of an image as the runtime stores it: `busybox` is `docker.io/library/busybox:latest`.
fn full_names(image: &str) -> Vec<String> {
    let last = image.rsplit('/').next().unwrap_or(image);
    let tagged = if last.contains([':', '@']) {
        image.to_owned()
    } else {
        format!("{image}:latest")
    };
    let full = match tagged.split_once('/') {
        None => format!("docker.io/library/{tagged}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => tagged.clone(),
        Some(_) => format!("docker.io/{tagged}"),
    };
    vec![full, tagged]
}

fn collect_cluster(args: &Args) -> Result<ClusterView, Error> {
    if let Some(text) = &args.cluster_view {
        return serde_json::from_str(text).map_err(|error| Error::Option {
            option: super::CLUSTER_VIEW_ENV,
            problem: format!("{error}; `kai doctor NODE` writes it, and both programs must have the same version"),
        });
    }
    let given = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    // Every pod has this variable, but a pod without a token has no account.
    let in_pod = given("KUBERNETES_SERVICE_HOST") && Path::new(TOKEN).exists();
    let access = match &args.kubeconfig {
        Some(path) => ClientConfig::Kubeconfig(path.clone()),
        None if given("KUBECONFIG") || in_pod => ClientConfig::Infer,
        None => return Ok(ClusterView::NotAsked),
    };
    let Some(node) = args.node_name.clone().or_else(crate::agent::args::host_name) else {
        return Ok(ClusterView::NotAsked);
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Ok(ClusterView::NotAsked);
    };
    Ok(runtime.block_on(async {
        match Client::connect(&access).await {
            Ok(client) => read_cluster(&client, &node).await,
            Err(error) => ClusterView::Unreachable(error.to_string()),
        }
    }))
}

/// The node object and the runtime class.
pub(super) async fn read_cluster(client: &Client, node: &str) -> ClusterView {
    let asked = async {
        let labels = client.node_labels(node).await?;
        let runtime_class = match client.runtime_class_handler(RUNTIME_CLASS).await {
            Ok(Some(handler)) => RuntimeClass::Handler(handler),
            Ok(None) => RuntimeClass::Missing,
            Err(error) => RuntimeClass::Unknown(error.to_string()),
        };
        Ok::<_, kai_cluster::Error>(ClusterView::Node { labels, runtime_class })
    };
    match tokio::time::timeout(CLUSTER_SECONDS_MAX, asked).await {
        Ok(Ok(view)) => view,
        Ok(Err(error)) if error.is_not_found() => ClusterView::NoSuchNode(node.to_owned()),
        Ok(Err(error)) => ClusterView::Unreachable(error.to_string()),
        Err(_) => ClusterView::Unreachable("the api server does not answer".to_owned()),
    }
}
