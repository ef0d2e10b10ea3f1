//! Finds the driver's files on a Jetson: by JetPack's lists, or without them by the library directory and the known device nodes. Lists
//! contain entries that a board does not have; these are only counted. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kai_gpu::linker::elf::{self, Elf};
use kai_gpu::{Inventory, Roots, TegraStack};

use super::collect::{LIBRARIES, Search, binaries, file_name, is_whole, library_dirs, names};
use super::csv::{self, BASE_FILES, Kind};
use super::files::{DriverFiles, Library, LibraryPlacement, Node};
use super::host_root::HostRoot;
use super::nodes;

/// Names the L4T release; driver libraries read it.
const RELEASE_FILE: &str = "/etc/nv_tegra_release";

/// Tegra's own libraries that libcuda opens by name. No ELF header lists them as needed.
const OPENED_BY_NAME: [&str; 14] = [
    "libnvcucompat",
    "libnvcudla",
    "libnvidia-rmapi-tegra",
    "libnvos",
    "libnvrm_chip",
    "libnvrm_gpu",
    "libnvrm_host1x",
    "libnvrm_mem",
    "libnvrm_stream",
    "libnvrm_surface",
    "libnvrm_sync",
    "libnvsciipc",
    "libnvsocsys",
    "libnvtegrahv",
];

/// Nodes of the integrated GPU on systems without lists: patterns below `/dev`.
const KNOWN_NODES: [&str; 12] = [
    "dri/card*",
    "dri/renderD*",
    "host1x-fence",
    "nvgpu/igpu0/*",
    "nvhost-*gpu",
    "nvhost-ctrl*",
    "nvidia0",
    "nvidia-modeset",
    "nvidia-uvm*",
    "nvidiactl",
    "nvmap",
    "nvsciipc",
];

/// Nodes that CUDA opens where `nvidia.ko` runs the integrated GPU (Thor): patterns below `/dev`. They are added to the lists' nodes,
/// because the lists of L4T 38 lack `nvidia-uvm`, without which CUDA does not start.
const OPEN_RM_NODES: [&str; 4] = ["nvidia0", "nvidia-modeset", "nvidia-uvm*", "nvidiactl"];

/// Nodes in the lists that a PCI card beside the SoC needs as well.
const SHARED_WITH_CARDS: [&str; 8] = [
    "/dev/host1x-fence",
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidiactl",
    "/dev/nvmap",
    "/dev/nvsciipc",
    "/dev/nvsciipc_hyp",
];

/// Collects the driver's files on a Tegra.
pub fn collect(search: &Search, inventory: &Inventory) -> DriverFiles {
    let root = HostRoot::new(&search.roots.driver);
    let facts = inventory.platform.tegra.as_ref();
    let mut files = DriverFiles {
        version: facts
            .and_then(|facts| facts.l4t_version.as_ref())
            .map(|version| format!("l4t-{version}"))
            .or_else(|| inventory.driver_version.clone()),
        binaries: binaries(&root),
        ..DriverFiles::default()
    };
    if root.exists(RELEASE_FILE) {
        files.data.push(RELEASE_FILE.to_owned());
    }
    let lists = read_lists(search, &root, &mut files.warnings);
    let mut found = if lists.is_empty() {
        let library_dir = facts.and_then(|facts| facts.library_dir.clone());
        files.warnings.push(format!(
            "there are no lists in {}, so the libraries in {} and the usual device nodes are taken: install nvidia-container-toolkit for the exact set",
            search.csv_dir,
            library_dir.as_deref().unwrap_or("the usual directories"),
        ));
        without_lists(search, &root, library_dir)
    } else {
        from_lists(search, &root, lists, &mut files)
    };
    if facts.and_then(|facts| facts.stack) == Some(TegraStack::OpenRm) {
        found.nodes.extend(nodes_below_dev(&search.roots, &OPEN_RM_NODES));
    }
    let (shared, own): (Vec<Node>, Vec<Node>) = found
        .nodes
        .into_iter()
        .partition(|node| SHARED_WITH_CARDS.contains(&node.path.as_str()));
    files.shared_nodes = shared;
    files.integrated_nodes = own;
    let warnings = &mut files.warnings;
    found.libraries.retain(|path, _| is_whole(&root, path, warnings));
    files.libraries = libraries(search, &root, found.libraries);
    if !files
        .libraries
        .iter()
        .any(|library| library.names.iter().any(|name| name.starts_with("libcuda.so")))
    {
        files.warnings.push(
            "libcuda.so.1 was not found: install nvidia-l4t-cuda on the host, or name its directory with --library-dir"
                .to_owned(),
        );
    }
    files
}

#[derive(Default)]
struct Found {
    nodes: BTreeSet<Node>,
    /// Host path of each regular file, with the symbolic links that lead to it.
    libraries: BTreeMap<String, BTreeSet<String>>,
}

