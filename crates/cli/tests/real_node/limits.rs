//! Limits of GPU memory on a node with cgroup v2: the runtime runs our hook, which sets them in the fake driver.

use serde_json::{Value, json};

use crate::machine::{Duty, GPUS, Machine};
use crate::pods::{fraction, workload};
use crate::scenes::scene;

/// The container runtimes. Their names are those of runtime classes.
const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// Runs a pod's containers by this runtime.
fn under(runtime: &str, mut pod: Value) -> Value {
    pod["spec"]["runtimeClassName"] = runtime.into();
    pod
}

pub(crate) async fn a_share_is_a_limit(machine: &mut Machine) {
    for runtime in RUNTIMES {
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": runtime }, "handler": runtime,
        });
        machine.kubectl_with(&class.to_string(), &["apply", "-f", "-"]);
    }
    machine.start_agent(Duty::Agent);
    machine.until_offers(GPUS).await;
    for runtime in RUNTIMES {
        scene(&format!("half a GPU under {runtime}"));
        machine.create(&under(runtime, fraction("half", "0.5"))).await;
        machine.create(&under(runtime, workload("none"))).await;
        let seen = machine.seen("half").await;
        let none = machine.seen("none").await;
        println!("{}", seen.text);
        println!("{}", none.text);
        let found = machine
            .shell("find /sys/fs/cgroup -name 'pod*' -o -path '*/pod*/*' -type d")
            .output()
            .unwrap();
        println!("{}", String::from_utf8_lossy(&found.stdout));
        machine.delete(&["half", "none"], 0).await;
    }
}
