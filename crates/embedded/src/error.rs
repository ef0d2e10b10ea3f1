//! Errors that keep the embedded API server from listening. Each message names the address.

/// The embedded API server can't listen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address can't be bound.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The embedded API server would let everybody in.
    #[error("{address} can be reached from other machines; that needs a token")]
    OpenToAll {
        /// Where it was to listen.
        address: std::net::SocketAddr,
    },
}
