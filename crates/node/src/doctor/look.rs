//! Gathers what the doctor judges: files through their prefixes, the driver, the runtime's files, the kubelet's sockets, and the
//! cluster if there is a way to it. Reads only, and never fails because something is missing: that is what the doctor is for.

use std::collections::BTreeMap;
use std::time::Duration;

use kai_cluster::{Client, ClientConfig};
use kai_gpu::platform::{Detection, detect};
use kai_gpu::{Driver, GpuError, Inventory, PlatformKind, Roots};

use super::{Args, bolt, go_build, toml};
use crate::Error;
use crate::agent::args::STATE_DIR;
use crate::agent::files::Identity;
use crate::health;
use crate::volume::cdi::Spec;
use crate::volume::csv::{self, BASE_FILES};
use crate::volume::files::DriverFiles;
use crate::volume::rooted::Rooted;
use crate::volume::{collect, spec, store};

/// The cluster is asked for this long at most: a doctor must answer where nothing works.
const CLUSTER_SECONDS_MAX: Duration = Duration::from_secs(5);

/// Everything that was seen.
#[derive(Debug, Default)]
pub struct Facts {
    /// Platform and why.
    pub detection: Option<Detection>,
    /// Devices, or the driver's error with its remedy.
    pub inventory: Option<Result<Inventory, (String, String)>>,
    /// GPUs that are listed but do not answer.
    pub silent: Vec<SilentGpu>,
    /// Driver files.
    pub files: DriverFiles,
    /// Spec files in CDI directories: path, and whether it can be read.
    pub specs: Vec<SpecFile>,
    /// Containerd (also k3s's): config path, its text.
    pub containerd: Option<(String, String)>,
    /// Files that it imports: path and text. What they say goes before the config itself.
    pub containerd_imports: Vec<(String, String)>,
    /// Templates from which k3s or RKE2 makes its config, the one in force first.
    pub templates: Vec<String>,
    /// Whether k3s or RKE2 brings its own containerd.
    pub k3s: Option<String>,
    /// Version of containerd, if a package database or the program itself tells.
    pub runtime_version: Option<String>,
    /// NVIDIA's runtime on this host: path.
    pub nvidia_runtime: Option<String>,
    /// Its `config.toml` mode.
    pub toolkit_mode: Option<String>,
    /// Tegra's lists: file name and number of entries.
    pub lists: Vec<(String, usize)>,
    /// Which kubelet sockets exist.
    pub kubelet_sockets: BTreeMap<String, bool>,
    /// Images asked for, and whether an archive or store of k3s has them; `None` if it can't be told.
    pub images: Vec<(String, Option<bool>)>,
    /// The node as the cluster sees it.
    pub cluster: ClusterView,
    /// Whether this process is in a container.
    pub in_container: bool,
}

/// A GPU that is listed but does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentGpu {
    /// Its UUID.
    pub uuid: String,
    /// What came back instead of an answer.
    pub error: String,
    /// What to do about it.
    pub remedy: String,
}

/// One CDI spec file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecFile {
    /// As the host names it.
    pub path: String,
    /// Its kind, if it could be read.
    pub kind: Option<String>,
    /// What a runtime would refuse about it (only ours is judged).
    pub problems: Vec<String>,
    /// Host files it mounts that do not exist.
    pub dangling: Vec<String>,
}

/// The node as the cluster sees it.
#[derive(Debug, Default)]
pub enum ClusterView {
    /// There is no way to a cluster, or none was asked for.
    #[default]
    NotAsked,
    /// It does not answer.
    Unreachable(String),
    /// It answers, and has no node of this name.
    NoSuchNode(String),
    /// It answered.
    Node {
        /// The node's labels.
        labels: BTreeMap<String, String>,
        /// The class under which pods ask for NVIDIA's runtime.
        runtime_class: RuntimeClass,
    },
}

/// The RuntimeClass object `nvidia`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeClass {
    /// It names this handler.
    Handler(String),
    /// There is none.
    Missing,
    /// It can't be read, in words: often the permission is missing.
    Unknown(String),
}

const CRASH_REMEDY: &str = "Reinstall the driver package that owns the library (dpkg -S or rpm -qf names it), and look for a full or failing disk; \
                            kai node-agent would crash, too.";

/// The class that people name in pods.
pub(crate) const RUNTIME_CLASS: &str = "nvidia";

const KUBELET_SOCKETS: [&str; 2] = [
    "/var/lib/kubelet/device-plugins/kubelet.sock",
    "/var/lib/kubelet/pod-resources/kubelet.sock",
];

