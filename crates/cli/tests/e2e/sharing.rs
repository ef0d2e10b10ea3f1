//! Whole GPUs, GPU fractions, GPU memory, MIG slices, time-slicing, and a Jetson.

use kai_api::{GpuLimits, keys};
use kai_cli::roles::RoleSettings;
use kai_embedded::kubelet::{Enforce, LimitFault, NodeTemplate};
use serde_json::json;

use crate::harness::manifest::PodManifest;
use crate::harness::{Choice, scenario, scenario_with};

fn node(gpus: &str) -> NodeTemplate {
    NodeTemplate::new("node", gpus)
}

#[test]
fn a_whole_gpu_and_two_halves() {
    scenario(&[node("h100:2")], async |cluster| {
        cluster.create(PodManifest::new("whole").gpus(1).build()).await;
        cluster.create(PodManifest::new("half-a").fraction("0.5").build()).await;
        cluster.create(PodManifest::new("half-b").fraction("0.5").build()).await;
        cluster.until_only_running(&["whole", "half-a", "half-b"]).await;
        let groups = |name: &str| cluster.pod(name).unwrap().gpu_groups().join(",");
        assert_eq!(groups("half-a"), groups("half-b"), "both halves are of one GPU");
    });
}

#[test]
fn request_and_limit_of_a_pod_become_the_limits_of_the_bound_pod() {
    let node = NodeTemplate {
        driver: Some("615.71.09".to_owned()),
        ..node("h100:1")
    };
    scenario(&[node], async |cluster| {
        let request = "nvidia.com/container.main.gpu-memory.request";
        let limit = "nvidia.com/container.main.gpu-memory.limit";
        let burst = PodManifest::new("burst")
            .annotation(request, "20Gi")
            .annotation(limit, "40Gi");
        cluster
            .create(burst.annotation(keys::GPU_ENFORCEMENT, "required").build())
            .await;
        let short = PodManifest::new("short")
            .gpu_memory_mib("20480")
            .annotation(keys::GPU_MEMORY_LIMIT, "30Gi");
        cluster.create(short.build()).await;
        cluster.create(PodManifest::new("tenth").fraction("0.1").build()).await;
        // The requests fit on the GPU of 80 GiB, the limits would not.
        cluster.until_only_running(&["burst", "short", "tenth"]).await;
        let annotation = |pod: &str, key: &str| {
            let pod = cluster.pod(pod).unwrap();
            pod.metadata.annotations.text(key).unwrap_or_default().to_owned()
        };
        let limits = |pod: &str| GpuLimits::parse(&annotation(pod, keys::GPU_LIMITS)).unwrap();
        for (pod, memory_mib) in [("burst", 40_960), ("short", 30_720)] {
            let limits = limits(pod);
            assert_eq!((&*limits.container, limits.memory_mib), ("main", memory_mib), "{pod}");
            assert_eq!(annotation(pod, keys::GPU_ENFORCEMENT_TIER), "driver");
            let devices = annotation(pod, "nvidia.com/container.main.gpus.devices");
            assert_eq!(devices, annotation(pod, keys::RECEIVED_GPUS));
        }
        assert_eq!(
            (annotation("burst", request), annotation("burst", limit)),
            ("20Gi".into(), "40Gi".into())
        );
        assert_eq!(
            (annotation("short", request), annotation("short", limit)),
            ("20480Mi".into(), "30Gi".into())
        );
        // Without a limit the request is the limit.
        let tenth = format!("{}Mi", limits("tenth").memory_mib);
        assert_eq!(
            (annotation("tenth", request), annotation("tenth", limit)),
            (tenth.clone(), tenth)
        );
        cluster
            .create(PodManifest::new("late").annotation(request, "60Gi").build())
            .await;
        cluster.until_waiting("late", "GPU").await;
    });
}

/// The pods in docs/gpu-sharing.md run, and have the limits that the page says.
#[test]
fn the_pods_of_the_page_about_sharing_run() {
    let page = include_str!("../../../../docs/gpu-sharing.md");
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let pods: Vec<serde_json::Value> = blocks.map(|block| serde_saphyr::from_str(block).unwrap()).collect();
    scenario(&[node("h100:1")], async |cluster| {
        for pod in &pods {
            cluster.create(pod.clone()).await;
        }
        cluster.until_only_running(&["burst", "half"]).await;
        let burst = cluster.pod("burst").unwrap();
        let limits = burst.metadata.annotations.text(keys::GPU_LIMITS).unwrap();
        assert!(page.contains(&format!("`{limits}`")), "{limits}");
    });
}

