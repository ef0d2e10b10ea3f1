//! The GPU allocator: what the node offers (`plan`), which of it a container should get (`prefer`), and the kubelet's device
//! plugin protocol around that (`serve`, `register`).

pub mod inject;
pub mod offer;
pub mod plan;
pub mod prefer;
pub mod register;
pub mod serve;
pub mod socket;
