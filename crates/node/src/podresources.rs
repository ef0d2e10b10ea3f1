//! Asks the kubelet's pod-resources API which container holds which device. An Allocate call does not name its pod, so this is the only
//! source.

use std::path::Path;

use crate::Error;
use crate::allocator::socket;
use crate::kubelet::podresources::ListPodResourcesRequest;
use crate::kubelet::podresources::pod_resources_lister_client::PodResourcesListerClient;

/// The devices of one resource that one container holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAllocation {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// `nvidia.com/gpu`.
    pub resource: String,
    /// The kubelet's device ids.
    pub device_ids: Vec<String>,
}

/// All device allocations on the node.
pub async fn list(socket_path: &Path) -> Result<Vec<DeviceAllocation>, Error> {
    let mut client = PodResourcesListerClient::new(socket::connect(socket_path).await?);
    let answer = client
        .list(ListPodResourcesRequest {})
        .await
        .map_err(|status| socket::refusal(socket_path, &status))?;
    let mut allocations = Vec::new();
    for pod in answer.into_inner().pod_resources {
        for container in pod.containers {
            for devices in container.devices {
                allocations.push(DeviceAllocation {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.name.clone(),
                    resource: devices.resource_name,
                    device_ids: devices.device_ids,
                });
            }
        }
    }
    Ok(allocations)
}
