//! The Job of `kai doctor NODE`, on the node's kubelet.

use std::process::Command;

use kai_api::keys;
use serde_json::Value;

use crate::machine::{Machine, NAME, driver_flags};
use crate::scenes::scene;

/// Applies the Job that `kai doctor NODE --print-job` prints, and reads the report of its pod. The API server of this run can't fetch
/// logs from the kubelet, so `kai doctor NODE` itself has its tests elsewhere.
pub(crate) async fn a_job_runs_the_doctor(machine: &mut Machine) {
    scene("the Job of `kai doctor NODE` reads the host's files, and nothing else");
    machine.kubectl_with(&printed_job(), &["create", "-f", "-"]);
    let report = machine
        .until("the doctor has reported", async || {
            let pods = machine.kubectl(&[
                "-n",
                keys::SYSTEM_NAMESPACE,
                "get",
                "pods",
                "-l",
                "job-name",
                "-o",
                "json",
            ]);
            let pods: Value = serde_json::from_str(&pods).unwrap();
            let pod = &pods["items"][0];
            let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
            ended.is_object().then(|| machine.output(pod, 0))?
        })
        .await;
    let has = |words: &str| assert!(report.contains(words), "{words}:\n{report}");
    has("NVIDIA A100");
    has("kubelet            /var/lib/kubelet/pod-resources/kubelet.sock\n");
    has("not looked at: no kubeconfig");
    // With its pod, which needs the kubelet: the next scene may stop it.
    let delete = ["delete", "jobs", "--all", "--cascade=foreground"];
    machine.kubectl(&[&["-n", keys::SYSTEM_NAMESPACE][..], &delete].concat());
}

fn printed_job() -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kai"));
    command.args([
        "doctor",
        NAME,
        "--print-job",
        "--job-image",
        "registry/local/kai-scheduler/kai:0.0.0",
    ]);
    command.args(["--driver", &driver_flags()[1]]);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}
