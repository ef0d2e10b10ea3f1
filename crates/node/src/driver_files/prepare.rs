//! Plans the injection of GPUs and driver files, and writes the CDI spec or the driver volume for it. If the disk is full or read-only, the
//! agent injects in another way and goes on allocating devices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kai_api::EnforcementTier;
use kai_gpu::{DeviceKind, Inventory, PlatformKind};

use super::cdi::Spec;
use super::collect::{Search, collect};
use super::driver_volume::DriverVolumes;
use super::files::{DriverFiles, Library, LibraryPlacement, Node};
use super::host_root::HostRoot;
use super::nodes;
use super::spec::{SpecInputs, spec};
use super::store::{CdiDir, Written};
use crate::Error;
use crate::allocator::inject::{Injection, Mode};
use crate::enforcement::tier::NodeEnforcement;

/// Why a GPU can't be injected.
const NO_NODES: &str = "no device node of a GPU is visible to the node agent; mount the host's /dev into it";

/// Injects GPUs and driver files: reads the host's files, writes CDI specs and driver volumes.
#[derive(Debug, Clone)]
pub struct DriverFileInjector {
    /// How to inject.
    pub mode: Mode,
    /// Where driver files are searched.
    pub search: Search,
    /// Directory for CDI specs.
    pub cdi_dir: PathBuf,
    /// Directory for driver volumes.
    pub volume_dir: PathBuf,
    /// Fake library and environment for containers with fake GPUs.
    pub fake: Option<FakeFiles>,
}

/// What makes fake GPUs visible outside of the agent: in containers and in the hook that sets limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeFiles {
    /// Host path of the fake library.
    pub library: String,
    /// `KEY=value` for containers and the hook.
    pub env: Vec<String>,
    /// The control file, or its content. The hook obeys it; containers have no such file.
    pub control: Option<String>,
    /// Directory in which all copies of the library keep limits. Containers get it read-only.
    pub record_dir: Option<String>,
}

impl FakeFiles {
    /// The hook's environment.
    pub fn hook_environment(&self) -> Vec<String> {
        let control = self.control.iter().map(|control| format!("KAI_FAKE_CONTROL={control}"));
        self.env.iter().cloned().chain(control).collect()
    }
}

/// The driver files that were found and the CDI spec that follows from them. Nothing is written yet.
#[derive(Debug, Clone)]
pub struct InjectionPlan {
    /// The driver's files.
    pub files: DriverFiles,
    /// The CDI spec; `None` without devices.
    pub spec: Option<Spec>,
    /// Warnings for operators.
    pub warnings: Vec<String>,
}

/// Inode and modification time of the driver's directories, and the driver's version.
pub type Fingerprint = Vec<(String, Option<(u64, i64, i64)>)>;

/// The result of writing a plan.
#[derive(Debug)]
pub struct InjectionResult {
    /// How GPUs are injected from now on.
    pub injection: Injection,
    /// Name of the driver volume in use.
    pub volume: Option<String>,
    /// The write that failed; the agent tries it again later.
    pub error: Option<Error>,
    /// Whether the CDI spec changed on disk.
    pub changed: bool,
}

impl DriverFileInjector {
    /// Collects the driver's files and plans the injection. Reads only. `enforcement` is that of the node, if it is decided.
    pub fn plan(&self, inventory: &Inventory, enforcement: Option<&NodeEnforcement>) -> InjectionPlan {
        let mut files = collect(&self.search, inventory);
        let mut env: &[String] = &[];
        let nodes = if inventory.platform.kind == PlatformKind::Fake {
            if let Some(fake) = &self.fake {
                files.libraries.push(fake_library(&fake.library));
                files.data.extend(fake.record_dir.clone());
                env = &fake.env;
            }
            fake_nodes(inventory)
        } else {
            let found = nodes::device_nodes(&self.search.roots, inventory, &files);
            files.warnings.extend(found.warnings);
            found.by_uuid
        };
        let machine = self.search.machine;
        let spec = spec(&SpecInputs {
            inventory,
            files: &files,
            nodes: &nodes,
            machine,
            env,
            hook: enforcement
                .filter(|node| node.tier == EnforcementTier::Driver)
                .and_then(|node| node.hook.as_ref()),
        });
        let warnings = files.warnings.clone();
        InjectionPlan { files, spec, warnings }
    }

    /// Writes the CDI spec or the driver volume of a plan, and removes specs that the mode does not need.
    pub fn apply(&self, inventory: &Inventory, plan: &InjectionPlan) -> InjectionResult {
        let cdi = CdiDir::new(&self.cdi_dir);
        let Some(spec) = &plan.spec else {
            let error = cdi.remove().err();
            let injection = Injection::Impossible(NO_NODES.to_owned());
            return InjectionResult {
                injection,
                volume: None,
                error,
                changed: false,
            };
        };
        match self.mode {
            Mode::Cdi => self.apply_cdi(&cdi, spec),
            Mode::Mounts => {
                let removed = cdi.remove();
                let volumes = DriverVolumes::new(&self.volume_dir);
                let built = volumes.prepare(&plan.files, &HostRoot::new(&self.search.roots.driver));
                let (volume, error) = match built {
                    // A volume without files would only hide the image's own files.
                    Ok(name) if plan.files.libraries.is_empty() && plan.files.binaries.is_empty() => {
                        let _ = name;
                        (None, None)
                    }
                    Ok(name) => (Some(name), None),
                    Err(error) => (None, Some(error)),
                };
                let path = volume.as_ref().map(|name| volumes.path(name).display().to_string());
                let injection = Injection::Mounts {
                    spec: Box::new(spec.clone()),
                    volume: path,
                };
                InjectionResult {
                    injection,
                    volume,
                    error: error.or(removed.err()),
                    changed: false,
                }
            }
            Mode::Envvar => {
                let error = cdi.remove().err();
                let injection = Injection::Envvar {
                    visible: visible_device_names(inventory),
                };
                InjectionResult {
                    injection,
                    volume: None,
                    error,
                    changed: false,
                }
            }
        }
    }

