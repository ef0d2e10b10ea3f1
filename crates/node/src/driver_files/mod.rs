//! The volume manager: finds what belongs to the driver on this host, and brings it into containers.

pub mod cdi;
pub mod collect;
pub mod csv;
pub mod driver_volume;
pub mod files;
pub mod host_root;
pub mod nodes;
pub mod prepare;
pub mod spec;
pub mod store;
pub mod tegra;