/// Config files of containerd, those that are in force first.
const CONTAINERD_CONFIGS: [&str; 3] = [
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/containerd/config.toml",
];

/// k3s's and RKE2's own templates beside the config that is made from them; the newer one goes first.
const TEMPLATES: [&str; 2] = ["config-v3.toml.tmpl", "config.toml.tmpl"];

/// Looks at everything.
pub fn look(args: &Args) -> Result<Facts, Error> {
    let roots = args.host.roots();
    let host = Rooted::new(&roots.host);
    let mut facts = Facts {
        in_container: host.exists("/.dockerenv") || host.exists("/run/secrets/kubernetes.io"),
        ..Facts::default()
    };
    look_at_driver(args, &roots, &mut facts)?;
    look_at_specs(&host, &mut facts);
    look_at_runtime(&host, &mut facts);
    if facts
        .detection
        .as_ref()
        .is_some_and(|detection| detection.platform.kind == PlatformKind::Tegra)
    {
        for name in BASE_FILES {
            if let Some(text) = host.text(&format!("{}/{name}", args.host.csv_dir)) {
                facts.lists.push((name.to_owned(), csv::parse(&text).entries.len()));
            }
        }
    }
    facts.kubelet_sockets = KUBELET_SOCKETS
        .iter()
        .map(|path| ((*path).to_owned(), host.exists(path)))
        .collect();
    facts.images = args
        .images
        .iter()
        .map(|image| (image.clone(), imported(&host, image)))
        .collect();
    facts.cluster = look_at_cluster(args);
    Ok(facts)
}

/// Asks the driver what [`look`] asks it, without a word about the answers. A driver library that crashes its process is found by a
/// process that does nothing else.
pub fn probe_driver(args: &Args) {
    let opened = args.host.open_options("").map(kai_gpu::open);
    if let Ok(Ok(opened)) = opened
        && let Ok(inventory) = opened.driver.devices()
    {
        silent(&*opened.driver, &inventory);
    }
}

/// Opens the driver, unless it is known to crash its process.
fn look_at_driver(args: &Args, roots: &Roots, facts: &mut Facts) -> Result<(), Error> {
    let seed = args.node_name.clone().unwrap_or_default();
    let mut options = args.host.open_options(&seed)?;
    // Under the name that the node agent gave it, if it ran here.
    options.integrated_uuid = Identity::new(&roots.in_host(STATE_DIR), roots).load();
    if let Some(crash) = &args.driver_crash {
        let library = args.host.nvml_library.as_ref();
        let library = library.map_or("libnvidia-ml.so.1".to_owned(), |path| path.display().to_string());
        let error = format!("the driver library crashes the process that loads it ({library}: {crash})");
        facts.inventory = Some(Err((error, CRASH_REMEDY.to_owned())));
        let detection = detect(roots);
        facts.files = files_without_driver(args, &detection);
        facts.detection = Some(detection);
        return Ok(());
    }
    match kai_gpu::open(options) {
        Ok(opened) => {
            let listed = opened
                .driver
                .devices()
                .map_err(|error| (error.to_string(), error.remedy().to_owned()));
            if let Ok(inventory) = &listed {
                facts.silent = silent(&*opened.driver, inventory);
                facts.files = collect::collect(&args.host.search(), inventory);
            } else {
                facts.files = files_without_driver(args, &opened.detection);
            }
            facts.inventory = Some(listed);
            facts.detection = Some(opened.detection);
        }
        // What the user wrote makes no sense; nothing is wrong with the machine.
        Err(error @ (GpuError::FakeSettings { .. } | GpuError::FakeControl { .. })) => return Err(error.into()),
        Err(error) => facts.inventory = Some(Err((error.to_string(), error.remedy().to_owned()))),
    }
    Ok(())
}

/// Files can be judged even if the driver does not answer.
fn files_without_driver(args: &Args, detection: &Detection) -> DriverFiles {
    let inventory = Inventory {
        platform: detection.platform.clone(),
        driver_version: detection.driver_version.clone(),
        ..Inventory::default()
    };
    collect::collect(&args.host.search(), &inventory)
}

fn silent(driver: &dyn Driver, inventory: &Inventory) -> Vec<SilentGpu> {
    let asked = inventory.devices.iter().filter_map(|device| {
        let error = health::ask(driver, &device.uuid).err()?;
        Some(SilentGpu {
            uuid: device.uuid.clone(),
            error: error.to_string(),
            remedy: error.remedy().to_owned(),
        })
    });
    asked.collect()
}

