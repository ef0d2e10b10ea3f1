//! Requests to a port of a pod, through the API server with the caller's rights: what `kubectl port-forward` does, without a port on this
//! machine. The API server connects to the kubelet, and the kubelet to the loopback interface of the pod.

use futures_util::future::{Either, select};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::DuplexStream;

use crate::client::CALL_SECONDS_MAX;
use crate::{Client, Error, path};

/// A port on the loopback interface of a pod.
#[derive(Clone, Copy, Debug)]
pub struct PodPort<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub pod: &'a str,
    /// The port.
    pub port: u16,
}

/// The answer of the program in the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAnswer {
    /// HTTP status.
    pub code: u16,
    /// The body.
    pub text: String,
}

impl std::fmt::Display for PodPort<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "port {} of Pod {}/{}",
            self.port,
            self.namespace,
            path::printable(self.pod)
        )
    }
}

impl Client {
    /// The answer to a GET of this path at the port. An error is one of the API server or of the way to the pod.
    pub async fn get_from_pod(
        &self,
        port: PodPort<'_>,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<PodAnswer, Error> {
        let attempt = format!("forwarding {port}");
        let unanswered = |message: String| Error::Call {
            attempt: attempt.clone(),
            code: None,
            message,
        };
        let answer = async {
            let pods: kube::Api<Pod> = kube::Api::namespaced(self.kube.clone(), port.namespace);
            let forwarded = pods.portforward(port.pod, &[port.port]).await;
            let mut forwarded = forwarded.map_err(|error| Error::call(attempt.clone(), error))?;
            let ends = forwarded.take_stream(port.port).zip(forwarded.take_error(port.port));
            let (stream, refusal) = ends.expect("each is taken once");
            // A pod that does not listen there: the kubelet says so beside the stream.
            match select(
                Box::pin(refusal),
                Box::pin(exchange(stream, path::with_query(path, query))),
            )
            .await
            {
                Either::Left((Some(message), _)) => Err(unanswered(message)),
                Either::Left((None, exchange)) => exchange.await.map_err(unanswered),
                Either::Right((Ok(answer), _)) => Ok(answer),
                Either::Right((Err(error), refusal)) => Err(unanswered(refusal.await.unwrap_or(error))),
            }
        };
        match tokio::time::timeout(CALL_SECONDS_MAX, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(unanswered("no answer in time".to_owned())),
        }
    }
}

/// One request and its answer on a connection.
async fn exchange(stream: DuplexStream, path: String) -> Result<PodAnswer, String> {
    let words = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(words)?;
    // Ends with the sender.
    tokio::spawn(connection);
    let request = http::Request::get(path).header(http::header::HOST, "localhost");
    let request = request
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(words)?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(words)?.to_bytes();
    let text = String::from_utf8(body.into()).map_err(|error| error.to_string())?;
    Ok(PodAnswer { code, text })
}
