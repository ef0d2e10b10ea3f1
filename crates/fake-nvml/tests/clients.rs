//! Real NVML clients from PyPI on the fake library: NVIDIA's Python bindings, gpustat, nvitop. They are installed into a virtual
//! environment below cargo's target directory; without Python or pip the tests print a note and pass.

// Test code: a failed step should stop right there.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Pinned versions, so that a new release can't break our build.
const PACKAGES: [&str; 3] = ["nvidia-ml-py==13.615.71", "gpustat==1.1.1", "nvitop==1.7.2"];

/// The virtual environment's `bin`, or why there is none.
fn python() -> Result<&'static Path, &'static str> {
    static BIN: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BIN.get_or_init(set_up).as_deref().map_err(String::as_str)
}

fn set_up() -> Result<PathBuf, String> {
    let version = Command::new("python3")
        .args(["-c", "import venv, ensurepip, platform; print(platform.machine())"])
        .output();
    let output = version.map_err(|error| format!("python3 can't be run: {error}"))?;
    if !output.status.success() {
        return Err("python3 lacks the venv or pip module".to_owned());
    }
    let machine = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if machine != std::env::consts::ARCH {
        // Cross-compiled tests under emulation: the host's Python can't load a library of another architecture.
        return Err(format!(
            "python3 is for {machine}, the library for {}",
            std::env::consts::ARCH
        ));
    }
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvml-clients");
    let done = environment.join("installed.txt");
    if std::fs::read_to_string(&done).is_ok_and(|text| text == PACKAGES.join("\n")) {
        return Ok(environment.join("bin"));
    }
    let _ = std::fs::remove_dir_all(&environment);
    run(Command::new("python3").arg("-m").arg("venv").arg(&environment));
    run(Command::new(environment.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet"])
        .args(PACKAGES));
    std::fs::write(done, PACKAGES.join("\n")).unwrap();
    Ok(environment.join("bin"))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// A directory with the library and a control file.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        kai_fake_nvml::install(dir.path()).unwrap();
        std::fs::write(dir.path().join("control.yaml"), "").unwrap();
        Self { dir }
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control.yaml")
    }

    fn command(&self, program: &Path, gpus: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.dir.path())
            .env("KAI_FAKE_GPUS", gpus)
            .env("KAI_FAKE_SEED", "clients")
            .env("KAI_FAKE_CONTROL", self.control())
            .env("COLUMNS", "120")
            .env("LANG", "C.UTF-8")
            .env_remove("NVIDIA_VISIBLE_DEVICES")
            .env_remove("KAI_FAKE_VISIBLE_DEVICES");
        command
    }
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).unwrap()
}

/// Skips the calling test with its reason.
macro_rules! python_or_skip {
    () => {
        match python() {
            Ok(bin) => bin,
            Err(reason) => {
                eprintln!("SKIPPED: {reason}");
                return;
            }
        }
    };
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}

#[test]
fn nvidias_bindings_get_every_answer() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    let gpus = "a100-40/3g.20gb/1g.5gb,h100,t4";
    let text = stdout(stage.command(&bin.join("python"), gpus).arg(script("everything.py")));
    assert!(text.ends_with("all good\n"), "{text}");
}

/// NVIDIA's bindings declare the structs of the calls themselves, so this is a check of the layout, too.
#[test]
fn nvidias_bindings_set_and_read_memory_limits() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    std::fs::write(stage.control(), "memoryLimitCalls: both").unwrap();
    let run_in = |cgroup: &Path, enter: Option<&str>| {
        let mut command = stage.command(&bin.join("python"), "a100-40,a100-40/1g.5gb");
        let text = stdout(command.arg(script("limits.py")).arg(cgroup).args(enter));
        assert!(text.ends_with("all good\n"), "{text}");
    };
    run_in(stage.dir.path(), None);
    let roots = kai_gpu::fake::CgroupRoots::of_this_machine();
    let own = kai_gpu::fake::cgroup_of(&roots, "self").unwrap_or_default();
    let cgroup = own.join(format!("kai-clients-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir(&cgroup) {
        eprintln!("SKIPPED the part inside of a cgroup: {}: {error}", cgroup.display());
        return;
    }
    let ran = std::panic::catch_unwind(|| run_in(&cgroup, Some("enter")));
    std::fs::remove_dir(&cgroup).unwrap();
    ran.unwrap();
}

#[test]
fn nvidias_bindings_find_every_function() {
    let bin = python_or_skip!();
    let listed = include_str!("../symbols.txt");
    let text = stdout(Command::new(bin.join("python")).args([
        "-c",
        "import pynvml, re; print('\\n'.join(re.findall(r'_nvmlGetFunctionPointer\\(\"(\\w+)\"', open(pynvml.__file__).read())))",
    ]));
    assert!(text.lines().count() > 300, "the bindings were not understood");
    for name in text.lines() {
        assert!(
            listed.lines().any(|known| known == name),
            "symbols.txt lacks {name}: add it and run with UPDATE_SYMBOLS=1"
        );
    }
}

