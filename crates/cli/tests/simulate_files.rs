//! `kai simulate --redact` and `--watch`: whole runs of the program with files that it writes and watches.
#![allow(clippy::unwrap_used)] // The helpers that start the program are test code too.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::Value;

/// Longer than any run takes; a test that fails waits for this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Exit code, standard output and standard error of kai in the examples' folder.
fn kai(arguments: &[&str]) -> (i32, String, String) {
    let arguments = [&["simulate"], arguments].concat();
    let output = support::command("../../examples", &arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn totals(paths: &[&Path]) -> Value {
    let paths: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let (code, out, errors) = kai(&[&["-o", "json"], paths.as_slice()].concat());
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str::<Value>(&out).unwrap()["totals"].clone()
}

#[test]
fn every_example_decides_the_same_after_it_is_redacted() {
    let folder = tempfile::tempdir().unwrap();
    let mut redacted = 0;
    for entry in std::fs::read_dir("../../examples").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".yaml") || name == "cluster.yaml" {
            continue;
        }
        let alone = ["two-teams.yaml", "explain.yaml", "thor.yaml"].contains(&name.as_str());
        let inputs: &[&str] = if alone { &[&name] } else { &["cluster.yaml", &name] };
        let target = folder.path().join(&name);
        let (code, _, errors) = kai(&[inputs, &["--redact", target.to_str().unwrap()]].concat());
        assert_eq!(code, 0, "{name}: {errors}");
        let files = match alone {
            true => vec![target],
            false => vec![target.join("1.yaml"), target.join("2.yaml")],
        };
        let paths: Vec<&Path> = inputs.iter().map(Path::new).collect();
        let files: Vec<&Path> = files.iter().map(|file| file.as_path()).collect();
        assert_eq!(totals(&files), totals(&paths), "{name}");
        redacted += 1;
    }
    assert!(redacted > 8, "{redacted} examples");
}

#[test]
fn the_names_of_the_teams_are_not_in_the_redacted_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.yaml");
    let (code, out, _) = kai(&["two-teams.yaml", "--redact", file.to_str().unwrap()]);
    assert_eq!(code, 0);
    // The table tells the owner of the cluster which name is which.
    let row = |from: &str, to: &str| out.lines().any(|line| line.split_whitespace().eq([from, to]));
    assert!(
        row("team-blue", "queue-2") && row("red", "namespace-2") && row("node-b", "node-2"),
        "{out}"
    );
    let text = std::fs::read_to_string(&file).unwrap();
    for name in [
        "blue", "red", "company", "llm", "train", "notebook", "demo", "node-a", "#",
    ] {
        assert!(!text.contains(name), "{name} is in:\n{text}");
    }
    assert!(
        text.contains("gpu-fraction") && text.contains("kai.scheduler/queue"),
        "{text}"
    );
    // As JSON, with all names.
    let json = folder.path().join("report.json");
    let (_, out, _) = kai(&["two-teams.yaml", "-o", "json", "--redact", json.to_str().unwrap()]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["differences"], serde_json::json!([]));
    let names = told["names"].as_array().unwrap();
    assert!(
        names
            .iter()
            .any(|name| name["name"] == "company" && name["redacted"] == "queue-1")
    );
    assert_eq!(totals(&[&json]), totals(&[&file]));
}

/// To update it, paste the output.
#[test]
fn the_docs_show_a_redaction() {
    let docs = include_str!("../../../docs/simulate.md");
    let command = "$ kai simulate examples/explain.yaml --redact report.yaml\n";
    let shown = docs
        .split(command)
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("examples")).unwrap();
    std::fs::copy(
        "../../examples/explain.yaml",
        folder.path().join("examples/explain.yaml"),
    )
    .unwrap();
    let arguments = ["simulate", "examples/explain.yaml", "--redact", "report.yaml"];
    let output = support::command(".", &arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), shown);
}

#[test]
fn what_can_t_be_redacted_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.yaml");
    std::fs::copy("../../examples/two-teams.yaml", &copy).unwrap();
    let copy = copy.to_str().unwrap();
    let (code, _, errors) = kai(&[copy, "--redact", copy]);
    assert_eq!(code, 2, "{errors}");
    assert!(
        errors.contains("this is the input; name another file for --redact"),
        "{errors}"
    );
    let out = folder.path().join("out.yaml");
    let (code, _, errors) = kai(&["../scenarios/mig", "--redact", out.to_str().unwrap()]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("--redact writes one cluster, and here are"), "{errors}");
    assert!(!out.exists());
    let (code, _, errors) = kai(&["cluster.yaml", "gang.yaml", "--redact", folder.path().to_str().unwrap()]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("name a new one"), "{errors}");
}

