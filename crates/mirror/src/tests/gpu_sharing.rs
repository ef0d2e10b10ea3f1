//! The mode of GPU sharing, and background pods.

use kai_api::GpuSharingMode;

use super::*;

/// A world in this mode, with a node that has the condition of gpu-fractioning with this status, and a waiting pod with half a GPU.
fn half_on(mode: GpuSharingMode, status: Option<&str>) -> World {
    let mut world = World::with(&MirrorSettings {
        gpu_sharing: mode,
        ..MirrorSettings::default()
    });
    let ready = json!({ "type": "Ready", "status": "True" });
    let fractioning = status.map(|status| json!({ "type": "gpu-fractioning.nvidia.com/Ready", "status": status }));
    let conditions: Vec<_> = [ready].into_iter().chain(fractioning).collect();
    world.mirror.apply_node(&slim(json!({
        "metadata": { "name": "n", "uid": "uid-n", "labels": { "nvidia.com/gpu.memory": "40000" } },
        "status": {
            "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "1" },
            "conditions": conditions,
        },
    })));
    world.group("g", json!({}));
    let half = json!({
        "metadata": { "annotations": { "gpu-fraction": "0.5" } },
        "spec": { "containers": [{ "name": "main" }] },
    });
    world.pod("p", half);
    world
}

#[test]
fn the_mode_says_where_shares_start() {
    use GpuSharingMode::{Disabled, HamiCore, NonMemoryEnforced, NvFractions};
    let starts = |mode, status| !half_on(mode, status).decide().is_empty();
    for mode in [NonMemoryEnforced, HamiCore] {
        assert!(starts(mode, None) && starts(mode, Some("False")), "{mode}");
    }
    assert!(starts(NvFractions, Some("True")));
    for (status, text) in [
        (None, "Ready is Unknown (ConditionNotFound)"),
        (Some("False"), "Ready is False"),
        (Some("Unknown"), "Ready is Unknown"),
    ] {
        let mut world = half_on(NvFractions, status);
        assert_eq!(world.decide(), [""; 0]);
        assert!(world.reason("uid-p").contains(text), "{}", world.reason("uid-p"));
    }
    let mut world = half_on(Disabled, Some("True"));
    assert_eq!(world.decide(), [""; 0]);
    assert!(
        world.reason("uid-p").starts_with("GPU sharing is switched off"),
        "{}",
        world.reason("uid-p")
    );
}

#[test]
fn the_selector_says_which_pods_are_background_pods() {
    let evicted = |settings: MirrorSettings| {
        let mut world = World::with(&settings);
        world.node("n", json!({}));
        world.group("g", json!({}));
        world.group("h", json!({}));
        let running = json!({
            "metadata": { "labels": { "kai.scheduler/background": "true" } },
            "spec": { "nodeName": "n" },
            "status": { "phase": "Running" },
        });
        world.pod("spare", running);
        world.pod(
            "work",
            json!({ "metadata": { "annotations": { "pod-group-name": "h" } } }),
        );
        world.decide().iter().any(|decision| decision.contains("uid-spare"))
    };
    assert!(evicted(MirrorSettings::default()));
    assert!(!evicted(MirrorSettings {
        background: BackgroundSelector::none(),
        ..MirrorSettings::default()
    }));
}
