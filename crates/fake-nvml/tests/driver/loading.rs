//! How the library is found, and the errors for wrong files.

use std::path::Path;

use kai_gpu::{Driver, DriverChoice, DriverKind, GpuError, OpenOptions};

use crate::stage::{bare_driver, bare_machine, driver, scenario, stage};

#[test]
fn the_library_is_found_by_the_linker_and_wrong_ones_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    kai_fake_nvml::install(dir.path()).unwrap();
    let path = dir.path().to_str().unwrap();
    scenario(
        "loading::child_finds_it_by_the_linker",
        "t4",
        &[("LD_LIBRARY_PATH", path), ("KAI_NVML_LIBRARY", "/nonexistent/nvml.so")],
    );
    scenario("loading::child_meets_wrong_libraries", "t4", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_finds_it_by_the_linker() {
    let inventory = bare_driver().devices().unwrap();
    assert_eq!(inventory.nvml_library.as_deref(), Some("libnvidia-ml.so.1"));
    assert!(
        inventory.notes.iter().any(|note| note.contains("/nonexistent/nvml.so")),
        "{:?}",
        inventory.notes
    );
    // No file shows a GPU here, but NVML lists one, which is the evidence for the platform.
    let opened = kai_gpu::open(OpenOptions {
        roots: bare_machine(),
        ..OpenOptions::default()
    })
    .unwrap();
    assert_eq!(opened.driver.kind(), DriverKind::Nvml);
    assert!(
        opened.detection.explain().contains("lists 1 GPU"),
        "{}",
        opened.detection.explain()
    );
}

/// Without a check of the headers the child dies by SIGBUS.
#[test]
fn a_library_that_is_cut_off_is_refused_and_not_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let library = kai_fake_nvml::install(dir.path()).unwrap();
    // Half of the file is not enough: with debug information, that half may hold all that is loaded.
    let file = std::fs::File::options().write(true).open(&library).unwrap();
    file.set_len(16 * 1024).unwrap();
    let path = dir.path().to_str().unwrap();
    let absent = "/nonexistent/nvml.so";
    for (by_linker, named) in [(path, absent), ("", path)] {
        let places = [("LD_LIBRARY_PATH", by_linker), ("KAI_NVML_LIBRARY", named)];
        scenario("loading::child_meets_a_library_that_is_cut_off", "t4", &places);
    }
}

#[test]
#[ignore = "run by its parent"]
fn child_meets_a_library_that_is_cut_off() {
    let options = OpenOptions {
        roots: bare_machine(),
        driver: DriverChoice::Nvml,
        ..OpenOptions::default()
    };
    let error = driver(options).devices().unwrap_err();
    assert!(matches!(error, GpuError::LibraryCutOff { .. }), "{error}");
    let text = error.with_remedy();
    for words in ["libnvidia-ml.so.1", "is cut off", "Reinstall the driver package"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
#[ignore = "run by its parent"]
fn child_meets_wrong_libraries() {
    let open = |library: &Path| {
        let ours = driver(OpenOptions {
            roots: bare_machine(),
            nvml_library: Some(library.to_owned()),
            driver: DriverChoice::Nvml,
            ..OpenOptions::default()
        });
        ours.devices().map(drop)
    };
    // The first three on a machine where nothing else is found.
    let missing = open(Path::new("/nonexistent/libnvidia-ml.so.1")).unwrap_err();
    assert!(matches!(missing, GpuError::LibraryNotFound { .. }), "{missing}");
    assert!(
        missing
            .to_string()
            .contains("/nonexistent/libnvidia-ml.so.1 (no such file)"),
        "{missing}"
    );
    let text = stage().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    let wrong = open(&text).unwrap_err();
    assert!(
        wrong.to_string().contains("ERROR_LIBRARY_NOT_FOUND") && wrong.to_string().contains("text.so"),
        "{wrong}"
    );
    // A library, but not NVML.
    let other_library = open(Path::new("libm.so.6"));
    if let Err(error) = other_library {
        let words = error.to_string();
        assert!(
            words.contains("nvmlInit_v2") || words.contains("ERROR_LIBRARY_NOT_FOUND"),
            "{words}"
        );
    }
    // The right one, named by its directory.
    assert!(open(&stage()).is_ok());
}
