//! The playground's page in a real browser: headless Chromium. Skipped where Chromium or kubectl is missing; `.ci/page` installs Chromium.
//! The tests of `kai-page` look at each view; this one at the whole way from `kubectl apply` to the page.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

mod support;
#[path = "../../page/tests/browser/webdriver.rs"]
#[allow(dead_code)] // The tests of the page use the rest.
mod webdriver;

use std::path::Path;
use std::process::Command;

use support::Playground;
use webdriver::{Browser, Colours};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs kubectl with the playground's kubeconfig; `None` if there is no kubectl.
fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Option<()> {
    let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
    let mut command = Command::new(program);
    let output = command
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .current_dir(ROOT)
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

#[test]
fn what_kubectl_applies_is_on_the_page() {
    let Some(browser) = Browser::start(Colours::Light) else {
        println!("skipped: chromium or chromedriver is missing");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let playground = Playground::start(&["--ui-address", "127.0.0.1:0"], &kubeconfig);
    let at = |path: &str| format!("http://{}{path}", playground.page);
    let live = "document.getElementById('state').textContent === 'live'";

    // The story: queues at their fair share, one model that waits, an eviction with its reason.
    browser.open(&at("/"));
    browser.until(live);
    browser.until_text("Fairness across queues");
    browser.screenshot("playground-overview");
    browser.open(&at("/decisions"));
    browser.until_text("evicted");
    browser.screenshot("playground-decisions");
    browser.open(&at("/waiting"));
    browser.until_text("llm-");
    browser.screenshot("playground-waiting");
    browser.size(1_280, 760);
    browser.open(&at("/gpus"));
    browser.until(live);
    browser.until_text("thor");
    let picture = browser.screenshot("playground-gpus");
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        std::fs::copy(picture, Path::new(ROOT).join("docs/images/page.png")).unwrap();
    }

    // A pod goes and another one comes: the open page shows both.
    browser.until("document.querySelector('a[href=\"/pods/default/notebook-0\"]')");
    if kubectl(
        &kubeconfig,
        &["delete", "pod", "notebook-0", "notebook-1", "--wait=false"],
    )
    .is_none()
    {
        println!("skipped: kubectl is missing");
        return;
    }
    browser.until("!document.querySelector('a[href=\"/pods/default/notebook-0\"]')");
    kubectl(&kubeconfig, &["apply", "-f", "examples/half-a-gpu.yaml"]).unwrap();
    browser.until("document.querySelector('a[href^=\"/pods/default/half-a\"]')");
    browser.screenshot("playground-gpus-after");
    assert_eq!(browser.complaints(), [""; 0]);
}
