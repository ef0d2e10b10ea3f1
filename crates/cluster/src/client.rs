//! The connection to the API server: the one place that sets up TLS and credentials.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kai_api::Resource;
use parking_lot::Mutex;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::call_metrics::CallMetrics;
use crate::{Error, Leadership};

/// Where a client finds the API server and its credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClientConfig {
    /// From the pod's service account, or from the user's kubeconfig.
    #[default]
    Infer,
    /// From this kubeconfig.
    Kubeconfig(PathBuf),
    /// As kubectl finds it: from this kubeconfig, else from the files in `KUBECONFIG`, else from `~/.kube/config`; else from the pod's
    /// service account.
    User {
        /// Kubeconfig file.
        kubeconfig: Option<PathBuf>,
        /// Context of the kubeconfig; `None` = its current context.
        context: Option<String>,
    },
    /// At this address, without credentials: an embedded or test API server.
    Url(String),
}

/// A connection to one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) kube: kube::Client,
    /// The client refuses writes without it, and aborts writes under way when it ends. `None` for roles without leader election.
    pub(crate) leadership: Option<Leadership>,
    /// Where the API server is, for messages.
    address: Arc<str>,
    /// [`crate::Context`] registers them.
    pub(crate) call_metrics: CallMetrics,
    /// Cache of [`Client::resource_of`]. A plain lock: held for map operations only.
    pub(crate) resources: Arc<Mutex<BTreeMap<(String, String), Resource>>>,
    /// The anchor as [`Client::installation_owner`] found it last. A plain lock: held for an assignment only.
    pub(crate) anchor_seen: Arc<Mutex<Option<serde_json::Value>>>,
}

/// Timeout of a call. Watches have none.
pub(crate) const CALL_SECONDS_MAX: Duration = Duration::from_secs(30);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cluster::Client")
    }
}

impl Client {
    /// Reads the credentials. Makes no call yet.
    pub async fn connect(from: &ClientConfig) -> Result<Self, Error> {
        Self::with_config(config(from).await?)
    }

    /// Like [`Client::connect`], but impersonates this user with these groups. The credentials must allow impersonation.
    pub async fn as_user(from: &ClientConfig, user: &str, groups: &[&str]) -> Result<Self, Error> {
        let mut config = config(from).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups =
            (!groups.is_empty()).then(|| groups.iter().map(|group| (*group).to_owned()).collect());
        Self::with_config(config)
    }

    fn with_config(config: Config) -> Result<Self, Error> {
        let address = config.cluster_url.to_string();
        let kube = kube::Client::try_from(config).map_err(|error| Error::Connect {
            message: error.to_string(),
        })?;
        Ok(Self::new(kube, &address))
    }

    /// A client of an API server within this process.
    pub fn in_process<S, B>(service: S) -> Self
    where
        S: tower::Service<http::Request<kube::client::Body>, Response = http::Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<tower::BoxError>,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        Self::new(kube::Client::new(service, "default"), "this process")
    }

    /// Where the API server is, for messages.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The namespace of the kubeconfig's context, else `default`.
    pub fn default_namespace(&self) -> &str {
        self.kube.default_namespace()
    }

    fn new(kube: kube::Client, address: &str) -> Self {
        Client {
            kube,
            leadership: None,
            address: address.into(),
            call_metrics: CallMetrics::default(),
            resources: Arc::default(),
            anchor_seen: Arc::default(),
        }
    }

    /// The same client, limited to writes while `leadership` is held.
    pub fn guarded(&self, leadership: &Leadership) -> Self {
        Client {
            leadership: Some(leadership.clone()),
            ..self.clone()
        }
    }
}

async fn config(from: &ClientConfig) -> Result<Config, Error> {
    // rustls panics at its first use if a process has two providers and no default. An error means that the default is set already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let refuse = |message: String| Error::Connect { message };
    match from {
        ClientConfig::Infer => Config::infer().await.map_err(|error| refuse(error.to_string())),
        ClientConfig::Kubeconfig(path) => of_kubeconfig(Some(path), &KubeConfigOptions::default()).await,
        ClientConfig::User {
            kubeconfig: None,
            context: None,
        } => Config::infer().await.map_err(|error| refuse(error.to_string())),
        ClientConfig::User { kubeconfig, context } => {
            let options = KubeConfigOptions {
                context: context.clone(),
                ..KubeConfigOptions::default()
            };
            of_kubeconfig(kubeconfig.as_deref(), &options).await
        }
        ClientConfig::Url(url) => {
            let url = url.parse().map_err(|error| refuse(format!("{url}: {error}")))?;
            Ok(Config::new(url))
        }
    }
}

/// From a kubeconfig; without a path, from those that KUBECONFIG names or the one in the home directory.
async fn of_kubeconfig(path: Option<&Path>, options: &KubeConfigOptions) -> Result<Config, Error> {
    let refuse = |message: String| Error::Connect { message };
    let file = match path {
        Some(path) => Kubeconfig::read_from(path).map_err(|error| refuse(format!("{}: {error}", path.display())))?,
        None => Kubeconfig::read().map_err(|error| refuse(error.to_string()))?,
    };
    Config::from_custom_kubeconfig(file, options)
        .await
        .map_err(|error| refuse(error.to_string()))
}
