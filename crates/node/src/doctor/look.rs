//! Gathers what the doctor judges: files through their prefixes, the driver, the runtime's files, the kubelet's sockets, and the
//! cluster if there is a way to it. Reads only, and never fails because something is missing: that is what the doctor is for.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::{Access, Client};
use gpu::platform::Detection;
use gpu::{Inventory, PlatformKind};

use super::Args;
use super::toml;
use crate::Error;
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
    /// Driver files.
    pub files: DriverFiles,
    /// Spec files in CDI directories: path, and whether it can be read.
    pub specs: Vec<SpecFile>,
    /// Containerd (also k3s's): config path, its text.
    pub containerd: Option<(String, String)>,
    /// Whether k3s or RKE2 brings its own containerd.
    pub k3s: Option<String>,
    /// Version of the runtime, if a file tells.
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
    /// The node's labels.
    Labels(BTreeMap<String, String>),
}

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

/// Looks at everything.
pub fn look(args: &Args) -> Result<Facts, Error> {
    let roots = args.host.roots();
    let host = Rooted::new(&roots.host);
    let mut facts = Facts {
        in_container: host.exists("/.dockerenv") || host.exists("/run/secrets/kubernetes.io"),
        ..Facts::default()
    };
    let seed = args.node_name.clone().unwrap_or_default();
    match gpu::open(args.host.open_options(&seed)?) {
        Ok(opened) => {
            let listed = opened
                .driver
                .devices()
                .map_err(|error| (error.to_string(), error.remedy().to_owned()));
            if let Ok(inventory) = &listed {
                facts.files = collect::collect(&args.host.search(), inventory);
            } else {
                // Files can be judged even if the driver does not answer.
                let detection = &opened.detection;
                let (platform, driver_version) = (detection.platform.clone(), detection.driver_version.clone());
                let inventory = Inventory {
                    platform,
                    driver_version,
                    ..Inventory::default()
                };
                facts.files = collect::collect(&args.host.search(), &inventory);
            }
            facts.inventory = Some(listed);
            facts.detection = Some(opened.detection);
        }
        Err(error) => facts.inventory = Some(Err((error.to_string(), error.remedy().to_owned()))),
    }
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
    // Debian's package database tells the version without running anything.
    facts.runtime_version = host.text("/var/lib/dpkg/status").and_then(|text| {
        let entry = text.split("\n\n").find(|entry| {
            entry.starts_with("Package: containerd\n") || entry.starts_with("Package: containerd.io\n")
        })?;
        entry
            .lines()
            .find_map(|line| line.strip_prefix("Version: "))
            .map(str::to_owned)
    });
    let places = ["/usr/bin", "/usr/local/bin", "/usr/local/nvidia/toolkit"];
    facts.nvidia_runtime = places
        .iter()
        .map(|directory| format!("{directory}/nvidia-container-runtime"))
        .find(|path| host.exists(path));
    facts.toolkit_mode = host
        .text("/etc/nvidia-container-runtime/config.toml")
        .map(|text| toml::value(&text, "nvidia-container-runtime", "mode").unwrap_or_else(|| "auto".to_owned()));
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
    if databases.is_empty() {
        return None;
    }
    // The names of images are keys of the database: plain bytes in the file.
    let needle = image.as_bytes();
    Some(
        databases
            .iter()
            .any(|bytes| bytes.windows(needle.len().max(1)).any(|window| window == needle)),
    )
}

fn look_at_cluster(args: &Args) -> ClusterView {
    let given = |variable| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let access = match &args.kubeconfig {
        Some(path) => Access::Kubeconfig(path.clone()),
        None if given("KUBECONFIG") || given("KUBERNETES_SERVICE_HOST") => Access::Infer,
        None => return ClusterView::NotAsked,
    };
    let Some(node) = args.node_name.clone().or_else(crate::agent::args::host_name) else {
        return ClusterView::NotAsked;
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ClusterView::NotAsked;
    };
    runtime.block_on(async {
        let asked = async { Client::connect(&access).await?.node_labels(&node).await };
        match tokio::time::timeout(CLUSTER_SECONDS_MAX, asked).await {
            Ok(Ok(labels)) => ClusterView::Labels(labels),
            Ok(Err(error)) => ClusterView::Unreachable(error.to_string()),
            Err(_) => ClusterView::Unreachable("the api server does not answer".to_owned()),
        }
    })
}
