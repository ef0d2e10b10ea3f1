//! Helm releases of the packed chart with kai's image: install, upgrade, rollback and uninstall, as users type them. Kubernetes' own
//! controllers, scheduler and service proxy run kai's pods.

use std::collections::BTreeSet;
use std::path::PathBuf;

use kai_api::{Object, Pod, keys};
use serde_json::{Value, json};

use crate::commands::Done;
use crate::machine::{Machine, driver_flags};
use crate::pods::{fraction, whole, workload};
use crate::process::Process;
use crate::scenes::scene;

const RELEASE: [&str; 3] = ["kai-scheduler", "-n", "kai-scheduler"];
const CHART: &str = "./charts/kai-scheduler-0.0.0.tgz";

/// `kai all` and the agent, over install, upgrade, rollback and uninstall.
pub(crate) async fn all_in_one(machine: &mut Machine) {
    scene("helm install --wait: a pod that is created at once runs");
    install(machine, "all-in-one");
    create_at_once(machine, &whole("first", 1)).await;
    let first = machine.seen("first").await;
    assert_eq!(first.gpus, machine.held("default", "first").await, "{}", first.text);
    machine.delete(&["first"], 0).await;

    scene("two half-GPU pods run and see their GPU");
    for name in ["kept", "shared"] {
        create_at_once(machine, &fraction(name, "0.5")).await;
    }
    let (kept, shared) = (machine.seen("kept").await, machine.seen("shared").await);
    let (_, gpu) = machine.reservation().await;
    machine.sees_share(&kept, &gpu);
    machine.sees_share(&shared, &gpu);
    let before = machine.running().await;

    scene("helm upgrade replaces the pods of kai; the workloads run on");
    let pods = kai_pods(machine);
    // This value changes the pods of both the Deployment and the DaemonSet.
    let changed = [CHART, "--reuse-values", "--set=global.jsonLog=true"];
    let reviews = Reviews::start(machine);
    helm_and_wait(machine, &[&["upgrade"], &RELEASE[..], &changed].concat());
    replaced(machine, &pods, &before).await;
    reviews.end();

    scene("helm rollback, too");
    let pods = kai_pods(machine);
    helm_and_wait(machine, &[&["rollback", "kai-scheduler", "1"], &RELEASE[1..]].concat());
    replaced(machine, &pods, &before).await;

    scene("helm uninstall leaves the workloads running, and nothing of kai is in the way");
    uninstall(machine);
    nothing_is_in_the_way(machine, &before).await;
    machine.delete(&["kept", "shared"], 0).await;
}

/// The operator and a Deployment for each role.
pub(crate) async fn roles(machine: &mut Machine) {
    scene("helm install --wait in mode roles: the operator runs all roles, and a pod that is created at once runs");
    install(machine, "roles");
    create_at_once(machine, &fraction("kept", "0.5")).await;
    let kept = machine.seen("kept").await;
    let (_, gpu) = machine.reservation().await;
    machine.sees_share(&kept, &gpu);
    let deployments = machine.kubectl(&["-n", "kai-scheduler", "get", "deployments", "-o", "name"]);
    assert_eq!(deployments.lines().count(), 7, "{deployments}");
    let before = machine.running().await;

    scene("whoever deletes the namespace has uninstalled kai as well");
    machine.kubectl(&["delete", "namespace", "kai-scheduler", "--timeout=180s"]);
    nothing_is_in_the_way(machine, &before).await;
    machine.delete(&["kept"], 0).await;
}

/// Installs the chart with the values of docs/install.md and those of the fake GPUs.
pub(crate) fn install(machine: &Machine, mode: &str) {
    let [_, driver, _, library] = driver_flags();
    let values = json!({
        "mode": mode,
        "nodeAgent": { "mode": machine.mode, "driver": driver, "additionalArgs": [format!("--fake-library={library}")] },
    });
    let file = machine.directory.join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let file = file.display().to_string();
    let typed = [
        "--create-namespace",
        "--set=global.gpuSharing=true",
        "--set=scheduler.additionalArgs[0]=--v=4",
        "--set=crdupgrader.image.pullPolicy=Never",
        "--values",
        &file,
        CHART,
    ];
    let done = helm_and_wait(machine, &[&["install"], &RELEASE[..], &typed].concat());
    assert!(
        done.stdout.contains(&format!("mode {mode}")),
        "{}{}",
        done.stdout,
        done.stderr
    );
}

