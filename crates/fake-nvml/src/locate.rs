//! Finds the shared library that cargo built beside the running test and gives it its real name. For tests and tools; the shared library
//! itself does not use it.

use std::path::{Path, PathBuf};

/// Why the library could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// It was not built, or this program does not run from cargo's target directory.
    #[error("looking for libkai_fake_nvml.so: it is not in {tried:?}; run cargo build -p kai-fake-nvml")]
    NotBuilt {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// Copying failed.
    #[error("copying libkai_fake_nvml.so: {0}")]
    Copy(std::io::Error),
}

/// Copies the library to `dir/libnvidia-ml.so.1` and returns that path.
pub fn install(dir: &Path) -> Result<PathBuf, LocateError> {
    let program = std::env::current_exe().map_err(LocateError::Copy)?;
    // A test runs in target/<profile>/deps, a program in target/<profile>.
    let near = program.ancestors().skip(1).take(2);
    let tried: Vec<PathBuf> = near.map(|dir| dir.join("libkai_fake_nvml.so")).collect();
    let Some(built) = tried.iter().find(|path| path.is_file()) else {
        return Err(LocateError::NotBuilt { tried });
    };
    let target = dir.join("libnvidia-ml.so.1");
    std::fs::copy(built, &target).map_err(LocateError::Copy)?;
    Ok(target)
}
