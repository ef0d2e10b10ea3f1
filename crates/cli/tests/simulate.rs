//! Whole runs of `kai simulate`: what a person and a program see, and the exit code.

mod support;

/// Runs kai in the folder and shows everything that came out. Times and memory are blanked: they differ every time.
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

/// The picture in the README is what the program prints. To renew it, paste the output.
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