/// Uninstalls the release.
pub(crate) fn uninstall(machine: &Machine) {
    machine.helm(&[&["uninstall"], &RELEASE[..]].concat());
}

/// Creates the pod, and accepts no error: kai is ready.
async fn create_at_once(machine: &Machine, pod: &Value) {
    let created = machine.client.create(&Pod::RESOURCE, "default", pod.clone()).await;
    if let Err(error) = created {
        panic!("{error}\n{}", machine.last_words());
    }
}

/// Runs helm with `--wait`. Helm 3 returns when the pods of a Deployment are ready, and does not wait until the Deployment is available.
fn helm_and_wait(machine: &Machine, arguments: &[&str]) -> Done {
    let done = machine.helm(&[arguments, &["--wait"]].concat());
    if machine.has_helm_3() {
        machine.kubectl(&[
            "-n",
            "kai-scheduler",
            "rollout",
            "status",
            "deployment",
            "--timeout=120s",
        ]);
    }
    done
}

/// The ids of the pods of kai's namespace.
fn kai_pods(machine: &Machine) -> BTreeSet<String> {
    let ids = "jsonpath={range .items[*]}{.metadata.uid}{'\\n'}{end}";
    let listed = machine.kubectl(&["-n", "kai-scheduler", "get", "pods", "-o", ids]);
    listed.lines().map(str::to_owned).collect()
}

/// New pods of kai serve the cluster: a pod that is created at once runs. The containers of the other workloads are the same as before.
async fn replaced(machine: &mut Machine, old: &BTreeSet<String>, before: &Value) {
    create_at_once(machine, &fraction("next", "0.5")).await;
    machine.seen("next").await;
    machine
        .until("the old pods of kai are gone", async || {
            kai_pods(machine).is_disjoint(old).then_some(())
        })
        .await;
    assert_eq!(&machine.running().await, before, "no container was touched");
    machine.delete(&["next"], 1).await;
}

/// A pod without kai runs at once, workloads of kai run on, and every object by which kai acts on the cluster is deleted.
async fn nothing_is_in_the_way(machine: &mut Machine, before: &Value) {
    let mut plain = workload("plain");
    plain["spec"].as_object_mut().unwrap().remove("schedulerName");
    create_at_once(machine, &plain).await;
    machine.seen("plain").await;
    machine
        .until("everything of kai is gone", async || {
            let left = left_behind(machine);
            left.is_empty().then_some(())
        })
        .await;
    // Also a pod that names kai's scheduler is accepted; it waits.
    create_at_once(machine, &whole("waits", 1)).await;
    assert_eq!(&machine.running().await, before, "no container was touched");
    machine.delete(&["plain", "waits"], 0).await;
}

/// Objects by which kai acts on a cluster, or that would hold a GPU.
fn left_behind(machine: &Machine) -> String {
    let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let mut left = machine.kubectl(&["get", kinds, "-o", "name"]);
    left += &machine.kubectl(&["-n", keys::RESERVATION, "get", "pods", "-o", "name"]);
    left += &machine.kubectl(&[
        "-n",
        "kai-scheduler",
        "get",
        "pods,deployments,daemonsets,services,leases",
        "-o",
        "name",
    ]);
    left
}

/// Pods that the API server has reviewed one after the other, and not stored, while kai's pods are replaced.
struct Reviews {
    process: Process,
    log: PathBuf,
}

impl Reviews {
    fn start(machine: &Machine) -> Reviews {
        let pod = machine.directory.join("reviewed-pod.json");
        std::fs::write(&pod, fraction("reviewed", "0.5").to_string()).unwrap();
        let mut command = machine.shell(
            "cd $KAI_NODE_DIR && while :; do kubectl --kubeconfig kubeconfig create --dry-run=server -f reviewed-pod.json; done",
        );
        Reviews {
            process: Process::start(&machine.directory, "reviews", &mut command),
            log: machine.directory.join("reviews.log"),
        }
    }

    /// Every review has been answered.
    fn end(self) {
        drop(self.process);
        let log = std::fs::read_to_string(self.log).unwrap();
        let accepted = log
            .lines()
            .filter(|line| line.starts_with("pod/reviewed created"))
            .count();
        assert!(accepted > 0 && accepted == log.lines().count(), "{log}");
    }
}
