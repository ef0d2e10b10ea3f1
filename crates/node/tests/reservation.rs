//! The process in a reservation pod, against an API server: what it writes, what it logs, and how it fails.

#![allow(clippy::unwrap_used)]

mod support;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use kai_node::reservation::{Args, annotate, log_annotation};
use parking_lot::Mutex;
use support::api::Api;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(api: &Api, host: &Path, driver: &str) -> Args {
    let host = host.display().to_string();
    let pod = [
        "--pod-name",
        "gpu-reservation-1",
        "--pod-namespace",
        "kai-resource-reservation",
    ];
    let words = [
        "reservation",
        "--api-url",
        &api.url,
        "--host-root",
        &host,
        "--driver",
        driver,
    ];
    Cli::parse_from(words.into_iter().chain(pod)).args
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn writes_the_uuid_and_logs_what_the_documented_checks_look_for() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let host = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    api.add_pod("gpu-reservation-1", "uid-1");
    annotate(&args(&api, host.path(), "fake:t4")).await.unwrap();
    let uuid = Api::annotation(&api.world().borrow(), "gpu-reservation-1").unwrap();
    assert!(uuid.starts_with("GPU-"), "{uuid}");
    let text = || String::from_utf8(log.0.lock().clone()).unwrap();
    for line in [
        "Looking for GPU device id for pod",
        "Found 1 GPU devices",
        "Found GPU device",
        &format!("deviceId={uuid}"),
        "Pod was updated with GPU device UUID",
    ] {
        assert!(text().contains(line), "{line} is not in:\n{}", text());
    }
    // A restarted container does not query the driver again, even if the driver is gone.
    log.0.lock().clear();
    annotate(&args(&api, host.path(), "nvml")).await.unwrap();
    assert!(!text().contains("Looking for GPU device id"), "{}", text());
}

#[tokio::test(start_paused = true)]
async fn the_pod_logs_the_gpu_that_the_agent_annotated_it_with() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let directory = tempfile::tempdir().unwrap();
    let args = Cli::parse_from(["reservation", "--sleep", "--pod-name", "gpu-reservation-1"]).args;
    let text = || String::from_utf8(log.0.lock().clone()).unwrap();
    let annotating = async {
        let file = directory.path().join(kai_api::keys::RESERVATION_GPU_FILE);
        tokio::time::sleep(Duration::from_secs(5)).await;
        std::fs::write(&file, "").unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(
            text().contains("Looking for GPU device id for pod") && !text().contains("Found"),
            "{}",
            text()
        );
        std::fs::write(&file, "GPU-7\n").unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    tokio::select! {
        () = log_annotation(&args, directory.path()) => panic!("the pod holds the GPU until it is deleted"),
        () = annotating => {}
    }
    for line in [
        "Found 1 GPU devices",
        "Found GPU device deviceId=\"GPU-7\"",
        "Pod was updated with GPU device UUID",
    ] {
        assert_eq!(text().matches(line).count(), 1, "{line} is not once in:\n{}", text());
    }
}

#[tokio::test]
async fn failures_say_what_to_do() {
    // `tracing` caches per process whether a log line has a subscriber, from the first thread that passes it. Without a subscriber here,
    // the other test would miss lines.
    let subscriber = tracing_subscriber::fmt().with_writer(io::sink).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let host = tempfile::tempdir().unwrap();
    let api = Api::start().await;
    api.add_pod("gpu-reservation-1", "uid-1");
    let two = annotate(&args(&api, host.path(), "fake:t4:2"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        two.contains("found 2 GPU devices") && two.contains("exactly one"),
        "{two}"
    );
    for driver in ["auto", "nvml"] {
        let no_library = annotate(&args(&api, host.path(), driver))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            no_library.contains("unable to initialize NVML: ERROR_LIBRARY_NOT_FOUND")
                && no_library.contains("Install the NVIDIA driver"),
            "{driver}: {no_library}"
        );
    }
    let mut nameless = args(&api, host.path(), "fake:t4");
    nameless.pod_name = None;
    let nameless = annotate(&nameless).await.unwrap_err().to_string();
    assert!(
        nameless.contains("POD_NAME") && nameless.contains("downward"),
        "{nameless}"
    );
    assert_eq!(Api::annotation(&api.world().borrow(), "gpu-reservation-1"), None);
    api.change(|world| world.fail = Some(403));
    let forbidden = annotate(&args(&api, host.path(), "fake:t4"))
        .await
        .unwrap_err()
        .to_string();
    assert!(forbidden.contains("permissions"), "{forbidden}");
}
