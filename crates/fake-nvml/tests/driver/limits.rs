//! Memory limits per cgroup, processes and modes, by our own driver through the real `dlopen`.

use std::path::{Path, PathBuf};

use kai_gpu::{
    Driver, GpuComputeMode, GpuProcessKind, MemoryLimitError, MemoryLimitSupport, MemoryLimits, ProcessList,
    set_and_verify,
};

use crate::stage::{bare_driver, say, scenario, stage};

const MIB: u64 = 1 << 20;
const SET: &str = "nvmlDeviceSetMemoryLimits_v1";
const GET: &str = "nvmlDeviceGetMemoryLimits_v1";

#[test]
fn limits_go_through_the_real_calls() {
    let record = tempfile::tempdir().unwrap();
    let variables = [("KAI_FAKE_RECORD_DIR", record.path().to_str().unwrap())];
    scenario("limits::child_sets_and_reads_limits", "a100-40:2", &variables);
    let files: Vec<String> = std::fs::read_dir(record.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(files.iter().any(|name| name.contains(".limit.")), "{files:?}");
    scenario("limits::child_gets_every_error", "a100-40,h100/1g.10gb,gb10", &[]);
    scenario("limits::child_lists_processes_and_modes", "h100,orin-agx", &[]);
}

fn directory(name: &str) -> PathBuf {
    let path = stage().join("cgroup").join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
#[ignore = "run by its parent"]
fn child_sets_and_reads_limits() {
    say("memoryLimitCalls: both");
    let driver = bare_driver();
    let gpus: Vec<String> = driver
        .devices()
        .unwrap()
        .devices
        .into_iter()
        .map(|device| device.uuid)
        .collect();
    assert_eq!(driver.memory_limit_support(), MemoryLimitSupport::Offered);
    let leaf = directory("pod/container");
    for limits in [
        MemoryLimits::hard(20_480 * MIB),
        MemoryLimits {
            soft_bytes: 5,
            hard_bytes: Some(7),
        },
        MemoryLimits::default(),
    ] {
        let told = set_and_verify(&driver, &gpus[0], &leaf, limits).unwrap();
        assert_eq!((told.limits, told.used_bytes), (limits, 0));
    }
    assert!(driver.memory_limits(&gpus[1], &leaf).is_err(), "limits are per GPU");
    set_and_verify(&driver, &gpus[0], &directory("pod"), MemoryLimits::hard(MIB)).unwrap();
    let process = format!("processes: [{{pid: 1, memoryMib: 300, cgroup: {}}}]", leaf.display());
    say(&format!("memoryLimitCalls: both\ngpus: {{0: {{{process}}}}}"));
    assert_eq!(
        driver.memory_limits(&gpus[0], &directory("pod")).unwrap().used_bytes,
        300 * MIB
    );
    say("memoryLimitCalls: both\ngpus: {0: {memoryLimits: {teardowns: 1}}}");
    assert!(driver.memory_limits(&gpus[0], &leaf).is_err(), "the limits are lost");
}

#[test]
#[ignore = "run by its parent"]
fn child_gets_every_error() {
    let driver = bare_driver();
    let devices = driver.devices().unwrap().devices;
    let (a100, mig, gb10) = (&devices[0].uuid, &devices[1], &devices[2].uuid);
    let leaf = directory("leaf");
    let set = |gpu: &str, cgroup: &Path, hard: u64| {
        let set = driver.set_memory_limits(gpu, cgroup, MemoryLimits::hard(hard));
        set.map_err(|error| error.code().constant()).err()
    };
    assert_eq!(set(a100, &leaf, MIB), Some("FUNCTION_NOT_FOUND"), "driver 570");
    say("memoryLimitCalls: both");
    assert_eq!(set(a100, &leaf, MIB), None);
    assert_eq!(set(a100, &leaf, 40_961 * MIB), Some("INVALID_ARGUMENT"));
    assert_eq!(set(a100, Path::new("/"), MIB), Some("NOT_SUPPORTED"));
    assert_eq!(set(a100, Path::new("/nonexistent"), MIB), Some("OPERATING_SYSTEM"));
    assert_eq!(set(a100, Path::new("a\0b"), MIB), Some("INVALID_ARGUMENT"));
    assert_eq!(set(&mig.uuid, &leaf, MIB), Some("NOT_SUPPORTED"), "a partitioned GPU");
    assert_eq!(
        set(&mig.mig_devices[0].uuid, &leaf, MIB),
        Some("NOT_SUPPORTED"),
        "a partition"
    );
    assert_eq!(set(gb10, &leaf, MIB), Some("NOT_SUPPORTED"), "unified memory");
    assert_eq!(set("GPU-none", &leaf, MIB), Some("NOT_FOUND"));
    for (code, constant) in [
        (3, "NOT_SUPPORTED"),
        (4, "NO_PERMISSION"),
        (6, "NOT_FOUND"),
        (17, "OPERATING_SYSTEM"),
        (999, "UNKNOWN"),
    ] {
        say(&format!(
            "memoryLimitCalls: both\ngpus: {{0: {{memoryLimits: {{setCode: {code}, getCode: {code}}}}}}}"
        ));
        assert_eq!(set(a100, &leaf, MIB), Some(constant));
        let told = driver.memory_limits(a100, &leaf).unwrap_err();
        assert_eq!((told.code().0, told.code().constant()), (code, constant));
    }
    say("memoryLimitCalls: both\ngpus: {0: {memoryLimits: {readBackHardMib: 3}}}");
    let error = set_and_verify(&driver, a100, &leaf, MemoryLimits::hard(MIB)).unwrap_err();
    assert!(matches!(error, MemoryLimitError::NotKept { .. }), "{error}");
    // Slow answers are answers.
    say("memoryLimitCalls: both\ngpus: {0: {memoryLimits: {delayMs: 300}}}");
    let asked = std::time::Instant::now();
    assert_eq!(set(a100, &leaf, MIB), None);
    assert!(
        asked.elapsed() >= std::time::Duration::from_millis(300),
        "the call waits"
    );
    say("library: driver-not-loaded");
    assert_eq!(set(a100, &leaf, MIB), Some("DRIVER_NOT_LOADED"));
    let absent = driver.memory_limit_support();
    assert!(matches!(absent, MemoryLimitSupport::Unknown { .. }), "{absent:?}");
    say("memoryLimitCalls: both");
    assert_eq!(set(a100, &leaf, MIB), None, "the library is opened again");
}

#[test]
#[ignore = "run by its parent"]
fn child_lists_processes_and_modes() {
    say(
        "gpus: {0: {persistenceMode: false, processes: [{pid: 7, memoryMib: 5}, {pid: 7, memoryMib: 5, kind: graphics}, \
         {pid: 9, memoryUnavailable: true}, {pid: 8, memoryMib: 1, kind: mps-client}]}}",
    );
    let driver = bare_driver();
    let told = driver.processes().unwrap();
    let facts: Vec<_> = told[0]
        .processes
        .known()
        .iter()
        .map(|process| (process.pid, process.used_bytes, process.kind))
        .collect();
    assert_eq!(
        facts,
        [
            (7, Some(5 * MIB), GpuProcessKind::Compute),
            (8, Some(MIB), GpuProcessKind::MpsClient),
            (9, None, GpuProcessKind::Compute),
        ]
    );
    assert_eq!(told[1].processes, ProcessList::NotOffered, "nvgpu refuses");
    let (h100, orin) = (&told[0].uuid, &told[1].uuid);
    assert_eq!(driver.persistence_mode(h100).unwrap(), Some(false));
    assert_eq!(driver.persistence_mode(orin).unwrap(), None);
    for mode in [
        GpuComputeMode::ExclusiveProcess,
        GpuComputeMode::Prohibited,
        GpuComputeMode::Default,
    ] {
        driver.set_compute_mode(h100, mode).unwrap();
        assert_eq!(driver.compute_mode(h100).unwrap(), Some(mode));
    }
    assert_eq!(driver.compute_mode(orin).unwrap(), None);
    assert!(
        driver
            .set_compute_mode(orin, GpuComputeMode::Default)
            .unwrap_err()
            .is_not_supported()
    );
}

#[test]
fn a_library_of_an_older_driver_lacks_the_calls() {
    for (lacking, words) in [
        (vec![SET, GET], format!("lacks {SET} and {GET}")),
        (vec![SET], format!("lacks {SET}")),
        (vec![GET], format!("lacks {GET}")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let library = kai_fake_nvml::install_without(dir.path(), &lacking).unwrap();
        let variables = [
            ("KAI_NVML_LIBRARY", library.to_str().unwrap()),
            ("LACKS", words.as_str()),
        ];
        scenario("limits::child_meets_an_older_library", "t4", &variables);
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(kai_fake_nvml::install_without(dir.path(), &["nvmlNothing"]).is_err());
}

#[test]
#[ignore = "run by its parent"]
fn child_meets_an_older_library() {
    say("memoryLimitCalls: both");
    let words = std::env::var("LACKS").unwrap();
    let driver = bare_driver();
    let gpu = driver.devices().unwrap().devices[0].uuid.clone();
    let MemoryLimitSupport::Missing { reason } = driver.memory_limit_support() else {
        panic!("the library has the calls")
    };
    assert!(reason.contains(&words) && reason.contains("of driver 570"), "{reason}");
    let set = driver
        .set_memory_limits(&gpu, &directory("a"), MemoryLimits::hard(1))
        .unwrap_err();
    assert!(matches!(set, MemoryLimitError::Missing { .. }), "{set}");
    let get = driver.memory_limits(&gpu, &directory("a")).unwrap_err();
    assert!(get.to_string().contains(&words), "{get}");
}

/// A cgroup of cgroup v2, or why there is none.
fn new_cgroup(name: &str) -> Result<PathBuf, String> {
    let roots = kai_gpu::fake::CgroupRoots::of_this_machine();
    let own = kai_gpu::fake::cgroup_of(&roots, "self").ok_or("this process has no cgroup v2")?;
    let path = own.join(format!("kai-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The driver adapts the newer memory call to the caller's cgroup; the older one has the whole GPU.
#[test]
fn a_program_in_a_cgroup_sees_its_limit() {
    let cgroup = match new_cgroup("limit") {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
    let record = tempfile::tempdir().unwrap();
    let variables = [
        ("KAI_FAKE_RECORD_DIR", record.path().to_str().unwrap()),
        ("CGROUP", cgroup.to_str().unwrap()),
    ];
    let scenarios = ["limits::child_limits_the_cgroup", "limits::child_moves_into_the_cgroup"];
    let ran = std::panic::catch_unwind(|| scenarios.map(|child| scenario(child, "a100-40", &variables)));
    // A cgroup can be removed once its last process is gone.
    std::fs::remove_dir(&cgroup).unwrap();
    ran.unwrap();
}

#[test]
#[ignore = "run by its parent"]
fn child_limits_the_cgroup() {
    say("memoryLimitCalls: both");
    let driver = bare_driver();
    let gpu = driver.devices().unwrap().devices[0].uuid.clone();
    let cgroup = PathBuf::from(std::env::var_os("CGROUP").unwrap());
    set_and_verify(&driver, &gpu, &cgroup, MemoryLimits::hard(20_480 * MIB)).unwrap();
    assert_eq!(
        driver.devices().unwrap().devices[0].memory_mib,
        Some(40_960),
        "outside of it"
    );
}

#[test]
#[ignore = "run by its parent"]
fn child_moves_into_the_cgroup() {
    say("memoryLimitCalls: both");
    let driver = bare_driver();
    assert_eq!(
        driver.devices().unwrap().devices[0].memory_mib,
        Some(40_960),
        "not in it yet"
    );
    let cgroup = PathBuf::from(std::env::var_os("CGROUP").unwrap());
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    assert_eq!(driver.devices().unwrap().devices[0].memory_mib, Some(20_480));
    let sample = &driver.samples().unwrap()[0];
    assert_eq!(
        (sample.memory_used_mib, sample.memory_free_mib),
        (Some(0), Some(20_480))
    );
}
