//! Whole runs of the node's commands: the agent with fake GPUs, the reservation process without a cluster, the doctor on file trees.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

mod doctor_job;
mod support;

/// A machine without a GPU, so that the tests are the same on every machine.
const NO_GPU: &str = "no-gpu";

fn kai(arguments: &[&str]) -> String {
    support::kai_in("../gpu/fixtures", arguments)
}

#[test]
fn dry_run() {
    insta::assert_snapshot!(kai(&[
        "node-agent",
        "--dry-run",
        "--node-name",
        "node-1",
        "--host-root",
        NO_GPU,
        "--driver",
        "fake:a100-40,t4",
    ]));
}

/// A directory of configuration files, as `--config-dir` takes it.
fn dry_run_configured(key: &str) -> String {
    let place = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &str| std::fs::write(place.path().join(name), content).expect("a file");
    file(
        "shared",
        "flags: {failOnInitError: true}\nsharing: {timeSlicing: {replicas: 2, renameByDefault: true}}\n",
    );
    file("typo", "sharing: {timeSlicing: {replica: 2}}\n");
    let directory = place.path().display().to_string();
    let output = kai(&[
        "node-agent",
        "--dry-run",
        "--node-name",
        "node-1",
        "--host-root",
        NO_GPU,
        "--driver",
        "fake:t4",
        "--config-dir",
        &directory,
        "--default-config",
        key,
    ]);
    output.replace(&directory, "DIRECTORY")
}

#[test]
fn dry_run_with_configuration_files() {
    let shared = dry_run_configured("shared");
    for words in [
        "configuration by directory DIRECTORY, key shared:\n  MIG strategy none, nvidia.com/gpu.shared with 2 replicas",
        "  warning: flags.failOnInitError has no effect",
        "  nvidia.com/gpu.replicas=2\n",
        "  nvidia.com/gpu.shared: 2\n",
    ] {
        assert!(shared.contains(words), "{words}\n{shared}");
    }
    for (key, problem) in [
        (
            "typo",
            "key typo, field sharing.timeSlicing.replica: there is no such field; did you mean replicas?",
        ),
        ("absent", "names the key \"absent\", which does not exist"),
    ] {
        let output = dry_run_configured(key);
        assert!(
            output.contains(problem) && output.contains("  kept: MIG strategy none, no time slicing"),
            "{output}"
        );
        assert!(output.contains("  nvidia.com/gpu: 1\n"), "{output}");
    }
}

#[test]
fn dry_run_without_a_gpu() {
    insta::assert_snapshot!(kai(&[
        "node-agent",
        "--dry-run",
        "--node-name",
        "node-1",
        "--host-root",
        NO_GPU
    ]));
}

#[test]
fn doctor() {
    insta::assert_snapshot!(kai(&["doctor", "--host-root", NO_GPU]));
}

#[test]
fn a_gpu_that_is_lost_is_a_problem() {
    let fake = [
        "--host-root",
        NO_GPU,
        "--driver",
        "fake:t4:2",
        "--fake-control",
        "{gpus: {1: {state: lost}}}",
    ];
    let output = kai(&[&["doctor"], &fake[..]].concat());
    assert!(output.contains("ok       GPU 0"), "{output}");
    assert!(output.contains("problem  GPU 1"), "{output}");
    assert!(output.contains("GPU is lost (ERROR_GPU_IS_LOST)"), "{output}");
    assert!(output.contains("fix: Look for Xid 79 in dmesg"), "{output}");
    assert!(output.ends_with("--- exit code 1\n"), "{output}");
    let output = kai(&[&["node-agent", "--dry-run", "--node-name", "node-1"], &fake[..]].concat());
    assert_eq!(output.matches("Unhealthy").count(), 1, "{output}");
}