fn read_lists(search: &Search, root: &HostRoot, warnings: &mut Vec<String>) -> Vec<csv::Entry> {
    let mut entries = Vec::new();
    for name in BASE_FILES {
        let path = format!("{}/{name}", search.csv_dir);
        let Some(text) = root.text(&path) else { continue };
        let list = csv::parse(&text);
        for (line, text) in list.malformed {
            warnings.push(format!("{path} line {line} makes no sense and is skipped: {text}"));
        }
        entries.extend(list.entries);
    }
    entries
}

fn from_lists(search: &Search, root: &HostRoot, entries: Vec<csv::Entry>, files: &mut DriverFiles) -> Found {
    let mut found = Found::default();
    for entry in entries {
        let known = match entry.kind {
            Kind::Device => {
                let nodes = matching_nodes(&search.roots, &entry.path);
                let any = !nodes.is_empty();
                found.nodes.extend(nodes);
                any
            }
            Kind::Directory => {
                root.exists(&entry.path) && {
                    files.data.push(entry.path.clone());
                    true
                }
            }
            Kind::Library | Kind::Link => file_entry(root, &entry, &mut found, &mut files.data),
        };
        if !known {
            files.missing.push(entry.path);
        }
    }
    files.data.sort_unstable();
    files.data.dedup();
    found
}

fn file_entry(root: &HostRoot, entry: &csv::Entry, found: &mut Found, data: &mut Vec<String>) -> bool {
    let Some(mut chain) = root.link_chain(&entry.path) else {
        return false;
    };
    let Some(file) = chain.pop() else { return false };
    if file.contains(".so") {
        found.libraries.entry(file).or_default().extend(chain);
    } else {
        data.push(file);
    }
    true
}

/// For systems without the lists (Yocto, Talos, a bare L4T).
fn without_lists(search: &Search, root: &HostRoot, library_dir: Option<String>) -> Found {
    let mut found = Found::default();
    found.nodes.extend(nodes_below_dev(&search.roots, &KNOWN_NODES));
    let tegra_dirs = ["nvidia", "tegra"].map(|name| format!("/usr/lib/{}/{name}", search.machine.triplet()));
    for directory in library_dir.into_iter().chain(tegra_dirs) {
        for name in root.list(&directory).into_iter().filter(|name| name.contains(".so")) {
            let path = format!("{directory}/{name}");
            if let Some(file) = root.resolve(&path) {
                found.libraries.entry(file).or_default().insert(path);
            }
        }
    }
    // Some distributions put the driver into a general library directory: there, take only libraries that we know by name.
    for directory in library_dirs(search) {
        for name in root.list(&directory).into_iter().filter(|name| opens_cuda(name)) {
            let path = format!("{directory}/{name}");
            if let Some(file) = root.resolve(&path) {
                found.libraries.entry(file).or_default().insert(path);
            }
        }
    }
    found
}

fn opens_cuda(name: &str) -> bool {
    let stem = name.split_once(".so").map(|(stem, _)| stem);
    stem.is_some_and(|stem| LIBRARIES.contains(&stem) || OPENED_BY_NAME.contains(&stem))
}

fn libraries(search: &Search, root: &HostRoot, found: BTreeMap<String, BTreeSet<String>>) -> Vec<Library> {
    let read = |path: &str| {
        elf::read(&root.local_path(path))
            .ok()
            .flatten()
            .filter(|elf| elf.machine == search.machine)
    };
    let headers: BTreeMap<&String, Elf> = found.keys().filter_map(|path| Some((path, read(path)?))).collect();
    let for_linker = compute_closure(&headers);
    found
        .iter()
        .map(|(path, links)| {
            let soname = headers.get(path).and_then(|elf| elf.soname.clone());
            let aliases = links.iter().filter_map(|link| file_name(link)).collect();
            Library {
                path: path.clone(),
                names: names(path, soname, aliases),
                links: links.iter().filter(|link| *link != path).cloned().collect(),
                placement: if for_linker.contains(path) {
                    LibraryPlacement::LinkerDirsAndHostPath
                } else {
                    LibraryPlacement::HostPath
                },
            }
        })
        .collect()
}

/// The libraries of CUDA and NVML and their dependencies. Only these must be on the linker's path. Other libraries (codecs, display,
/// cameras) are opened by path, and two hundred more mounts would slow every container down.
fn compute_closure(headers: &BTreeMap<&String, Elf>) -> BTreeSet<String> {
    let own_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let by_name: BTreeMap<String, &String> = headers
        .iter()
        .flat_map(|(path, elf)| {
            elf.soname
                .clone()
                .into_iter()
                .chain([own_name(path)])
                .map(move |name| (name, *path))
        })
        .collect();
    let mut todo: Vec<&String> = headers
        .keys()
        .copied()
        .filter(|path| opens_cuda(&own_name(path)))
        .collect();
    let mut closure = BTreeSet::new();
    while let Some(path) = todo.pop() {
        if closure.insert(path.clone()) {
            let needed = headers.get(path).map(|elf| elf.needed.as_slice()).unwrap_or_default();
            todo.extend(needed.iter().filter_map(|name| by_name.get(name).copied()));
        }
    }
    closure
}

