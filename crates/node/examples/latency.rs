//! Measures and prints how long a health change takes from the driver to the kubelet's stream. No test, because machines differ.
//! The agent offers share devices beside the GPUs, as on any node.
//! `cargo run --release -p kai-node --example latency -- <path of kai>` also prints the memory of an idle agent.

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kai_gpu::fake::{FakeDriver, GpuState, Settings};
use kai_node::share_devices::offer::SHARE_DEVICES_DEFAULT;
use support::api::Api;
use support::kubelet::{Kubelet, Lists, PodResourcesServer};
use support::{Agent, settings, until};

const ROUNDS: usize = 200;

/// Whether `count` GPUs and all share devices are offered.
fn healthy(count: usize) -> impl Fn(&Lists) -> bool {
    let fine = |lists: &Lists, resource: &str, count: usize| {
        let list = lists.get(resource).and_then(Option::as_ref);
        list.is_some_and(|list| list.iter().filter(|(_, fine)| *fine).count() == count)
    };
    move |lists| {
        fine(lists, "nvidia.com/gpu", count) && fine(lists, "kai.scheduler/gpu-share", SHARE_DEVICES_DEFAULT as usize)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    latency().await;
    if let Some(program) = std::env::args().nth(1) {
        memory(&program).await;
    }
}

async fn latency() {
    let place = tempfile::tempdir().expect("a directory");
    let api = Api::start().await;
    let mut settings = settings(place.path(), &["--api-url", &api.url]);
    settings.rules.good_probes_needed = 1;
    let driver = Arc::new(FakeDriver::new(&Settings::of("a100-40", 8).seeded("n1")).expect("a fake driver"));
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let _pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
    let agent = Agent::start(settings, driver.clone());
    until("eight GPUs", &mut kubelet.lists, healthy(8)).await;
    let mut times: Vec<Duration> = Vec::new();
    for round in 0..ROUNDS {
        // Another GPU each time, so that slower recovery after repeated failures does not slow the measurement.
        let gpu = (round % 8).to_string();
        let begun = Instant::now();
        driver.set_state(&gpu, GpuState::Lost);
        until("seven GPUs", &mut kubelet.lists, healthy(7)).await;
        times.push(begun.elapsed());
        driver.set_state(&gpu, GpuState::Healthy);
        until("eight GPUs", &mut kubelet.lists, healthy(8)).await;
    }
    agent.stop().await;
    times.sort_unstable();
    println!(
        "health change to ListAndWatch, {ROUNDS} rounds: median {:?}, 99% {:?}, max {:?}",
        times[ROUNDS / 2],
        times[ROUNDS * 99 / 100],
        times[ROUNDS - 1]
    );
}

async fn memory(program: &str) {
    let place = tempfile::tempdir().expect("a directory");
    let api = Api::start().await;
    let settings = settings(place.path(), &["--api-url", &api.url]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let _pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
    let path = |name: &str| place.path().join(name).display().to_string();
    let mut agent = Command::new(program)
        .args([
            "node-agent",
            "--driver",
            "fake:a100-40:8",
            "--node-name",
            "n1",
            "--api-url",
            &api.url,
        ])
        .args([
            "--plugin-dir",
            &path("plugins"),
            "--cdi-dir",
            &path("cdi"),
            "--state-dir",
            &path("state"),
            "--pod-resources-socket",
            &path("pod-resources.sock"),
        ])
        .args(["--host-root", &path("host"), "--metrics-address", "127.0.0.1:0"])
        .stderr(Stdio::null())
        .spawn()
        .expect("the agent starts");
    until("eight GPUs", &mut kubelet.lists, healthy(8)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let cpu = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the agent runs");
        let fields: Vec<&str> = text.split_whitespace().collect();
        (fields[13].parse::<u64>().unwrap_or(0) + fields[14].parse::<u64>().unwrap_or(0)) * 10
    };
    let before = cpu(agent.id());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let used_ms = cpu(agent.id()) - before;
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).expect("the agent runs");
    for line in status.lines().filter(|line| {
        ["VmRSS", "RssAnon", "RssFile", "Threads"]
            .iter()
            .any(|name| line.starts_with(name))
    }) {
        println!("{line}");
    }
    println!("CPU in 60 idle seconds: {used_ms} ms");
    let _ = agent.kill();
    let _ = agent.wait();
}
