//! Records the commit and the target for `kai version`. Works without git and without a repository.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=KAI_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_release = variable("PROFILE") == "release";
    let commit = match variable("KAI_COMMIT") {
        // A debug build would have to be built again after every commit, with all its tests.
        told if told.is_empty() && is_release => git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default(),
        told => told,
    };
    if is_release && let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rustc-env=KAI_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=KAI_BUILD_TARGET={}", variable("TARGET"));
    let profile = if is_release { "release" } else { "debug" };
    println!("cargo::rustc-env=KAI_BUILD_PROFILE={profile}");
}

/// The output of git; `None` without git or outside of a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
