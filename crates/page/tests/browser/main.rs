//! The page in a real browser: headless Chromium. Skipped where it is missing; `.ci/page` installs it. Screenshots are in
//! `target/tmp/screenshots`, or in `KAI_SCREENSHOTS`.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

mod server;
#[path = "../../examples/demo/synthetic/mod.rs"]
#[allow(dead_code)] // The demo uses the rest.
mod synthetic;
mod webdriver;

use serde_json::Value;
use server::Page;
use synthetic::{START_MS, Simulation};
use webdriver::{Browser, Colours};

/// The largest page: documents, style sheet, module and icon, as they are sent.
const WEIGHT_BYTES_MAX: u64 = 150_000;

/// The texts on a page whose contrast is below WCAG's level AA, with their ratio.
const CONTRAST: &str = include_str!("contrast.js");

fn browser(colours: Colours) -> Option<Browser> {
    let browser = Browser::start(colours);
    if browser.is_none() {
        println!("skipped: chromium or chromedriver is missing");
    }
    browser
}

/// A small cluster with every kind of GPU, after some minutes.
fn small() -> Page {
    let mut simulation = Simulation::small(START_MS);
    for _ in 0..40 {
        simulation.step(30_000);
    }
    Page::serve(simulation)
}

/// The views, and a text that each of them has.
fn views(page: &Page) -> Vec<(&'static str, String, String)> {
    let view = page.view();
    let gang = view.waiting_gangs()[0].clone();
    let pod = view
        .pods
        .as_ref()
        .unwrap()
        .iter()
        .find(|pod| !pod.waits())
        .unwrap()
        .clone();
    let node = view.nodes.as_ref().unwrap()[0].name.to_string();
    vec![
        ("overview", "/".to_owned(), "Fairness across queues".to_owned()),
        ("gpus", "/gpus".to_owned(), node.clone()),
        ("queues", "/queues".to_owned(), "robotics".to_owned()),
        ("waiting", "/waiting".to_owned(), gang.workload_name.to_string()),
        (
            "gang",
            format!("/gangs/{}/{}", gang.namespace, gang.pod_group),
            gang.workload_name.to_string(),
        ),
        (
            "pod",
            format!("/pods/{}/{}", pod.namespace, pod.name),
            pod.name.to_string(),
        ),
        ("decisions", "/decisions".to_owned(), "evicted".to_owned()),
        ("nodes", "/nodes".to_owned(), node.clone()),
        ("node", format!("/nodes/{node}"), node),
    ]
}

fn open_live(browser: &Browser, address: &str) {
    browser.open(address);
    browser.until("document.getElementById('state').textContent === 'live'");
}

#[test]
fn every_view_is_drawn_in_both_colours_on_desk_and_phone() {
    let page = small();
    for (colours, name) in [(Colours::Light, "light"), (Colours::Dark, "dark")] {
        let Some(browser) = browser(colours) else { return };
        for (view, path, text) in views(&page) {
            for (device, width, height) in [("desk", 1_280, 800), ("phone", 360, 740)] {
                browser.size(width, height);
                open_live(&browser, &page.at(&path));
                browser.until_text(&text);
                browser.screenshot(&format!("{view}-{name}-{device}"));
                let overflow = browser.run("return document.scrollingElement.scrollWidth - innerWidth");
                assert!(
                    overflow.as_i64() <= Some(0),
                    "{view} is {overflow} pixels wider than a {device}"
                );
                let faint = browser.run(CONTRAST);
                assert_eq!(faint, Value::Array(Vec::new()), "{view} in {name}");
            }
        }
        assert_eq!(browser.complaints(), [""; 0]);
    }
}