fn look_at_specs(host: &Rooted, facts: &mut Facts) {
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

fn look_at_runtime(host: &Rooted, facts: &mut Facts) {
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
    facts.runtime_version = containerd_version(host, facts.k3s.as_deref());
    let places = ["/usr/bin", "/usr/local/bin", "/usr/local/nvidia/toolkit"];
    facts.nvidia_runtime = places
        .iter()
        .map(|directory| format!("{directory}/nvidia-container-runtime"))
        .find(|path| host.exists(path));
    facts.toolkit_mode = host
        .text("/etc/nvidia-container-runtime/config.toml")
        .map(|text| toml::value(&text, "nvidia-container-runtime", "mode").unwrap_or_else(|| "auto".to_owned()));
}

/// What containerd imports, in the order in which it goes: a file, or all of a directory (`/etc/containerd/conf.d/*.toml`).
fn imports(host: &Rooted, config: &str, text: &str) -> Vec<(String, String)> {
    let Some(value) = toml::value(text, "", "imports") else {
        return Vec::new();
    };
    let directory = config.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut paths = Vec::new();
    for pattern in value.trim_matches(['[', ']']).split(',') {
        let pattern = pattern.trim().trim_matches(['"', '\'']);
        let pattern = if pattern.starts_with('/') {
            pattern.to_owned()
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

/// The version of containerd, without running anything: the distribution's package, or what the program has in itself. k3s and RKE2 bring
/// their own, whatever package is installed beside it.
fn containerd_version(host: &Rooted, bundled: Option<&str>) -> Option<String> {
    let in_program = |path: &str| {
        let path = host.resolve(path)?;
        go_build::containerd_version(&host.seen(&path))
    };
    if let Some(name) = bundled {
        let base = format!("/var/lib/rancher/{name}");
        let places = [
            format!("{base}/data/current/bin/containerd"),
            format!("{base}/bin/containerd"),
        ];
        let versions = host.list(&format!("{base}/data")).into_iter().rev();
        let others = versions.map(|version| format!("{base}/data/{version}/bin/containerd"));
        return places.into_iter().chain(others).find_map(|path| in_program(&path));
    }
    let packaged = host.text("/var/lib/dpkg/status").and_then(|text| {
        let entry = text.split("\n\n").find(|entry| {
            let named = entry.starts_with("Package: containerd\n") || entry.starts_with("Package: containerd.io\n");
            // Packages that were removed stay listed for their config files.
            named && entry.lines().any(|line| line == "Status: install ok installed")
        })?;
        let version = entry.lines().find_map(|line| line.strip_prefix("Version: "))?;
        Some(version.to_owned())
    });
    packaged.or_else(|| {
        ["/usr/bin/containerd", "/usr/local/bin/containerd"]
            .into_iter()
            .find_map(in_program)
    })
}

/// Whether an image is on the node, as far as files tell: archives that k3s imports at start, and its store's metadata.
fn imported(host: &Rooted, image: &str) -> Option<bool> {
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

/// How a runtime writes an image's name out: `busybox` is `docker.io/library/busybox:latest`.
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

fn look_at_cluster(args: &Args) -> ClusterView {
    let given = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let access = match &args.kubeconfig {
        Some(path) => ClientConfig::Kubeconfig(path.clone()),
        None if given("KUBECONFIG") || given("KUBERNETES_SERVICE_HOST") => ClientConfig::Infer,
        None => return ClusterView::NotAsked,
    };
    let Some(node) = args.node_name.clone().or_else(crate::agent::args::host_name) else {
        return ClusterView::NotAsked;
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ClusterView::NotAsked;
    };
    runtime.block_on(async {
        let asked = async {
            let client = Client::connect(&access).await?;
            let labels = client.node_labels(&node).await?;
            let runtime_class = match client.runtime_class_handler(RUNTIME_CLASS).await {
                Ok(Some(handler)) => RuntimeClass::Handler(handler),
                Ok(None) => RuntimeClass::Missing,
                Err(error) => RuntimeClass::Unknown(error.to_string()),
            };
            Ok::<_, kai_cluster::Error>(ClusterView::Node { labels, runtime_class })
        };
        match tokio::time::timeout(CLUSTER_SECONDS_MAX, asked).await {
            Ok(Ok(view)) => view,
            Ok(Err(error)) if error.is_not_found() => ClusterView::NoSuchNode(node),
            Ok(Err(error)) => ClusterView::Unreachable(error.to_string()),
            Err(_) => ClusterView::Unreachable("the api server does not answer".to_owned()),
        }
    })
}