#[test]
fn gpustat_shows_load_and_processes() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    let pid = std::process::id();
    let control = format!("gpus: {{0: {{utilizationPercent: 73, processes: [{{pid: {pid}, memoryMib: 12000}}]}}}}");
    std::fs::write(stage.control(), control).unwrap();
    let text = stdout(
        stage
            .command(&bin.join("python"), "a100-40:2,t4")
            .args(["-m", "gpustat", "--no-color"]),
    );
    assert!(
        text.contains("[0] NVIDIA A100-SXM4-40GB | 63°C,  73 % | 12000 / 40960 MB |"),
        "{text}"
    );
    assert!(text.contains("(12000M)"), "{text}");
    assert!(
        text.contains("[1] NVIDIA A100-SXM4-40GB | 31°C,   0 % |     0 / 40960 MB |"),
        "{text}"
    );
    assert!(
        text.contains("[2] Tesla T4              | 31°C,   0 % |     0 / 15360 MB |"),
        "{text}"
    );
}

#[test]
fn gpustat_survives_what_jetsons_refuse() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    for (gpus, line) in [
        ("thor", "[0] NVIDIA Thor | ??°C,   0 % |    ?? /    ?? MB"),
        ("orin-agx", "[0] Orin (nvgpu) | ??°C,  ?? %"),
    ] {
        let text = stdout(
            stage
                .command(&bin.join("python"), gpus)
                .args(["-m", "gpustat", "--no-color"]),
        );
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn gpustat_says_what_is_wrong() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    std::fs::write(stage.control(), "library: driver-not-loaded").unwrap();
    let output = stage
        .command(&bin.join("python"), "t4")
        .args(["-m", "gpustat"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Driver Not Loaded"), "{text}");
}

#[test]
fn nvitop_shows_gpus_partitions_and_processes() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    let pid = std::process::id();
    let control = format!("gpus: {{1: {{utilizationPercent: 40, processes: [{{pid: {pid}, memoryMib: 2048}}]}}}}");
    std::fs::write(stage.control(), control).unwrap();
    let text = stdout(
        stage
            .command(&bin.join("nvitop"), "a100-40/3g.20gb/1g.5gb*2,h100")
            .arg("-1"),
    );
    for words in [
        "Driver Version: 570.133.20",
        "CUDA Driver Version: 12.8",
        "A100-SXM4-40GB",
        "3g.20gb @ GI/CI: 1/0",
        "1g.5gb @ GI/CI: 8/0",
        "H100 80GB HBM3",
        "322W / 700W",
        "2048MiB / 79.65GiB",
        "40%",
        &pid.to_string(),
    ] {
        assert!(text.contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn a_container_with_one_gpu_sees_one() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    let list = "import pynvml as n; n.nvmlInit(); \
                h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]; \
                print(*[f'{n.nvmlDeviceGetUUID(d)}/{n.nvmlDeviceGetMinorNumber(d)}' for d in h])";
    let seen = |variable: &str, value: &str| {
        let mut command = stage.command(&bin.join("python"), "t4:4");
        let text = stdout(command.env(variable, value).args(["-c", list]));
        text.split_whitespace().map(str::to_owned).collect::<Vec<String>>()
    };
    let all = seen("NVIDIA_VISIBLE_DEVICES", "all");
    assert_eq!(all.len(), 4);
    let third = all[2].clone();
    let uuid = third.split('/').next().unwrap();
    let only_third = [third.as_str()];
    assert_eq!(seen("NVIDIA_VISIBLE_DEVICES", uuid), only_third);
    assert_eq!(seen("NVIDIA_VISIBLE_DEVICES", "2"), only_third);
    assert_eq!(
        seen("KAI_FAKE_VISIBLE_DEVICES", &format!("kai.scheduler/gpu={uuid}")),
        [third]
    );
    assert_eq!(seen("NVIDIA_VISIBLE_DEVICES", "none"), Vec::<String>::new());
    assert_eq!(seen("NVIDIA_VISIBLE_DEVICES", "void").len(), 4);
}

#[test]
fn a_change_reaches_a_running_client_at_once() {
    let bin = python_or_skip!();
    let stage = Stage::new();
    let watch = "import pynvml as n, time; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n\
                 print('ready', flush=True)\n\
                 while n.nvmlDeviceGetTemperature(h, 0) != 88: time.sleep(0.001)\n\
                 print(time.time(), flush=True)";
    let mut command = stage.command(&bin.join("python"), "t4");
    let mut child = command
        .args(["-c", watch])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let begun = Instant::now();
    std::fs::write(stage.control(), "gpus: {0: {temperatureCelsius: 88}}").unwrap();
    lines.next().unwrap().unwrap();
    let took = begun.elapsed();
    child.wait().unwrap();
    println!("a change of the control file reached a running client after {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
