//! The kubelet's two gRPC interfaces, generated from `proto/` (see `tests/generated.rs`).
//! Wire types only; `allocator`, `podresources` and `reservation_annotator` use them.

/// Device plugin API v1beta1.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod deviceplugin {
    include!("../generated/v1beta1.rs");

    /// The protocol version a plugin registers with.
    pub const VERSION: &str = "v1beta1";
    /// `Device.health` of a device that may be allocated.
    pub const HEALTHY: &str = "Healthy";
    /// `Device.health` of a device that may not be allocated.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// File name of the kubelet's registration socket.
    pub const KUBELET_SOCKET: &str = "kubelet.sock";
}

/// Pod-resources API v1.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod podresources {
    include!("../generated/v1.rs");
}
