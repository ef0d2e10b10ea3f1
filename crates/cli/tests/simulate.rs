//! Whole runs of `kai simulate`: its output for users and for programs, and the exit code.
#![allow(clippy::unwrap_used)] // The helpers that start the program are test code too.

mod support;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

/// Runs kai in the folder and returns its whole output. Times and memory are blanked, because they differ between runs.
fn kai_in(folder: &str, arguments: &[&str]) -> String {
    blank_times(&support::kai_in(folder, arguments))
}

fn blank_times(text: &str) -> String {
    let mut blank = String::new();
    for line in text.lines() {
        let line = match line.find("\"timing\"") {
            Some(start) => {
                let rest = &line[start..];
                let end = rest.find(",\"differences\"").unwrap_or(rest.len() - 1);
                format!("{}\"timing\":...{}", &line[..start], &rest[end..])
            }
            None if line.starts_with("read in ") => "read in ... ms, decided in ... ms".to_owned(),
            None => line.to_owned(),
        };
        blank.push_str(&line);
        blank.push('\n');
    }
    blank
}

fn kai(arguments: &[&str]) -> String {
    kai_in("tests/data", arguments)
}

#[test]
fn example_table() {
    insta::assert_snapshot!(kai_in("../../examples", &["simulate", "two-teams.yaml"]));
}

#[test]
fn example_settles() {
    insta::assert_snapshot!(kai_in(
        "../../examples",
        &["simulate", "two-teams.yaml", "--cycles", "3"]
    ));
}

#[test]
fn json() {
    insta::assert_snapshot!(kai(&["simulate", "differs.yaml", "-o", "json"]));
}

#[test]
fn check_tells_each_difference() {
    insta::assert_snapshot!(kai(&["simulate", "--check", "differs.yaml"]));
}

#[test]
fn check_with_json_keeps_standard_output_clean() {
    insta::assert_snapshot!(kai(&["simulate", "--check", "differs.yaml", "-o", "json"]));
}

#[test]
fn odd_objects_are_skipped_with_a_word() {
    insta::assert_snapshot!(kai(&["simulate", "odd.yaml"]));
}

#[test]
fn what_can_t_be_read_is_an_error_in_one_sentence() {
    for (name, arguments) in [
        ("broken_json", &["simulate", "broken.json"][..]),
        ("nan", &["simulate", "nan.json"]),
        ("wrong_type", &["simulate", "wrong-type.yaml"]),
        ("missing_file", &["simulate", "gone.json"]),
        (
            "unknown_action",
            &["simulate", "differs.yaml", "--actions", "allocate,pray"],
        ),
        (
            "checked_and_broken",
            &["simulate", "--check", "broken.json", "differs.yaml"],
        ),
    ] {
        insta::assert_snapshot!(name, kai(arguments));
    }
}

#[test]
fn actions_can_be_chosen() {
    let output = kai(&[
        "simulate",
        "differs.yaml",
        "--actions",
        "stalegangeviction",
        "-o",
        "json",
    ]);
    assert!(output.contains("\"bound\":0"), "{output}");
}