/// The mode `NvFractions` in all roles: webhook, scheduler and binder, and the node agents' condition.
#[test]
fn fractions_of_the_mode_nv_fractions_run_where_the_driver_limits_memory() {
    let mode = || vec!["--gpu-sharing-mode=NvFractions".to_owned()];
    let settings = RoleSettings::of_flags(|role| match role {
        "scheduler" | "binder" | "admission" => mode(),
        _ => Vec::new(),
    });
    let old_driver = NodeTemplate {
        driver: Some("570.86.15".to_owned()),
        ..NodeTemplate::new("old", "h100:2")
    };
    let new_driver = NodeTemplate {
        driver: Some("615.71.09".to_owned()),
        ..node("h100:1")
    };
    scenario_with(settings.unwrap(), &[old_driver, new_driver], async |cluster| {
        cluster.create(PodManifest::new("half-a").fraction("0.5").build()).await;
        let request = "nvidia.com/container.main.gpu-memory.request";
        let half = PodManifest::new("half-b").annotation(request, "30Gi");
        cluster.create(half.build()).await;
        cluster.until_only_running(&["half-a", "half-b"]).await;
        for half in ["half-a", "half-b"] {
            let pod = cluster.pod(half).unwrap();
            assert_eq!(pod.node_name(), Some("node"), "{half}");
            assert_eq!(
                pod.metadata.annotations.text(keys::GPU_ENFORCEMENT_TIER),
                Some("driver")
            );
            let config_map = pod.metadata.annotations.text(keys::SHARED_GPU_CONFIG_MAP);
            assert_eq!(config_map, None, "{half}: the mode has no ConfigMaps");
        }
        // The GPUs of the other node are free, but its driver limits nothing.
        cluster.create(PodManifest::new("late").fraction("0.5").build()).await;
        cluster.until_waiting("late", "gpu-fractioning.nvidia.com/Ready").await;
        cluster.create(PodManifest::new("whole").gpus(1).build()).await;
        cluster.until_only_running(&["half-a", "half-b", "whole"]).await;
        // An agent that gives the tier up takes the condition back; the pods that run stay.
        let fault = LimitFault::Enforce(Enforce::None);
        cluster.kubelets.inject("node", &fault).await.unwrap();
        cluster.delete::<kai_api::Pod>("default", "half-a").await.unwrap();
        cluster.settle().await;
        assert!(!cluster.runs("late") && cluster.runs("half-b"), "{}", cluster.picture());
        cluster.kubelets.heal_limits("node").await.unwrap();
        cluster.until_only_running(&["half-b", "late", "whole"]).await;
    });
}

#[test]
fn reservation_pods_have_the_namespace_and_the_label_that_the_flags_say() {
    // On a real API server the roles' accounts have rights in the default namespace only.
    if matches!(Choice::of_environment(), Choice::Kube) {
        return;
    }
    let settings = RoleSettings::of_flags(|role| match role {
        "scheduler" | "binder" | "admission" => vec![
            "--resource-reservation-namespace=gpu-holders".to_owned(),
            "--resource-reservation-app-label=gpu-holder".to_owned(),
        ],
        _ => Vec::new(),
    });
    scenario_with(settings.unwrap(), &[node("h100:2")], async |cluster| {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "gpu-holders" } });
        cluster.create(namespace).await;
        cluster.create(PodManifest::new("half-a").fraction("0.5").build()).await;
        cluster.create(PodManifest::new("half-b").fraction("0.5").build()).await;
        cluster.until_only_running(&["half-a", "half-b"]).await;
        let groups = |name: &str| cluster.pod(name).unwrap().gpu_groups().join(",");
        assert_eq!(groups("half-a"), groups("half-b"), "both halves are of one GPU");
        let reservations = || {
            let pods = cluster.informers().pods().all().into_iter();
            let others = pods.filter(|pod| pod.metadata.namespace() != "default");
            let label = |pod: &kai_api::Pod| pod.metadata.labels.text("app").unwrap_or_default().to_owned();
            others
                .map(|pod| (pod.metadata.namespace().to_owned(), label(&pod)))
                .collect::<Vec<_>>()
        };
        assert_eq!(reservations(), [("gpu-holders".to_owned(), "gpu-holder".to_owned())]);
        // A reservation pod that counted as a pod with a GPU of its own would leave no GPU for this one.
        cluster.create(PodManifest::new("whole").gpus(1).build()).await;
        cluster.until_only_running(&["half-a", "half-b", "whole"]).await;
        cluster.create(PodManifest::new("late").gpus(1).build()).await;
        cluster.until_waiting("late", "GPU").await;
        // Without pods that share it, the GPU is free again.
        for half in ["half-a", "half-b"] {
            cluster.delete::<kai_api::Pod>("default", half).await.unwrap();
        }
        cluster.until_only_running(&["late", "whole"]).await;
        assert_eq!(reservations(), []);
    });
}

