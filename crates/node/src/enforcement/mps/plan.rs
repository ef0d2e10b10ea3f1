//! What runs on a node of the tier `mps`: the daemon with its arguments, environment and files. Pure.
//!
//! One daemon has one server for all GPUs, and a namespace for each share device. A container sees the directory of its namespace and nothing
//! else, so it can't choose another.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The server.
pub const SERVER: &str = "kai";
/// Longest name of a namespace.
const NAME_CHARS_MAX: usize = 64;
/// Part of the multiprocessors, in percent, of a process that reaches the server outside of any namespace. No container is to do that.
const OUTSIDE_PERCENT: u8 = 1;

/// What a node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsPlan {
    /// Path of the control program on the host.
    pub program: String,
    /// UUIDs of the GPUs.
    pub gpus: Vec<String>,
}

/// A part of the server that one container uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Part of the multiprocessors.
    pub percent: u8,
    /// Memory on each GPU.
    pub memory_mib: u64,
}

/// The namespaces by name.
pub type Namespaces = BTreeMap<String, Namespace>;

/// The name of a share device's namespace: lower case letters, digits and underscores.
pub fn namespace_name(share_device: &str) -> String {
    let plain = share_device.chars().map(|letter| match letter.to_ascii_lowercase() {
        letter @ ('a'..='z' | '0'..='9') => letter,
        _ => '_',
    });
    "p_".chars().chain(plain).take(NAME_CHARS_MAX).collect()
}

/// The daemon of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Arguments of the control program that start it in the foreground.
    pub arguments: Vec<String>,
    /// Its environment.
    pub environment: Vec<(&'static str, String)>,
    /// Where clients find it.
    pub pipe_dir: PathBuf,
    /// Where it writes its log.
    pub log_dir: PathBuf,
    /// Path of its configuration.
    pub config_file: PathBuf,
    /// Its configuration. It is read at the daemon's start only; namespaces that come later are created by command.
    pub config: String,
}

impl MpsPlan {
    /// The daemon of this node. `state_dir` has the same path here and on the host.
    pub fn daemon(&self, state_dir: &Path, namespaces: &Namespaces) -> Daemon {
        let base = base_dir(state_dir);
        let (config_file, pipe_dir, log_dir) = (
            base.join("mps.toml"),
            pipe_dir(state_dir),
            base.join("log").join(SERVER),
        );
        let arguments = ["-p", "3", "-m", "-f", "-a", &config_file.display().to_string()];
        Daemon {
            arguments: arguments.map(str::to_owned).into(),
            environment: vec![
                ("CUDA_MPS_PIPE_DIRECTORY", pipe_dir.display().to_string()),
                ("CUDA_MPS_LOG_DIRECTORY", log_dir.display().to_string()),
            ],
            pipe_dir,
            log_dir,
            config_file,
            config: self.toml(namespaces),
        }
    }

    fn toml(&self, namespaces: &Namespaces) -> String {
        // Names and UUIDs have no character that TOML would have to escape.
        let mut text = format!(
            "schema_version = \"1.0\"\n\n[servers.{SERVER}]\nallowed_devices = \"{}\"\nactive_thread_percentage = \"{OUTSIDE_PERCENT}\"\nuid = 0\n",
            self.gpus.join(",")
        );
        for namespace in namespaces.values() {
            text.push_str(&format!(
                "\n[servers.{SERVER}.namespaces.{}]\nactive_thread_percentage = \"{}\"\npinned_memory_limit = \"{}M\"\n",
                namespace.name, namespace.percent, namespace.memory_mib
            ));
        }
        text.push_str("\n[features.memacct]\nenabled = true\n\n[features.context-share]\nenabled = false\n");
        text
    }
}

/// Files of the tier.
pub fn base_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("mps")
}

/// Where the daemon is found. Short, because the path of a socket has at most 107 bytes.
pub fn pipe_dir(state_dir: &Path) -> PathBuf {
    base_dir(state_dir).join("pipe")
}

/// The directory of a namespace: the only one that its container sees.
pub fn namespace_dir(state_dir: &Path, namespace: &str) -> PathBuf {
    pipe_dir(state_dir).join(SERVER).join(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_has_a_namespace_per_share_device() {
        let plan = MpsPlan {
            program: "/usr/bin/nvidia-cuda-mps-control".to_owned(),
            gpus: vec!["GPU-0".to_owned(), "GPU-1".to_owned()],
        };
        let namespace = Namespace {
            name: namespace_name("share-17"),
            percent: 25,
            memory_mib: 2048,
        };
        let namespaces = Namespaces::from([(namespace.name.clone(), namespace)]);
        let daemon = plan.daemon(Path::new("/var/lib/kai"), &namespaces);
        assert_eq!(daemon.arguments.join(" "), "-p 3 -m -f -a /var/lib/kai/mps/mps.toml");
        assert_eq!(
            daemon.environment[0],
            ("CUDA_MPS_PIPE_DIRECTORY", "/var/lib/kai/mps/pipe".to_owned())
        );
        insta::assert_snapshot!(daemon.config, @r#"
        schema_version = "1.0"

        [servers.kai]
        allowed_devices = "GPU-0,GPU-1"
        active_thread_percentage = "1"
        uid = 0

        [servers.kai.namespaces.p_share_17]
        active_thread_percentage = "25"
        pinned_memory_limit = "2048M"

        [features.memacct]
        enabled = true

        [features.context-share]
        enabled = false
        "#);
        assert!(toml_edit::Document::parse(daemon.config.as_str()).is_ok());
    }

    #[test]
    fn names_have_the_characters_that_the_daemon_takes() {
        for (device, name) in [("share-17", "p_share_17"), ("Share/1", "p_share_1"), ("é", "p__")] {
            assert_eq!(namespace_name(device), name);
        }
        assert_eq!(namespace_name(&"x".repeat(100)).len(), 64);
        let socket = namespace_dir(Path::new("/var/lib/kai"), &namespace_name("share-1023")).join("control");
        assert!(socket.display().to_string().len() < 108, "{}", socket.display());
    }
}
