//! Share devices: how a container gets its part of a GPU on a node without NVIDIA's runtime.
//!
//! A pod with a part of a GPU asks the kubelet for no GPU, and a runtime takes device names only from what a device plugin answered.
//! So the agent offers share devices ([`offer`]) that say nothing but "name a device for me". Which GPU it is shows when the container is
//! about to start ([`decide`]): the kubelet tells whose share device it is, the pod's groups lead to their reservation pods, and those say
//! which GPUs they hold. The share device's CDI spec is then written with these GPUs ([`prepare`]), and removed when its pod is gone. A share device
//! without a spec names no device, and no runtime starts a container with it.

pub mod decide;
pub mod offer;
pub mod prepare;

pub use offer::ShareDeviceOffer;
pub use prepare::ShareDevicePreparer;
