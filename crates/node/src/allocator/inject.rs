//! Decides the content of an Allocate response for each way of injecting GPUs and driver files into a container. Pure.

use std::collections::BTreeMap;

use super::plan::Unit;
use crate::driver_files::cdi::{Edits, Spec};
use crate::driver_files::driver_volume::CONTAINER_DIR;
use crate::driver_files::spec::qualified;
use crate::kubelet::deviceplugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};

/// How the operator wants GPUs injected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// By CDI names: devices, driver files and groups come from our spec. Needs a runtime with CDI on.
    #[default]
    Cdi,
    /// By device nodes, a read-only driver volume and `LD_LIBRARY_PATH`. Works with any runtime.
    Mounts,
    /// By `NVIDIA_VISIBLE_DEVICES`, for nodes whose containers run under NVIDIA's runtime.
    Envvar,
}

/// Runtimes from before the CRI field for CDI names read the names from container annotations with the prefix `cdi.k8s.io/`.
pub(crate) const CDI_ANNOTATION: &str = "cdi.k8s.io/kai-gpu";

/// How this node can inject GPUs now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Injection {
    /// By CDI names; the spec is on disk.
    Cdi,
    /// By mounts, without CDI. Without a driver volume every file is mounted by itself.
    Mounts {
        /// The CDI spec whose edits are translated to mounts and device nodes.
        spec: Box<Spec>,
        /// Host path of the driver volume, if it could be built.
        volume: Option<String>,
    },
    /// By NVIDIA's runtime.
    Envvar {
        /// The runtime's name of a unit by UUID, for units that it does not know by UUID.
        visible: BTreeMap<String, String>,
    },
    /// GPUs can't be injected, for this reason: a container would start without its GPU.
    Impossible(String),
    /// Not known yet: after a start, until the driver has answered.
    #[default]
    Unknown,
}

impl Injection {
    /// The Allocate response for a container that gets these units, or why the allocation is refused.
    pub fn response(&self, units: &[&Unit]) -> Result<ContainerAllocateResponse, String> {
        match self {
            Injection::Cdi => Ok(cdi_response(units)),
            Injection::Mounts { spec, volume } => mounts_response(spec, volume.as_deref(), units),
            Injection::Envvar { visible } => {
                let name = |unit: &&Unit| visible.get(&unit.uuid).cloned().unwrap_or_else(|| unit.uuid.clone());
                let names: Vec<String> = units.iter().map(name).collect();
                let envs = BTreeMap::from([("NVIDIA_VISIBLE_DEVICES".to_owned(), names.join(","))]);
                Ok(ContainerAllocateResponse {
                    envs,
                    ..ContainerAllocateResponse::default()
                })
            }
            Injection::Impossible(why) => Err(why.clone()),
            Injection::Unknown => {
                Err("the driver has not answered yet; the pod can be created again in a moment".to_owned())
            }
        }
    }
}

fn cdi_response(units: &[&Unit]) -> ContainerAllocateResponse {
    let names: Vec<String> = units.iter().map(|unit| qualified(&unit.uuid)).collect();
    ContainerAllocateResponse {
        annotations: BTreeMap::from([(CDI_ANNOTATION.to_owned(), names.join(","))]),
        cdi_devices: names.into_iter().map(|name| CdiDevice { name }).collect(),
        ..ContainerAllocateResponse::default()
    }
}

/// The spec's edits as a device plugin response. The device plugin API has no groups: pods need `supplementalGroups`.
fn mounts_response(spec: &Spec, volume: Option<&str>, units: &[&Unit]) -> Result<ContainerAllocateResponse, String> {
    let mut answer = ContainerAllocateResponse::default();
    for unit in units {
        let wanted = crate::driver_files::cdi::device_name(&unit.uuid);
        let Some(device) = spec.devices.iter().find(|device| device.name == wanted) else {
            return Err(format!("GPU {} has no device nodes on this host", unit.uuid));
        };
        add_edits(&mut answer, &device.container_edits, |_| true);
    }
    // The volume holds the libraries; sockets, firmware and programs in /usr/bin are mounted by themselves.
    let by_volume = |place: &str| volume.is_some() && place.contains(".so");
    add_edits(&mut answer, &spec.container_edits, |place| !by_volume(place));
    if let Some(volume) = volume {
        answer.mounts.push(Mount {
            container_path: CONTAINER_DIR.to_owned(),
            host_path: volume.to_owned(),
            read_only: true,
        });
        answer
            .envs
            .insert("LD_LIBRARY_PATH".to_owned(), format!("{CONTAINER_DIR}/lib64"));
    }
    Ok(answer)
}

