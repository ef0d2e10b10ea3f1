//! Whole runs of `kai group`, and the examples of docs/grouping-rules.md and docs/cli.md.
#![allow(clippy::unwrap_used)] // The helpers that start the program are test code too.

mod support;

use serde_json::Value;

const FOLDER: &str = "../../examples/grouping";

/// Runs kai at 80 columns: exit code, standard output, standard error.
fn kai(arguments: &[&str]) -> (i32, String, String) {
    let output = support::command(FOLDER, &[&["group"], arguments].concat())
        .env("COLUMNS", "80")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The block that begins with this line in a page of the documentation, without the line.
fn block<'p>(page: &'p str, first: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("{first}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

const RULES_PAGE: &str = include_str!("../../../docs/grouping-rules.md");
const CLI_PAGE: &str = include_str!("../../../docs/cli.md");

#[test]
fn the_example_of_the_page_of_rules() {
    let rule = std::fs::read_to_string(format!("{FOLDER}/render-farm-rule.yaml")).unwrap();
    let written = rule.split_once("apiVersion").unwrap().1;
    assert_eq!(
        block(RULES_PAGE, "```yaml\napiVersion: example.com/v1"),
        written.split_once('\n').unwrap().1
    );
    let line = "$ kai group -f render-farm.yaml --rules render-farm-rule.yaml";
    let arguments: Vec<&str> = line.split(' ').skip(3).collect();
    let (code, out, errors) = kai(&arguments);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(block(RULES_PAGE, line), out);
}

#[test]
fn the_example_of_the_page_of_commands() {
    let line = "$ kai group -f gang-of-two.yaml";
    let (code, out, errors) = kai(&["-f", "gang-of-two.yaml"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(block(CLI_PAGE, line), out);
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn programs_read_the_same_as_json_and_yaml() {
    let run = |format: &str| {
        kai(&[
            "-f",
            "render-farm.yaml",
            "--rules",
            "render-farm-rule.yaml",
            "-o",
            format,
        ])
    };
    let json: Value = serde_json::from_str(&run("json").1).unwrap();
    let yaml: Value = serde_saphyr::from_str(&run("yaml").1).unwrap();
    assert_eq!(json, yaml);
    let group = &json["groups"][0];
    assert_eq!(group["rule"], "render-farm-rule.yaml");
    assert_eq!(group["minimum"]["value"]["pods"], 4);
    assert_eq!(group["minimum"]["from"], "sum of spec.roles[*].replicas");
    assert_eq!(group["subgroups"]["value"][1]["name"], "renderer");
    assert_eq!(group["templates"].as_array().unwrap().len(), 2);
}

#[test]
fn grove_and_volcano_objects_need_no_rules() {
    let (code, out, errors) = kai(&["-f", "grove.yaml", "-f", "volcano.yaml", "-o", "json"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    let json: Value = serde_json::from_str(&out).unwrap();
    let found: Vec<(&str, &str, u64, usize)> = json["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            let subgroups = group["subgroups"]["value"].as_array().unwrap();
            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned().leak() as &str;
            (
                text(&group["owner"]["kind"]),
                text(&group["rule"]),
                group["minimum"]["value"]["pods"].as_u64().unwrap(),
                subgroups.len(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("PodGang", "grove.yaml (shipped with kai)", 3, 2),
            ("Job", "volcano-job.yaml (shipped with kai)", 3, 2),
        ]
    );
    assert_eq!(json["groups"][0]["pods"][0]["subgroup"], "llm-0-prefill");
}

#[test]
fn a_mistake_is_told_and_ends_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rule.yaml");
    std::fs::write(
        &file,
        "apiVersion: example.com/v1\nkind: RenderFarm\nminimum: spec..size\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let told = "rule rule.yaml: minimum: a dot is followed by no field; write\nspec.tasks[0].replicas, for instance\n";
    let (code, out, _) = kai(&["--check", "--rules", file, "--rules", "render-farm-rule.yaml"]);
    assert_eq!((code, out), (1, format!("{told}2 rules checked, 1 with a mistake\n")));
    assert_eq!(kai(&["--check", "--rules", "render-farm-rule.yaml"]).0, 0);
    // The pods of its kind would wait.
    let (code, out, _) = kai(&["-f", "render-farm.yaml", "--rules", file]);
    assert_eq!(code, 1);
    assert!(
        out.contains("can't be grouped") && out.contains("wait for a valid"),
        "{out}"
    );
    let (code, _, errors) = kai(&["-f", "missing.yaml"]);
    assert_eq!(code, 2);
    assert!(errors.starts_with("error: missing.yaml: can't be read"), "{errors}");
}

#[test]
fn a_pod_of_another_scheduler_is_not_grouped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pod.yaml");
    std::fs::write(
        &file,
        "kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n",
    )
    .unwrap();
    let (code, out, _) = kai(&["-f", file.to_str().unwrap()]);
    assert_eq!(code, 0);
    assert!(out.contains("Pod p: not grouped: spec.schedulerName is"), "{out}");
}
