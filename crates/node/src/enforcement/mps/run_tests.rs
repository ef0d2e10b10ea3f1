//! The thread with a fake control program.

use std::os::unix::fs::PermissionsExt;

use kai_gpu::GpuComputeMode;
use kai_gpu::fake::{FakeDriver, Settings};

use super::*;
use crate::enforcement::mps::plan::namespace_name;

/// A fake host with the program, and the thread that runs it.
struct Stage {
    dir: tempfile::TempDir,
    driver: Arc<dyn Driver>,
    plan: MpsPlan,
    handle: MpsHandle,
}

impl Stage {
    fn new(behavior: &str) -> Stage {
        let driver = FakeDriver::new(&Settings::of("h100", 2)).unwrap();
        Stage::with_driver(behavior, Arc::new(driver))
    }

    fn with_driver(behavior: &str, driver: Arc<dyn Driver>) -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("nvidia-cuda-mps-control");
        std::fs::write(&program, include_str!("fake-control.sh")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let gpus = driver
            .devices()
            .unwrap()
            .devices
            .into_iter()
            .map(|gpu| gpu.uuid)
            .collect();
        let stage_behavior = dir.path().join("behavior");
        std::fs::write(stage_behavior, behavior).unwrap();
        let plan = MpsPlan {
            program: program.display().to_string(),
            gpus,
        };
        let config = MpsConfig {
            plan: plan.clone(),
            host_root: "/".into(),
            own_program: "/nowhere".into(),
            state_dir: dir.path().join("state"),
            pace: Duration::from_millis(20),
        };
        let handle = start(config, driver.clone());
        Stage {
            dir,
            driver,
            plan,
            handle,
        }
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.path().join("state/mps/pipe/pid")
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default()
    }

    fn behave(&self, behavior: &str) {
        std::fs::write(self.dir.path().join("behavior"), behavior).unwrap();
    }

    async fn until(&self, is_it: impl Fn(&MpsStatus) -> bool) -> MpsStatus {
        let mut status = self.handle.status();
        let found = tokio::time::timeout(Duration::from_secs(60), status.wait_for(|status| is_it(status))).await;
        found.expect("the status changes within a minute").unwrap().clone()
    }

    fn modes(&self) -> Vec<Option<GpuComputeMode>> {
        let gpus = self.driver.devices().unwrap().devices;
        gpus.iter()
            .map(|gpu| self.driver.compute_mode(&gpu.uuid).unwrap())
            .collect()
    }
}

fn namespace(percent: u8) -> Namespace {
    Namespace {
        name: namespace_name("share-3"),
        percent,
        memory_mib: 2048,
    }
}

fn fails(status: &MpsStatus) -> bool {
    matches!(status, MpsStatus::Fails(_))
}

#[tokio::test]
async fn a_server_is_started_fenced_used_and_stopped() {
    let stage = Stage::new("");
    stage.until(|status| *status == MpsStatus::Serves).await;
    assert_eq!(stage.modes(), [Some(GpuComputeMode::ExclusiveProcess); 2]);
    let config = std::fs::read_to_string(stage.dir.path().join("config")).unwrap();
    assert!(toml_edit::Document::parse(config.as_str()).is_ok(), "{config}");
    stage.handle.open(namespace(25)).await.unwrap();
    let directory = stage.dir.path().join("state/mps/pipe/kai/p_share_3");
    assert!(directory.is_dir(), "the container's directory exists");
    let calls = stage.calls();
    assert!(
        calls
            .contains("namespace set p_share_3 --server=kai --active-thread-percentage=25 --pinned-memory-limit=2048M"),
        "{calls}"
    );
    stage.handle.open(namespace(25)).await.unwrap();
    assert_eq!(
        stage.calls().matches("namespace set").count(),
        1,
        "a prepared container is not prepared again"
    );
    stage.handle.open(namespace(30)).await.unwrap();
    assert!(
        stage.calls().contains("--active-thread-percentage=30"),
        "another container of the share device"
    );
    stage.handle.close("p_share_3");
    // The thread takes requests in their order, and drops them when it stops.
    let other = Namespace {
        name: namespace_name("share-4"),
        ..namespace(1)
    };
    stage.handle.open(other).await.unwrap();
    std::fs::write(stage.dir.path().join("clients"), "4711\n4712\n").unwrap();
    stage.handle.stop().await;
    let calls = stage.calls();
    let at = |words: &str| {
        calls
            .rfind(words)
            .unwrap_or_else(|| panic!("{words} is not in\n{calls}"))
    };
    assert!(at("client terminate 4711") < at("client terminate 4712") && at("client terminate 4712") < at("-q"));
    assert!(!directory.exists());
    assert!(!stage.pid_file().exists(), "the daemon has ended");
    assert_eq!(stage.modes(), [Some(GpuComputeMode::Default); 2]);
    assert!(stage.handle.open(namespace(1)).await.is_err(), "after the stop");
}

