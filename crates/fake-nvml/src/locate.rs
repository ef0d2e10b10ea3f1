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
    /// The library does not export a name that shall be taken out.
    #[error("taking {name} out of libkai_fake_nvml.so: the library does not export it")]
    NoSymbol {
        /// The name.
        name: String,
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

/// As [`install`], but the copy lacks these exported functions, as the library of an older driver does. One library can't lose a symbol while
/// it runs, so the copy's symbol tables get another name of the same length in its place: the dynamic linker then finds the hash of the
/// wanted name and a text that differs, and reports the symbol as missing.
pub fn install_without(dir: &Path, names: &[&str]) -> Result<PathBuf, LocateError> {
    let target = install(dir)?;
    let mut bytes = std::fs::read(&target).map_err(LocateError::Copy)?;
    for name in names {
        let entry: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = (0..bytes.len().saturating_sub(entry.len()))
            .filter(|&place| bytes[place..].starts_with(&entry))
            .collect();
        if places.is_empty() {
            return Err(LocateError::NoSymbol {
                name: (*name).to_owned(),
            });
        }
        for place in places {
            bytes[place + name.len()] = b'-';
        }
    }
    std::fs::write(&target, bytes).map_err(LocateError::Copy)?;
    Ok(target)
}
