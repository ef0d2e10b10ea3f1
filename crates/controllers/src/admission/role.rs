//! The admission role: serves the webhooks, rotates certificates, and registers webhooks and policies with the API server. Every
//! replica runs all of it; there is no leader, because each replica has its own certificate authority to publish.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kai_cluster::{Context, RoleFuture};
use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use rustls::crypto::ring;

use super::Error;
use super::args::{CertificateSource, Settings};
use super::certificates::{CertificateRotator, Lifetimes, ServingCertificate, from_pem};
use super::registration::{self, ApplyMode, CaSource};
use super::server::{State, router};

const NAME: &str = "admission";
/// Interval between two maintenance rounds. A round that changes nothing reads the anchor and the four webhook configurations.
const ROUND_INTERVAL: Duration = Duration::from_secs(30);
/// Interval after a round that failed.
const ROUND_INTERVAL_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Every 40th round (twenty minutes) applies all objects, even if the CA bundles are current.
const FULL_APPLY_ROUNDS: u32 = 40;
/// The role counts as dead after this time without a finished round. A round makes a few dozen calls, several of which may time out.
const HEARTBEAT_MAX: Duration = Duration::from_secs(600);

/// Listens on the webhook port and serves until dropped.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    let port = settings.webhook_port;
    let listening = |error| Error::Listen { port, error };
    // A socket for IPv6 and IPv4, or one for IPv4 on machines without IPv6.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .map_err(listening)?;
    serve(context, settings, listener).await
}

/// Serves on this socket until dropped.
pub fn serve(context: Context, settings: Settings, listener: TcpListener) -> RoleFuture<'static, Error> {
    Box::pin(serve_webhooks(context, settings, listener))
}

async fn serve_webhooks(context: Context, settings: Settings, listener: TcpListener) -> Result<Infallible, Error> {
    context.health.announce(NAME, HEARTBEAT_MAX);
    let state = State::of(settings.clone(), &context);
    let expiry: Gauge<f64, AtomicU64> = Gauge::default();
    context.metrics.registry().register(
        "kai_admission_certificate_expiry_timestamp_seconds",
        "Expiry of the webhook server's certificate",
        expiry.clone(),
    );
    let (source, certificate) = CertificateProvider::open(&settings, context.clock.now())?;
    let tls = RustlsConfig::from_config(server_config(certificate)?);
    let handle = Handle::new();
    let _stop = StopOnDrop(handle.clone());
    let failed = |error| Error::Serve { error };
    listener.set_nonblocking(true).map_err(failed)?;
    let server = axum_server::from_tcp_rustls(listener, tls.clone())
        .map_err(failed)?
        .handle(handle)
        .serve(router(state).into_make_service());
    let maintenance = Maintenance {
        context,
        settings,
        source,
        tls,
        expiry,
        last_logged: None,
    };
    tokio::select! {
        biased;
        ended = server => Err(Error::Serve {
            error: ended.err().unwrap_or_else(|| std::io::Error::other("the server ended unexpectedly")),
        }),
        never = maintenance.run() => match never {},
    }
}

/// Keeps webhooks and policies registered until dropped. For a webhook server in the API server's own process, which needs no TLS.
pub fn register(context: Context, settings: Settings) -> BoxFuture<'static, Infallible> {
    Box::pin(keep_registered(context, settings))
}

