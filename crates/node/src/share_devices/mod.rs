//! Share devices: how a container gets its part of a GPU on a node without NVIDIA's runtime.
//!
//! A pod with a GPU share requests no GPU from the kubelet, and a container runtime injects only CDI devices that a device plugin named. So
//! the agent offers share devices ([`offer`]): device ids of the resource `kai.scheduler/gpu-share` that are not tied to a GPU. Before the
//! container starts, the agent decides which GPUs the share device stands for ([`decide`]): the kubelet names the pod that holds it, the
//! pod's GPU groups lead to their reservation pods, and these are annotated with their GPUs. The agent then writes the share device's CDI
//! spec ([`prepare`]) and removes it when the pod is gone. Without a spec the runtime does not know the device and does not start the
//! container.

pub mod decide;
pub mod offer;
pub mod prepare;

pub use offer::ShareDeviceOffer;
pub use prepare::ShareDevicePreparer;
