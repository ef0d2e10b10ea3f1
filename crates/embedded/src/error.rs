//! Errors that keep the embedded API server from listening. Each message names the address.

/// The embedded API server can't listen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address can't be bound.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The address is not a loopback address, and the server has no token.
    #[error("{address} can be reached from other machines; that needs a token")]
    OpenToAll {
        /// The address.
        address: std::net::SocketAddr,
    },
}
