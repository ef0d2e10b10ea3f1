//! Mutation of the scheduler's pods: pods that share GPUs get references to the ConfigMaps that the binder will create, and, if that is
//! turned on, containers that request no GPU get `NVIDIA_VISIBLE_DEVICES=void`. The mutation is idempotent.

use kai_api::{ContainerRef, GpuShareAnnotations, GpuSharingMode, keys};
use serde_json::{Value, json};

use super::args::{Feature, Settings};
use super::gpu_share::{self, SharedGpuNames};
use super::review::{FieldError, Operation, Request, Verdict};
use super::unstructured::{self, MetadataMap};
use super::visible_devices;

/// Mutates a pod. `token` is the random part of new names, `runtime_class` the class of pods that share GPUs.
pub(super) fn mutate(request: &Request, settings: &Settings, token: &str, runtime_class: Option<&str>) -> Verdict {
    if unstructured::text(&request.object, "/spec/schedulerName") != Some(&settings.scheduler_name) {
        return Verdict::default();
    }
    match mutated(request, settings, token, runtime_class) {
        Ok((pod, warnings)) => Verdict::change(&request.object, &pod).with_warnings(warnings),
        Err(error) => Verdict::of(&request.object_name("Pod"), &[error]),
    }
}

/// The mutated pod, and warnings.
fn mutated(
    request: &Request,
    settings: &Settings,
    token: &str,
    runtime_class: Option<&str>,
) -> Result<(Value, Vec<String>), FieldError> {
    let mut pod = request.object.clone();
    let fractional = gpu_share::is_fractional(&pod);
    let container = if fractional { gpu_share::container(&pod)? } else { None };
    match request.operation {
        Operation::Create => {
            fill_namespace(&mut pod, &request.namespace)?;
            if let Some(container) = container {
                translate(&mut pod, container);
                match gpu_source(&pod, container, settings) {
                    GpuSource::ShareDevice => share_device(&mut pod, container),
                    GpuSource::ConfigMaps => {
                        let names = gpu_share::names(&pod, container, token)?;
                        share_gpus(&mut pod, container, &names, settings);
                    }
                }
            }
            if let Some(class) = runtime_class.filter(|_| fractional) {
                set_runtime_class(&mut pod, class);
            }
        }
        // Only ephemeral containers, which are added later, can still be changed.
        Operation::Update | Operation::Delete | Operation::Connect => {}
    }
    let warnings = match settings.block_visible_devices {
        Feature::On => visible_devices::hide(&mut pod, &request.old_object, container),
        Feature::Off => Vec::new(),
    };
    Ok((pod, warnings))
}

fn fill_namespace(pod: &mut Value, namespace: &str) -> Result<(), FieldError> {
    match unstructured::text(pod, "/metadata/namespace") {
        Some(given) if !namespace.is_empty() && given != namespace => Err(FieldError::invalid(
            "metadata.namespace",
            format!("it is {given} but the request is about {namespace}; make them the same"),
        )),
        None if !namespace.is_empty() => {
            set(pod, "metadata", "namespace", namespace.into());
            Ok(())
        }
        Some(_) | None => Ok(()),
    }
}

/// What tells a container its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuSource {
    /// A share device alone.
    ShareDevice,
    /// ConfigMaps of the binder, and where it can a share device.
    ConfigMaps,
}

/// In the mode `NvFractions` every node for shared GPUs brings them into containers itself, so that the ConfigMaps are not needed. A pod that
/// refers to them, and an init container that ends, for which there is no share device, get them in every mode.
fn gpu_source(pod: &Value, at: ContainerRef, settings: &Settings) -> GpuSource {
    let container = pod.pointer(&at.pointer()).unwrap_or(&Value::Null);
    let device = settings.share_devices == Feature::On && gpu_share::may_request_share_device(at, container);
    let refers = unstructured::entry(pod, MetadataMap::Annotations, keys::SHARED_GPU_CONFIG_MAP).is_some();
    match settings.gpu_sharing {
        GpuSharingMode::NvFractions if device && !refers => GpuSource::ShareDevice,
        GpuSharingMode::NvFractions
        | GpuSharingMode::NonMemoryEnforced
        | GpuSharingMode::HamiCore
        | GpuSharingMode::Disabled => GpuSource::ConfigMaps,
    }
}