fn nodes_below_dev(roots: &Roots, patterns: &[&str]) -> Vec<Node> {
    let nodes = |pattern: &&str| matching_nodes(roots, &format!("/dev/{pattern}"));
    patterns.iter().flat_map(nodes).collect()
}

/// Nodes that match a path whose components may hold `*`.
fn matching_nodes(roots: &Roots, pattern: &str) -> Vec<Node> {
    let mut paths = vec!["/dev".to_owned()];
    for part in pattern
        .trim_start_matches("/dev")
        .split('/')
        .filter(|part| !part.is_empty())
    {
        let expand = |path: String| -> Vec<String> {
            if !part.contains('*') {
                return vec![format!("{path}/{part}")];
            }
            let seen = roots.dev.join(path.trim_start_matches("/dev").trim_start_matches('/'));
            let entries = fs::read_dir(seen).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            names
                .filter(|name| matches(part, name))
                .map(|name| format!("{path}/{name}"))
                .collect()
        };
        paths = paths.into_iter().flat_map(expand).collect();
    }
    paths.sort_unstable();
    paths
        .iter()
        .filter_map(|path| nodes::existing_node(roots, path))
        .collect()
}

/// Whether `name` fits `pattern`, where `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(head) else {
        return false;
    };
    (0..=rest.len())
        .filter(|at| rest.is_char_boundary(*at))
        .any(|at| matches(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use kai_gpu::linker::Machine;

    use super::*;
    #[test]
    fn stars_stand_for_any_text() {
        assert!(matches("card*", "card0"));
        assert!(matches("nvhost-*gpu", "nvhost-as-gpu"));
        assert!(!matches("nvhost-*gpu", "nvhost-ctrl"));
        assert!(!matches("nvidia0", "nvidia00"));
    }

    /// CUDA on Thor needs the nodes of `nvidia.ko`, and the lists of its first L4T name only some of them.
    #[test]
    fn thor_gets_the_nodes_of_the_open_driver_whatever_its_lists_say() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = place.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for node in [
            "nvidia0",
            "nvidia1",
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-uvm-tools",
            "nvmap",
        ] {
            write(&format!("dev/{node}"), "");
        }
        write(
            &format!("{}/devices.csv", csv::CSV_DIR.trim_start_matches('/')),
            "dev, /dev/nvmap\n",
        );
        let search = Search::new(Roots::under(place.path()));
        let nodes = |stack: TegraStack| -> Vec<String> {
            let mut inventory = Inventory::default();
            inventory.platform.tegra = Some(kai_gpu::TegraFacts {
                stack: Some(stack),
                ..kai_gpu::TegraFacts::default()
            });
            let files = collect(&search, &inventory);
            let all = files.integrated_nodes.iter().chain(&files.shared_nodes);
            all.map(|node| node.path.clone()).collect()
        };
        assert_eq!(
            nodes(TegraStack::OpenRm),
            [
                "/dev/nvidia0",
                "/dev/nvidia-uvm",
                "/dev/nvidia-uvm-tools",
                "/dev/nvidiactl",
                "/dev/nvmap"
            ]
        );
        assert_eq!(nodes(TegraStack::Nvgpu), ["/dev/nvmap"]);
    }

    #[test]
    fn the_closure_follows_what_libraries_need() {
        let elf = |soname: &str, needed: &[&str]| Elf {
            machine: Machine::Aarch64,
            soname: Some(soname.to_owned()),
            needed: needed.iter().map(|name| (*name).to_owned()).collect(),
        };
        let paths = [
            "/n/libcuda.so.1.1",
            "/n/libnvfoo.so",
            "/n/libnvdla.so",
            "/n/libcamera.so",
        ]
        .map(str::to_owned);
        let headers = BTreeMap::from([
            (&paths[0], elf("libcuda.so.1", &["libnvfoo.so", "libc.so.6"])),
            (&paths[1], elf("libnvfoo.so", &["libnvdla.so"])),
            (&paths[2], elf("libnvdla.so", &[])),
            (&paths[3], elf("libcamera.so", &["libcuda.so.1"])),
        ]);
        let closure = compute_closure(&headers);
        assert_eq!(
            closure.into_iter().collect::<Vec<_>>(),
            ["/n/libcuda.so.1.1", "/n/libnvdla.so", "/n/libnvfoo.so"]
        );
    }
}
