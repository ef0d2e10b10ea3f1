//! The programs of a node: containerd, the kubelet, kube-proxy, and optionally `kai all` and the node agent as plain processes, each of which
//! can be killed and restarted. Their files are in the directory that `.ci/node` prepared.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kai_api::{Node, keys};
use kai_cluster::{Client, ClientConfig, Part, Patch, Target};
use serde_json::{Value, json};

use crate::manifests::account_file;
use crate::process::Process;

/// The node's name.
pub(crate) const NAME: &str = "kai-node";
/// The number of fake GPUs.
pub(crate) const GPUS: usize = 4;
/// A limit for hanging tests. The machine may be busy, and the kubelet retries slowly.
const DEADLINE: Duration = Duration::from_secs(180);
/// The interval between two checks of a condition.
const GLANCE: Duration = Duration::from_millis(200);

/// The runs of `.ci/node`: each has its own node and its own scenes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    /// With each containerd, on the cgroups of the machine.
    EachContainerd,
    /// Limits of GPU memory, on cgroup v2.
    Limits,
}

/// The writer of the annotation of a reservation pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duty {
    /// The node agent.
    Agent,
    /// The reservation pod itself: the agent serves the kubelet and has no access to the cluster.
    Pod,
}

pub(crate) struct Machine {
    pub(crate) directory: PathBuf,
    pub(crate) client: Client,
    /// The mode of the agent.
    pub(crate) mode: String,
    /// Where the agent serves its metrics.
    pub(crate) metrics_address: String,
    // In the order in which they have to end: a running kubelet would restart containers.
    agent: Option<Process>,
    kai: Option<Process>,
    kubelet: Option<Process>,
    proxy: Option<Process>,
    containerd: Option<Process>,
}

impl Machine {
    /// Starts the programs of a node without kai. `None` if `.ci/node` did not prepare the machine, or prepared it for another run.
    pub(crate) async fn start(run: Run) -> Option<Machine> {
        let Some(directory) = std::env::var_os("KAI_NODE_DIR") else {
            eprintln!("skipped: KAI_NODE_DIR is not set; run .ci/node");
            return None;
        };
        let of_limits = set("KAI_NODE_RUN") == "limits";
        if of_limits != (run == Run::Limits) {
            return None;
        }
        let directory = PathBuf::from(directory);
        let access = ClientConfig::Kubeconfig(directory.join("kubeconfig"));
        let mut machine = Machine {
            client: Client::connect(&access).await.unwrap(),
            directory,
            mode: set("KAI_NODE_MODE"),
            metrics_address: format!("127.0.0.1:{}", free_port()),
            agent: None,
            kai: None,
            kubelet: None,
            proxy: None,
            containerd: None,
        };
        machine.control("");
        std::fs::create_dir_all(machine.records()).unwrap();
        machine.start_containerd().await;
        for image in ["pause", "kai", "workload"] {
            let import = format!("ctr -n k8s.io images import $KAI_NODE_IMAGES/{image}.tar");
            let done = machine.shell(&import).output().unwrap();
            assert!(
                done.status.success(),
                "{image}: {}",
                String::from_utf8_lossy(&done.stderr)
            );
        }
        machine.start_kubelet();
        machine
            .until("the node has an address", async || {
                machine.node().await?["status"]["addresses"][0]
                    .is_object()
                    .then_some(())
            })
            .await;
        machine.start_proxy();
        Some(machine)
    }

    /// Starts containerd; kills it first if it runs.
    pub(crate) async fn start_containerd(&mut self) {
        self.containerd = None;
        let mut command = self.shell("exec containerd --config $KAI_NODE_DIR/containerd.toml");
        self.containerd = Some(Process::start(&self.directory, "containerd", &mut command));
        let ask = || self.shell("ctr version").output();
        self.until("containerd answers", async || {
            ask().is_ok_and(|done| done.status.success()).then_some(())
        })
        .await;
    }

    /// Starts the kubelet; kills it first if it runs.
    pub(crate) fn start_kubelet(&mut self) {
        self.kubelet = None;
        let mut command = self.shell(
            "exec $KAI_KUBE_BIN/kubelet --config=$KAI_NODE_DIR/kubelet.yaml --kubeconfig=$KAI_NODE_DIR/kubelet.kubeconfig \
             --hostname-override=kai-node --node-ip=$KAI_NODE_ADDRESS",
        );
        self.kubelet = Some(Process::start(&self.directory, "kubelet", &mut command));
    }

    pub(crate) fn stop_kubelet(&mut self) {
        self.kubelet = None;
    }

    /// Starts kube-proxy, which connects the addresses of Services with pods.
    fn start_proxy(&mut self) {
        let mut command = self.shell("exec $KAI_KUBE_BIN/kube-proxy --config=$KAI_NODE_DIR/kube-proxy.yaml");
        self.proxy = Some(Process::start(&self.directory, "kube-proxy", &mut command));
    }

    /// Kills `kai all` and the agent.
    pub(crate) fn stop_kai(&mut self) {
        self.kai = None;
        self.agent = None;
    }

    /// Starts `kai all` with the account of the manifests, and waits until it reviews pods.
    pub(crate) async fn start_kai(&mut self) {
        let port = free_port();
        let mut command = self.kai("all", "kai-all");
        command.args(["--listen-address=", "--plugin-server-port=0"]);
        let flags = [
            format!("admission=--webhook-addr={port}"),
            format!("admission=--webhook-url=https://127.0.0.1:{port}"),
            // This node has no software of NVIDIA.
            "admission=--gpu-fraction-runtime-class-name=".to_owned(),
            "binder=--resource-reservation-pod-image=registry/local/kai-scheduler/kai:0.0.0".to_owned(),
        ];
        command.args(flags.iter().flat_map(|flag| ["--role", flag]));
        self.kai = Some(Process::start(&self.directory, "kai-all", &mut command));
        self.until_admission_reviews().await;
    }