fn add_edits(answer: &mut ContainerAllocateResponse, edits: &Edits, wanted: impl Fn(&str) -> bool) {
    for node in &edits.device_nodes {
        if !answer.devices.iter().any(|known| known.container_path == node.path) {
            answer.devices.push(DeviceSpec {
                container_path: node.path.clone(),
                host_path: node.host_path.clone().unwrap_or_else(|| node.path.clone()),
                permissions: "rw".to_owned(),
            });
        }
    }
    for mount in edits.mounts.iter().filter(|mount| wanted(&mount.container_path)) {
        answer.mounts.push(Mount {
            container_path: mount.container_path.clone(),
            host_path: mount.host_path.clone(),
            read_only: mount.options.iter().any(|option| option == "ro"),
        });
    }
    for (key, value) in edits.env.iter().filter_map(|entry| entry.split_once('=')) {
        answer.envs.insert(key.to_owned(), value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver_files::cdi::{Device, DeviceNode, Mount as CdiMount};

    fn unit(uuid: &str) -> Unit {
        Unit {
            uuid: uuid.into(),
            gpu: uuid.into(),
            gpu_index: 0,
            index: "0".into(),
            numa_node: None,
            mig: None,
        }
    }

    fn spec() -> Spec {
        let node = |path: &str| DeviceNode {
            path: path.into(),
            host_path: None,
            permissions: None,
            gid: Some(44),
        };
        let mount = |place: &str, option: &str| CdiMount {
            host_path: format!("/host{place}"),
            container_path: place.into(),
            options: vec![option.into()],
        };
        let device = |name: &str, path: &str| Device {
            name: name.into(),
            container_edits: Edits {
                device_nodes: vec![node("/dev/nvidiactl"), node(path)],
                ..Edits::default()
            },
        };
        Spec {
            cdi_version: "0.5.0".into(),
            kind: "kai.scheduler/gpu".into(),
            devices: vec![device("GPU-a", "/dev/nvidia0"), device("GPU-b", "/dev/nvidia1")],
            container_edits: Edits {
                env: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
                mounts: vec![
                    mount("/usr/lib64/libcuda.so.1", "ro"),
                    mount("/run/nvidia-persistenced/socket", "noexec"),
                ],
                ..Edits::default()
            },
        }
    }

    #[test]
    fn cdi_names_go_by_field_and_by_annotation() {
        let (a, b) = (unit("GPU-a"), unit("MIG-GPU-b/1/0"));
        let answer = Injection::Cdi.response(&[&a, &b]).unwrap();
        let names: Vec<_> = answer.cdi_devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["kai.scheduler/gpu=GPU-a", "kai.scheduler/gpu=MIG-GPU-b-1-0"]);
        assert_eq!(answer.annotations["cdi.k8s.io/kai-gpu"], names.join(","));
        assert!(answer.mounts.is_empty() && answer.devices.is_empty());
    }

    #[test]
    fn without_cdi_nodes_and_files_are_listed_each_once() {
        let (a, b) = (unit("GPU-a"), unit("GPU-b"));
        let mode = |volume: Option<&str>| Injection::Mounts {
            spec: Box::new(spec()),
            volume: volume.map(str::to_owned),
        };
        let answer = mode(None).response(&[&a, &b]).unwrap();
        let nodes: Vec<_> = answer.devices.iter().map(|node| node.container_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]);
        assert_eq!(answer.mounts.len(), 2);
        assert!(answer.mounts[0].read_only && !answer.mounts[1].read_only);
        assert!(!answer.envs.contains_key("LD_LIBRARY_PATH"));

        let answer = mode(Some("/var/lib/kai/driver/550-1")).response(&[&a]).unwrap();
        let places: Vec<_> = answer
            .mounts
            .iter()
            .map(|mount| mount.container_path.as_str())
            .collect();
        assert_eq!(places, ["/run/nvidia-persistenced/socket", "/usr/local/nvidia"]);
        assert_eq!(answer.envs["LD_LIBRARY_PATH"], "/usr/local/nvidia/lib64");
        assert!(mode(None).response(&[&unit("GPU-c")]).is_err());
    }

    #[test]
    fn the_nvidia_runtime_is_told_its_own_names() {
        let visible = BTreeMap::from([("GPU-a".to_owned(), "0".to_owned())]);
        let answer = Injection::Envvar { visible }
            .response(&[&unit("GPU-a"), &unit("GPU-b")])
            .unwrap();
        assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], "0,GPU-b");
        assert!(Injection::Unknown.response(&[&unit("GPU-a")]).is_err());
    }
}
