//! The server on a port: plain HTTP, one task per connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::service::Service;
use crate::Error;
use crate::server::Server;

/// The first and the longest pause after a failed accept.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A server on a port. Stops when dropped.
#[derive(Debug)]
pub struct Listening {
    /// The address.
    pub addr: SocketAddr,
    stopped: watch::Sender<bool>,
}

impl Listening {
    /// `http://<address>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Stops listening and closes all connections.
    pub fn stop(self) {
        self.stopped.send_replace(true);
    }

    /// A kubeconfig for this server, as JSON, which is valid YAML.
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

/// Accepts the next connection. Retries a failed accept after a growing pause: a process without free file descriptors then neither
/// spins nor stops serving.
async fn accept_one<S, A>(mut accept: impl FnMut() -> A) -> S
where
    A: Future<Output = io::Result<(S, SocketAddr)>>,
{
    let mut pause = PAUSE_MIN;
    loop {
        match accept().await {
            Ok((stream, _)) => return stream,
            // The client closed the connection before the accept.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            Err(error) => {
                tracing::warn!(%error, ?pause, "the embedded API server can't accept connections and tries again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

async fn accept(listener: TcpListener, server: Server, mut stop: watch::Receiver<bool>) {
    loop {
        let stream = tokio::select! {
            // A changed and a dropped sender both mean stop.
            _ = stop.changed() => return,
            stream = accept_one(|| listener.accept()) => stream,
        };
        // Small responses must not wait for more data.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn without_file_descriptors_it_waits_and_goes_on() {
        let (calls, begun) = (Cell::new(0), Instant::now());
        let accepted = accept_one(|| {
            calls.set(calls.get() + 1);
            // EMFILE for a minute, then a connection.
            let answer = if begun.elapsed() < Duration::from_secs(60) {
                Err(io::Error::from_raw_os_error(24))
            } else {
                Ok(("stream", "127.0.0.1:1".parse().unwrap()))
            };
            std::future::ready(answer)
        });
        assert_eq!(accepted.await, "stream");
        assert!(calls.get() < 100, "{} attempts in a minute", calls.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_went_away_costs_no_pause() {
        let (mut answers, begun) = (vec![Ok(("stream", "127.0.0.1:1".parse().unwrap()))], Instant::now());
        answers.extend((0..3).map(|_| Err(io::Error::from(ErrorKind::ConnectionAborted))));
        let stream = accept_one(|| std::future::ready(answers.pop().unwrap())).await;
        assert_eq!((stream, begun.elapsed()), ("stream", Duration::ZERO));
    }
}