#[test]
fn sixteen_halves_in_one_burst_fill_eight_gpus() {
    scenario(&[node("h100:8")], async |cluster| {
        for number in 0..16 {
            cluster
                .create(PodManifest::new(&format!("half-{number:02}")).fraction("0.5").build())
                .await;
        }
        cluster.until_running(16).await;
        cluster
            .create(PodManifest::new("one-more").fraction("0.5").build())
            .await;
        cluster.until_waiting("one-more", "GPU").await;
    });
}

#[test]
fn twenty_three_pods_of_2000_mib_fit_on_46068_mib() {
    scenario(&[node("l40s:1")], async |cluster| {
        for number in 0..24 {
            cluster
                .create(
                    PodManifest::new(&format!("share-{number:02}"))
                        .gpu_memory_mib("2000")
                        .build(),
                )
                .await;
        }
        cluster.until_running(23).await;
        let waiting = cluster.pods().into_iter().filter(|pod| pod.node_name().is_none());
        let names: Vec<String> = waiting.map(|pod| pod.metadata.plain_name().to_owned()).collect();
        assert_eq!(names.len(), 1, "{}", cluster.picture());
        cluster.until_waiting(&names[0], "enough resources: GPU memory").await;
    });
}

#[test]
fn a_part_of_each_of_two_gpus() {
    scenario(&[node("h100:2")], async |cluster| {
        let pod = PodManifest::new("both")
            .fraction("0.5")
            .annotation("gpu-fraction-num-devices", "2");
        cluster.create(pod.build()).await;
        cluster.until_only_running(&["both"]).await;
        assert_eq!(cluster.pod("both").unwrap().gpu_groups().len(), 2);
        cluster.create(PodManifest::new("rest").fraction("0.5").build()).await;
        cluster.until_only_running(&["both", "rest"]).await;
    });
}

#[test]
fn mig_slices_by_name() {
    let mut mig = node("a100-40:1/1g.5gb*2/2g.10gb");
    mig.mig_strategy = Some("mixed".to_owned());
    scenario(&[mig], async |cluster| {
        for number in 0..3 {
            let pod = PodManifest::new(&format!("small-{number}")).devices("nvidia.com/mig-1g.5gb", 1);
            cluster.create(pod.build()).await;
        }
        cluster
            .create(PodManifest::new("large").devices("nvidia.com/mig-2g.10gb", 1).build())
            .await;
        cluster.until_running(3).await;
        assert!(cluster.runs("large"));
    });
}

#[test]
fn replicas_of_one_gpu_are_one_memory() {
    let mut sliced = node("l40s:1");
    sliced.replicas = Some(4);
    scenario(&[sliced], async |cluster| {
        for number in 0..3 {
            cluster
                .create(
                    PodManifest::new(&format!("share-{number}"))
                        .gpu_memory_mib("20000")
                        .build(),
                )
                .await;
        }
        cluster.until_running(2).await;
        cluster.settle().await;
        assert_eq!(cluster.running().len(), 2, "{}", cluster.picture());
    });
}

#[test]
fn four_of_five_pods_of_30_gib_run_on_a_jetson_with_128_gib() {
    let mut jetson = node("thor:1");
    jetson.replicas = Some(100);
    jetson.memory = "128Gi".to_owned();
    scenario(&[jetson], async |cluster| {
        for number in 0..5 {
            cluster
                .create(
                    PodManifest::new(&format!("llm-{number}"))
                        .gpu_memory_mib("30720")
                        .build(),
                )
                .await;
        }
        cluster.until_running(4).await;
        let waiting = cluster
            .pods()
            .into_iter()
            .find(|pod| pod.node_name().is_none())
            .unwrap();
        cluster.until_waiting(waiting.metadata.plain_name(), "memory").await;
    });
}

#[test]
fn a_shared_gpu_is_free_for_a_whole_pod_once_its_sharers_are_gone() {
    scenario(&[node("h100:1")], async |cluster| {
        cluster.create(PodManifest::new("half").fraction("0.5").build()).await;
        cluster.until_only_running(&["half"]).await;
        cluster.create(PodManifest::new("whole").gpus(1).build()).await;
        cluster.until_waiting("whole", "GPU").await;
        cluster.delete::<kai_api::Pod>("default", "half").await.unwrap();
        cluster.until_only_running(&["whole"]).await;
    });
}
