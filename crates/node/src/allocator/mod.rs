//! The GPU allocator: which resources the node offers (`plan`), which devices a container should get (`prefer`), how they reach the
//! container (`inject`), and the kubelet's device plugin protocol (`serve`, `register`).

pub mod inject;
pub mod offer;
pub mod plan;
pub mod prefer;
pub mod register;
pub mod serve;
pub mod sharing;
pub mod socket;
