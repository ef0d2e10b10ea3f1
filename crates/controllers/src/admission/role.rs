//! The role: serves the webhooks, keeps its certificates fresh and the API server informed. Runs on every replica; there is no leader,
//! since each has an authority of its own to announce.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use jiff::Timestamp;
use kai_cluster::Context;
use prometheus_client::metrics::gauge::Gauge;
use rustls::ServerConfig;
use rustls::crypto::ring;

use super::Error;
use super::args::{CertificateSource, Settings};
use super::certificates::{CertificateRotator, Lifetimes, ServingCertificate, from_pem};
use super::registration::{self, ApplyMode, CaSource};
use super::server::{State, router};

const PART: &str = "admission";
/// How often certificates and configurations are looked at. The latter are four small reads.
const ROUND: Duration = Duration::from_secs(30);
/// After a round that failed.
const ROUND_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Every so many rounds everything is written, whatever it looks like: twenty minutes.
const FULL_APPLY_ROUNDS: u32 = 40;
/// A round makes at most a few dozen calls; several of them may wait for an answer in vain.
const HEARTBEAT_MAX: Duration = Duration::from_secs(600);

/// Serves until dropped.
pub async fn run(context: Context, settings: Settings) -> Result<Infallible, Error> {
    let port = settings.webhook_port;
    let listening = |error| Error::Listen { port, error };
    // One socket for both families where the machine has both.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .map_err(listening)?;
    serve(context, settings, listener).await
}

/// Serves on this socket until dropped.
pub async fn serve(context: Context, settings: Settings, listener: TcpListener) -> Result<Infallible, Error> {
    context.health.announce(PART, HEARTBEAT_MAX);
    let state = State::of(settings.clone(), &context);
    let expiry: Gauge<f64, AtomicU64> = Gauge::default();
    context.metrics.registry().register(
        "kai_admission_certificate_expiry_timestamp_seconds",
        "When the webhook server's certificate ends",
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
            error: ended.err().unwrap_or_else(|| std::io::Error::other("it ended by itself")),
        }),
        never = maintenance.run() => match never {},
    }
}

/// Keeps webhooks and policies registered until dropped, for a server that the API server reaches without TLS: both are one process.
pub async fn register(context: Context, settings: Settings) -> Infallible {
    loop {
        let now = context.clock.now();
        let authorities = CaSource::Fixed(String::new());
        let applied = async {
            registration::apply_webhooks(&context.client, &settings, &authorities, ApplyMode::Always, now).await?;
            registration::apply_policies(&context.client, &settings).await
        };
        let pause = match applied.await {
            Ok(()) => ROUND,
            Err(error) => {
                tracing::warn!(%error, "webhooks may be out of order; trying again");
                ROUND_AFTER_FAILURE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Connections are tasks of their own, so dropping the server is not enough.
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
    /// The decision that was logged last (empty: all is well), so that each is last_logged once.
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
                    ROUND
                }
                Err(_) => ROUND_AFTER_FAILURE,
            };
            self.say(round);
            // Not ready before the API server knows us; after that, it being away is not our illness.
            if was_registered {
                self.context.health.alive(PART);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(&mut self, mode: ApplyMode) -> Result<(), Error> {
        let now = self.context.clock.now();
        if let Some(certificate) = self.source.step(now)? {
            self.tls.reload_from_config(server_config(certificate)?);
        }
        if let Some(end) = self.source.expires() {
            self.expiry.set(end.as_second() as f64);
        }
        if !self.settings.register {
            return Ok(());
        }
        let client = &self.context.client;
        let authorities = self.source.authorities();
        registration::apply_webhooks(client, &self.settings, &authorities, mode, now).await?;
        if mode == ApplyMode::Always {
            match registration::apply_policies(client, &self.settings).await {
                Err(error) if error.is_not_found() => {
                    tracing::warn!(%error, "this API server has no ValidatingAdmissionPolicies; only the webhooks protect our keys");
                }
                done => done?,
            }
        }
        Ok(())
    }

    fn say(&mut self, round: Result<(), Error>) {
        let text = round.err().map(|error| error.to_string()).unwrap_or_default();
        if self.last_logged.as_ref() == Some(&text) {
            return;
        }
        match text.as_str() {
            "" if self.settings.register => tracing::info!("webhooks and policies are registered"),
            "" => tracing::info!("serving; webhooks and policies are registered by the installation"),
            error => tracing::warn!(error, "webhooks may be out of order; trying again"),
        }
        self.last_logged = Some(text);
    }
}

/// Where certificates come from.
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
            CertificateSource::Generated { leaf, authority } => {
                let lifetimes = Lifetimes::new(*leaf, *authority);
                let (made, certificate) =
                    CertificateRotator::new(&settings.identity, settings.host_names(), lifetimes, now)?;
                Ok((CertificateProvider::Generated(Box::new(made)), certificate))
            }
            CertificateSource::Directory(directory) => {
                let loaded = CertificateFiles::read(directory)?;
                let certificate = from_pem(&loaded.chain, &loaded.key)?;
                let directory = directory.clone();
                Ok((CertificateProvider::Directory { directory, loaded }, certificate))
            }
        }
    }

    /// A new certificate if there is one.
    fn step(&mut self, now: Timestamp) -> Result<Option<ServingCertificate>, Error> {
        match self {
            CertificateProvider::Generated(made) => made.step(now),
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

    fn authorities(&self) -> CaSource {
        match self {
            CertificateProvider::Generated(made) => CaSource::Replica(made.entries()),
            CertificateProvider::Directory { loaded, .. } => {
                let pem = loaded.authority.as_ref().unwrap_or(&loaded.chain);
                CaSource::Fixed(String::from_utf8_lossy(pem).into_owned())
            }
        }
    }

    fn expires(&self) -> Option<Timestamp> {
        match self {
            CertificateProvider::Generated(made) => Some(made.leaf_expires()),
            CertificateProvider::Directory { .. } => None,
        }
    }
}

impl CertificateFiles {
    /// Small files, now and then: not worth a thread.
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
