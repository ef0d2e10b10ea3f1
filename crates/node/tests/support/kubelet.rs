//! The kubelet's side of the device plugin and pod-resources APIs, with the real kubelet's rules: on start it deletes all sockets in its
//! directory; it dials back while it handles a registration; it refuses a socket that it is already connected to; it never reconnects after
//! a stream ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kai_node::allocator::socket;
use kai_node::kubelet::deviceplugin::device_plugin_client::DevicePluginClient;
use kai_node::kubelet::deviceplugin::registration_server::{Registration, RegistrationServer};
use kai_node::kubelet::deviceplugin::*;
use kai_node::kubelet::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use kai_node::kubelet::podresources::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// The device list of each resource, as the last message had it; `None` after the stream ended.
pub type Lists = BTreeMap<String, Option<Vec<(String, bool)>>>;

pub struct Kubelet {
    directory: PathBuf,
    shared: Arc<Shared>,
    pub lists: watch::Receiver<Lists>,
    pub registrations: watch::Receiver<Vec<RegisterRequest>>,
    server: JoinHandle<()>,
}

struct Shared {
    directory: PathBuf,
    lists: watch::Sender<Lists>,
    registrations: watch::Sender<Vec<RegisterRequest>>,
    endpoints: Mutex<BTreeMap<String, (String, Channel)>>,
    connected: Mutex<BTreeSet<String>>,
    streams: Mutex<JoinSet<()>>,
    topology: Mutex<BTreeMap<String, Option<i64>>>,
}

impl Kubelet {
    pub fn start(directory: &Path) -> Self {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            if entry.file_name().to_str().unwrap().ends_with(".sock") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let listener = UnixListener::bind(directory.join(KUBELET_SOCKET)).unwrap();
        let (lists_sender, lists) = watch::channel(Lists::new());
        let (registrations_sender, registrations) = watch::channel(Vec::new());
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            lists: lists_sender,
            registrations: registrations_sender,
            endpoints: Mutex::default(),
            connected: Mutex::default(),
            streams: Mutex::default(),
            topology: Mutex::default(),
        });
        let service = RegistrationServer::new(Registry(shared.clone()));
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener));
        let server = tokio::spawn(async move { server.await.unwrap() });
        Self {
            directory: directory.to_owned(),
            shared,
            lists,
            registrations,
            server,
        }
    }

    /// Ends like a killed process: streams break, the socket file stays.
    pub async fn stop(self) {
        self.server.abort();
        let mut streams = std::mem::take(&mut *self.shared.streams.lock());
        streams.shutdown().await;
        self.shared.endpoints.lock().clear();
    }

    /// Drops all streams without restarting.
    pub async fn drop_streams(&self) {
        let mut streams = std::mem::take(&mut *self.shared.streams.lock());
        streams.shutdown().await;
        self.shared.connected.lock().clear();
    }

    fn client(&self, resource: &str) -> DevicePluginClient<Channel> {
        let endpoints = self.shared.endpoints.lock();
        DevicePluginClient::new(endpoints.get(resource).expect("a registered resource").1.clone())
    }

    pub async fn allocate(&self, resource: &str, ids: &[&str]) -> Result<ContainerAllocateResponse, Status> {
        let request = ContainerAllocateRequest {
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let answer = self
            .client(resource)
            .allocate(AllocateRequest {
                container_requests: vec![request],
            })
            .await?;
        Ok(answer.into_inner().container_responses.remove(0))
    }

    pub async fn pre_start(&self, resource: &str, ids: &[&str]) -> Result<(), Status> {
        let request = PreStartContainerRequest {
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        self.client(resource).pre_start_container(request).await.map(|_| ())
    }

    pub async fn preferred(&self, resource: &str, available: &[String], size: i32) -> Vec<String> {
        let request = ContainerPreferredAllocationRequest {
            available_ids: available.to_vec(),
            must_include_ids: Vec::new(),
            allocation_size: size,
        };
        let request = PreferredAllocationRequest {
            container_requests: vec![request],
        };
        let answer = self.client(resource).get_preferred_allocation(request).await.unwrap();
        answer.into_inner().container_responses.remove(0).device_ids
    }

    /// File name of the socket on which a resource is served.
    pub fn endpoint(&self, resource: &str) -> String {
        self.shared
            .endpoints
            .lock()
            .get(resource)
            .expect("a registered resource")
            .0
            .clone()
    }

    pub fn numa_node(&self, device: &str) -> Option<i64> {
        self.shared.topology.lock().get(device).copied().flatten()
    }
}

struct Registry(Arc<Shared>);

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != VERSION || request.endpoint.contains('/') {
            return Err(Status::invalid_argument("wrong version or endpoint"));
        }
        if !self.0.connected.lock().insert(request.endpoint.clone()) {
            return Err(Status::already_exists("already connected"));
        }
        let path = self.0.directory.join(&request.endpoint);
        let refuse = |error: &dyn std::fmt::Display| Status::unavailable(format!("dialling back: {error}"));
        let channel = socket::connect(&path).await.map_err(|error| refuse(&error))?;
        let mut client = DevicePluginClient::new(channel.clone());
        client
            .get_device_plugin_options(Empty {})
            .await
            .map_err(|status| refuse(&status))?;
        let resource = request.resource_name.clone();
        self.0
            .endpoints
            .lock()
            .insert(resource.clone(), (request.endpoint.clone(), channel));
        self.0.registrations.send_modify(|all| all.push(request.clone()));
        let shared = self.0.clone();
        self.0.streams.lock().spawn(async move {
            // The stream is long-lived and must not have the client's per-call deadline, so it has its own connection.
            let Ok(mut stream) = open_stream(&path).await else {
                return;
            };
            let ended = Ended {
                shared: shared.clone(),
                resource: resource.clone(),
                endpoint: request.endpoint,
            };
            while let Ok(Some(list)) = stream.message().await {
                let node = |device: &Device| {
                    device
                        .topology
                        .as_ref()
                        .and_then(|t| t.nodes.first())
                        .map(|node| node.id)
                };
                shared
                    .topology
                    .lock()
                    .extend(list.devices.iter().map(|device| (device.id.clone(), node(device))));
                let devices = list
                    .devices
                    .into_iter()
                    .map(|device| (device.id, device.health == HEALTHY))
                    .collect();
                shared.lists.send_modify(|lists| {
                    lists.insert(resource.clone(), Some(devices));
                });
            }
            drop(ended);
        });
        Ok(Response::new(Empty {}))
    }
}

