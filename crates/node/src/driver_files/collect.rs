//! Finds the libraries and programs of NVIDIA's standard driver on the host: in the linker's cache and in the usual directories, checked by
//! their ELF headers. Reads only. Jetsons list their files themselves: see `tegra`.

use std::collections::{BTreeMap, BTreeSet};

use kai_gpu::linker::integrity::{self, Defect};
use kai_gpu::linker::{Machine, elf, ldcache};
use kai_gpu::{Inventory, PlatformKind, Roots};

use super::files::{DriverFiles, Library, LibraryPlacement};
use super::host_root::HostRoot;
use super::{nodes, tegra};

/// Libraries by the part before `.so`, for compute, management and video. Graphics libraries come from the image.
pub(super) const LIBRARIES: [&str; 18] = [
    "libcuda",
    "libcudadebugger",
    "libnvcuvid",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-compiler",
    "libnvidia-encode",
    "libnvidia-fatbinaryloader",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nscq",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-opticalflow",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-tileiras",
];

const BINARIES: [&str; 5] = [
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
];

const BINARY_DIRS: [&str; 5] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin"];

/// Sockets of the driver's daemons and the pipe directory of MPS. They exist only where these run.
const SOCKETS: [&str; 3] = [
    "/run/nvidia-persistenced/socket",
    "/run/nvidia-fabricmanager/socket",
    "/tmp/nvidia-mps",
];

/// Where driver files are searched.
#[derive(Debug, Clone)]
pub struct Search {
    /// Prefixes of the host's directories.
    pub roots: Roots,
    /// CPU of the host.
    pub machine: Machine,
    /// Further directories with driver libraries, for distributions that put them elsewhere.
    pub library_dirs: Vec<String>,
    /// Where Tegra's lists are.
    pub csv_dir: String,
    /// Path of the driver root on the host; empty for `/`.
    pub driver_root_on_host: String,
}

impl Search {
    /// The default search below `roots`.
    pub fn new(roots: Roots) -> Self {
        {
            let csv_dir = super::csv::CSV_DIR.to_owned();
            Self {
                roots,
                machine: Machine::here(),
                library_dirs: Vec::new(),
                csv_dir,
                driver_root_on_host: String::new(),
            }
        }
    }
}

/// Collects the driver's files of any platform. Missing files are warnings, not errors.
pub fn collect(search: &Search, inventory: &Inventory) -> DriverFiles {
    let mut files = match inventory.platform.kind {
        PlatformKind::Tegra => tegra::collect(search, inventory),
        PlatformKind::Nvml | PlatformKind::Wsl => collect_standard(search, inventory),
        PlatformKind::Fake | PlatformKind::None => DriverFiles::default(),
    };
    files.host_prefix = search.driver_root_on_host.clone();
    files.libraries.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn collect_standard(search: &Search, inventory: &Inventory) -> DriverFiles {
    let root = HostRoot::new(&search.roots.driver);
    let mut files = DriverFiles {
        version: inventory.driver_version.clone(),
        ..DriverFiles::default()
    };
    let candidates = candidates(search, &root, &mut files.warnings);
    files.libraries = libraries(
        search,
        &root,
        candidates,
        inventory.driver_version.as_deref(),
        &mut files.warnings,
    );
    if !files
        .libraries
        .iter()
        .any(|library| library.names.iter().any(|name| name.starts_with("libcuda.so")))
    {
        files.warnings.push(
            "libcuda.so.1 was not found: install the driver's user-space libraries on the host, or name their directory with --library-dir"
                .to_owned(),
        );
    }
    files.binaries = binaries(&root);
    if let Some(version) = &inventory.driver_version {
        let firmware = format!("/lib/firmware/nvidia/{version}");
        let images = root
            .list(&firmware)
            .into_iter()
            .filter(|name| name.starts_with("gsp") && name.ends_with(".bin"));
        files.data = images.map(|name| format!("{firmware}/{name}")).collect();
    }
    let host = HostRoot::new(&search.roots.host);
    files.sockets = SOCKETS
        .iter()
        .filter(|path| host.exists(path))
        .map(|path| (*path).to_owned())
        .collect();
    files.shared_nodes = nodes::shared_nodes(&search.roots);
    files
}

/// Paths that may be driver libraries: entries of the linker's cache, and files in the usual directories.
fn candidates(search: &Search, root: &HostRoot, warnings: &mut Vec<String>) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    match root.bytes("/etc/ld.so.cache").map(|bytes| ldcache::parse(&bytes)) {
        Some(Ok(entries)) => paths.extend(
            entries
                .into_iter()
                .filter(|entry| entry.machine == search.machine && is_wanted(&entry.name))
                .map(|entry| entry.path),
        ),
        Some(Err(why)) => warnings.push(format!("/etc/ld.so.cache of the driver root is unreadable: {why}")),
        None => {}
    }
    for directory in library_dirs(search) {
        let found = root.list(&directory).into_iter().filter(|name| is_wanted(name));
        paths.extend(found.map(|name| format!("{directory}/{name}")));
    }
    paths
}

