//! The kubelet's two gRPC interfaces, generated from `proto/` (see `tests/generated.rs`).
//! Wire types only: what we do with them is in `allocator` and `reservation_annotator`.

/// Device plugin API v1beta1.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod deviceplugin {
    include!("../generated/v1beta1.rs");

    /// The protocol version a plugin registers with.
    pub const VERSION: &str = "v1beta1";
    /// `Device.health` of a device that may be handed out.
    pub const HEALTHY: &str = "Healthy";
    /// `Device.health` of a device that may not.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// File name of the kubelet's registry socket.
    pub const KUBELET_SOCKET: &str = "kubelet.sock";
}

/// Pod-resources API v1.
#[allow(missing_docs, clippy::all, unreachable_pub)]
pub mod podresources {
    include!("../generated/v1.rs");
}
