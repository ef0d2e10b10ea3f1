//! A kubelet and an API server for tests, with real gRPC over unix sockets and real HTTP.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod api;
pub mod kubelet;

use std::collections::BTreeMap;
use std::future::Future;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kai_gpu::Driver;
use kai_node::agent::args::Pace;
use kai_node::agent::{Args, Settings};
use kai_node::allocator::register::RetryPolicy;
use kai_node::enforcement::program::ProgramFiles;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Bound for tests that hang; no test depends on timing.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Waits for `done`, or fails the test with the name of the condition.
pub async fn within<T>(what: &str, done: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, done).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for: {what}"),
    }
}

/// Waits until the watched value satisfies `wanted`, and returns it.
pub async fn until<T: Clone>(what: &str, seen: &mut watch::Receiver<T>, wanted: impl FnMut(&T) -> bool) -> T {
    within(what, seen.wait_for(wanted))
        .await
        .expect("the sender lives")
        .clone()
}

/// Settings of an agent with short intervals, all of whose directories are below `place`.
pub fn settings(place: &Path, words: &[&str]) -> Settings {
    use clap::Parser;
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }
    let path = |name: &str| place.join(name).display().to_string();
    std::fs::create_dir_all(place.join("plugins")).unwrap();
    let fixed: Vec<String> = [
        ("--node-name", "n1".to_owned()),
        ("--plugin-dir", path("plugins")),
        ("--pod-resources-socket", path("pod-resources.sock")),
        ("--cdi-dir", path("cdi")),
        ("--state-dir", path("state")),
        ("--host-root", path("host")),
        ("--metrics-address", String::new()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect();
    let own = words.iter().map(|word| (*word).to_owned());
    let words = ["agent".to_owned()].into_iter().chain(fixed).chain(own);
    let mut settings = Cli::parse_from(words).args.settings().unwrap();
    // Any program that ends well stands for the hook: a copy of the test's own program would be large.
    settings.enforcement.program = Some(ProgramFiles {
        program: "/bin/true".into(),
        loader: std::fs::canonicalize("/bin/true").unwrap(),
        libraries: BTreeMap::new(),
    });
    settings.pace = Pace {
        probe: Duration::from_millis(20),
        refresh: Duration::from_millis(50),
        retry: Duration::from_millis(30),
        reservation: Duration::from_millis(10),
        audit: Duration::from_millis(50),
        evict_after: Duration::ZERO,
        watch: Duration::from_millis(50),
        kubelet: RetryPolicy {
            retry_min: Duration::from_millis(10),
            retry_max: Duration::from_millis(200),
            poll: Duration::from_millis(100),
            stream_grace: Duration::from_secs(2),
        },
    };
    settings
}

/// A `/proc` that shows the first pid namespace of a machine.
pub fn proc_of_host(place: &Path) -> PathBuf {
    let proc = place.join("proc-of-host");
    std::fs::create_dir_all(proc.join("7/ns")).unwrap();
    symlink("pid:[4026531836]", proc.join("7/ns/pid")).unwrap();
    symlink("7", proc.join("self")).unwrap();
    proc
}

/// A running agent.
pub struct Agent {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Agent {
    pub fn start(settings: Settings, driver: Arc<dyn Driver>) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self {
            stop,
            task: tokio::spawn(kai_node::agent::serve(settings, driver, stopped)),
        }
    }

    pub async fn stop(self) {
        self.stop.send_replace(true);
        within("the agent's end", self.task).await.unwrap();
    }

    pub fn runs(&self) -> bool {
        !self.task.is_finished()
    }
}

/// Names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Our sockets in the kubelet's directory.
pub fn sockets(directory: &Path) -> Vec<String> {
    names(directory)
        .into_iter()
        .filter(|name| name.starts_with("kai-"))
        .collect()
}