/// Where distributions put driver libraries.
pub(super) fn library_dirs(search: &Search) -> Vec<String> {
    let triplet = search.machine.triplet();
    let usual = [
        format!("/usr/lib/{triplet}"),
        format!("/usr/lib/{triplet}/nvidia"),
        format!("/usr/lib/{triplet}/nvidia/current"),
        "/usr/lib64".to_owned(),
        "/usr/lib64/nvidia".to_owned(),
        format!("/lib/{triplet}"),
        "/lib64".to_owned(),
        "/usr/lib/nvidia".to_owned(),
        "/usr/lib".to_owned(),
    ];
    search.library_dirs.iter().cloned().chain(usual).collect()
}

fn is_wanted(name: &str) -> bool {
    name.split_once(".so")
        .is_some_and(|(stem, _)| LIBRARIES.contains(&stem))
}

/// One entry per regular file, with all the names that lead to it.
fn libraries(
    search: &Search,
    root: &HostRoot,
    candidates: BTreeSet<String>,
    driver_version: Option<&str>,
    warnings: &mut Vec<String>,
) -> Vec<Library> {
    let mut by_file: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in candidates {
        let Some(file) = root.resolve(&path) else {
            warnings.push(format!(
                "{path} leads nowhere: reinstall the driver's libraries, or run ldconfig on the host"
            ));
            continue;
        };
        by_file.entry(file).or_default().extend(file_name(&path));
    }
    let mut libraries: Vec<Library> = Vec::new();
    for (path, aliases) in by_file {
        if let (Some(running), Some(found)) = (driver_version, version_in_name(&path))
            && running != found
        {
            warnings.push(format!(
                "{path} is left out: it belongs to driver {found}, but {running} is running"
            ));
            continue;
        }
        if !is_whole(root, &path, warnings) {
            continue;
        }
        match elf::read(&root.local_path(&path)) {
            Ok(Some(elf)) if elf.machine == search.machine => {
                // The same file may be listed through two directories (/lib64 and /usr/lib64 are often one).
                libraries.push(Library {
                    names: names(&path, elf.soname, aliases),
                    path,
                    links: Vec::new(),
                    placement: LibraryPlacement::LinkerDirs,
                });
            }
            Ok(Some(_)) => {}
            Ok(None) => warnings.push(format!("{path} is left out: it is no shared library")),
            Err(error) => warnings.push(format!("{path} is left out: it can't be read: {error}")),
        }
    }
    libraries
}

/// Whether a library file is as long as its headers say. A container that loads a truncated library dies by SIGBUS; without the library the
/// program reports what it misses.
pub(super) fn is_whole(root: &HostRoot, path: &str, warnings: &mut Vec<String>) -> bool {
    match integrity::check_file(&root.local_path(path)) {
        Err(defect @ Defect::CutOff { .. }) => {
            warnings.push(format!(
                "{path} is left out, because {defect}: reinstall the driver package that owns it"
            ));
            false
        }
        Ok(()) | Err(_) => true,
    }
}

/// File names of a library: its own, its SONAME, then the links' names. `libcuda.so` is added because Python packages open it.
pub(super) fn names(path: &str, soname: Option<String>, aliases: BTreeSet<String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let developer_link = soname
        .as_deref()
        .filter(|name| *name == "libcuda.so.1")
        .map(|_| "libcuda.so".to_owned());
    for name in file_name(path)
        .into_iter()
        .chain(soname)
        .chain(aliases)
        .chain(developer_link)
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

pub(super) fn binaries(root: &HostRoot) -> Vec<String> {
    let find = |name: &&str| {
        BINARY_DIRS
            .iter()
            .find_map(|directory| root.resolve(&format!("{directory}/{name}")))
    };
    BINARIES.iter().filter_map(find).collect()
}

pub(super) fn file_name(path: &str) -> Option<String> {
    path.rsplit_once('/').map(|(_, name)| name.to_owned())
}

/// `550.54.15` of `libcuda.so.550.54.15`. The first number has at least three digits, so `libcuda.so.1.1` has no version.
fn version_in_name(path: &str) -> Option<&str> {
    let (_, version) = path.rsplit_once(".so.")?;
    let (major, _) = version.split_once('.')?;
    (major.len() >= 3 && version.chars().all(|c| c.is_ascii_digit() || c == '.')).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_versions_are_told_from_abi_versions() {
        assert_eq!(version_in_name("/usr/lib64/libcuda.so.550.54.15"), Some("550.54.15"));
        assert_eq!(version_in_name("/usr/lib/libcuda.so.1.1"), None);
        assert_eq!(version_in_name("/usr/lib/libcuda.so.1"), None);
        assert_eq!(version_in_name("/usr/lib/libnvidia-nvvm.so.4.0.0"), None);
    }

    #[test]
    fn only_whole_stems_are_wanted() {
        assert!(is_wanted("libcuda.so.1"));
        assert!(is_wanted("libnvidia-ml.so.550.54.15"));
        assert!(!is_wanted("libcudart.so.12"));
        assert!(!is_wanted("libnvidia-glcore.so.550.54.15"));
    }
}
