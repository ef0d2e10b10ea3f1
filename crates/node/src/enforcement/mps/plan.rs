//! What runs on a node of the tier `mps`: the daemons with their arguments, environment and files. Pure.
//!
//! With the newer protocol (driver 615) one daemon has one server for all GPUs, and a namespace for each share device. A container sees the
//! directory of its namespace and nothing else, so it can't choose another. The older protocol has one daemon per GPU, without namespaces: the
//! limits are in the container's environment, and its programs can lift them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The server of the newer protocol.
pub const SERVER: &str = "kai";
/// Longest name of a namespace.
const NAME_CHARS_MAX: usize = 64;
/// Part of the multiprocessors, in percent, of a process that reaches the server outside of any namespace. No container is to do that.
const OUTSIDE_PERCENT: u8 = 1;

/// The interface of the control daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Version 2: a daemon per GPU, commands on stdin.
    Legacy,
    /// Version 3: servers with namespaces, commands as arguments.
    Namespaces,
}

/// What a node runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsPlan {
    /// Path of the control program on the host.
    pub program: String,
    /// Its interface.
    pub protocol: Protocol,
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

/// One daemon of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// For messages.
    pub name: String,
    /// Arguments of the control program that start it in the foreground.
    pub arguments: Vec<String>,
    /// Its environment.
    pub environment: Vec<(&'static str, String)>,
    /// Where clients find it.
    pub pipe_dir: PathBuf,
    /// Where it writes its log.
    pub log_dir: PathBuf,
    /// Its configuration: path and content.
    pub config: Option<(PathBuf, String)>,
}

impl MpsPlan {
    /// The daemons of this node. `state_dir` has the same path here and on the host.
    pub fn daemons(&self, state_dir: &Path, namespaces: &Namespaces) -> Vec<Daemon> {
        match self.protocol {
            Protocol::Namespaces => vec![self.server_daemon(state_dir, namespaces)],
            Protocol::Legacy => self.gpus.iter().map(|gpu| self.gpu_daemon(state_dir, gpu)).collect(),
        }
    }

    fn server_daemon(&self, state_dir: &Path, namespaces: &Namespaces) -> Daemon {
        let config = base_dir(state_dir).join("mps.toml");
        let arguments = ["-p", "3", "-m", "-f", "-a", &config.display().to_string()];
        Daemon {
            name: "the multi-process server's daemon".to_owned(),
            arguments: arguments.map(str::to_owned).into(),
            environment: environment(&pipe_dir(state_dir), &log_dir(state_dir, SERVER)),
            pipe_dir: pipe_dir(state_dir),
            log_dir: log_dir(state_dir, SERVER),
            config: Some((config, self.toml(namespaces))),
        }
    }

    fn gpu_daemon(&self, state_dir: &Path, gpu: &str) -> Daemon {
        let (pipe, log) = (gpu_pipe_dir(state_dir, gpu), log_dir(state_dir, gpu));
        let mut environment = environment(&pipe, &log);
        environment.push(("CUDA_VISIBLE_DEVICES", gpu.to_owned()));
        Daemon {
            name: format!("the multi-process daemon of GPU {gpu}"),
            arguments: ["-f", "-multiuser-server"].map(str::to_owned).into(),
            environment,
            pipe_dir: pipe,
            log_dir: log,
            config: None,
        }
    }

    /// The configuration of the newer protocol. It is read at the daemon's start only; namespaces that come later are created by command.
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

fn environment(pipe: &Path, log: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("CUDA_MPS_PIPE_DIRECTORY", pipe.display().to_string()),
        ("CUDA_MPS_LOG_DIRECTORY", log.display().to_string()),
    ]
}

/// Files of the tier.
pub fn base_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("mps")
}

/// Where the daemon of the newer protocol is found. Short, because the path of a socket has at most 107 bytes.
pub fn pipe_dir(state_dir: &Path) -> PathBuf {
    base_dir(state_dir).join("pipe")
}

/// The directory of a namespace: the only one that its container sees.
pub fn namespace_dir(state_dir: &Path, namespace: &str) -> PathBuf {
    pipe_dir(state_dir).join(SERVER).join(namespace)
}

/// Where the daemon of a GPU is found, with the older protocol.
pub fn gpu_pipe_dir(state_dir: &Path, gpu: &str) -> PathBuf {
    base_dir(state_dir).join(gpu)
}

fn log_dir(state_dir: &Path, daemon: &str) -> PathBuf {
    base_dir(state_dir).join("log").join(daemon)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(protocol: Protocol) -> MpsPlan {
        MpsPlan {
            program: "/usr/bin/nvidia-cuda-mps-control".to_owned(),
            protocol,
            gpus: vec!["GPU-0".to_owned(), "GPU-1".to_owned()],
        }
    }

    #[test]
    fn the_newer_protocol_has_one_daemon_with_a_namespace_per_share_device() {
        let namespace = Namespace {
            name: namespace_name("share-17"),
            percent: 25,
            memory_mib: 2048,
        };
        let namespaces = Namespaces::from([(namespace.name.clone(), namespace)]);
        let daemons = plan(Protocol::Namespaces).daemons(Path::new("/var/lib/kai"), &namespaces);
        let [daemon] = &daemons[..] else { panic!("{daemons:?}") };
        assert_eq!(daemon.arguments.join(" "), "-p 3 -m -f -a /var/lib/kai/mps/mps.toml");
        assert_eq!(
            daemon.environment[0],
            ("CUDA_MPS_PIPE_DIRECTORY", "/var/lib/kai/mps/pipe".to_owned())
        );
        let (_, toml) = daemon.config.as_ref().unwrap();
        insta::assert_snapshot!(toml, @r#"
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
        assert!(toml_edit::Document::parse(toml.as_str()).is_ok());
    }

    #[test]
    fn the_older_protocol_has_a_daemon_per_gpu() {
        let daemons = plan(Protocol::Legacy).daemons(Path::new("/var/lib/kai"), &Namespaces::new());
        assert_eq!(daemons.len(), 2);
        assert_eq!(daemons[1].arguments, ["-f", "-multiuser-server"]);
        assert!(
            daemons[1]
                .environment
                .contains(&("CUDA_VISIBLE_DEVICES", "GPU-1".to_owned()))
        );
        assert_ne!(daemons[0].pipe_dir, daemons[1].pipe_dir);
        assert_eq!(daemons[0].config, None);
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
