//! Paths at which `libnvidia-ml.so.1` may be, in order, with the reason for each. Pure; `library` loads it. Directories of other CPU
//! architectures or platforms are not in the list.

use std::path::{Path, PathBuf};

use crate::{Platform, PlatformKind, Roots};

/// The library's name for the dynamic linker.
pub const SONAME: &str = "libnvidia-ml.so.1";

/// One path to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// A path, or the bare soname for the dynamic linker's own search.
    pub path: PathBuf,
    /// Why this path is in the list.
    pub why: &'static str,
}

/// All paths in order: the operator's, the dynamic linker's, the platform's usual directories, and the same directories below the driver
/// root, the host root and a driver container's root. `architecture` is that of this process (`std::env::consts::ARCH`), which can load no
/// other library.
pub fn search_path(named: Option<&Path>, platform: &Platform, roots: &Roots, architecture: &str) -> Vec<Candidate> {
    let mut places = Vec::new();
    let mut add = |path: PathBuf, why: &'static str| {
        if !places.iter().any(|place: &Candidate| place.path == path) {
            places.push(Candidate { path, why });
        }
    };
    if let Some(named) = named {
        // People often name the directory instead of the file.
        let path = if named.is_dir() {
            named.join(SONAME)
        } else {
            named.to_owned()
        };
        add(path, "named by --nvml-library or KAI_NVML_LIBRARY");
    }
    add(PathBuf::from(SONAME), "the dynamic linker's own search");

    let root = Path::new("/");
    let directories = usual_directories(platform, architecture);
    for (prefix, why) in [
        (root, "usual directory"),
        (roots.driver.as_path(), "below the driver root"),
        (roots.host.as_path(), "below the host root"),
        (Path::new("/run/nvidia/driver"), "below a driver container's root"),
    ] {
        for directory in &directories {
            add(prefix.join(directory.trim_start_matches('/')).join(SONAME), why);
        }
    }
    places
}

fn usual_directories(platform: &Platform, architecture: &str) -> Vec<String> {
    let mut directories: Vec<String> = Vec::new();
    if let Some(tegra) = &platform.tegra {
        directories.extend(tegra.library_dir.clone());
    }
    if platform.kind == PlatformKind::Wsl {
        directories.push("/usr/lib/wsl/lib".to_owned());
    }
    let by_architecture: &[&str] = match architecture {
        "aarch64" => &[
            "/usr/lib/aarch64-linux-gnu/nvidia",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
        ],
        "x86_64" => &[
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu/nvidia/current",
            "/usr/lib64",
        ],
        _ => &["/usr/lib64"],
    };
    for directory in by_architecture {
        if !directories.iter().any(|known| known == directory) {
            directories.push((*directory).to_owned());
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TegraFacts;

    fn paths(named: Option<&str>, platform: &Platform, driver_root: &str, architecture: &str) -> Vec<String> {
        let roots = Roots {
            driver: PathBuf::from(driver_root),
            ..Roots::here()
        };
        let places = search_path(named.map(Path::new), platform, &roots, architecture);
        places.iter().map(|place| place.path.display().to_string()).collect()
    }

    #[test]
    fn the_order_on_x86() {
        let places = paths(
            Some("/opt/libnvidia-ml.so.1"),
            &Platform::default(),
            "/driver-root",
            "x86_64",
        );
        insta::assert_snapshot!(places.join("\n"), @r"
        /opt/libnvidia-ml.so.1
        libnvidia-ml.so.1
        /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
        /usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1
        /usr/lib64/libnvidia-ml.so.1
        /driver-root/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
        /driver-root/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1
        /driver-root/usr/lib64/libnvidia-ml.so.1
        /run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
        /run/nvidia/driver/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1
        /run/nvidia/driver/usr/lib64/libnvidia-ml.so.1
        ");
    }

    #[test]
    fn the_order_on_a_jetson_starts_with_what_the_release_file_names() {
        let tegra = TegraFacts {
            library_dir: Some("/usr/lib/aarch64-linux-gnu/tegra".into()),
            ..TegraFacts::default()
        };
        let platform = Platform {
            kind: PlatformKind::Tegra,
            tegra: Some(tegra),
            ..Platform::default()
        };
        insta::assert_snapshot!(paths(None, &platform, "/", "aarch64").join("\n"), @r"
        libnvidia-ml.so.1
        /usr/lib/aarch64-linux-gnu/tegra/libnvidia-ml.so.1
        /usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ml.so.1
        /usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1
        /usr/lib64/libnvidia-ml.so.1
        /run/nvidia/driver/usr/lib/aarch64-linux-gnu/tegra/libnvidia-ml.so.1
        /run/nvidia/driver/usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ml.so.1
        /run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1
        /run/nvidia/driver/usr/lib64/libnvidia-ml.so.1
        ");
    }

    #[test]
    fn a_named_directory_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let places = search_path(Some(dir.path()), &Platform::default(), &Roots::here(), "x86_64");
        assert_eq!(places[0].path, dir.path().join(SONAME));
    }
}
