//! What belongs to the driver on this host: the result of looking, as plain data. Finding is in `collect` and `tegra`,
//! using it in `spec` (CDI) and `driver_volume`.

/// Everything a container with a GPU needs from the host, devices of single GPUs apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverFiles {
    /// Driver version, or `l4t-36.4.3`: what a driver volume is named after.
    pub version: Option<String>,
    /// How the host names the directory that the paths of libraries, programs and data start from; empty for `/`.
    pub host_prefix: String,
    /// Shared libraries.
    pub libraries: Vec<Library>,
    /// Programs: their host paths. They go to `/usr/bin` in a container.
    pub binaries: Vec<String>,
    /// Files and directories that go where they are on the host, read-only (firmware, configuration, release file).
    pub data: Vec<String>,
    /// Sockets and pipe directories of the driver's daemons: mounted writable.
    pub sockets: Vec<String>,
    /// Device nodes that every GPU of the platform needs.
    pub shared_nodes: Vec<Node>,
    /// Device nodes that belong to the integrated GPU of a Tegra, as its lists say.
    pub integrated_nodes: Vec<Node>,
    /// Entries of Tegra's lists that this board does not have. Normal in small numbers.
    pub missing: Vec<String>,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// A shared library on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// The regular file, as the host names it.
    pub path: String,
    /// File names under which programs look for it: its own, its SONAME, a developer link. Its own first.
    pub names: Vec<String>,
    /// Other host paths that lead to it and are wanted in the container at the same place.
    pub links: Vec<String>,
    /// How a container finds it.
    pub placement: LibraryPlacement,
}

/// How a container finds a library without running ldconfig.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryPlacement {
    /// In the linker's default directories: programs ask for it by name.
    LinkerDirs,
    /// At its host path only: something else opens it by path (plug-ins).
    HostPath,
    /// Both.
    LinkerDirsAndHostPath,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// In the container.
    pub path: String,
    /// On the host, if it is another one (fake devices).
    pub host_path: Option<String>,
    /// Owner group, if it is not root and others may not both read and write: a container's user needs this group.
    pub group: Option<u32>,
}

impl Node {
    /// A node that is the same in the container and open to everybody.
    pub fn open(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            host_path: None,
            group: None,
        }
    }
}
