//! The scenes with kai as plain processes.

use std::collections::BTreeSet;

use kai_api::keys;
use serde_json::Value;

use crate::machine::{Duty, GPUS, Machine};
use crate::pods::{LOOK, Seen, ending, fraction, plain, whole, workload};

/// Labels that NVIDIA's feature discovery sets on a node without kai's agent.
const DISCOVERED: [(&str, &str); 2] = [(keys::NODE_GPU_COUNT, "4"), (keys::NODE_GPU_MEMORY, "40960")];

/// Prints the name of a scene.
pub(crate) fn scene(words: &str) {
    println!("-- {words}");
}

pub(crate) async fn a_reservation_finds_its_gpu_by_nvml_where_the_agent_does_not_tell(machine: &mut Machine) {
    scene("a reservation pod finds its GPU by NVML where no agent tells");
    machine.start_agent(Duty::Pod);
    machine.until_offers(GPUS).await;
    machine.label(DISCOVERED.into_iter().collect::<Value>()).await;
    machine.create(&fraction("half", "0.5")).await;
    let seen = machine.seen("half").await;
    let (reservation, gpu) = machine.reservation().await;
    let said = machine.output(&reservation, 0).unwrap();
    assert!(said.contains("Found GPU device"), "{said}");
    assert!(
        seen.text.contains(&format!("NVIDIA_VISIBLE_DEVICES={gpu}\n")),
        "{}",
        seen.text
    );
    machine.delete(&["half"], 0).await;
    let none = DISCOVERED.map(|(key, _)| (key, Value::Null));
    machine.label(none.into_iter().collect::<Value>()).await;
}

pub(crate) async fn the_kubelet_takes_the_devices(machine: &mut Machine) {
    scene("the kubelet takes the devices, and the node is labelled");
    machine.start_agent(Duty::Agent);
    machine
        .until("the node has its labels", async || {
            let labels = machine.node().await?["metadata"]["labels"].clone();
            let counted = labels[keys::NODE_GPU_COUNT].as_str()? == GPUS.to_string();
            (counted && labels[keys::NODE_PLATFORM].is_string()).then_some(())
        })
        .await;
    machine.until_registered(1).await;
}

pub(crate) async fn a_container_sees_its_own_gpus_and_no_others(machine: &mut Machine) {
    scene("a container sees its own GPUs and no others; one that asked for none sees none");
    for pod in [whole("one", 1), whole("two", 2), workload("none")] {
        machine.create(&pod).await;
    }
    let mut all = BTreeSet::new();
    for (name, count) in [("one", 1), ("two", 2), ("none", 0)] {
        let seen = machine.seen(name).await;
        assert_eq!(seen.gpus.len(), count, "{name}:\n{}", seen.text);
        assert_eq!(seen.gpus, machine.held("default", name).await, "{name}");
        all.extend(seen.gpus);
    }
    assert_eq!(all.len(), 3, "no GPU is given twice");
    machine.delete(&["one", "two", "none"], 0).await;
}

pub(crate) async fn two_pods_share_a_gpu(machine: &mut Machine) {
    scene("two pods share a GPU that the agent named, and a third gets the others");
    for pod in [fraction("left", "0.5"), fraction("right", "0.5"), whole("rest", 3)] {
        machine.create(&pod).await;
    }
    let rest = machine.seen("rest").await;
    let (left, right) = (machine.seen("left").await, machine.seen("right").await);
    let (reservation, gpu) = machine.reservation().await;
    assert_eq!(
        reservation["spec"]["automountServiceAccountToken"], false,
        "it only sleeps"
    );
    assert_eq!(rest.gpus.len(), 3);
    assert!(!rest.gpus.contains(&gpu));
    machine.sees_share(&left, &gpu);
    machine.sees_share(&right, &gpu);
    machine.delete(&["left", "right", "rest"], 0).await;
}

pub(crate) async fn restarts_are_survived(machine: &mut Machine) {
    scene("kubelet, agent and containerd are killed and come back under running pods");
    for pod in [whole("kept", 1), fraction("shared", "0.5")] {
        machine.create(&pod).await;
    }
    let kept = machine.seen("kept").await.gpus;
    machine.seen("shared").await;
    let (_, gpu) = machine.reservation().await;
    let before = machine.running().await;
    for victim in ["kubelet", "agent", "containerd"] {
        scene(&format!("  {victim}"));
        let registered = machine.registrations();
        match victim {
            "kubelet" => machine.start_kubelet(),
            "agent" => machine.start_agent(Duty::Agent),
            _ => machine.start_containerd().await,
        }
        if victim != "containerd" {
            machine.until_registered(registered + 1).await;
        }
        machine.until_offers(GPUS).await;
        for pod in [whole("next", 1), fraction("beside", "0.5")] {
            machine.create(&pod).await;
        }
        let (next, beside) = (machine.seen("next").await, machine.seen("beside").await);
        assert_eq!(next.gpus, machine.held("default", "next").await);
        assert!(next.gpus.len() == 1 && next.gpus.is_disjoint(&kept), "{}", next.text);
        assert!(
            beside.text.contains(&gpu) || beside.gpus.contains(&gpu),
            "{}",
            beside.text
        );
        assert_eq!(
            machine.held("default", "kept").await,
            kept,
            "the kubelet's accounts are kept"
        );
        machine.delete(&["next", "beside"], 1).await;
        assert_eq!(machine.running().await, before, "no container was touched");
    }
    machine.delete(&["kept", "shared"], 0).await;
}

