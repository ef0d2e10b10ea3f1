//! The driver's files on this host, as plain data. `collect` and `tegra` fill it; `spec` (CDI) and `driver_volume` use it.

/// Everything that a container with a GPU needs from the host, except the device nodes of single GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverFiles {
    /// Driver version, or `l4t-36.4.3` on a Tegra. Part of a driver volume's name.
    pub version: Option<String>,
    /// Path of the driver root on the host, below which libraries, programs and data are; empty for `/`.
    pub host_prefix: String,
    /// Shared libraries.
    pub libraries: Vec<Library>,
    /// Programs: their host paths. They go to `/usr/bin` in a container.
    pub binaries: Vec<String>,
    /// Files and directories that are mounted read-only at their host path (firmware, configuration, release file).
    pub data: Vec<String>,
    /// Sockets and pipe directories of the driver's daemons: mounted writable.
    pub sockets: Vec<String>,
    /// Device nodes that every GPU of the platform needs.
    pub shared_nodes: Vec<Node>,
    /// Device nodes of a Tegra's integrated GPU, from its lists.
    pub integrated_nodes: Vec<Node>,
    /// Entries of Tegra's lists that this board does not have. Normal in small numbers.
    pub missing: Vec<String>,
    /// Warnings for operators.
    pub warnings: Vec<String>,
}

/// A shared library on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Path of the regular file on the host.
    pub path: String,
    /// File names under which programs look for it: its own first, then its SONAME and links.
    pub names: Vec<String>,
    /// Symbolic links on the host that lead to it; the container gets the library at these paths too.
    pub links: Vec<String>,
    /// Where it is mounted in the container.
    pub placement: LibraryPlacement,
}

/// Where a library is mounted in a container. No ldconfig runs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryPlacement {
    /// In the linker's default directories, for programs that load it by name.
    LinkerDirs,
    /// At its host path, for programs that open it by path (plug-ins).
    HostPath,
    /// Both.
    LinkerDirsAndHostPath,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Path in the container.
    pub path: String,
    /// Path on the host, if it differs (fake devices).
    pub host_path: Option<String>,
    /// Owner group, if it is not root and others may not read and write: the container's user needs this group.
    pub group: Option<u32>,
}

impl Node {
    /// A node with the same path in the container that needs no group.
    pub fn open(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            host_path: None,
            group: None,
        }
    }
}