/// A running `kai simulate --watch`. It ends with the test.
struct Watching {
    child: Child,
    out: Lines,
    errors: Lines,
}

/// The lines of a stream, as they come.
struct Lines(Receiver<String>);

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Lines {
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stream).lines();
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Lines(lines)
    }

    /// Reads on until a line has the words.
    fn until(&self, words: &str) {
        let mut read = Vec::new();
        loop {
            match self.0.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(words) => return,
                Ok(line) => read.push(line),
                Err(_) => panic!("no line has {words:?}:\n{}", read.join("\n")),
            }
        }
    }
}

impl Watching {
    fn start(folder: &Path, arguments: &[&str]) -> Watching {
        let arguments = [&["simulate", "--watch"], arguments].concat();
        let mut child = support::command(".", &arguments)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Watching {
            out: Lines::of(child.stdout.take().unwrap()),
            errors: Lines::of(child.stderr.take().unwrap()),
            child,
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn two_teams() -> String {
    std::fs::read_to_string("../../examples/two-teams.yaml").unwrap()
}

#[test]
fn a_change_of_a_file_runs_it_again_and_tells_the_difference() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, two_teams()).unwrap();
    let watching = Watching::start(folder.path(), &["policy.yaml"]);
    watching
        .out
        .until("policy (policy.yaml): 1 bound, 4 pipelined, 2 evicted, 0 pending");
    watching.errors.until("watching");
    std::fs::write(&file, two_teams().replace("quota: 6", "quota: 2")).unwrap();
    watching.out.until("after:  1 bound, 0 pipelined, 0 evicted, 4 pending");
    watching.out.until("team-blue     6 -> 2");
    // Broken for a moment, and gone for a moment.
    std::fs::write(&file, "{{{").unwrap();
    watching.errors.until("error: policy.yaml: is not valid YAML");
    std::fs::remove_file(&file).unwrap();
    watching.errors.until("error: policy.yaml: can't be read");
    // As editors do: a new file in place of the old one. It is compared with the last run that worked.
    let new = folder.path().join("policy.new");
    std::fs::write(&new, two_teams()).unwrap();
    std::fs::rename(&new, &file).unwrap();
    watching.out.until("before: 1 bound, 0 pipelined, 0 evicted, 4 pending");
    watching.out.until("after:  1 bound, 4 pipelined, 2 evicted, 0 pending");
}

#[test]
fn cases_of_a_folder_are_checked_again() {
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases");
    std::fs::create_dir(&cases).unwrap();
    let text = std::fs::read_to_string("tests/data/differs.yaml").unwrap();
    let watching = {
        std::fs::write(cases.join("one.yaml"), &text).unwrap();
        Watching::start(folder.path(), &["--check", "cases"])
    };
    watching.out.until("0 passed, 1 failed");
    watching.errors.until("watching");
    std::fs::write(cases.join("two.yaml"), &text).unwrap();
    watching.out.until("0 passed, 2 failed");
}

#[test]
fn a_submitted_file_is_watched_too() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("teams.yaml"), two_teams()).unwrap();
    let pod = |fraction: &str| {
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{ name: small, namespace: blue, labels: {{ kai.scheduler/queue: team-blue }}, \
             annotations: {{ gpu-fraction: '{fraction}' }} }}\nspec: {{ schedulerName: kai-scheduler, containers: [{{ name: main }}] }}\n"
        )
    };
    std::fs::write(folder.path().join("pod.yaml"), pod("0.25")).unwrap();
    let watching = Watching::start(folder.path(), &["teams.yaml", "--what-if", "submit pod.yaml"]);
    watching.out.until("2 bound, 4 pipelined");
    watching.errors.until("watching");
    std::fs::write(folder.path().join("pod.yaml"), pod("0.75")).unwrap();
    watching.out.until("before: 2 bound, 4 pipelined");
}

#[test]
fn ctrl_c_ends_it_with_success() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("teams.yaml"), two_teams()).unwrap();
    let mut watching = Watching::start(folder.path(), &["teams.yaml"]);
    watching.errors.until("watching");
    let id = i32::try_from(watching.child.id()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(id).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert!(watching.child.wait().unwrap().success());
}

#[test]
fn standard_input_can_t_be_watched() {
    let (code, _, errors) = kai(&["--watch", "-"]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("--watch can't watch standard input"), "{errors}");
}