pub(crate) async fn a_gpu_fails_and_returns(machine: &mut Machine) {
    scene("a GPU fails under a running pod, is not given to others, and returns");
    machine.create(&whole("kept", 1)).await;
    let kept = machine.seen("kept").await.gpus;
    let gpu = kept.first().unwrap();
    let before = machine.running().await;
    machine.control(&format!("gpus: {{{gpu}: {{state: lost}}}}"));
    machine.until_offers(GPUS - 1).await;
    machine.until_healthy("False").await;
    machine.create(&whole("others", 2)).await;
    // Two, because the pod on the failed GPU counts as well.
    assert!(machine.seen("others").await.gpus.is_disjoint(&kept));
    assert_eq!(machine.running().await["kept"], before["kept"]);
    machine.control("");
    machine.until_offers(GPUS).await;
    machine.until_healthy("True").await;
    machine.delete(&["kept", "others"], 0).await;
}

pub(crate) async fn a_lost_reservation_gets_the_same_gpu_again(machine: &mut Machine) {
    scene("a reservation that is deleted under running pods gets the same GPU again, though others are free");
    // Another pod holds the first GPU when the reservation pod is created, and releases it before the reservation pod is created again.
    machine.create(&whole("first", 1)).await;
    machine.seen("first").await;
    machine.create(&fraction("shared", "0.5")).await;
    machine.seen("shared").await;
    let (lost, gpu) = machine.reservation().await;
    let before = machine.running().await;
    machine.delete(&["first"], 1).await;
    machine.delete_reservation(&lost).await;
    machine
        .until("the reservation is there again", async || {
            let again = machine.reservations().await.into_iter().next()?;
            let told = again["metadata"]["annotations"][keys::RESERVED_GPU].as_str()?;
            (again["metadata"]["uid"] != lost["metadata"]["uid"] && told == gpu).then_some(())
        })
        .await;
    assert_eq!(machine.running().await, before, "no container was touched");
    machine.delete(&["shared"], 0).await;
}

pub(crate) async fn a_container_that_starts_again_gets_its_gpu_again(machine: &mut Machine) {
    scene("a container that starts again gets its GPU again, also from an agent that was started anew");
    machine.create(&ending(fraction("half", "0.5"))).await;
    machine.create(&ending(whole("one", 1))).await;
    // Concurrently: the kubelet deletes the log of the first run soon after the second one.
    let (half, one) = tokio::join!(machine.seen("half"), machine.seen("one"));
    let registered = machine.registrations();
    machine.start_agent(Duty::Agent);
    machine.until_registered(registered + 1).await;
    // The kubelet waits ten seconds before the second run, and longer before the next.
    let (half_again, one_again) = tokio::join!(machine.seen_in("half", 2), machine.seen_in("one", 2));
    assert_eq!((half.gpus, one.gpus), (half_again.gpus, one_again.gpus));
    machine.delete(&["half", "one"], 0).await;
}

pub(crate) async fn an_annotation_is_enough_for_cdi(machine: &mut Machine) {
    if machine.mode != "cdi" {
        return;
    }
    scene("the annotation alone brings a GPU into a container, for runtimes that do not know the CRI's field");
    // The kubelet would kill a container that it did not create.
    machine.stop_kubelet();
    let spec = std::fs::read_to_string("/var/run/cdi/kai.scheduler-gpu.json").unwrap();
    let spec: Value = serde_json::from_str(&spec).unwrap();
    let mut names = spec["devices"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|device| device["name"].as_str());
    let gpu = names.rfind(|name| name.starts_with("GPU-")).unwrap();
    let annotated = format!(
        "annotated localhost/workload:test $KAI_NODE_DIR cdi.k8s.io/kai-gpu=kai.scheduler/gpu={gpu} /usr/bin/busybox sh -c '{LOOK}'"
    );
    let done = machine.shell(&annotated).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let seen = Seen::in_output(plain(&String::from_utf8(done.stdout).unwrap())).unwrap();
    assert_eq!(seen.gpus, BTreeSet::from([gpu.to_owned()]), "{}", seen.text);
}
