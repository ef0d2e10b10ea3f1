//! gRPC client over unix sockets. It never keeps a connection, because the kubelet recreates its sockets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// Timeout of a call. The kubelet answers in milliseconds, unless it is dialling back to us, which it gives up after ten seconds.
const CALL_SECONDS_MAX: Duration = Duration::from_secs(15);

/// Connects to the socket at `path`.
pub async fn connect(path: &Path) -> Result<Channel, Error> {
    let target: PathBuf = path.to_owned();
    // h2 refuses the path of a socket as authority, so the authority is a fixed name.
    let endpoint = Endpoint::from_static("http://localhost")
        .timeout(CALL_SECONDS_MAX)
        .connect_timeout(CALL_SECONDS_MAX);
    let connector = tower::service_fn(move |_| {
        let target = target.clone();
        async move { UnixStream::connect(target).await.map(TokioIo::new) }
    });
    endpoint
        .connect_with_connector(connector)
        .await
        .map_err(|error| failure(path, &error))
}

/// An error that names the socket and the innermost cause (`Connection refused`, `No such file or directory`).
pub fn failure(path: &Path, error: &dyn std::error::Error) -> Error {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    Error::Kubelet {
        path: path.to_owned(),
        message: deepest.to_string(),
    }
}

/// The error of a call that the kubelet answered with a gRPC status.
pub fn refusal(path: &Path, status: &tonic::Status) -> Error {
    let words = if status.message().is_empty() {
        status.code().description()
    } else {
        status.message()
    };
    Error::Kubelet {
        path: path.to_owned(),
        message: words.to_owned(),
    }
}
