//! The GPU allocator: what the node offers (`plan`), which of it a container should get (`prefer`), and the kubelet's device
//! plugin protocol around that (`serve`, `register`).

pub mod plan;
pub mod prefer;
