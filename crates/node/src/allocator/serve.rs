//! Serves the device plugin API for one resource on its own socket and answers from the latest offer. Decisions are in `offer`,
//! registration is in `register`.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

use super::offer::Offer;
use super::prefer::PreferenceQuery;
use crate::Error;
use crate::kubelet::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::kubelet::deviceplugin::*;
use crate::reservation_annotator::HintsReceiver;
use crate::share_devices::ShareDevicePreparer;

/// Called with the device ids of every granted Allocate of GPUs.
pub type OnAllocate = Arc<dyn Fn(&[String]) + Send + Sync>;

/// One device list may wait for a slow kubelet; newer lists replace each other in the watch channel behind it.
const LISTS_QUEUED_MAX: usize = 1;

/// A client that keeps its connection open must not delay the next registration.
const STOP_SECONDS_MAX: Duration = Duration::from_secs(1);

/// A running server. Without [`Server::stop`] the socket file stays until the agent's next start removes it.
pub struct Server {
    path: PathBuf,
    closing: watch::Sender<bool>,
    streams: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds a fresh socket and serves `offer` on it.
    pub fn start(
        path: &Path,
        offer: watch::Receiver<Arc<Offer>>,
        on_allocate: OnAllocate,
        share_devices: Arc<ShareDevicePreparer>,
        hints: HintsReceiver,
    ) -> Result<Self, Error> {
        let fail = |source| Error::Socket {
            path: path.to_owned(),
            source,
        };
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).map_err(fail)?;
        let (closing, closed) = watch::channel(false);
        let (streams_sender, streams) = watch::channel(0);
        let plugin = Plugin {
            offer,
            closed: closed.clone(),
            streams: Arc::new(streams_sender),
            on_allocate,
            share_devices,
            hints,
        };
        let server = tonic::transport::Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended(closed));
        let shown = path.display().to_string();
        let task = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::warn!(socket = shown, %error, "a device plugin server ended");
            }
        });
        Ok(Self {
            path: path.to_owned(),
            closing,
            streams,
            task,
        })
    }

    /// How many ListAndWatch streams are open: the kubelet keeps exactly one.
    pub fn streams(&self) -> watch::Receiver<usize> {
        self.streams.clone()
    }

    /// Whether our socket is still where the kubelet looks for it.
    pub fn socket_exists(&self) -> bool {
        self.path.exists()
    }

    /// Whether the server itself has ended.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends all streams, waits for the server and removes the socket.
    pub async fn stop(mut self) {
        self.closing.send_replace(true);
        if tokio::time::timeout(STOP_SECONDS_MAX, &mut self.task).await.is_err() {
            self.task.abort();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn ended(mut closed: watch::Receiver<bool>) {
    let _ = closed.wait_for(|closed| *closed).await;
}

struct Plugin {
    offer: watch::Receiver<Arc<Offer>>,
    closed: watch::Receiver<bool>,
    streams: Arc<watch::Sender<usize>>,
    on_allocate: OnAllocate,
    share_devices: Arc<ShareDevicePreparer>,
    hints: HintsReceiver,
}

/// Guard that counts a ListAndWatch stream while it is open.
struct Counted(Arc<watch::Sender<usize>>);

impl Counted {
    fn new(streams: &Arc<watch::Sender<usize>>) -> Self {
        streams.send_modify(|count| *count += 1);
        Self(streams.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(self.offer.borrow().options()))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(LISTS_QUEUED_MAX);
        let (mut offer, closed) = (self.offer.clone(), self.closed.clone());
        let counted = Counted::new(&self.streams);
        tokio::spawn(async move {
            let _counted = counted;
            let mut sent: Option<Vec<Device>> = None;
            let closed = ended(closed);
            tokio::pin!(closed);
            loop {
                let devices = offer.borrow_and_update().devices().to_vec();
                if sent.as_ref() != Some(&devices) {
                    sent = Some(devices.clone());
                    if sender.send(Ok(ListAndWatchResponse { devices })).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    changed = offer.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                    () = &mut closed => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let (offer, hints) = (self.offer.borrow().clone(), self.hints.borrow().clone());
        let released_gpus = hints.released_gpus.recent(Instant::now());
        let answer = |request: &ContainerPreferredAllocationRequest| ContainerPreferredAllocationResponse {
            device_ids: offer.prefer(PreferenceQuery {
                available: &request.available_ids,
                required: &request.must_include_ids,
                size: usize::try_from(request.allocation_size).unwrap_or(0),
                wanted_gpus: &hints.wanted_gpus,
                released_gpus: &released_gpus,
            }),
        };
        let container_responses = request.get_ref().container_requests.iter().map(answer).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let offer = self.offer.borrow().clone();
        let mut container_responses = Vec::new();
        for container in &request.get_ref().container_requests {
            match offer.allocate(&container.device_ids) {
                Ok(answer) => container_responses.push(answer),
                Err(reason) => {
                    tracing::warn!(resource = offer.name(), ids = ?container.device_ids, reason, "refused an allocation");
                    return Err(Status::failed_precondition(reason));
                }
            }
            match &*offer {
                Offer::Gpus(_) => (self.on_allocate)(&container.device_ids),
                Offer::ShareDevices(_) => self.share_devices.remove_old_specs(&container.device_ids).await,
            }
            tracing::info!(resource = offer.name(), ids = ?container.device_ids, "allocated devices to a container");
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let offer = self.offer.borrow().clone();
        let ids = &request.get_ref().device_ids;
        match &*offer {
            Offer::Gpus(_) => {}
            Offer::ShareDevices(share_devices) => {
                if let Err(reason) = self.share_devices.prepare(ids, share_devices).await {
                    tracing::warn!(?ids, reason, "a container with a GPU share can't start yet");
                    return Err(Status::failed_precondition(reason));
                }
            }
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
