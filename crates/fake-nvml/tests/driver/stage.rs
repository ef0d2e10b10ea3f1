//! Runs each scenario in its own process, with its own library, GPUs and control file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kai_gpu::fake::{FakeDriver, Settings};
use kai_gpu::nvml::NvmlDriver;
use kai_gpu::platform::{MemoryReserve, detect};
use kai_gpu::{Driver, HealthEvent, OpenOptions, Opened, Roots};

const SEED: &str = "driver-test";

/// Runs `child` with these GPUs, which are set in its environment. Returns its stderr.
pub(crate) fn scenario(child: &str, gpus: &str, variables: &[(&str, &str)]) -> String {
    let stage = tempfile::tempdir().unwrap();
    let library = kai_fake_nvml::install(stage.path()).unwrap();
    std::fs::write(stage.path().join("control.yaml"), "").unwrap();
    let mut command = this_program();
    command
        .args(["--exact", child, "--ignored", "--nocapture", "--test-threads", "1"])
        .env("KAI_NVML_LIBRARY", library)
        .env("KAI_FAKE_GPUS", gpus)
        .env("KAI_FAKE_SEED", SEED)
        .env("KAI_FAKE_CONTROL", stage.path().join("control.yaml"))
        .env("STAGE", stage.path())
        .env_remove("NVIDIA_VISIBLE_DEVICES")
        .env_remove("KAI_FAKE_VISIBLE_DEVICES")
        .env_remove("NODE_NAME");
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{child} with {gpus}:\n{out}\n{err}"
    );
    for (_, measured) in out.lines().filter_map(|line| line.split_once("measured: ")) {
        println!("measured: {measured}");
    }
    err
}

/// Command for this program, under the emulator that cargo names in the environment, if any.
fn this_program() -> Command {
    let program = std::env::current_exe().unwrap();
    let architecture = std::env::consts::ARCH.to_uppercase();
    let runner = std::env::var(format!("CARGO_TARGET_{architecture}_UNKNOWN_LINUX_GNU_RUNNER")).unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(emulator) = words.next() else {
        return Command::new(program);
    };
    let mut command = Command::new(emulator);
    command.args(words).arg(program);
    command
}

pub(crate) fn stage() -> PathBuf {
    PathBuf::from(std::env::var_os("STAGE").unwrap())
}

/// Replaces the control file. Returns the time before the write.
pub(crate) fn write_control(text: &str) -> Instant {
    let begun = Instant::now();
    let path = stage().join("control.yaml");
    std::fs::write(path.with_extension("new"), text).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
    begun
}

/// Replaces the control file and waits until the library must have read it.
pub(crate) fn say(text: &str) {
    write_control(text);
    std::thread::sleep(Duration::from_millis(50));
}

fn gpus() -> String {
    std::env::var("KAI_FAKE_GPUS").unwrap()
}

/// An empty machine: only files that the test creates, none of the machine that runs the test.
pub(crate) fn bare_machine() -> Roots {
    let root = stage().join("root");
    std::fs::create_dir_all(root.join("proc")).unwrap();
    std::fs::write(
        root.join("proc/meminfo"),
        "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
    )
    .unwrap();
    Roots::under(&root)
}

pub(crate) fn tree(name: &str) -> Roots {
    Roots::under(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/fixtures").join(name))
}

/// Our NVML driver on a bare machine.
pub(crate) fn bare_driver() -> NvmlDriver {
    driver(OpenOptions {
        roots: bare_machine(),
        memory_reserve: MemoryReserve::Mib(0),
        ..OpenOptions::default()
    })
}

pub(crate) fn driver(options: OpenOptions) -> NvmlDriver {
    let detection = detect(&options.roots);
    NvmlDriver::new(options, detection)
}

/// The driver that is chosen on the recorded machine `name`.
pub(crate) fn opened_on(name: &str) -> Opened {
    kai_gpu::open(OpenOptions {
        roots: tree(name),
        ..OpenOptions::default()
    })
    .unwrap()
}

pub(crate) fn expected() -> FakeDriver {
    FakeDriver::new(&gpus().parse::<Settings>().unwrap().seeded(SEED)).unwrap()
}

/// Events until `enough`, at most fifteen seconds.
pub(crate) fn wait_for(driver: &dyn Driver, enough: impl Fn(&[HealthEvent]) -> bool) -> Vec<HealthEvent> {
    let begun = Instant::now();
    let mut events = Vec::new();
    while begun.elapsed() < Duration::from_secs(15) {
        events.extend(driver.wait_events(Duration::from_millis(100)).unwrap());
        if enough(&events) {
            return events;
        }
    }
    panic!("only {events:?}");
}