#[tokio::test]
async fn a_daemon_that_is_started_anew_knows_the_namespaces_of_running_containers() {
    let stage = Stage::new("");
    stage.until(|status| *status == MpsStatus::Serves).await;
    stage.handle.open(namespace(25)).await.unwrap();
    let pid = std::fs::read_to_string(stage.pid_file()).unwrap();
    std::process::Command::new("kill")
        .args(["-9", pid.trim()])
        .status()
        .unwrap();
    let status = stage.until(fails).await;
    let reason = status.ability().unwrap_err();
    assert!(
        reason.contains("it ended") && reason.contains("control.log"),
        "{reason}"
    );
    assert!(
        stage.handle.open(namespace(30)).await.is_err(),
        "no container starts without the server"
    );
    stage.until(|status| *status == MpsStatus::Serves).await;
    let config = std::fs::read_to_string(stage.dir.path().join("config")).unwrap();
    assert!(
        config.contains("[servers.kai.namespaces.p_share_3]\nactive_thread_percentage = \"25\""),
        "{config}"
    );
    stage.handle.stop().await;
}

#[tokio::test]
async fn a_daemon_that_dies_or_has_no_server_is_reported() {
    let stage = Stage::new("die");
    let reason = stage.until(fails).await.ability().unwrap_err();
    assert!(
        reason.contains("it ended (exit status: 1): An instance of this daemon is already running; see "),
        "{reason}"
    );
    stage.handle.stop().await;
    // A daemon whose server has ended answers, and its clients would run without limits.
    let stage = Stage::new("");
    stage.until(|status| *status == MpsStatus::Serves).await;
    stage.behave("no-server");
    let reason = stage.until(fails).await.ability().unwrap_err();
    assert!(reason.contains("has no server kai"), "{reason}");
    stage.handle.stop().await;
}

#[tokio::test]
async fn a_compute_mode_that_somebody_changed_is_set_again() {
    let stage = Stage::new("");
    stage.until(|status| *status == MpsStatus::Serves).await;
    let gpu = stage.driver.devices().unwrap().devices[1].uuid.clone();
    stage.driver.set_compute_mode(&gpu, GpuComputeMode::Default).unwrap();
    let fenced = async {
        while stage.modes() != [Some(GpuComputeMode::ExclusiveProcess); 2] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), fenced).await.unwrap();
    stage.handle.stop().await;
}

/// A driver that keeps the compute mode of its GPUs.
#[derive(Debug)]
struct FixedModes(FakeDriver);

impl Driver for FixedModes {
    fn kind(&self) -> kai_gpu::DriverKind {
        self.0.kind()
    }

    fn devices(&self) -> Result<kai_gpu::Inventory, kai_gpu::GpuError> {
        self.0.devices()
    }

    fn samples(&self) -> Result<Vec<kai_gpu::Sample>, kai_gpu::GpuError> {
        self.0.samples()
    }