#[test]
fn a_control_of_the_fake_gpus_that_is_missing_or_wrong_is_a_usage_error() {
    let place = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &[u8]| {
        let path = place.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path.display().to_string()
    };
    for (control, words) in [
        ("/nonexistent/control.yaml".to_owned(), "No such file"),
        (file("binary", &[0xff, 0x00, 0xfe]), "UTF-8"),
        (file("typo", b"gpus: {0: {stat: lost}}"), "stat"),
        (
            file("absent", b"gpus: {2: {state: lost}}"),
            "gpus.2: there is no GPU \"2\"",
        ),
        ("{gpus: {2: {state: lost}}}".to_owned(), "gpus.2: there is no GPU \"2\""),
        ("{gpus: {0: {stat: lost}}}".to_owned(), "stat"),
    ] {
        for program in [
            &["doctor"][..],
            &["node-agent", "--dry-run", "--node-name", "node-1"],
            &["node-agent", "--no-cluster", "--node-name", "node-1"],
        ] {
            let options = [
                "--host-root",
                NO_GPU,
                "--driver",
                "fake:t4:2",
                "--fake-control",
                &control,
            ];
            let output = kai(&[program, &options].concat());
            let remedy = "Correct the value or the file of --fake-control";
            assert!(output.contains(words) && output.contains(remedy), "{output}");
            assert_eq!(
                output.matches("reading the control of the fake GPUs").count(),
                1,
                "{output}"
            );
            assert!(output.ends_with("--- exit code 2\n"), "{output}");
        }
    }
}

#[test]
fn a_host_root_that_is_not_there_is_a_usage_error() {
    for program in [&["doctor"][..], &["node-agent", "--dry-run", "--node-name", "node-1"]] {
        let output = kai(&[program, &["--host-root", "/nope"]].concat());
        assert!(
            output.contains("error: reading option --host-root: /nope is no directory"),
            "{output}"
        );
        assert!(output.ends_with("--- exit code 2\n"), "{output}");
    }
}

#[test]
fn doctor_for_a_program() {
    insta::assert_snapshot!(kai(&["doctor", "--host-root", NO_GPU, "-o", "json"]));
}

/// The library exists and answers as without the kernel module: fake-nvml does so without configuration.
#[test]
fn doctor_where_the_driver_is_not_loaded() {
    let place = tempfile::tempdir().expect("a directory");
    let library = kai_fake_nvml::install(place.path()).expect("the fake library is built");
    let library = library.display().to_string();
    let output = kai(&["doctor", "--host-root", "x86-server", "--nvml-library", &library]);
    insta::assert_snapshot!(output.replace(&library, "libnvidia-ml.so.1"));
}