/// Adds the annotations of the container by which KAI's tools know the request and its limit.
fn translate(pod: &mut Value, container: ContainerRef) {
    let name = unstructured::text(pod, &format!("{}/name", container.pointer())).map(str::to_owned);
    let Some(name) = name else { return };
    let annotations = gpu_share::request_annotations(pod);
    for (key, value) in GpuShareAnnotations::of(&annotations).translated(&name) {
        pod["metadata"]["annotations"][key] = (&*value).into();
    }
}

fn share_device(pod: &mut Value, container: ContainerRef) {
    let target = pod.pointer_mut(&container.pointer());
    if let Some(target) = target.filter(|target| target.is_object()) {
        request_share_device(target);
    }
}

fn share_gpus(pod: &mut Value, container: ContainerRef, names: &SharedGpuNames, settings: &Settings) {
    if pod.pointer("/metadata/annotations").is_none_or(|map| !map.is_object()) {
        set(pod, "metadata", "annotations", json!({}));
    }
    pod["metadata"]["annotations"][keys::SHARED_GPU_CONFIG_MAP] = names.prefix.as_str().into();

    let Some(target) = pod
        .pointer_mut(&container.pointer())
        .filter(|target| target.is_object())
    else {
        return;
    };
    let from_map =
        |key: &str| json!({"name": key, "valueFrom": {"configMapKeyRef": {"name": names.capabilities, "key": key}}});
    for key in [
        keys::ENV_VISIBLE_DEVICES,
        keys::ENV_GPU_PORTION_LEGACY,
        keys::ENV_GPU_PORTION,
    ] {
        replace_named(target, "env", from_map(key));
    }
    if settings.hami_core == Feature::On {
        let mut limit = from_map(keys::ENV_CUDA_MEMORY_LIMIT);
        limit["valueFrom"]["configMapKeyRef"]["optional"] = true.into();
        replace_named(target, "env", limit);
    }
    add_environment(target, &names.environment);
    if settings.share_devices == Feature::On && gpu_share::may_request_share_device(container, target) {
        request_share_device(target);
    }
    let volume = json!({"name": names.volume, "configMap": {"name": names.capabilities}});
    replace_named(&mut pod["spec"], "volumes", volume);
}

fn add_environment(container: &mut Value, config_map: &str) {
    let names_it = |source: &Value| unstructured::text(source, "/configMapRef/name") == Some(config_map);
    if unstructured::list(container, "/envFrom").iter().any(names_it) {
        return;
    }
    list_mut(container, "envFrom").push(json!({"configMapRef": {"name": config_map, "optional": false}}));
}

/// Kubernetes requires equal limit and request for an extended resource.
fn request_share_device(container: &mut Value) {
    let is_map = |value: &Value| value.is_object() || value.is_null();
    let resources = &mut container["resources"];
    let lists = ["requests", "limits"];
    if !is_map(resources) || !lists.iter().all(|list| is_map(&resources[*list])) {
        return;
    }
    for list in lists {
        resources[list][keys::RESOURCE_GPU_SHARE] = gpu_share::SHARE_DEVICES_PER_CONTAINER.into();
    }
}

fn set_runtime_class(pod: &mut Value, class: &str) {
    if unstructured::text(pod, "/spec/runtimeClassName").is_none() {
        set(pod, "spec", "runtimeClassName", class.into());
    }
}

/// Removes all elements of the same name from the list and appends the new one.
fn replace_named(parent: &mut Value, list: &str, element: Value) {
    let elements = list_mut(parent, list);
    elements.retain(|other| other["name"] != element["name"]);
    elements.push(element);
}

/// The list of this name, created if absent. The parent must be an object or null.
pub(crate) fn list_mut<'a>(parent: &'a mut Value, name: &str) -> &'a mut Vec<Value> {
    let list = &mut parent[name];
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut().expect("made a list above")
}

