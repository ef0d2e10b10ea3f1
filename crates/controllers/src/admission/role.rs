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
use super::certificates::{Certificates, Identity, Lifetimes, from_pem};
use super::publish::{self, Authorities, Thoroughness};
use super::server::{State, router};

const PART: &str = "admission";
/// How often certificates and configurations are looked at. The latter are four small reads.
const ROUND: Duration = Duration::from_secs(30);
/// After a round that failed.
const ROUND_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Every so many rounds everything is written, whatever it looks like: twenty minutes.
const THOROUGH_ROUNDS: u32 = 40;
/// A round makes at most a few dozen calls; several of them may wait for an answer in vain.
const SILENCE_MAX: Duration = Duration::from_secs(600);

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
    context.health.announce(PART, SILENCE_MAX);
    let state = State::of(settings.clone(), &context);
    let expiry: Gauge<f64, AtomicU64> = Gauge::default();
    context.metrics.registry().register(
        "kai_admission_certificate_expiry_timestamp_seconds",
        "When the webhook server's certificate ends",
        expiry.clone(),
    );
    let (source, identity) = Source::open(&settings, context.clock.now())?;
    let tls = RustlsConfig::from_config(server_config(identity)?);
    let handle = Handle::new();
    let _stop = StopOnDrop(handle.clone());
    let failed = |error| Error::Serve { error };
    listener.set_nonblocking(true).map_err(failed)?;
    let server = axum_server::from_tcp_rustls(listener, tls.clone())
        .map_err(failed)?
        .handle(handle)
        .serve(router(state).into_make_service());
    let upkeep = Upkeep {
        context,
        settings,
        source,
        tls,
        expiry,
        said: None,
    };
    tokio::select! {
        biased;
        ended = server => Err(Error::Serve {
            error: ended.err().unwrap_or_else(|| std::io::Error::other("it ended by itself")),
        }),
        never = upkeep.run() => match never {},
    }
}

/// Keeps webhooks and policies registered until dropped, for a server that the API server reaches without TLS: both are one process.
pub async fn register(context: Context, settings: Settings) -> Infallible {
    loop {
        let now = context.clock.now();
        let authorities = Authorities::Given(String::new());
        let applied = async {
            publish::apply_webhooks(&context.client, &settings, &authorities, Thoroughness::All, now).await?;
            publish::apply_policies(&context.client, &settings).await
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

struct Upkeep {
    context: Context,
    settings: Settings,
    source: Source,
    tls: RustlsConfig,
    expiry: Gauge<f64, AtomicU64>,
    /// The outcome that was logged last (empty: all is well), so that each is said once.
    said: Option<String>,
}

impl Upkeep {
    async fn run(mut self) -> Infallible {
        let mut thorough_in = 0;
        let mut was_well = false;
        loop {
            let thoroughness = match thorough_in {
                0 => Thoroughness::All,
                _ => Thoroughness::Authorities,
            };
            let round = self.round(thoroughness).await;
            let pause = match &round {
                Ok(()) => {
                    thorough_in = if thorough_in == 0 {
                        THOROUGH_ROUNDS
                    } else {
                        thorough_in - 1
                    };
                    was_well = true;
                    ROUND
                }
                Err(_) => ROUND_AFTER_FAILURE,
            };
            self.say(round);
            // Not ready before the API server knows us; after that, it being away is not our illness.
            if was_well {
                self.context.health.alive(PART);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn round(&mut self, thoroughness: Thoroughness) -> Result<(), Error> {
        let now = self.context.clock.now();
        if let Some(identity) = self.source.step(now)? {
            self.tls.reload_from_config(server_config(identity)?);
        }
        if let Some(end) = self.source.expires() {
            self.expiry.set(end.as_second() as f64);
        }
        if !self.settings.register {
            return Ok(());
        }
        let client = &self.context.client;
        let authorities = self.source.authorities();
        publish::apply_webhooks(client, &self.settings, &authorities, thoroughness, now).await?;
        if thoroughness == Thoroughness::All {
            match publish::apply_policies(client, &self.settings).await {
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
        if self.said.as_ref() == Some(&text) {
            return;
        }
        match text.as_str() {
            "" if self.settings.register => tracing::info!("webhooks and policies are registered"),
            "" => tracing::info!("serving; webhooks and policies are registered by the installation"),
            error => tracing::warn!(error, "webhooks may be out of order; trying again"),
        }
        self.said = Some(text);
    }
}

/// Where certificates come from.
enum Source {
    Made(Box<Certificates>),
    Files { directory: PathBuf, seen: Files },
}

#[derive(Clone, PartialEq, Eq)]
struct Files {
    chain: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
}

impl Source {
    fn open(settings: &Settings, now: Timestamp) -> Result<(Source, Identity), Error> {
        match &settings.certificates {
            CertificateSource::Made { leaf, authority } => {
                let lifetimes = Lifetimes::new(*leaf, *authority);
                let (made, identity) = Certificates::new(&settings.identity, settings.host_names(), lifetimes, now)?;
                Ok((Source::Made(Box::new(made)), identity))
            }
            CertificateSource::Directory(directory) => {
                let seen = Files::read(directory)?;
                let identity = from_pem(&seen.chain, &seen.key)?;
                let directory = directory.clone();
                Ok((Source::Files { directory, seen }, identity))
            }
        }
    }

    /// A new identity if there is one.
    fn step(&mut self, now: Timestamp) -> Result<Option<Identity>, Error> {
        match self {
            Source::Made(made) => made.step(now),
            Source::Files { directory, seen } => {
                let files = Files::read(directory)?;
                if files == *seen {
                    return Ok(None);
                }
                let identity = from_pem(&files.chain, &files.key)?;
                *seen = files;
                Ok(Some(identity))
            }
        }
    }

    fn authorities(&self) -> Authorities {
        match self {
            Source::Made(made) => Authorities::Own(made.entries()),
            Source::Files { seen, .. } => {
                let pem = seen.authority.as_ref().unwrap_or(&seen.chain);
                Authorities::Given(String::from_utf8_lossy(pem).into_owned())
            }
        }
    }

    fn expires(&self) -> Option<Timestamp> {
        match self {
            Source::Made(made) => Some(made.leaf_expires()),
            Source::Files { .. } => None,
        }
    }
}

impl Files {
    /// Small files, now and then: not worth a thread.
    fn read(directory: &std::path::Path) -> Result<Files, Error> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|error| Error::Certificate(format!("reading {}: {error}", path.display())))
        };
        Ok(Files {
            chain: read("tls.crt")?,
            key: read("tls.key")?,
            authority: read("ca.crt").ok(),
        })
    }
}

fn server_config(identity: Identity) -> Result<Arc<ServerConfig>, Error> {
    let refuse = |error: rustls::Error| Error::Certificate(error.to_string());
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refuse)?
        .with_no_client_auth()
        .with_single_cert(identity.chain, identity.key)
        .map_err(refuse)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