/// A pod that reads the host's files but has no device nodes can't tell whether the driver works.
#[test]
fn a_pod_without_device_nodes_does_not_blame_the_driver() {
    let place = tempfile::tempdir().expect("a directory");
    let library = kai_fake_nvml::install(place.path()).expect("the fake library is built");
    let library = library.display().to_string();
    let arguments = ["doctor", "--host-root", "x86-server", "--nvml-library", &library];
    let output = support::command("../gpu/fixtures", &arguments)
        .env("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        .output()
        .expect("kai starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text
        .lines()
        .find(|line| line.contains("Driver Not Loaded"))
        .expect("a finding");
    assert!(line.starts_with("warning  driver "), "{line}");
    assert!(text.contains("kai doctor NODE --privileged"), "{text}");
    assert!(
        text.contains("not looked at: no kubeconfig"),
        "without a token no call is made: {text}"
    );
}

/// An interrupted driver installation leaves such a file. Loading it would end the process by SIGBUS.
#[test]
fn a_driver_library_that_is_cut_off_is_a_problem_with_a_remedy() {
    let place = tempfile::tempdir().expect("a directory");
    let library = kai_fake_nvml::install(place.path()).expect("the fake library is built");
    let file = std::fs::File::options().write(true).open(&library).expect("a file");
    file.set_len(4096 * 3).expect("it is cut");
    let library = library.display().to_string();
    for (program, code) in [
        (&["doctor"][..], 1),
        (&["node-agent", "--dry-run", "--node-name", "node-1"], 2),
    ] {
        let options = ["--host-root", "x86-server", "--nvml-library", &library];
        let output = kai(&[program, &options].concat());
        assert!(
            output.contains(&format!("{library} is not loaded, because it is cut off")),
            "{output}"
        );
        assert!(
            output.contains("Reinstall the driver package that owns the file"),
            "{output}"
        );
        assert!(output.ends_with(&format!("--- exit code {code}\n")), "{output}");
    }
}

/// Sets the address of the library's hash table of symbols to one that is not mapped. The dynamic linker follows it without a check.
fn corrupt_symbol_hash(library: &mut [u8]) {
    const PT_DYNAMIC: u64 = 2;
    const DT_GNU_HASH: u64 = 0x6fff_fef5;
    let number = |bytes: &[u8], at: usize, length: usize| -> u64 {
        let digits = bytes[at..at + length].iter().rev();
        digits.fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let (headers, count) = (number(library, 32, 8) as usize, number(library, 56, 2) as usize);
    let mut headers = (0..count).map(|header| headers + header * 56);
    let dynamic = headers
        .find(|header| number(library, *header, 4) == PT_DYNAMIC)
        .expect("a dynamic section");
    let (start, length) = (
        number(library, dynamic + 8, 8) as usize,
        number(library, dynamic + 32, 8) as usize,
    );
    let mut entries = (start..start + length).step_by(16);
    let entry = entries
        .find(|entry| number(library, *entry, 8) == DT_GNU_HASH)
        .expect("a hash table");
    library[entry + 8..entry + 16].copy_from_slice(&0x7000_0000_0000_u64.to_le_bytes());
}

#[test]
fn a_driver_library_that_crashes_the_dynamic_linker_is_a_problem_with_a_remedy() {
    let place = tempfile::tempdir().expect("a directory");
    let library = kai_fake_nvml::install(place.path()).expect("the fake library is built");
    let mut bytes = std::fs::read(&library).expect("a file");
    corrupt_symbol_hash(&mut bytes);
    std::fs::write(&library, bytes).expect("a file");
    let library = library.display().to_string();
    let output = kai(&["doctor", "--host-root", "x86-server", "--nvml-library", &library]);
    assert!(
        output.contains("the driver library crashes the process that loads it"),
        "{output}"
    );
    assert!(output.contains(&library) && output.contains("SIGSEGV"), "{output}");
    assert!(output.contains("Reinstall the driver package"), "{output}");
    assert!(output.ends_with("--- exit code 1\n"), "{output}");
}

#[test]
fn what_can_t_be_done_is_an_error_in_one_sentence() {
    let pod = ["--pod-name", "gpu-reservation-1", "--pod-namespace", "reservations"];
    for (name, arguments) in [
        ("reservation_without_identity", &["resource-reservation"][..]),
        (
            "reservation_without_cluster",
            &["resource-reservation", pod[0], pod[1], pod[2], pod[3]],
        ),
        ("unknown_driver", &["doctor", "--driver", "voodoo"]),
        (
            "unknown_gpu",
            &[
                "node-agent",
                "--dry-run",
                "--driver",
                "fake:voodoo",
                "--host-root",
                NO_GPU,
            ],
        ),
        ("replicas", &["node-agent", "--dry-run", "--replicas", "many"]),
        ("log_filter", &["node-agent", "--log", "node=loud"]),
    ] {
        insta::assert_snapshot!(name, kai(arguments));
    }
}

/// No process listens on port 1. The line in the log has a time, so this is no snapshot.
#[test]
fn a_cluster_that_does_not_answer() {
    let output = kai(&[
        "resource-reservation",
        "--pod-name",
        "gpu-reservation-1",
        "--pod-namespace",
        "reservations",
        "--api-url",
        "http://127.0.0.1:1",
    ]);
    assert!(
        output.contains("error: reading pod reservations/gpu-reservation-1"),
        "{output}"
    );
    assert!(output.contains("Connection refused"), "{output}");
    assert!(output.ends_with("--- exit code 1\n"), "{output}");
}

/// The command logs to standard error only, in JSON with a flag, and exits with 0 at SIGTERM.
#[test]
fn the_agent_logs_json_and_ends_at_sigterm() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).display().to_string();
    let arguments = [
        "node-agent",
        "--no-cluster",
        "--node-name",
        "node-1",
        "--host-root",
        NO_GPU,
        "--driver",
        "fake:t4:2",
        "--plugin-dir",
        &path("plugins"),
        "--cdi-dir",
        &path("cdi"),
        "--state-dir",
        &path("state"),
        "--metrics-address",
        "",
        "--log-format",
        "json",
    ];
    let mut agent = support::command("../gpu/fixtures", &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kai starts");
    let log = BufReader::new(agent.stderr.take().expect("a pipe"));
    let mut lines = log.lines().map(|line| {
        let line = line.expect("text");
        let fields: serde_json::Value = serde_json::from_str(&line).expect("every line is JSON");
        fields["message"].as_str().expect("a message").to_owned()
    });
    assert!(lines.any(|message| message == "wrote the CDI spec"));
    let ended = Command::new("kill").arg(agent.id().to_string()).status();
    assert!(ended.expect("kill starts").success());
    assert!(lines.any(|message| message == "stopping"));
    let output = agent.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}
