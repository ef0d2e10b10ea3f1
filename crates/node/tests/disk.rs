//! The agent on a host with real driver files, whose disks misbehave: upgrades, read-only and full directories.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use kai_gpu::fake::{FakeDriver, Settings};
use kai_gpu::linker::Machine;
use kai_gpu::{Driver, DriverKind, GpuError, HealthEvent, Inventory, PlatformKind, Sample};
use kai_node::kubelet::deviceplugin::ContainerAllocateResponse;
use parking_lot::Mutex;
use support::kubelet::{Kubelet, Lists, PodResourcesServer};
use support::{Agent, names, settings, until, within};

const GPU: &str = "nvidia.com/gpu";

/// The facts of fake GPUs on the platform NVML, so that the agent collects driver files.
#[derive(Debug)]
struct Host {
    inner: FakeDriver,
    version: Mutex<String>,
}

impl Driver for Host {
    fn kind(&self) -> DriverKind {
        DriverKind::Nvml
    }
    fn devices(&self) -> Result<Inventory, GpuError> {
        let mut inventory = self.inner.devices()?;
        inventory.platform.kind = PlatformKind::Nvml;
        inventory.driver_version = Some(self.version.lock().clone());
        Ok(inventory)
    }
    fn samples(&self) -> Result<Vec<Sample>, GpuError> {
        self.inner.samples()
    }
    fn probe(&self, uuid: &str) -> Result<(), GpuError> {
        self.inner.probe(uuid)
    }
    fn wait_events(&self, timeout: Duration) -> Result<Vec<HealthEvent>, GpuError> {
        self.inner.wait_events(timeout)
    }
}

fn host_driver(version: &str) -> Arc<Host> {
    let inner = FakeDriver::new(&"t4".parse::<Settings>().unwrap().seeded("n1")).unwrap();
    Arc::new(Host {
        inner,
        version: Mutex::new(version.to_owned()),
    })
}

fn library_dir(host: &Path) -> PathBuf {
    host.join("usr/lib").join(Machine::here().triplet())
}

/// The smallest file that is an ELF library of this machine.
fn elf() -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(64, 0);
    bytes[18] = if Machine::here() == Machine::Aarch64 { 183 } else { 62 };
    bytes
}

/// Puts a driver's files on the host, as a package manager does: remove, then write.
fn install(host: &Path, version: &str) {
    let directory = library_dir(host);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    fs::create_dir_all(host.join("usr/bin")).unwrap();
    fs::create_dir_all(host.join("dev")).unwrap();
    for node in ["nvidia0", "nvidiactl"] {
        fs::write(host.join("dev").join(node), "").unwrap();
    }
    fs::write(host.join("usr/bin/nvidia-smi"), version).unwrap();
    for name in ["libcuda", "libnvidia-ml"] {
        fs::write(directory.join(format!("{name}.so.{version}")), elf()).unwrap();
        symlink(format!("{name}.so.{version}"), directory.join(format!("{name}.so.1"))).unwrap();
    }
}

fn one(lists: &Lists) -> bool {
    lists
        .get(GPU)
        .and_then(Option::as_ref)
        .is_some_and(|list| list.len() == 1 && list[0].1)
}