    fn probe(&self, uuid: &str) -> Result<(), kai_gpu::GpuError> {
        self.0.probe(uuid)
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<kai_gpu::HealthEvent>, kai_gpu::GpuError> {
        self.0.wait_events(timeout)
    }

    fn compute_mode(&self, gpu: &str) -> Result<Option<GpuComputeMode>, kai_gpu::GpuError> {
        self.0.compute_mode(gpu)
    }
}

#[tokio::test]
async fn without_the_compute_mode_there_is_no_daemon() {
    let driver = FixedModes(FakeDriver::new(&Settings::of("h100", 2)).unwrap());
    let stage = Stage::with_driver("", Arc::new(driver));
    let reason = stage.until(fails).await.ability().unwrap_err();
    assert!(
        reason.contains("setting the compute mode of GPU") && reason.contains("Not Supported"),
        "{reason}"
    );
    let refusal = stage.handle.open(namespace(25)).await.unwrap_err();
    assert!(refusal.contains("does not serve"), "{refusal}");
    stage.handle.stop().await;
    assert_eq!(stage.calls(), "", "clients of a daemon would not be held");
}

// QEMU's vfork is a fork, so that a program that can't be started looks like one that ended.
#[tokio::test]
#[cfg_attr(target_arch = "aarch64", ignore = "fails under emulation, which .ci/aarch64 uses")]
async fn a_program_that_is_gone_is_named() {
    let stage = Stage::new("");
    stage.until(|status| *status == MpsStatus::Serves).await;
    std::fs::remove_file(stage.dir.path().join("nvidia-cuda-mps-control")).unwrap();
    let pid = std::fs::read_to_string(stage.pid_file()).unwrap();
    std::process::Command::new("kill").arg(pid.trim()).status().unwrap();
    let named = |status: &MpsStatus| {
        let refusal = status.ability().err().unwrap_or_default();
        refusal.contains("starting /") && refusal.contains("nvidia-cuda-mps-control: No such file")
    };
    stage.until(named).await;
    stage.handle.stop().await;
}

#[tokio::test]
async fn another_plan_ends_the_daemon_before_the_next_one_starts() {
    let stage = Stage::new("");
    stage.until(|status| *status == MpsStatus::Serves).await;
    stage.handle.open(namespace(25)).await.unwrap();
    let mut plan = stage.plan.clone();
    plan.gpus.pop();
    assert!(stage.handle.change(Ok(plan)));
    // The thread takes requests in their order: this one is refused or comes after the change.
    let _ = stage.handle.open(namespace(25)).await;
    stage.until(|status| *status == MpsStatus::Serves).await;
    let config = std::fs::read_to_string(stage.dir.path().join("config")).unwrap();
    assert!(
        config.contains("[servers.kai.namespaces.p_share_3]"),
        "running containers keep their namespace: {config}"
    );
    let calls = stage.calls();
    assert_eq!(calls.matches(" -f ").count(), 2, "{calls}");
    assert!(calls.rfind(" -q").unwrap() < calls.rfind(" -f ").unwrap(), "{calls}");
    let [exclusive, usual] = [GpuComputeMode::ExclusiveProcess, GpuComputeMode::Default].map(Some);
    assert_eq!(stage.modes(), [exclusive, usual]);

    assert!(stage.handle.change(Err("the GPU got partitions".to_owned())));
    let reason = stage.until(fails).await.ability().unwrap_err();
    assert!(reason.contains("the GPU got partitions"), "{reason}");
    assert!(!stage.pid_file().exists(), "the daemon has ended");
    assert_eq!(stage.modes(), [usual; 2], "other programs can use the GPUs");
    assert!(stage.handle.change(Ok(stage.plan.clone())));
    stage.until(|status| *status == MpsStatus::Serves).await;
    stage.handle.stop().await;
}

#[tokio::test]
async fn clients_that_do_not_end_hold_up_no_compute_mode() {
    let stage = Stage::new("");
    stage.until(|status| *status == MpsStatus::Serves).await;
    let pids: Vec<String> = (1..100).map(|pid| pid.to_string()).collect();
    std::fs::write(stage.dir.path().join("clients"), pids.join("\n") + "\n").unwrap();
    stage.behave("hang-terminate");
    stage.handle.stop().await;
    assert_eq!(stage.modes(), [Some(GpuComputeMode::Default); 2]);
    assert!(!stage.pid_file().exists(), "the daemon has ended");
}

#[test]
fn a_command_that_hangs_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    std::fs::write(&program, "#!/bin/sh\nexec sleep 60\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let launcher = Launcher {
        host_root: "/".into(),
        own_program: "/nowhere".into(),
        program: program.display().to_string(),
    };
    let refusal = launcher
        .call(
            &commands::probe(),
            &[],
            Duration::from_millis(50),
            &AtomicBool::new(false),
        )
        .unwrap_err();
    assert!(refusal.contains("no answer within"), "{refusal}");
    let refusal = launcher
        .call(
            &commands::probe(),
            &[],
            Duration::from_secs(3600),
            &AtomicBool::new(true),
        )
        .unwrap_err();
    assert!(refusal.contains("the agent stops"), "{refusal}");
    let elsewhere = Launcher {
        host_root: "/host".into(),
        own_program: "/proc/self/exe".into(),
        program: "/usr/bin/nvidia-cuda-mps-control".to_owned(),
    };
    let command = elsewhere.command(&["-q".to_owned()], &[]);
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    assert_eq!(command.get_program(), std::path::Path::new("/proc/self/exe"));
    assert_eq!(words, ["mps-launch", "--", "/usr/bin/nvidia-cuda-mps-control", "-q"]);
}
