//! Loads the library: tries the paths of `search` until NVML starts. The error lists every path that was tried, for operators.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::errors::gpu_error;
use super::search::{SONAME, search_path};
use crate::linker::integrity::{Defect, DefectiveFile, check_loadable};
use crate::linker::search::Search;
use crate::{GpuError, OpenOptions, Platform};

/// An initialised NVML library.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) nvml: Nvml,
    /// The path it was loaded from.
    pub(super) path: String,
    /// Notes about the search, for operators.
    pub(super) notes: Vec<String>,
}

impl Library {
    /// Opens the first working NVML. If a library loads but does not start, the error of the first such library is returned,
    /// unless a later path works (CUDA's stub libraries load everywhere and start nowhere).
    pub(super) fn open(options: &OpenOptions, platform: &Platform) -> Result<Self, GpuError> {
        let named = options.nvml_library.as_deref();
        let places = search_path(named, platform, &options.roots, std::env::consts::ARCH);
        let linker_search = Search::of_this_process();
        let mut tried = Vec::new();
        let mut start_error = None;
        let mut notes = Vec::new();
        for place in &places {
            let is_bare = place.path.as_os_str() == SONAME;
            if !is_bare && !place.path.exists() {
                tried.push(format!("{} (no such file)", place.path.display()));
                continue;
            }
            let file = match is_bare {
                true => linker_search.find(SONAME),
                false => Some(place.path.clone()),
            };
            if let Some(DefectiveFile { path, defect }) =
                file.and_then(|file| check_loadable(&file, &linker_search).err())
            {
                match defect {
                    Defect::CutOff { .. } => {
                        start_error.get_or_insert(GpuError::LibraryCutOff { file: path, defect });
                    }
                    Defect::NotElf | Defect::OtherMachine { .. } | Defect::Damaged(_) | Defect::Unreadable(_) => {
                        tried.push(format!("{} ({defect})", path.display()));
                    }
                }
                continue;
            }
            let result = Nvml::builder().lib_path(place.path.as_os_str()).init();
            let shown = place.path.display().to_string();
            match result {
                Ok(nvml) => {
                    if let (Some(named), true) = (named, place.path != places[0].path) {
                        notes.push(format!(
                            "NVML at {} could not be used; {shown} is used",
                            named.display()
                        ));
                    }
                    return Ok(Self {
                        nvml,
                        path: shown,
                        notes,
                    });
                }
                Err(NvmlError::LibloadingError(error)) => tried.push(format!("{shown} ({})", loader_message(&error))),
                Err(NvmlError::FailedToLoadSymbol(detail)) => {
                    start_error.get_or_insert(GpuError::LibraryUnusable { library: shown, detail });
                }
                Err(error) => {
                    start_error.get_or_insert(gpu_error(format!("starting NVML from {shown}"), error));
                }
            }
        }
        Err(start_error.unwrap_or(GpuError::LibraryNotFound { tried }))
    }
}

/// The dynamic linker's message, without the wrapper's prefix.
fn loader_message(error: &dyn std::error::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |source| source.to_string())
}
