//! podman runs a container with fake devices from our CDI spec. The test needs root, podman, runc and a static busybox, and writes to
//! /var/run/cdi, so it runs only if `KAI_TEST_PODMAN=1` is set.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, Settings};
use kai_node::driver_files::collect::Search;
use kai_node::driver_files::prepare::{DriverFileInjector, FakeFiles};

#[test]
fn podman_runs_a_container_with_a_device_from_the_spec() {
    if std::env::var_os("KAI_TEST_PODMAN").is_none() {
        eprintln!("skipped: KAI_TEST_PODMAN is not set");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    for directory in ["bin", "dev", "proc", "sys", "tmp", "etc", "usr/lib64", "usr/bin"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    let library = place.path().join("libnvidia-ml.so.1");
    fs::write(&library, "not a real one").unwrap();

    let driver = FakeDriver::new(&Settings::of("a100-40", 2).seeded("podman")).unwrap();
    let inventory = driver.devices().unwrap();
    let injector = DriverFileInjector {
        mode: Default::default(),
        search: Search::new(kai_gpu::Roots::under(place.path())),
        cdi_dir: "/var/run/cdi".into(),
        volume_dir: place.path().join("volumes"),
        fake: Some(FakeFiles {
            library: library.display().to_string(),
            env: vec!["KAI_FAKE_GPUS=a100-40:2".to_owned()],
            ..FakeFiles::default()
        }),
    };
    let outcome = injector.apply(&inventory, &injector.plan(&inventory, None));
    assert!(outcome.error.is_none(), "{:?}", outcome.error);

    let first = &inventory.devices[0].uuid;
    let seen = podman(&root, first);
    for line in [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/usr/lib64/libnvidia-ml.so.1",
        "NVIDIA_VISIBLE_DEVICES=void",
        "KAI_FAKE_GPUS=a100-40:2",
    ] {
        assert!(seen.contains(line), "{line} is not in:\n{seen}");
    }
    assert!(
        !seen.contains("/dev/nvidia1"),
        "only the device that was asked for:\n{seen}"
    );
    assert!(podman(&root, "all").contains("/dev/nvidia1"));
    assert!(podman(&root, "unknown").contains("unresolvable CDI devices"));
    injector.remove_all().unwrap();
    assert!(!Path::new("/var/run/cdi/kai.scheduler-gpu.json").exists());
}

/// Output of a container that lists its devices and files. Limits are as low as a restricted machine needs them.
fn podman(root: &Path, device: &str) -> String {
    let list = "/bin/busybox find /dev /usr/lib64 -name '*nvidia*'; /bin/busybox env";
    let done = Command::new("podman")
        .args([
            "--cgroup-manager",
            "cgroupfs",
            "--runtime",
            "runc",
            "run",
            "--rm",
            "--network",
            "none",
        ])
        .args([
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1024:1024",
            "--security-opt",
            "seccomp=unconfined",
        ])
        .args(["--device", &format!("kai.scheduler/gpu={device}"), "--rootfs"])
        .arg(root)
        .args(["/bin/busybox", "sh", "-c", list])
        .output()
        .unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
}