async fn keep_registered(context: Context, settings: Settings) -> Infallible {
    loop {
        let now = context.clock.now();
        let ca = CaSource::Fixed(String::new());
        let applied = async {
            registration::apply_webhooks(&context.client, &settings, &ca, ApplyMode::Always, now).await?;
            registration::apply_policies(&context.client, &settings).await
        };
        let pause = match applied.await {
            Ok(()) => ROUND_INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "registering the webhooks failed; trying again");
                ROUND_INTERVAL_AFTER_FAILURE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Stops the server's connection tasks too; dropping the server future alone leaves them running.
struct StopOnDrop(Handle<SocketAddr>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

struct Maintenance {
    context: Context,
    settings: Settings,
    source: CertificateProvider,
    tls: RustlsConfig,
    expiry: Gauge<f64, AtomicU64>,
    /// The last logged error, or an empty text after a success. Only a change is logged.
    last_logged: Option<String>,
}

impl Maintenance {
    async fn run(mut self) -> Infallible {
        let mut full_apply_in = 0;
        let mut was_registered = false;
        loop {
            let mode = match full_apply_in {
                0 => ApplyMode::Always,
                _ => ApplyMode::IfCaBundleDiffers,
            };
            let round = self.round(mode).await;
            let pause = match &round {
                Ok(()) => {
                    full_apply_in = if full_apply_in == 0 {
                        FULL_APPLY_ROUNDS
                    } else {
                        full_apply_in - 1
                    };
                    was_registered = true;
                    ROUND_INTERVAL
                }
                Err(_) => ROUND_INTERVAL_AFTER_FAILURE,
            };
            self.log_change(round);
            // The role is ready once the API server knows the webhooks. A later outage of the API server does not make the role
            // unhealthy.
            if was_registered {
                self.context.health.alive(NAME);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(&mut self, mode: ApplyMode) -> Result<(), Error> {
        let now = self.context.clock.now();
        if let Some(certificate) = self.source.rotate(now)? {
            self.tls.reload_from_config(server_config(certificate)?);
        }
        if let Some(end) = self.source.expires() {
            self.expiry.set(end.as_second() as f64);
        }
        if !self.settings.register {
            return Ok(());
        }
        let client = &self.context.client;
        let ca = self.source.ca_source();
        registration::apply_webhooks(client, &self.settings, &ca, mode, now).await?;
        if mode == ApplyMode::Always {
            match registration::apply_policies(client, &self.settings).await {
                Err(error) if error.is_not_found() => {
                    tracing::warn!(%error, "this API server has no ValidatingAdmissionPolicies; only the webhooks protect the scheduler's labels and annotations");
                }
                done => done?,
            }
        }
        Ok(())
    }

    fn log_change(&mut self, round: Result<(), Error>) {
        let text = round.err().map(|error| error.to_string()).unwrap_or_default();
        if self.last_logged.as_ref() == Some(&text) {
            return;
        }
        match text.as_str() {
            "" if self.settings.register => tracing::info!("webhooks and policies are registered"),
            "" => tracing::info!("serving; webhooks and policies are registered by the installation"),
            error => tracing::warn!(error, "registering the webhooks failed; trying again"),
        }
        self.last_logged = Some(text);
    }
}

/// The running source of serving certificates; the maintenance loop owns it.
enum CertificateProvider {
    Generated(Box<CertificateRotator>),
    Directory {
        directory: PathBuf,
        loaded: CertificateFiles,
    },
}

#[derive(Clone, PartialEq, Eq)]
struct CertificateFiles {
    chain: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
}

impl CertificateProvider {
    fn open(settings: &Settings, now: Timestamp) -> Result<(CertificateProvider, ServingCertificate), Error> {
        match &settings.certificates {
            CertificateSource::Generated { serving, ca } => {
                let lifetimes = Lifetimes::new(*serving, *ca);
                let (rotator, certificate) =
                    CertificateRotator::new(&settings.identity, settings.host_names(), lifetimes, now)?;
                Ok((CertificateProvider::Generated(Box::new(rotator)), certificate))
            }
            CertificateSource::Directory(directory) => {
                let loaded = CertificateFiles::read(directory)?;
                let certificate = from_pem(&loaded.chain, &loaded.key)?;
                let directory = directory.clone();
                Ok((CertificateProvider::Directory { directory, loaded }, certificate))
            }
        }
    }

    /// A new serving certificate if one was generated or the files changed.
    fn rotate(&mut self, now: Timestamp) -> Result<Option<ServingCertificate>, Error> {
        match self {
            CertificateProvider::Generated(rotator) => rotator.rotate(now),
            CertificateProvider::Directory { directory, loaded } => {
                let files = CertificateFiles::read(directory)?;
                if files == *loaded {
                    return Ok(None);
                }
                let certificate = from_pem(&files.chain, &files.key)?;
                *loaded = files;
                Ok(Some(certificate))
            }
        }
    }

    fn ca_source(&self) -> CaSource {
        match self {
            CertificateProvider::Generated(rotator) => CaSource::Replica(rotator.ca_certificates()),
            CertificateProvider::Directory { loaded, .. } => {
                let pem = loaded.authority.as_ref().unwrap_or(&loaded.chain);
                CaSource::Fixed(String::from_utf8_lossy(pem).into_owned())
            }
        }
    }

    fn expires(&self) -> Option<Timestamp> {
        match self {
            CertificateProvider::Generated(rotator) => Some(rotator.serving_expires()),
            CertificateProvider::Directory { .. } => None,
        }
    }
}

impl CertificateFiles {
    /// Blocking reads: the files are small and read once per round.
    fn read(directory: &std::path::Path) -> Result<CertificateFiles, Error> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|error| Error::Certificate(format!("reading {}: {error}", path.display())))
        };
        Ok(CertificateFiles {
            chain: read("tls.crt")?,
            key: read("tls.key")?,
            authority: read("ca.crt").ok(),
        })
    }
}

fn server_config(certificate: ServingCertificate) -> Result<Arc<ServerConfig>, Error> {
    let refuse = |error: rustls::Error| Error::Certificate(error.to_string());
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refuse)?
        .with_no_client_auth()
        .with_single_cert(certificate.chain, certificate.key)
        .map_err(refuse)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