/// Repeats Allocate until the response is as wanted.
async fn allocated(
    what: &str,
    kubelet: &mut Kubelet,
    wanted: impl Fn(&ContainerAllocateResponse) -> bool,
) -> ContainerAllocateResponse {
    let lists = until("the GPU", &mut kubelet.lists, one).await;
    let id = lists[GPU].as_ref().unwrap()[0].0.clone();
    let attempt = async {
        loop {
            if let Ok(answer) = kubelet.allocate(GPU, &[&id]).await
                && wanted(&answer)
            {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, attempt).await
}

#[tokio::test]
async fn a_driver_upgrade_rewrites_the_spec_and_keeps_the_devices() {
    let place = tempfile::tempdir().unwrap();
    let host = place.path().join("host");
    install(&host, "550.54.15");
    let settings = settings(place.path(), &["--no-cluster"]);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let driver = host_driver("550.54.15");
    let agent = Agent::start(settings.clone(), driver.clone());
    allocated("a CDI name", &mut kubelet, |answer| !answer.cdi_devices.is_empty()).await;
    let spec = || fs::read_to_string(settings.cdi_dir.join("kai.scheduler-gpu.json")).unwrap_or_default();
    assert!(spec().contains("libcuda.so.550.54.15"), "{}", spec());

    install(&host, "570.133.20");
    *driver.version.lock() = "570.133.20".to_owned();
    within("a spec of the new driver", async {
        while !spec().contains("libcuda.so.570.133.20") || spec().contains("550.54.15") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(kubelet.registrations.borrow().len(), 1);
    assert_eq!(names(&settings.cdi_dir), ["kai.scheduler-gpu.json"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_driver_volume_lives_until_its_last_container_is_gone() {
    let place = tempfile::tempdir().unwrap();
    let host = place.path().join("host");
    install(&host, "550.54.15");
    let settings = settings(place.path(), &["--no-cluster", "--mode", "mounts"]);
    let pod_resources = PodResourcesServer::serve(&settings.pod_resources_socket);
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let driver = host_driver("550.54.15");
    let agent = Agent::start(settings.clone(), driver.clone());
    let volume = |answer: &ContainerAllocateResponse| {
        let mount = answer
            .mounts
            .iter()
            .find(|mount| mount.container_path == "/usr/local/nvidia");
        mount.map(|mount| mount.host_path.clone()).unwrap_or_default()
    };
    let answer = allocated("a volume", &mut kubelet, |answer| volume(answer).contains("550.54.15")).await;
    assert_eq!(answer.envs["LD_LIBRARY_PATH"], "/usr/local/nvidia/lib64");
    let nodes: Vec<_> = answer.devices.iter().map(|node| node.container_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/nvidia0", "/dev/nvidiactl"]);
    let old = PathBuf::from(volume(&answer));
    assert!(old.join("lib64/libcuda.so.1").is_file() && old.join("bin/nvidia-smi").is_file());
    let id = kubelet.lists.borrow()[GPU].as_ref().unwrap()[0].0.clone();
    pod_resources.set(&[("default", "train", &[&id])]);
    let calls = pod_resources.calls();

    install(&host, "570.133.20");
    *driver.version.lock() = "570.133.20".to_owned();
    let new_volume = settings.state_dir.join("driver");
    // The agent has to see the container once, or it would wait for the container's start.
    within("the new volume", async {
        while !names(&new_volume).iter().any(|name| name.starts_with("570")) || pod_resources.calls() == calls {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(
        old.join("lib64/libcuda.so.1").is_file(),
        "a container may still restart with it"
    );

    pod_resources.set(&[]);
    install(&host, "575.1.2");
    *driver.version.lock() = "575.1.2".to_owned();
    within("the old volumes' end", async {
        while names(&new_volume).iter().any(|name| !name.starts_with("575")) || names(&new_volume).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn an_unwritable_cdi_directory_costs_nothing_but_cdi() {
    let place = tempfile::tempdir().unwrap();
    let host = place.path().join("host");
    install(&host, "550.54.15");
    let mut settings = settings(place.path(), &["--no-cluster"]);
    // A file in place of the directory: not even root, who passes every permission check, can write there.
    let obstacle = place.path().join("obstacle");
    fs::write(&obstacle, "").unwrap();
    settings.cdi_dir = obstacle.join("cdi");
    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), host_driver("550.54.15"));
    let answer = allocated("device nodes", &mut kubelet, |answer| !answer.devices.is_empty()).await;
    assert!(
        answer.cdi_devices.is_empty(),
        "a name that nobody can resolve would fail the container"
    );
    assert!(
        answer
            .mounts
            .iter()
            .any(|mount| mount.container_path.ends_with("/libcuda.so.1") && mount.read_only)
    );

    fs::remove_file(&obstacle).unwrap();
    allocated("a CDI name", &mut kubelet, |answer| !answer.cdi_devices.is_empty()).await;
    assert_eq!(kubelet.registrations.borrow().len(), 1);
    agent.stop().await;
}

/// A tiny file system, unmounted at the end. `None` where mounting is not allowed.
struct TinyDisk(PathBuf);

impl TinyDisk {
    fn mount(path: &Path, options: &str) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(path)
            .output()
            .ok()?;
        done.status.success().then(|| Self(path.to_owned()))
    }

    fn remount(&self, options: &str) {
        let done = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(&self.0)
            .status()
            .unwrap();
        assert!(done.success());
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_or_read_only_disk_leaves_devices_correct_and_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let host = place.path().join("host");
    install(&host, "550.54.15");
    let mut settings = settings(place.path(), &["--no-cluster"]);
    let disk = place.path().join("disk");
    let Some(mounted) = TinyDisk::mount(&disk, "size=64k") else {
        eprintln!("skipped: this process may not mount; the writer's own tests cover a full disk");
        return;
    };
    settings.cdi_dir = disk.join("cdi");
    settings.state_dir = disk.join("state");
    let filler = disk.join("filler");
    fs::write(&filler, vec![0; 60 * 1024]).unwrap();
    fs::create_dir_all(&settings.cdi_dir).unwrap();
    while fs::OpenOptions::new()
        .append(true)
        .open(&filler)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 512]))
        .is_ok()
    {}

    let mut kubelet = Kubelet::start(&settings.plugin_dir);
    let agent = Agent::start(settings.clone(), host_driver("550.54.15"));
    let answer = allocated("device nodes on a full disk", &mut kubelet, |answer| {
        !answer.devices.is_empty()
    })
    .await;
    assert!(answer.cdi_devices.is_empty());
    assert_eq!(names(&settings.cdi_dir), Vec::<String>::new(), "no half-written file");

    fs::remove_file(&filler).unwrap();
    allocated("a CDI name", &mut kubelet, |answer| !answer.cdi_devices.is_empty()).await;

    // The directory is read-only now, and the driver changes: the spec on disk still has the device, so injection by CDI continues.
    mounted.remount("ro");
    install(&host, "570.133.20");
    allocated("still a CDI name", &mut kubelet, |answer| {
        !answer.cdi_devices.is_empty()
    })
    .await;
    mounted.remount("rw");
    let spec = settings.cdi_dir.join("kai.scheduler-gpu.json");
    within("a spec without the old driver", async {
        while fs::read_to_string(&spec).unwrap_or_default().contains("libcuda.so.550") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(names(&settings.cdi_dir), ["kai.scheduler-gpu.json"]);
    assert_eq!(kubelet.registrations.borrow().len(), 1);
    agent.stop().await;
}