    /// If the spec can't be written, a spec on disk that has all devices is used; otherwise the same edits are made without CDI.
    fn apply_cdi(&self, cdi: &CdiDir, spec: &Spec) -> InjectionResult {
        match cdi.write(spec) {
            Ok(written) => {
                let changed = written == Written::Changed;
                InjectionResult {
                    injection: Injection::Cdi,
                    volume: None,
                    error: None,
                    changed,
                }
            }
            Err(error) => {
                let resolvable = spec.devices.iter().all(|device| cdi.has(&device.name));
                let without = || Injection::Mounts {
                    spec: Box::new(spec.clone()),
                    volume: None,
                };
                let injection = if resolvable { Injection::Cdi } else { without() };
                InjectionResult {
                    injection,
                    volume: None,
                    error: Some(error),
                    changed: false,
                }
            }
        }
    }

    /// Removes driver volumes that no container uses any more.
    pub fn remove_volumes(&self, in_use: &BTreeSet<String>) -> Result<(), Error> {
        DriverVolumes::new(&self.volume_dir).remove_except(in_use)
    }

    /// Removes all specs and volumes that the agent wrote. For uninstalling.
    pub fn remove_all(&self) -> Result<(), Error> {
        CdiDir::new(&self.cdi_dir).remove()?;
        self.remove_volumes(&BTreeSet::new())
    }

    /// A value that differs when the driver on the host may have changed. Cheap, unlike [`DriverFileInjector::plan`].
    pub fn fingerprint(&self) -> Fingerprint {
        use std::os::unix::fs::MetadataExt;
        let driver = HostRoot::new(&self.search.roots.driver);
        let mut paths: Vec<String> = super::collect::library_dirs(&self.search);
        paths.push("/etc/ld.so.cache".to_owned());
        paths.extend(
            super::csv::BASE_FILES
                .iter()
                .map(|name| format!("{}/{name}", self.search.csv_dir)),
        );
        let roots = &self.search.roots;
        let own = [roots.dev.clone(), roots.dev.join("dri"), roots.dev.join("nvidia-caps")];
        let version = std::fs::read_to_string(roots.proc.join("driver/nvidia/version")).unwrap_or_default();
        let facts = |path: PathBuf| {
            let facts = std::fs::metadata(path).ok()?;
            Some((facts.ino(), facts.mtime(), facts.mtime_nsec()))
        };
        let driver_files = paths
            .into_iter()
            .map(|path| (path.clone(), facts(driver.local_path(&path))));
        let own_files = own.into_iter().map(|path| (path.display().to_string(), facts(path)));
        driver_files.chain(own_files).chain([(version, None)]).collect()
    }
}

/// NVIDIA's runtime knows devices by UUID, except a Tegra's integrated GPU, which it knows by index: the indices by UUID.
pub(crate) fn visible_device_names(inventory: &Inventory) -> BTreeMap<String, String> {
    let integrated = inventory
        .devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Integrated);
    integrated
        .map(|device| (device.uuid.clone(), device.index.to_string()))
        .collect()
}

/// The CDI spec of fake devices, on a host without driver files.
pub(crate) fn fake_spec(inventory: &Inventory) -> Option<Spec> {
    spec(&SpecInputs {
        inventory,
        files: &DriverFiles::default(),
        nodes: &fake_nodes(inventory),
        machine: kai_gpu::linker::Machine::X86_64,
        env: &[],
        hook: None,
    })
}

/// Device nodes of fake GPUs: a container finds `/dev/nvidia0`, which is the host's `/dev/null`.
fn fake_nodes(inventory: &Inventory) -> BTreeMap<String, Vec<Node>> {
    let stand_in = |path: String| Node {
        path,
        host_path: Some("/dev/null".to_owned()),
        group: None,
    };
    let mut nodes = BTreeMap::new();
    for device in &inventory.devices {
        let minor = device.minor.unwrap_or(device.index);
        let own = vec![
            stand_in("/dev/nvidiactl".to_owned()),
            stand_in(format!("/dev/nvidia{minor}")),
        ];
        for mig in &device.mig_devices {
            nodes.insert(mig.uuid.clone(), own.clone());
        }
        nodes.insert(device.uuid.clone(), own);
    }
    nodes
}

fn fake_library(path: &str) -> Library {
    let names = vec!["libnvidia-ml.so.1".to_owned(), "libnvidia-ml.so".to_owned()];
    Library {
        path: path.to_owned(),
        names,
        links: Vec::new(),
        placement: LibraryPlacement::LinkerDirs,
    }
}
