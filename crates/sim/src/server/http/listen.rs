//! The server on a port: plain HTTP, one task per connection, until it is stopped.

use std::net::SocketAddr;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::service::Service;
use crate::Error;
use crate::server::Server;

/// A server on a port. Stops when dropped.
#[derive(Debug)]
pub struct Listening {
    /// Where it listens.
    pub addr: SocketAddr,
    stopped: watch::Sender<bool>,
}

impl Listening {
    /// `http://<address>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Stops listening and breaks every connection.
    pub fn stop(self) {
        self.stopped.send_replace(true);
    }

    /// A kubeconfig for this server as text. JSON, which every reader of YAML reads.
    pub fn kubeconfig(&self, token: Option<&str>) -> String {
        let user = token.map_or_else(|| serde_json::json!({}), |token| serde_json::json!({"token": token}));
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url()}}],
            "users": [{"name": "embedded", "user": user}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}],
            "current-context": "embedded",
        })
        .to_string()
    }
}

pub(crate) async fn listen(server: Server, address: SocketAddr) -> Result<Listening, Error> {
    if !address.ip().is_loopback() && server.shared.token.is_none() {
        return Err(Error::OpenToAll { address });
    }
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })?;
    let addr = listener
        .local_addr()
        .map_err(|source| Error::Listen { address, source })?;
    let (stopped, stop) = watch::channel(false);
    tokio::spawn(accept(listener, server, stop));
    Ok(Listening { addr, stopped })
}

async fn accept(listener: TcpListener, server: Server, mut stop: watch::Receiver<bool>) {
    loop {
        let stream = tokio::select! {
            // Changed or dropped: both mean stop.
            _ = stop.changed() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // The client went away between connecting and here.
                Err(_) => continue,
            },
        };
        // Small answers must not wait for more to send.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(Service::on_port(server.clone()));
        let mut stop = stop.clone();
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = stop.changed() => {}
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the embedded API server ended");
                },
            }
        });
    }
}
