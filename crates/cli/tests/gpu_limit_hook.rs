//! The hook that limits the GPU memory of containers, as container runtimes run it: from the agent's copy, by the copied loader, with an empty
//! environment and a foreign working directory.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kai_node::enforcement::program::{HookProgram, ProgramDir, ProgramFiles};

fn installed(state: &tempfile::TempDir) -> HookProgram {
    let files = ProgramFiles::of(env!("CARGO_BIN_EXE_kai").into()).unwrap();
    ProgramDir::new(state.path()).install(&files).unwrap()
}

fn run(program: &HookProgram, options: &[&str], state: &str) -> Output {
    let words = program.command(options.iter().map(|option| (*option).to_owned()));
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env_clear()
        .current_dir("/proc")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(state.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn the_copy_runs_without_the_hosts_libraries_and_fails_in_one_line() {
    let place = tempfile::tempdir().unwrap();
    let program = installed(&place);
    program.probe(None, &[]).unwrap().unwrap();
    for (policy, code) in [("closed", 1), ("open", 0)] {
        let gone = r#"{"ociVersion":"1.0.2","id":"abc","status":"creating","pid":4194304,"bundle":"/b"}"#;
        let options = [
            "--gpu",
            "GPU-1=5",
            "--policy",
            policy,
            "--namespace",
            "team",
            "--pod",
            "half",
            "--container",
            "main",
        ];
        let done = run(&program, &options, gone);
        assert_eq!(done.status.code(), Some(code));
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains("team/half, container main") && said.contains("has ended"),
            "{said}"
        );
    }
}

/// Prints the hook's own time: from its start to its end, without a call of the driver.
#[test]
#[ignore = "prints times; run it with the release build"]
fn the_hooks_own_time() {
    let place = tempfile::tempdir().unwrap();
    let program = installed(&place);
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let begun = Instant::now();
            assert!(run(&program, &["--probe"], "").status.success());
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("median {:?}, largest {:?}", times[25], times[49]);
}
