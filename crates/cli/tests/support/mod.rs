//! Starts the program the way every test here does. Each test program uses its own part of it.
#![allow(dead_code)]

use std::path::Path;
use std::process::Command;

/// Kai in a folder of this crate, with nothing of the user's in its environment: no kubeconfig, no colours, no log filter.
pub(crate) fn command(folder: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kai"));
    command
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .env_clear()
        .env("HOME", "/nonexistent");
    command
}

/// Runs kai in the folder and shows everything that came out.
pub(crate) fn kai_in(folder: &str, arguments: &[&str]) -> String {
    let output = command(folder, arguments).output().expect("kai starts");
    let stdout = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8(output.stderr).expect("text");
    let code = output.status.code().expect("no signal");
    format!(
        "$ kai {}\n{stdout}--- stderr\n{stderr}--- exit code {code}\n",
        arguments.join(" ")
    )
}
