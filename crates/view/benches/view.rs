//! Time and memory of a view of a large cluster: 1,000 nodes with 8 GPUs and 10,000 pods, of which 2,000 wait. "max alloc" of the first
//! benchmark is about the memory of one view.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/support/mod.rs"]
mod support;

use divan::Bencher;
use kai_view::Knowledge;
use serde_json::{Value, json};
use support::{World, gang, node, pod, queue};

#[global_allocator]
static ALLOCATOR: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

fn large_cluster() -> World {
    let mut objects = vec![queue("all", None, 100)];
    objects.extend((0..50).map(|at| queue(&format!("team-{at}"), Some("all"), 100)));
    objects.extend((0..1_000).map(|at| node(&format!("node-{at:04}"), 8, usual_facts())));
    for at in 0..10_000 {
        let name = format!("job-{at:05}");
        objects.push(gang(&name, "Job", &format!("team-{}", at % 50), 1));
        let place = (at < 8_000).then(|| format!("node-{:04}", at / 8));
        objects.push(pod(&name, &name, 1, place.as_deref(), json!({})));
    }
    World::new(&objects)
}

/// Labels of GPU feature discovery and conditions of a kubelet.
fn usual_facts() -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({ "type": kind, "status": status, "reason": reason, "message": message });
    json!({
        "metadata": { "labels": {
            "nvidia.com/cuda.driver-version.full": "570.133.20", "nvidia.com/cuda.driver-version.major": "570",
            "nvidia.com/cuda.driver-version.minor": "133", "nvidia.com/cuda.driver-version.revision": "20",
            "nvidia.com/cuda.runtime-version.full": "12.8", "nvidia.com/cuda.runtime-version.major": "12",
            "nvidia.com/cuda.runtime-version.minor": "8", "nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0",
            "nvidia.com/gpu.family": "hopper", "nvidia.com/gpu.machine": "NVIDIA-DGX-H100", "nvidia.com/gpu.mode": "compute",
            "nvidia.com/gpu.present": "true", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none",
            "nvidia.com/mig.capable": "true", "nvidia.com/mps.capable": "false", "nvidia.com/vgpu.present": "false",
            "topology.kubernetes.io/zone": "zone-1",
        } },
        "status": { "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            condition("GPUSetupHealthy", "True", "NoProblems", "the doctor found no problem"),
        ] },
    })
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn view_of_1000_nodes_and_10000_pods(bencher: Bencher<'_, '_>) {
    let mut world = large_cluster();
    bencher.bench_local(|| world.view(Knowledge::complete()));
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn view_as_json(bencher: Bencher<'_, '_>) {
    let view = large_cluster().view(Knowledge::complete());
    bencher.bench_local(|| serde_json::to_vec(&view).unwrap());
}

#[divan::bench(sample_count = 20, sample_size = 1)]
fn view_of_one_namespace(bencher: Bencher<'_, '_>) {
    let view = large_cluster().view(Knowledge::complete());
    bencher.bench_local(|| view.restricted_to(&["other".to_owned()].into()));
}