    /// Starts the agent; kills it first if it runs.
    pub(crate) fn start_agent(&mut self, duty: Duty) {
        self.start_agent_with(duty, &[]);
    }

    /// As `start_agent`, with more flags.
    pub(crate) fn start_agent_with(&mut self, duty: Duty, flags: &[&str]) {
        self.agent = None;
        let mut command = self.kai("node-agent", "kai-node-agent");
        command.args([
            "--node-name",
            NAME,
            "--metrics-address",
            &self.metrics_address,
            "--probe-seconds",
            "1",
            "--good-probes",
            "1",
        ]);
        command.args(["--mode", &self.mode]).args(driver_flags());
        command.arg("--fake-control").arg(self.directory.join("control.yaml"));
        command.arg("--fake-record-dir").arg(self.records());
        if duty == Duty::Pod {
            command.arg("--no-cluster");
        }
        command.args(flags);
        self.agent = Some(Process::start(&self.directory, "node-agent", &mut command));
    }

    /// Waits until the kubelet has accepted the agent this many times, and the node offers its devices.
    pub(crate) async fn until_registered(&mut self, times: usize) {
        self.until("the agent is registered", async || {
            (self.registrations() >= times).then_some(())
        })
        .await;
        self.until_offers(GPUS).await;
    }

    /// Waits for the node condition about GPUs.
    pub(crate) async fn until_healthy(&self, status: &str) {
        self.until(
            &format!("the node says that its GPUs are healthy: {status}"),
            async || {
                let node = self.node().await?;
                let conditions = node["status"]["conditions"].as_array()?;
                let found = conditions.iter().find(|condition| condition["type"] == "GPUsHealthy")?;
                (found["status"] == status).then_some(())
            },
        )
        .await;
    }

    /// How often the kubelet has accepted the agent.
    pub(crate) fn registrations(&self) -> usize {
        let log = std::fs::read_to_string(self.directory.join("node-agent.log")).unwrap_or_default();
        log.lines()
            .filter(|line| line.contains("registered with the kubelet") && line.contains(keys::RESOURCE_GPU))
            .count()
    }

    /// Changes labels of the node; `null` removes one.
    pub(crate) async fn label(&self, labels: Value) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        let target = Target::of::<Node>("", NAME);
        self.client.patch(target, Part::Object, patch).await.unwrap();
    }

    /// Sets the state of the fake GPUs, in the format of fake-nvml's control file.
    pub(crate) fn control(&self, text: &str) {
        let (new, file) = (self.directory.join("control.new"), self.directory.join("control.yaml"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// The Node object.
    pub(crate) async fn node(&self) -> Option<Value> {
        self.client.get_value(Target::of::<Node>("", NAME)).await.unwrap()
    }

    /// Waits until the node is ready and this many GPUs are allocatable.
    pub(crate) async fn until_offers(&mut self, gpus: usize) {
        let what = format!("the node is ready with {gpus} healthy GPUs of {GPUS}");
        self.until(&what, async || {
            let status = self.node().await?["status"].clone();
            let conditions = status["conditions"].as_array()?;
            let ready = conditions
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            let count = |of: &str| status[of][keys::RESOURCE_GPU].as_str()?.parse::<usize>().ok();
            (ready && count("allocatable") == Some(gpus) && count("capacity") == Some(GPUS)).then_some(())
        })
        .await;
        self.check();
    }

    /// Waits until `look` returns a value.
    pub(crate) async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                tokio::time::sleep(GLANCE).await;
            }
        };
        match tokio::time::timeout(DEADLINE, found).await {
            Ok(found) => found,
            Err(_) => panic!("waited too long until {what}\n{}", self.last_words()),
        }
    }

    /// Fails the test if one of the programs has ended.
    pub(crate) fn check(&mut self) {
        for process in self.processes_mut() {
            process.check();
        }
    }

    fn processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        let all = [
            &mut self.containerd,
            &mut self.kubelet,
            &mut self.proxy,
            &mut self.kai,
            &mut self.agent,
        ];
        all.into_iter().flatten()
    }

    pub(crate) fn last_words(&self) -> String {
        let all = [&self.containerd, &self.kubelet, &self.proxy, &self.kai, &self.agent];
        all.into_iter().flatten().map(Process::last_words).collect()
    }

    /// `kai` with the credentials of an account.
    fn kai(&self, subcommand: &str, account: &str) -> Command {
        let mut command = Command::new(set("KAI_NODE_PROGRAM"));
        let credentials = account_file(&self.directory, account);
        command.arg(subcommand).arg("--kubeconfig").arg(credentials);
        command
    }

    /// A shell with the containerd under test first in PATH.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env("PATH", set("KAI_NODE_PATH"));
        command
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The configuration of the fake GPUs, and the library that shows them to containers.
pub(crate) fn driver_flags() -> [String; 4] {
    let library = format!("{}/libnvidia-ml.so.1", set("KAI_NODE_DRIVER"));
    let driver = format!("fake:a100-40:{GPUS}");
    ["--driver".to_owned(), driver, "--fake-library".to_owned(), library]
}

/// A variable of the environment that `.ci/node` sets.
pub(crate) fn set(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set; run .ci/node"))
}
