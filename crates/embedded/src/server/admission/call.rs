//! Sends an AdmissionReview to a URL, or to the backend of a Service.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::server::Server;

/// The longest response of a webhook.
const ANSWER_BYTES_MAX: usize = 3 * 1024 * 1024;

type Answer = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;
type Handler = Arc<dyn Fn(Request<Full<Bytes>>) -> Answer + Send + Sync>;

/// The backend of a Service.
#[derive(Clone)]
pub struct Backend(Kind);

#[derive(Clone)]
enum Kind {
    InProcess(Handler),
    Address(SocketAddr),
}

impl Backend {
    /// A tower service in this process, e.g. an `axum::Router`.
    pub fn service<S, B>(service: S) -> Self
    where
        S: tower::Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: std::fmt::Display,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self(Kind::InProcess(Arc::new(move |request| {
            let service = service.clone();
            Box::pin(async move {
                let response = tower::ServiceExt::oneshot(service, request)
                    .await
                    .map_err(|e| e.to_string())?;
                read(response).await
            })
        })))
    }

    /// A function that answers an AdmissionReview.
    pub fn function(answer: impl Fn(Value) -> Value + Send + Sync + 'static) -> Self {
        let answer = Arc::new(answer);
        Self(Kind::InProcess(Arc::new(move |request| {
            let answer = answer.clone();
            Box::pin(async move {
                let bytes = request
                    .into_body()
                    .collect()
                    .await
                    .map_err(|e| e.to_string())?
                    .to_bytes();
                let review = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
                Ok(Bytes::from(answer(review).to_string()))
            })
        })))
    }

    /// A TLS server at an address, with a certificate for the Service's DNS name.
    pub fn address(address: SocketAddr) -> Self {
        Self(Kind::Address(address))
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Kind::InProcess(_) => f.write_str("Backend::InProcess"),
            Kind::Address(address) => write!(f, "Backend::Address({address})"),
        }
    }
}

/// Sends a review to the target of a `clientConfig`.
pub(super) async fn send(server: &Server, config: &Value, review: &Value) -> Result<Value, String> {
    let bytes = match config["url"].as_str() {
        Some(url) => send_to_url(url, config, review).await?,
        None => send_to_service(server, config, review).await?,
    };
    serde_json::from_slice(&bytes).map_err(|e| format!("reading the answer: {e}"))
}

async fn send_to_service(server: &Server, config: &Value, review: &Value) -> Result<Bytes, String> {
    let service = &config["service"];
    let text = |field: &str| service[field].as_str().unwrap_or("");
    let (namespace, name) = (text("namespace"), text("name"));
    let host = format!("{name}.{namespace}.svc");
    let path = if text("path").is_empty() { "/" } else { text("path") };
    let port = service["port"].as_u64().unwrap_or(443);
    let url = format!("https://{host}:{port}{path}?timeout=10s");
    let Some(backend) = server.backend(namespace, name) else {
        return Err(format!("Post {url:?}: no endpoints available for service {name:?}"));
    };
    let request = post(&url, &host, review)?;
    match backend.0 {
        Kind::InProcess(handler) => handler(request).await,
        Kind::Address(address) => {
            let stream = TcpStream::connect(address)
                .await
                .map_err(|e| format!("Post {url:?}: {e}"))?;
            exchange(encrypted(stream, &host, config).await?, request).await
        }
    }
}

async fn send_to_url(url: &str, config: &Value, review: &Value) -> Result<Bytes, String> {
    let uri: Uri = url.parse().map_err(|e| format!("Post {url:?}: {e}"))?;
    let host = uri
        .host()
        .ok_or_else(|| format!("Post {url:?}: no host"))?
        .trim_matches(['[', ']'])
        .to_owned();
    let encrypt = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if encrypt { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port))
        .await
        .map_err(|e| format!("Post {url:?}: {e}"))?;
    let request = post(url, &host, review)?;
    if encrypt {
        exchange(encrypted(stream, &host, config).await?, request).await
    } else {
        exchange(stream, request).await
    }
}

fn post(url: &str, host: &str, review: &Value) -> Result<Request<Full<Bytes>>, String> {
    let uri: Uri = url.parse().map_err(|e| format!("Post {url:?}: {e}"))?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let request = Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json");
    request
        .body(Full::new(Bytes::from(review.to_string())))
        .map_err(|e| e.to_string())
}

async fn encrypted(
    stream: TcpStream,
    host: &str,
    config: &Value,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, String> {
    let bundle = config["caBundle"].as_str().unwrap_or("");
    let pem = STANDARD.decode(bundle).map_err(|e| format!("caBundle: {e}"))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|e| format!("caBundle: {e}"))?;
        roots.add(certificate).map_err(|e| format!("caBundle: {e}"))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
    TlsConnector::from(Arc::new(client))
        .connect(name, stream)
        .await
        .map_err(|e| format!("tls: {e}"))
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Bytes, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|e| e.to_string())?;
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|e| e.to_string());
    let bytes = match response {
        Ok(response) => read(response).await,
        Err(error) => Err(error),
    };
    driver.abort();
    bytes
}

async fn read<B>(response: Response<B>) -> Result<Bytes, String>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status();
    if !status.is_success() {
        return Err(format!("an error on the server: {status}"));
    }
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    Ok(body.map_err(|e| e.to_string())?.to_bytes())
}