/// The output in the README is the real output. To update it, paste the output.
#[test]
fn the_readme_shows_the_truth() {
    let readme = include_str!("../../../README.md");
    let shown = readme
        .split("```console\n$ cargo run --release -- simulate examples/two-teams.yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let printed = kai_in("../..", &["simulate", "examples/two-teams.yaml"]);
    let printed = printed.split_once('\n').unwrap().1.split("--- stderr").next().unwrap();
    assert_eq!(blank_times(shown), printed);
}

/// The table with its last column blank: pods per second differ between runs.
fn without_speed(table: &str) -> String {
    let mut text = String::new();
    for line in table.lines() {
        match line.rsplit_once(' ') {
            Some((rest, speed)) if speed.parse::<u64>().is_ok() => text.push_str(rest.trim_end()),
            Some(_) | None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// The replay in the documentation is the real output. To update it, paste the output.
#[test]
fn the_documented_replay_is_true() {
    let page = include_str!("../../../docs/placement.md");
    let shown = page
        .split("```console\n$ kai simulate trace examples/trace --trace small --seed 1 --policy best-fit,fgd,binpack,frag\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let arguments = ["simulate", "trace", "examples/trace", "--trace", "small", "--seed", "1"];
    let printed = support::kai_in(
        "../..",
        &[&arguments[..], &["--policy", "best-fit,fgd,binpack,frag"]].concat(),
    );
    let printed = printed.split_once('\n').unwrap().1.split("--- stderr").next().unwrap();
    assert_eq!(without_speed(shown), without_speed(printed));
}

/// The run in docs/usage.md is the real output. To update it, paste the output.
#[test]
fn the_documented_competition_is_true() {
    let page = include_str!("../../../docs/usage.md");
    let shown = page
        .split("```console\n$ kai simulate --usage examples/usage/two-teams.yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (svg, csv) = (path("usage.svg"), path("usage.csv"));
    let arguments = [
        "simulate",
        "--usage",
        "examples/usage/two-teams.yaml",
        "--svg",
        &svg,
        "--csv",
        &csv,
    ];
    let output = support::command("../..", &arguments).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        shown,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let picture = std::fs::read_to_string(svg).unwrap();
    assert_eq!(picture.matches("<polyline").count(), 4);
    let rows = std::fs::read_to_string(csv).unwrap();
    assert!(
        rows.starts_with("Time,QueueID,Allocation,FairShare,Usage,Hours\n0,company,"),
        "{}",
        &rows[..200]
    );
    assert_eq!(rows.lines().count(), 1 + 3 * 7 * 24 * 6);
}

#[test]
fn a_competition_in_a_wrong_file_is_refused() {
    let output = kai(&["simulate", "--usage", "none.yaml"]);
    assert!(output.contains("none.yaml: can't be read"), "{output}");
    let output = kai(&["simulate", "--usage", "none.yaml", "--cycles", "3"]);
    assert!(output.contains("cannot be used with"), "{output}");
    let output = kai(&["simulate", "differs.yaml", "--svg", "a.svg"]);
    assert!(output.contains("--csv and --svg are for --usage FILE"), "{output}");
}

#[test]
fn a_replay_has_an_object_per_run_and_draws_its_curves() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("curves.svg");
    let arguments = [
        "simulate",
        "trace",
        "--pods",
        "small-1-pods.csv",
        "--nodes",
        "small-1-nodes.csv",
        "--policy",
        "random,frag-learned",
        "--svg",
        picture.to_str().unwrap(),
        "-o",
        "json",
    ];
    let output = support::command("../../examples/trace", &arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let start = r#"{"trace":"default","seed":42,"policy":"random","allocationPercent":{"80":"#;
    assert!(text.starts_with(start), "{text}");
    let runs: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = runs.iter().map(|run| run["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["random", "frag-learned"]);
    for run in &runs {
        let mut keys: Vec<&String> = run.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(
            keys,
            [
                "allocationPercent",
                "decisionsPerSecond",
                "failedPods",
                "fragmentationPercent",
                "policy",
                "seed",
                "trace",
                "wallMs"
            ]
        );
        for by_load in ["allocationPercent", "fragmentationPercent"] {
            let mut loads: Vec<&String> = run[by_load].as_object().unwrap().keys().collect();
            loads.sort();
            assert_eq!(loads, ["100", "130", "80"], "{by_load}");
        }
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert_eq!(picture.matches("<polyline").count(), 4);
}

#[test]
fn a_replay_without_its_files_or_policy_says_what_is_missing() {
    let output = kai(&["simulate", "trace", ".", "--trace", "none"]);
    assert!(
        output.contains("none-42-pods.csv: is missing, also with .gz"),
        "{output}"
    );
    let output = kai(&["simulate", "trace", ".", "--policy", "best"]);
    assert!(output.contains("known policies are random, dot-product"), "{output}");
    let output = kai(&["simulate", "trace", "--pods", "differs.yaml", "--nodes", "differs.yaml"]);
    assert!(
        output.contains("differs.yaml: line 2: column num_gpu is missing"),
        "{output}"
    );
}

/// The explanation in the documentation is the real output. To update it, paste the output.
#[test]
fn the_documented_explanation_is_true() {
    let page = include_str!("../../../docs/explain.md");
    let shown = page
        .split("```console\n$ kai simulate examples/explain.yaml --explain red/train\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let printed = kai_in(
        "../..",
        &["simulate", "examples/explain.yaml", "--explain", "red/train"],
    );
    let printed = printed.split("decided in ... ms\n\n").nth(1).unwrap();
    assert_eq!(shown, printed.split("--- stderr").next().unwrap());
}

#[test]
fn a_pod_group_and_a_short_name_are_explained() {
    let explained = |name: &str| {
        let arguments = ["simulate", "explain.yaml", "-o", "json", "--explain", name];
        let output = support::command("../../examples", &arguments).output().unwrap();
        let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), outcome["explanation"].clone())
    };
    let (code, of_pod) = explained("red/train");
    assert_eq!(code, 0);
    let kinds: Vec<&str> = of_pod["remedies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|remedy| remedy["steps"][0]["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["end", "uncordon", "askAtMost", "addNodes"], "{of_pod:#}");
    assert_eq!(explained("train"), (0, of_pod.clone()));
    let (_, of_blue) = explained("blue/llm");
    assert_eq!(of_blue["noRemedy"], "the pod does not wait");
    let group = of_pod["remedies"][0]["steps"][0]["podGroup"].as_str().unwrap();
    assert_eq!(explained(group), (0, of_blue));
    let (code, missing) = explained("nobody");
    assert_eq!(code, 2);
    assert_eq!(
        missing["error"],
        "there is no pod or pod group nobody; pods that wait: red/train"
    );
}

/// A case without an expectation because of a typo must not pass.
#[test]
fn a_case_with_an_unknown_key_does_not_pass() {
    let output = kai(&["simulate", "--check", "typo.yaml"]);
    assert!(output.contains("0 passed, 1 failed"), "{output}");
    assert!(
        output.contains("error: typo.yaml: case: expects: there is no field \"expects\" here; did you mean expect?"),
        "{output}"
    );
    assert!(output.ends_with("--- exit code 1\n"), "{output}");
}

#[test]
fn exit_codes_tell_pending_pods_and_warnings_where_that_is_asked_for() {
    let code = |arguments: &[&str]| {
        let output = kai(&[&["simulate"], arguments].concat());
        let (_, code) = output.rsplit_once("exit code ").unwrap();
        code.trim().to_owned()
    };
    assert_eq!(code(&["waits.yaml"]), "0");
    assert_eq!(code(&["waits.yaml", "--fail-on-pending"]), "1");
    assert_eq!(code(&["waits.yaml", "--strict"]), "0");
    assert_eq!(code(&["odd.yaml"]), "0");
    assert_eq!(code(&["odd.yaml", "--strict"]), "2");
    // A refused pod counts like a pending one.
    assert_eq!(code(&["refused.yaml"]), "0");
    assert_eq!(code(&["refused.yaml", "--fail-on-pending"]), "1");
}

#[test]
fn junit() {
    let output = kai(&["simulate", "--check", "-o", "junit", "differs.yaml", "typo.yaml"]);
    let times = output.split(" time=\"").map(|part| match part.split_once('"') {
        Some((time, rest)) if time.parse::<f64>().is_ok() => format!("...\"{rest}"),
        _ => part.to_owned(),
    });
    insta::assert_snapshot!(times.collect::<Vec<_>>().join(" time=\""));
}

/// A report without a comparison would show failing cases as passed.
#[test]
fn junit_compares_cases_without_being_told() {
    let output = kai(&["simulate", "-o", "junit", "differs.yaml"]);
    assert!(output.contains("<testsuites tests=\"1\" failures=\"1\""), "{output}");
    assert!(output.ends_with("--- exit code 1\n"), "{output}");
}

#[test]
fn workloads_of_the_wrong_type_are_errors_that_name_file_object_and_field() {
    let output = kai(&["simulate", "wrong-template.yaml"]);
    assert!(
        output.contains(
            "error: wrong-template.yaml: Deployment web: spec.template: invalid type: string \"foo\", expected fields with values"
        ),
        "{output}"
    );
    assert!(output.ends_with("--- exit code 2\n"), "{output}");
}

#[test]
fn reasons_name_workloads_and_sum_them() {
    let output = kai(&["simulate", "workloads.yaml", "-o", "json"]);
    assert!(
        output.contains("held by Job default/train (2 GPUs), Deployment default/model (1 GPU)"),
        "{output}"
    );
}

#[test]
fn standard_input_is_read() {
    let mut child = support::command("tests/data", &["simulate", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let text = std::fs::read("tests/data/waits.yaml").unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("standard input (standard input): 0 bound") && output.status.success(),
        "{text}"
    );
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let output = kai(&["simulate", "escapes.yaml"]);
    assert!(!output.contains('\u{1b}'), "{output:?}");
    assert!(output.contains("no\\u{1b}[31mde"), "{output}");
}

/// The output of kai on a terminal of this many columns.
fn on_a_terminal(columns: u16, folder: &str, arguments: &[&str]) -> String {
    run_on_a_terminal(columns, support::command(folder, arguments))
}

/// The output of a command on a terminal of this many columns.
fn run_on_a_terminal(columns: u16, mut command: std::process::Command) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = rustix::termios::Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let program = File::options().read(true).write(true).open(name).unwrap();
    let mut child = command.stdout(program).stderr(Stdio::null()).spawn().unwrap();
    // Close this copy of the terminal, so that reading ends with the program.
    drop(command);
    let mut bytes = Vec::new();
    // Reading from a terminal whose program has ended gives an error instead of the end of file.
    let _ = File::from(terminal).read_to_end(&mut bytes);
    assert!(child.wait().unwrap().success());
    String::from_utf8(bytes).unwrap().replace("\r\n", "\n")
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').unwrap().1);
    }
    plain
}

#[test]
fn tables_are_aligned_on_a_terminal() {
    let arguments = ["simulate", "two-teams.yaml"];
    let wide = on_a_terminal(200, "../../examples", &arguments);
    assert!(wide.contains("\u{1b}[32m"), "it has colours: {wide:?}");
    let piped = kai_in("../../examples", &arguments);
    let piped = piped.split_once('\n').unwrap().1.split("--- stderr").next().unwrap();
    assert_eq!(blank_times(&without_colours(&wide)), piped);
}

#[test]
fn no_color_turns_colours_off_on_a_terminal() {
    let mut command = support::command("../../examples", &["simulate", "two-teams.yaml"]);
    command.env("NO_COLOR", "1");
    let shown = run_on_a_terminal(200, command);
    assert!(shown.contains("node-a") && !shown.contains('\u{1b}'), "{shown:?}");
    // An empty value is none (no-color.org).
    let mut command = support::command("../../examples", &["simulate", "two-teams.yaml"]);
    command.env("NO_COLOR", "");
    assert!(run_on_a_terminal(200, command).contains('\u{1b}'));
}

#[test]
fn tables_fit_into_80_columns() {
    let shown = without_colours(&on_a_terminal(80, "../../examples", &["simulate", "two-teams.yaml"]));
    for line in shown.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    let shown = shown.split("\n\n").nth(2).unwrap();
    insta::assert_snapshot!(shown);
}

#[test]
fn four_of_five_pods_run_on_a_jetson() {
    insta::assert_snapshot!(kai_in("../..", &["simulate", "examples/thor.yaml", "multiubuntu.yaml"]));
}

/// Each example on the playground's nodes: the number of pods that start, and that wait.
#[test]
fn examples_come_out_as_they_say() {
    let examples = [
        ("gang.yaml", 4, 3),
        ("topology.yaml", 4, 5),
        ("mig.yaml", 2, 0),
        ("time-slicing.yaml", 4, 0),
        ("inference.yaml", 4, 0),
        ("preemption.yaml", 2, 1),
        ("volumes.yaml", 2, 1),
        ("jetson.yaml", 4, 1),
        ("half-a-gpu.yaml", 2, 0),
        ("gpu-limits.yaml", 2, 1),
    ];
    for (file, bound, pending) in examples {
        let arguments = ["simulate", "--strict", "-o", "json", "cluster.yaml", file];
        let output = support::command("../../examples", &arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{file}: {told}");
        let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let totals = &outcome["totals"];
        assert_eq!(
            (&totals["bound"], &totals["pending"]),
            (&bound.into(), &pending.into()),
            "{file}: {outcome:#}"
        );
        assert_eq!(outcome["files"], serde_json::json!(["cluster.yaml", file]));
    }
    let all = std::fs::read_dir("../../examples")
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let manifests = all.filter(|name| name.to_str().is_some_and(|name| name.ends_with(".yaml")));
    // The cluster itself, the Jetson of multiubuntu.yaml, and two examples with their own nodes.
    assert_eq!(manifests.count(), examples.len() + 4, "an example is not tried");
}

/// The JSON of a run in the examples' folder.
fn example_json(arguments: &[&str]) -> serde_json::Value {
    let arguments = [&["simulate", "--strict", "-o", "json"], arguments].concat();
    let output = support::command("../../examples", &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Changes of the two teams' cluster: pods bound, pipelined, evicted and pending.
#[test]
fn changes_come_out_as_expected() {
    let check = |changes: &[&str], expect: [u64; 4]| {
        let flags = changes.iter().flat_map(|change| ["--what-if", change]);
        let arguments: Vec<&str> = ["two-teams.yaml"].into_iter().chain(flags).collect();
        let totals = &example_json(&arguments)["totals"];
        let found = ["bound", "pipelined", "evicted", "pending"].map(|name| totals[name].as_u64().unwrap());
        assert_eq!(found, expect, "{changes:?}");
    };
    check(&[], [1, 4, 2, 0]);
    check(&["add 1 node like node-b"], [5, 0, 0, 0]);
    check(&["cordon node node-a"], [0, 4, 2, 1]);
    check(&["queue team-blue gpu.quota=2"], [1, 0, 0, 4]);
    check(&["queue team-blue gpu.limit=1"], [1, 0, 0, 4]);
    check(&["delete pod red/train-2", "delete pod red/train-3"], [5, 0, 0, 0]);
    // The gang waits for four GPUs of the other node, whose pods wait now.
    check(&["remove node node-a"], [0, 1, 1, 6]);
    check(&["remove node node-b"], [1, 0, 0, 6]);
    check(&["delete podgroup blue/llm"], [1, 0, 0, 0]);
    // Red is within its quota, and nothing may be taken from it.
    check(&["queue team-red gpu.quota=8"], [1, 0, 0, 4]);
    check(&["queue team-blue cpu.limit=1"], [0, 0, 0, 5]);
    // The second change undoes the first one.
    check(
        &["queue team-blue gpu.quota=2", "queue team-blue gpu.quota=6"],
        [1, 4, 2, 0],
    );
}

/// Changes that show in the fair shares: GPUs of team-blue and team-red.
#[test]
fn changes_of_weights_and_priorities_change_fair_shares() {
    let check = |changes: &[&str], expect: [f64; 2]| {
        let flags = changes.iter().flat_map(|change| ["--what-if", change]);
        let arguments: Vec<&str> = ["two-teams.yaml"].into_iter().chain(flags).collect();
        let outcome = example_json(&arguments);
        let queues = outcome["queues"].as_array().unwrap();
        let share = |name: &str| {
            let queue = queues.iter().find(|queue| queue["name"] == name).unwrap();
            queue["gpu"]["fairShare"].as_f64().unwrap()
        };
        assert_eq!([share("team-blue"), share("team-red")], expect, "{changes:?}");
    };
    check(&[], [4.25, 3.75]);
    check(&["queue team-red gpu.overQuotaWeight=0"], [4.25, 2.0]);
    let no_quotas = ["queue team-blue gpu.quota=0", "queue team-red gpu.quota=0"];
    check(&no_quotas, [4.0, 4.0]);
    check(&[&no_quotas[..], &["queue team-red priority=200"]].concat(), [0.5, 7.5]);
    check(
        &[&no_quotas[..], &["queue team-blue priority=200"]].concat(),
        [4.25, 3.75],
    );
}

/// A submitted pod passes admission and grouping, and is placed like the others.
#[test]
fn submitted_pods_are_scheduled() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pod.yaml");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: { name: small, namespace: blue, labels: { kai.scheduler/queue: team-blue }, \
               annotations: { gpu-fraction: '0.25' } }\n\
               spec: { schedulerName: kai-scheduler, containers: [{ name: main }] }\n";
    std::fs::write(&file, pod).unwrap();
    let change = format!("submit {}", file.display());
    let outcome = example_json(&["two-teams.yaml", "--what-if", &change]);
    let pods = outcome["pods"].as_array().unwrap();
    let small = pods.iter().find(|pod| pod["name"] == "small").unwrap();
    assert_eq!(
        (&small["status"], &small["node"]),
        (&"Binding".into(), &"node-a".into())
    );
    assert_eq!(outcome["totals"]["bound"], 2);
}

#[test]
fn a_difference_as_json_has_the_explanation() {
    let arguments = [
        "simulate",
        "examples/explain.yaml",
        "--what-if",
        "cordon node h100-1",
        "--diff",
        "--explain",
        "red/train",
        "-o",
        "json",
    ];
    let output = support::command("../..", &arguments).output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["changes"], serde_json::json!(["cordon node h100-1"]));
    assert_eq!(told["explanation"]["name"], "train", "{told}");
    assert!(
        !told["explanation"]["remedies"].as_array().unwrap().is_empty(),
        "{told}"
    );
}

#[test]
fn the_docs_show_the_difference_that_a_change_makes() {
    let docs = include_str!("../../../docs/simulate.md");
    let command = "$ kai simulate examples/two-teams.yaml --what-if \"add 1 node like node-b\" --diff\n";
    let shown = docs
        .split(command)
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let arguments = [
        "simulate",
        "examples/two-teams.yaml",
        "--what-if",
        "add 1 node like node-b",
        "--diff",
    ];
    let output = support::command("../..", &arguments).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), shown);
}

#[test]
fn differences_fit_into_80_columns() {
    let arguments = [
        "simulate",
        "two-teams.yaml",
        "--what-if",
        "remove node node-a",
        "--diff",
    ];
    let shown = without_colours(&on_a_terminal(80, "../../examples", &arguments));
    for line in shown.lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    insta::assert_snapshot!(shown);
}

/// As `kubectl create` of the same file: the second object gets a name of its own.
#[test]
fn a_file_with_generated_names_can_be_submitted_twice() {
    let folder = tempfile::tempdir().unwrap();
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: { generateName: train- }\n\
               spec: { template: { spec: { schedulerName: kai-scheduler, containers: [{ name: main }] } } }\n";
    std::fs::write(folder.path().join("job.yaml"), job).unwrap();
    let arguments = ["simulate", "job.yaml", "--what-if", "submit job.yaml", "-o", "json"];
    let output = support::command(".", &arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = outcome["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["train-0-0", "train-1-0"], "{outcome:#}");
}

/// Objects of a case need no admission and grouping; a submitted workload does.
#[test]
fn a_case_can_be_changed() {
    let run = |change: &str| kai(&["simulate", "differs.yaml", "--what-if", change, "-o", "json"]);
    insta::assert_snapshot!("what_if_case", run("submit workloads.yaml"));
}

#[test]
fn changes_that_can_t_be_made_are_errors() {
    for (name, change) in [
        ("what_if_unknown_node", "add 2 nodes like nodeb"),
        ("what_if_unknown_queue", "queue team-bleu gpu.quota=3"),
        ("what_if_other_namespace", "delete pod notebook"),
        ("what_if_wrong_words", "queue team-blue gpu.qouta=3"),
        ("what_if_missing_file", "submit gone.yaml"),
    ] {
        insta::assert_snapshot!(
            name,
            kai_in("../../examples", &["simulate", "two-teams.yaml", "--what-if", change])
        );
    }
}
