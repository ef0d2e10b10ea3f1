//! Starts the program for all tests of this crate. Each test program uses a part of this module.
#![allow(dead_code)]

use std::path::Path;
use std::process::Command;

/// The command `kai` in a folder of this crate, without the user's environment: no kubeconfig, no colours, no log filter.
pub(crate) fn command(folder: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kai"));
    command
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .env_clear()
        .env("HOME", "/nonexistent");
    command
}

/// Runs kai in the folder and returns its whole output.
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
