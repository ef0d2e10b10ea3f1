//! How to reach the API server. One place, so that TLS and credentials are set up once.

use std::path::PathBuf;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::Error;

/// Where the API server is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Access {
    /// The pod's service account, or the user's kubeconfig.
    #[default]
    Infer,
    /// This kubeconfig.
    Kubeconfig(PathBuf),
    /// This address without credentials: an embedded or test API server.
    Url(String),
}

/// A connection to one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(crate) kube: kube::Client,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cluster::Client")
    }
}

impl Client {
    /// Reads the credentials. No call is made yet.
    pub async fn connect(access: &Access) -> Result<Self, Error> {
        // Two providers in one process make rustls panic at its first use; an error here only says that one is set already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let refuse = |message: String| Error::Connect { message };
        let config = match access {
            Access::Infer => Config::infer().await.map_err(|error| refuse(error.to_string()))?,
            Access::Kubeconfig(path) => {
                let file =
                    Kubeconfig::read_from(path).map_err(|error| refuse(format!("{}: {error}", path.display())))?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options)
                    .await
                    .map_err(|error| refuse(error.to_string()))?
            }
            Access::Url(url) => Config::new(url.parse().map_err(|error| refuse(format!("{url}: {error}")))?),
        };
        let kube = kube::Client::try_from(config).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { kube })
    }
}
