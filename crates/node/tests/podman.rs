//! podman runs containers with fake devices from our CDI specs, and the hook that limits their GPU memory. The tests need root, podman, runc
//! and a static busybox, and write to /var/run/cdi, so they run only if `KAI_TEST_PODMAN=1` is set.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kai_gpu::Driver;
use kai_gpu::fake::{FakeDriver, Settings};
use kai_node::driver_files::cdi::{Device, Edits, Spec};
use kai_node::driver_files::collect::Search;
use kai_node::driver_files::prepare::{DriverFileInjector, FakeFiles};
use kai_node::driver_files::store::CdiDir;
use kai_node::enforcement::cgroup::{CGROUP_ROOT, CgroupVersion};
use kai_node::enforcement::hold::{EnforcePolicy, HoldRequest};
use kai_node::enforcement::hook_edit::holding_hook;
use kai_node::enforcement::limits::GpuLimit;
use kai_node::enforcement::program::{ProgramDir, ProgramFiles};
use kai_node::enforcement::receipt::{ContainerName, Receipt};
use kai_node::enforcement::receipt_dir::ReceiptDir;
use kai_node::enforcement::tier::HookSetup;

#[test]
fn podman_runs_a_container_with_a_device_from_the_spec() {
    if std::env::var_os("KAI_TEST_PODMAN").is_none() {
        eprintln!("skipped: KAI_TEST_PODMAN is not set");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let root = container_root(place.path());
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
    let seen = listed(&root, first);
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
    assert!(listed(&root, "all").contains("/dev/nvidia1"));
    assert!(listed(&root, "unknown").contains("unresolvable CDI devices"));
    injector.remove_all().unwrap();
    assert!(!Path::new("/var/run/cdi/kai.scheduler-gpu.json").exists());
}

/// The hook runs from its copied loader with the environment of the spec alone. On cgroup version 1 the container does not start.
#[test]
fn podman_runs_the_hook_that_limits_gpu_memory() {
    let (Some(_), Some(kai)) = (
        std::env::var_os("KAI_TEST_PODMAN"),
        std::env::var_os("KAI_TEST_PROGRAM"),
    ) else {
        eprintln!("skipped: KAI_TEST_PODMAN and KAI_TEST_PROGRAM are not set");
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let (root, records, receipts) = (
        container_root(place.path()),
        place.path().join("records"),
        place.path().join("limits"),
    );
    fs::create_dir(&records).unwrap();
    ReceiptDir::new(place.path()).create().unwrap();
    let files = ProgramFiles {
        program: kai.into(),
        ..ProgramFiles::of_this_process().unwrap()
    };
    let library = kai_fake_nvml::install(place.path()).unwrap();
    let driver = FakeDriver::new(&Settings::of("a100-40", 1).seeded("podman")).unwrap();
    let gpu = driver.devices().unwrap().devices[0].uuid.clone();
    let control = place.path().join("control.yaml");
    fs::write(&control, "memoryLimitCalls: both\n").unwrap();
    let setup = HookSetup {
        program: ProgramDir::new(place.path()).install(&files).unwrap(),
        library: Some(library.display().to_string()),
        environment: vec![
            "KAI_FAKE_GPUS=a100-40:1".to_owned(),
            "KAI_FAKE_SEED=podman".to_owned(),
            format!("KAI_FAKE_CONTROL={}", control.display()),
            format!("KAI_FAKE_RECORD_DIR={}", records.display()),
        ],
        receipts: receipts.clone(),
        policy: EnforcePolicy::Closed,
    };
    let request = HoldRequest {
        container: ContainerName {
            pod: "half".to_owned(),
            ..ContainerName::default()
        },
        limits: vec![GpuLimit::hard(&gpu, 20 << 30)],
        ..HoldRequest::default()
    };
    let spec = Spec {
        cdi_version: "0.5.0".to_owned(),
        kind: "kai.scheduler/share".to_owned(),
        devices: vec![Device {
            name: "share-0".to_owned(),
            container_edits: Edits {
                hooks: vec![holding_hook(&setup, "share-0", &request)],
                ..Edits::default()
            },
        }],
        container_edits: Edits::default(),
    };
    let cdi = CdiDir::new(Path::new("/var/run/cdi"));
    cdi.write_share_device("share-0", &spec).unwrap();
    let said = podman(&root, "kai.scheduler/share=share-0", "echo the container runs");
    cdi.remove_share_device("share-0").unwrap();

    let receipt = fs::read_to_string(receipts.join("share-0.json"));
    let receipt = receipt.unwrap_or_else(|error| panic!("no receipt: {error}; podman: {said}"));
    let receipt: Receipt = serde_json::from_str(&receipt).unwrap();
    match CgroupVersion::at(Path::new(CGROUP_ROOT)) {
        CgroupVersion::V2 => {
            assert!(said.contains("the container runs"), "{said}");
            assert_eq!((&receipt.limits, &receipt.failure), (&request.limits, &None));
            let record = fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
            let record = fs::read_to_string(record).unwrap();
            assert!(
                record.contains(&receipt.cgroup) && receipt.cgroup.contains(&receipt.container_id),
                "{record}"
            );
        }
        CgroupVersion::V1 | CgroupVersion::Hybrid | CgroupVersion::Unknown(_) => {
            assert!(!said.contains("the container runs"), "{said}");
            assert!(said.contains("is not cgroup version 2"), "{said}");
            assert!(!receipt.failure.unwrap().started);
        }
    }
}

/// The root directory of a container with busybox.
fn container_root(place: &Path) -> PathBuf {
    let root = place.join("root");
    for directory in ["bin", "dev", "proc", "sys", "tmp", "etc", "usr/lib64", "usr/bin"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    root
}

/// Output of a container that lists its devices and files.
fn listed(root: &Path, device: &str) -> String {
    let list = "/bin/busybox find /dev /usr/lib64 -name '*nvidia*'; /bin/busybox env";
    podman(root, &format!("kai.scheduler/gpu={device}"), list)
}

/// Output of a shell in a container with a device, and podman's own. Limits are as low as a restricted machine needs them.
fn podman(root: &Path, device: &str, script: &str) -> String {
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
        // A hierarchy of version 2 may lack the controller.
        .args(["--pids-limit", "0", "--device", device, "--rootfs"])
        .arg(root)
        .args(["/bin/busybox", "sh", "-c", script])
        .output()
        .unwrap();
    String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
}
