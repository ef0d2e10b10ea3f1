//! Kubernetes I/O.

/// x
#[derive(Debug, thiserror::Error)]
pub enum Error {}