#[test]
fn a_view_changes_with_the_cluster_and_keeps_its_order() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    open_live(&browser, &page.at("/gpus"));
    let nodes = "return [...document.querySelectorAll('[id^=\"n:\"]')].map(node => node.id).join()";
    let before = browser.run(nodes);
    assert!(before.as_str().unwrap().contains("n:"), "{before}");
    browser.until_by(
        || page.advance(30),
        "document.getElementById('view').dataset.changes > 2",
    );
    assert_eq!(browser.run(nodes), before, "the nodes stay where they are");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn keys_and_search() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    open_live(&browser, &page.at("/"));
    for (key, path) in [
        ("2", "/gpus"),
        ("3", "/queues"),
        ("4", "/waiting"),
        ("6", "/decisions"),
        ("7", "/nodes"),
        ("1", "/"),
    ] {
        browser.press(key);
        browser.until(&format!("location.pathname === '{path}'"));
        browser.until("document.getElementById('state').textContent === 'live'");
    }
    // The search dims what does not match, and escape ends it.
    browser.press("7");
    browser.until("location.pathname === '/nodes' && document.querySelectorAll('tbody tr').length > 2");
    browser.press("/");
    browser.until("document.activeElement.id === 'search'");
    browser.press("h100-2");
    browser.until("document.querySelectorAll('tbody tr:not(.dim)').length === 1");
    browser.screenshot("search");
    browser.press("\u{e00c}");
    browser.until("document.querySelectorAll('tbody tr.dim').length === 0");
    // Rows are reached and opened by keys.
    browser.press("j");
    browser.until("document.activeElement.closest('tr') !== null");
    browser.press("\u{e007}");
    browser.until("location.pathname.startsWith('/nodes/')");
    browser.press("?");
    browser.until("document.getElementById('panel').open");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_step_of_the_story_is_submitted_by_its_button() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    open_live(&browser, &page.at("/"));
    browser.click("form[action*='/story/'] button");
    browser.until_text("submitted");
}

#[test]
fn a_tenant_sees_no_foreign_names() {
    let page = small();
    let view = page.view();
    let Some(browser) = browser(Colours::Light) else { return };
    // Pods of other namespaces, and everything that could name them.
    let foreign: Vec<kai_view::Text> = view
        .pods
        .iter()
        .flatten()
        .filter(|pod| pod.namespace != "team-vision")
        .flat_map(|pod| [pod.name.clone(), pod.pod_group.clone().unwrap_or_default()])
        .filter(|name| !name.is_empty())
        .collect();
    assert!(!foreign.is_empty());
    browser.open(&page.at("/login"));
    browser.fill("#token", "vision");
    browser.click("form button");
    browser.until("document.getElementById('state')?.textContent === 'live'");
    for path in [
        "/",
        "/gpus",
        "/queues",
        "/waiting",
        "/gangs",
        "/decisions",
        "/nodes",
        "/view.json",
    ] {
        browser.open(&page.at(path));
        let html = browser.run("return document.documentElement.outerHTML");
        let html = html.as_str().unwrap();
        for name in &foreign {
            assert!(!html.contains(name.as_str()), "{path} names {name}");
        }
    }
    browser.open(&page.at("/gpus"));
    browser.until_text("other work");
    browser.screenshot("gpus-tenant");
}

/// Prints the times, which are for docs/performance.md, and checks the size.
#[test]
fn a_thousand_nodes_are_light() {
    let page = Page::serve(Simulation::large(1_000, START_MS));
    let Some(browser) = browser(Colours::Light) else { return };
    for path in ["/", "/gpus", "/nodes", "/waiting"] {
        open_live(&browser, &page.at(path));
        let weight = browser.run(
            "return performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource')) \
             .filter(entry => !entry.name.includes('/events')).reduce((sum, entry) => sum + entry.encodedBodySize, 0)",
        );
        browser.until("performance.getEntriesByName('first-contentful-paint').length > 0");
        let paint = browser.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
        let loaded = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd");
        let mut updates = Vec::new();
        for round in 1..=5 {
            let changed = format!("document.getElementById('view').dataset.changes >= {round}");
            browser.until_by(|| page.advance(5), &changed);
            updates.push(
                browser
                    .run("return document.getElementById('view').dataset.changed")
                    .to_string(),
            );
        }
        println!(
            "1,000 nodes {path}: {weight} bytes, first paint {paint} ms, loaded {loaded} ms, updates {} ms",
            updates.join(" ")
        );
        assert!(weight.as_u64() < Some(WEIGHT_BYTES_MAX), "{path} weighs {weight} bytes");
    }
    browser.open(&page.at("/gpus"));
    browser.screenshot("gpus-1000");
}
