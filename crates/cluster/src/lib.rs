//! Kubernetes I/O.