async fn open_stream(path: &Path) -> Result<tonic::Streaming<ListAndWatchResponse>, Status> {
    let target = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let target = target.clone();
        async move {
            tokio::net::UnixStream::connect(target)
                .await
                .map(hyper_util::rt::TokioIo::new)
        }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    let channel = endpoint
        .connect_with_connector(connector)
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    Ok(DevicePluginClient::new(channel)
        .list_and_watch(Empty {})
        .await?
        .into_inner())
}

struct Ended {
    shared: Arc<Shared>,
    resource: String,
    endpoint: String,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.shared.connected.lock().remove(&self.endpoint);
        self.shared.lists.send_modify(|lists| {
            lists.insert(self.resource.clone(), None);
        });
    }
}

/// The pod-resources API with the allocations that a test sets.
#[derive(Clone, Default)]
pub struct PodResourcesServer(Arc<Mutex<Allocations>>);

#[derive(Default)]
struct Allocations {
    pods: Vec<PodResources>,
    /// Calls of List that were answered.
    calls: u64,
}

impl PodResourcesServer {
    pub fn serve(socket: &Path) -> Self {
        let pod_resources = PodResourcesServer::default();
        let listener = UnixListener::bind(socket).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(PodResourcesListerServer::new(pod_resources.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(async move { server.await.unwrap() });
        pod_resources
    }

    /// Whole GPUs: namespace, pod, device ids.
    pub fn set(&self, allocations: &[(&str, &str, &[&str])]) {
        self.0.lock().pods.clear();
        for (namespace, pod, ids) in allocations {
            self.add("nvidia.com/gpu", namespace, pod, ids);
        }
    }

    pub fn add(&self, resource: &str, namespace: &str, pod: &str, ids: &[&str]) {
        self.0.lock().pods.push(PodResources {
            name: pod.to_owned(),
            namespace: namespace.to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: vec![ContainerDevices {
                    resource_name: resource.to_owned(),
                    device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
                }],
            }],
        });
    }

    /// How often the agent has asked.
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    pub fn remove(&self, namespace: &str, pod: &str) {
        let same = |held: &PodResources| held.namespace == namespace && held.name == pod;
        self.0.lock().pods.retain(|held| !same(held));
    }
}

#[tonic::async_trait]
impl PodResourcesLister for PodResourcesServer {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        let mut allocations = self.0.lock();
        allocations.calls += 1;
        let pod_resources = allocations.pods.clone();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }
}
