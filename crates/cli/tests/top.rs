//! `kai top` in a real terminal: tmux. Skipped where tmux is missing; `.ci/terminal` installs it.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

#[path = "support/mod.rs"]
mod support;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use kai_cluster::{Client, ClientConfig, Deletion, Target};
use support::Playground;

const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of 80 columns. It ends with its owner.
struct Terminal(String);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

impl Terminal {
    fn tmux(&self, arguments: &[&str]) -> std::io::Result<Output> {
        // A server of its own, without the user's configuration.
        let mut command = Command::new("tmux");
        command
            .args(["-L", &self.0, "-f", "/dev/null"])
            .args(arguments)
            .output()
    }

    fn screen(&self) -> String {
        let captured = self.tmux(&["capture-pane", "-p"]).unwrap();
        String::from_utf8_lossy(&captured.stdout).into_owned()
    }

    /// Presses keys, and waits for a screen that contains all of these texts.
    fn press(&self, keys: &[&str], expected: &[&str]) -> String {
        for key in keys {
            self.tmux(&["send-keys", key]).unwrap();
        }
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if expected.iter().all(|text| screen.contains(text)) {
                return screen;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{expected:?} is not on the screen:\n{screen}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[tokio::test]
async fn a_cluster_is_watched_in_a_terminal() {
    let terminal = Terminal(format!("kai-top-{}", std::process::id()));
    if terminal.tmux(&["-V"]).is_err() {
        println!("skipped: tmux is missing");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _playground = Playground::start(&[], &kubeconfig);
    let top = format!(
        "{} top --kubeconfig {}; echo ended with $?; sleep 1000",
        env!("CARGO_BIN_EXE_kai"),
        kubeconfig.display()
    );
    let started = terminal
        .tmux(&["new-session", "-d", "-x", "80", "-y", "24", &top])
        .unwrap();
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));

    let screen = terminal.press(&[], &["h100-0", "thor", "q quit"]);
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    // One of the five models waits; which one depends on the order in which the pod grouper saw them.
    let screen = terminal.press(&["3"], &["Pod default/llm-"]);
    let models: Vec<String> = (0..5).map(|at| format!("llm-{at}")).collect();
    // The reason below the table names the others.
    let row = screen.lines().find(|line| line.starts_with("default-queue")).unwrap();
    let (waiting, running): (Vec<_>, Vec<_>) = models.iter().partition(|model| row.contains(model.as_str()));
    let below: Vec<&str> = screen.lines().skip_while(|line| !line.starts_with('─')).collect();
    assert!(
        below.concat().contains("no nodes with enough resources were found"),
        "{screen}"
    );
    let ([waiting], [first, ..]) = (&waiting[..], &running[..]) else {
        panic!("{screen}")
    };
    terminal.press(&["Enter"], &["esc back", "WHAT WOULD HELP"]);
    terminal.press(&["G"], &["end Pod default/llm-"]);
    // The terminal reads Escape and a key that comes at once as one key with Alt.
    terminal.press(&["Escape"], &["enter explain"]);
    terminal.press(
        &["4", "/", "blue", "Enter"],
        &["default/blue-", "only rows with \"blue\""],
    );
    terminal.press(&["Escape"], &["enter explain"]);
    terminal.press(&["5"], &["bind", &format!("default/{first}")]);
    // The advice is followed, and the screen shows what comes of it.
    let client = Client::connect(&ClientConfig::Kubeconfig(kubeconfig)).await.unwrap();
    client
        .delete(Target::of::<kai_api::Pod>("default", first), &Deletion::default())
        .await
        .unwrap();
    let bound = format!("default/{waiting}");
    terminal.press(&["/", waiting, "Enter"], &["bind", &bound, "thor"]);
    terminal.press(&["?"], &["everything about the selected object"]);
    // The terminal is as it was before.
    terminal.press(&["q", "q"], &["ended with 0"]);
}