/// Sets a field of a part of the pod. A part that is no object stays as it is: the API server denies the pod for it.
fn set(pod: &mut Value, part: &str, field: &str, value: Value) {
    if let Some(Value::Object(part)) = pod.get_mut(part) {
        part.insert(field.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::RuntimeClassChoice;
    use super::super::review::Decision;
    use super::*;

    fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    }

    fn request(pod: Value) -> Request {
        Request {
            uid: "1".into(),
            namespace: "team-a".into(),
            object: pod,
            ..Request::default()
        }
    }

    fn after(pod: &Value, settings: &Settings) -> Value {
        let mut after = pod.clone();
        let class = settings.runtime_class.name(|_| true);
        match mutate(&request(pod.clone()), settings, "bcdfghj", class).decision {
            Decision::Allowed => {}
            Decision::Patched(patch) => json_patch::patch(&mut after, &patch).unwrap(),
            Decision::Denied { message, .. } => return Value::String(message),
        }
        after
    }

    fn yaml(value: &Value) -> String {
        serde_json::to_string_pretty(value).unwrap()
    }

    fn fraction() -> Value {
        json!({
            "metadata": {"name": "train", "namespace": "team-a", "annotations": {"gpu-fraction": "0.5"}},
            "spec": {
                "schedulerName": "kai-scheduler",
                "containers": [
                    {"name": "main", "env": [{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
                    {"name": "side"},
                ],
            },
        })
    }

    #[test]
    fn a_fraction_pod() {
        insta::assert_snapshot!(yaml(&after(&fraction(), &Settings::default())));
    }

    #[test]
    fn a_fraction_in_an_init_container_with_all_features() {
        let mut pod = fraction();
        pod["metadata"] = json!({
            "generateName": "train-",
            "annotations": {"gpu-memory": "1024", "gpu-fraction-container-name": "load"},
            "ownerReferences": [{"name": "train.v1"}],
        });
        pod["spec"]["initContainers"] = json!([{"name": "load"}, {"name": "other"}]);
        let settings = settings(|settings| {
            settings.hami_core = Feature::On;
            settings.block_visible_devices = Feature::On;
        });
        insta::assert_snapshot!(yaml(&after(&pod, &settings)));
    }

    #[test]
    fn slots_are_requested_where_the_kubelet_tells_their_holder() {
        let requested = |pod: &Value, pointer: &str, settings: &Settings| {
            after(pod, settings)
                .pointer(pointer)
                .map(|resources| resources["limits"].clone())
        };
        let mut pod = fraction();
        pod["spec"]["containers"][0]["resources"] =
            json!({"limits": {"cpu": "1", "kai.scheduler/gpu-share": 3}, "requests": null});
        let container = "/spec/containers/0/resources";
        let share_devices = json!({"cpu": "1", "kai.scheduler/gpu-share": "1"});
        assert_eq!(requested(&pod, container, &Settings::default()), Some(share_devices));
        let off = settings(|settings| settings.share_devices = Feature::Off);
        assert_eq!(requested(&fraction(), container, &off), None);

        let mut init = fraction();
        init["metadata"]["annotations"]["gpu-fraction-container-name"] = "load".into();
        init["spec"]["initContainers"] = json!([{"name": "load"}]);
        let container = "/spec/initContainers/0/resources";
        assert_eq!(requested(&init, container, &Settings::default()), None);
        init["spec"]["initContainers"][0]["restartPolicy"] = "Always".into();
        let share_devices = json!({"kai.scheduler/gpu-share": "1"});
        assert_eq!(requested(&init, container, &Settings::default()), Some(share_devices));
    }

    #[test]
    fn request_and_limit_are_translated_for_the_container() {
        let annotations = |given: Value| {
            let mut pod = fraction();
            pod["metadata"]["annotations"] = given;
            let mut annotations = after(&pod, &Settings::default())["metadata"]["annotations"].clone();
            annotations
                .as_object_mut()
                .unwrap()
                .remove("runai/shared-gpu-configmap")
                .unwrap();
            annotations
        };
        let request = "nvidia.com/container.main.gpu-memory.request";
        let limit = "nvidia.com/container.main.gpu-memory.limit";
        assert_eq!(
            annotations(json!({"gpu-memory": "4096", "gpu-memory.limit": "8Gi"})),
            json!({"gpu-memory": "4096", "gpu-memory.limit": "8Gi", request: "4096Mi", limit: "8Gi"})
        );
        assert_eq!(
            annotations(json!({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.7"})),
            json!({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.7",
                "kai.scheduler/container.main.gpu-memory.portion.limit": "0.7"})
        );
        let side = json!({"nvidia.com/container.side.gpu-memory.limit": "8Gi"});
        assert_eq!(annotations(side.clone()), side);
    }

    #[test]
    fn in_the_mode_nv_fractions_a_share_device_is_enough() {
        let nv_fractions = settings(|settings| settings.gpu_sharing = GpuSharingMode::NvFractions);
        let pod = after(&fraction(), &nv_fractions);
        let mut expect = fraction();
        let device = json!({"kai.scheduler/gpu-share": "1"});
        expect["spec"]["containers"][0]["resources"] = json!({"requests": device, "limits": device});
        expect["spec"]["runtimeClassName"] = "nvidia".into();
        assert_eq!(pod, expect);
        let refers_to_config_maps =
            |pod: &Value| pod["metadata"]["annotations"]["runai/shared-gpu-configmap"].is_string();
        let mut init = fraction();
        init["metadata"]["annotations"]["gpu-fraction-container-name"] = "load".into();
        init["spec"]["initContainers"] = json!([{"name": "load"}]);
        assert!(refers_to_config_maps(&after(&init, &nv_fractions)), "no share device");
        let off = settings(|settings| {
            settings.gpu_sharing = GpuSharingMode::NvFractions;
            settings.share_devices = Feature::Off;
        });
        assert!(refers_to_config_maps(&after(&fraction(), &off)));
        let earlier = after(&fraction(), &Settings::default());
        assert_eq!(after(&earlier, &nv_fractions), earlier, "it refers to its ConfigMaps");
    }

    #[test]
    fn twice_is_once() {
        for settings in [
            Settings::default(),
            settings(|settings| settings.share_devices = Feature::Off),
            settings(|settings| settings.block_visible_devices = Feature::On),
            settings(|settings| settings.hami_core = Feature::On),
            settings(|settings| settings.gpu_sharing = GpuSharingMode::NvFractions),
        ] {
            let once = after(&fraction(), &settings);
            assert_eq!(
                mutate(&request(once.clone()), &settings, "zzzzzzz", Some("nvidia")).decision,
                Decision::Allowed
            );
        }
    }

    #[test]
    fn what_is_left_alone() {
        let unchanged = |pod: Value, settings: &Settings| assert_eq!(after(&pod, settings), pod);
        let mut foreign = fraction();
        foreign["spec"]["schedulerName"] = "default-scheduler".into();
        unchanged(foreign, &Settings::default());
        let mut whole = fraction();
        whole["metadata"]["annotations"] = json!({});
        unchanged(whole, &Settings::default());
        let mut empty = fraction();
        empty["spec"]["containers"] = json!([]);
        unchanged(
            empty,
            &settings(|settings| settings.runtime_class = RuntimeClassChoice::Never),
        );
    }

    #[test]
    fn a_runtime_class_of_the_pods_own_is_kept() {
        let mut pod = fraction();
        pod["spec"]["runtimeClassName"] = "kata".into();
        assert_eq!(after(&pod, &Settings::default())["spec"]["runtimeClassName"], "kata");
        pod["spec"]["runtimeClassName"] = "".into();
        assert_eq!(after(&pod, &Settings::default())["spec"]["runtimeClassName"], "nvidia");
        let none = settings(|settings| settings.runtime_class = RuntimeClassChoice::Never);
        assert_eq!(after(&pod, &none)["spec"]["runtimeClassName"], "");
    }

    #[test]
    fn refusals() {
        let mut pod = fraction();
        pod["metadata"]["annotations"]["gpu-fraction-container-name"] = "nobody".into();
        assert_eq!(
            after(&pod, &Settings::default()),
            "Pod team-a/train: metadata.annotations.gpu-fraction-container-name: the pod has no container \"nobody\"; name one of \
             its containers or init containers"
        );
        let mut pod = fraction();
        pod["metadata"]["namespace"] = "team-b".into();
        assert!(
            after(&pod, &Settings::default())
                .as_str()
                .unwrap()
                .contains("metadata.namespace")
        );
    }

    #[test]
    fn odd_shapes_are_survived() {
        let block = settings(|settings| settings.block_visible_devices = Feature::On);
        for pod in [
            json!(null),
            json!([1]),
            json!({"spec": {"schedulerName": "kai-scheduler", "containers": 3}}),
            json!({"metadata": 1, "spec": {"schedulerName": "kai-scheduler", "containers": [1, null, {"env": {}}]}}),
            json!({"metadata": {"annotations": {"gpu-fraction": 1}},
                "spec": {"schedulerName": "kai-scheduler", "containers": ["x"], "volumes": {}}}),
            json!({"metadata": {"annotations": {"gpu-fraction": null}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"env": 1, "envFrom": "x"}]}}),
            json!({"metadata": {"annotations": {"gpu-fraction": "0.5"}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"resources": 1}]}}),
            json!({"metadata": {"annotations": {"gpu-fraction": "0.5"}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"resources": {"limits": [], "requests": "x"}}]}}),
        ] {
            let _ = after(&pod, &block);
        }
    }
}
