//! The driver's files on this host and their way into containers: `collect` and `tegra` find them, `spec` makes a CDI spec of them,
//! `prepare` writes the spec or a driver volume.

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
