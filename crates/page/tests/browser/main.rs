//! The page in a real browser: headless Chromium. Skipped where it is missing; `.ci/page` installs it. Screenshots are in
//! `target/tmp/screenshots`, or in `KAI_SCREENSHOTS`.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

mod server;
#[path = "../../examples/demo/synthetic/mod.rs"]
#[allow(dead_code)] // The demo uses the rest.
mod synthetic;
mod webdriver;

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::Value;
use server::Page;
use synthetic::{START_MS, Simulation};
use webdriver::{Browser, Colours};

/// The largest page: documents, style sheet, module and icon, as they are sent.
const WEIGHT_BYTES_MAX: u64 = 150_000;
/// What is required of first paint, updates, searches and hovers at 1,000 nodes.
const PAINT_MILLIS_MAX: f64 = 1_000.0;
const UPDATE_MILLIS_MAX: f64 = 100.0;
/// A debug build of the server is slower. Only the first paint waits for the server: the browser alone takes the time of the others.
const SLOWNESS: f64 = if cfg!(debug_assertions) { 3.0 } else { 1.0 };

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
    let waiting = view.pods.iter().flatten().find(|pod| pod.waits()).unwrap();
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
            "gangs",
            format!("/gangs?queue={}", gang.queue),
            gang.workload_name.to_string(),
        ),
        (
            "remedies",
            format!("/remedies/{}/{}", waiting.namespace, waiting.name),
            "end Job team-vision/nightly".to_owned(),
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

const LIVE: &str = "document.getElementById('state')?.textContent === 'live'";

fn open_live(browser: &Browser, address: &str) {
    browser.open(address);
    browser.until(LIVE);
}

#[test]
fn every_view_is_drawn_in_both_colours_on_desk_and_phone() {
    let page = small();
    for (colours, name) in [(Colours::Light, "light"), (Colours::Dark, "dark")] {
        let Some(browser) = browser(colours) else { return };
        for (view, path, text) in views(&page) {
            for (device, width, height) in [("desk", 1_280, 800), ("phone", 360, 740)] {
                browser.size(width, height);
                browser.open(&page.at(&path));
                // What would help is searched once.
                if view != "remedies" {
                    browser.until(LIVE);
                }
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

/// The focus stays on the row that a person reads, though the row moves and its text changes.
#[test]
fn rows_come_and_go_around_the_one_with_the_focus() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    let order = |page: &Page| -> Vec<String> {
        let view = page.view();
        let waiting = view.waiting_gangs().into_iter();
        waiting
            .map(|gang| format!("{}/{}", gang.namespace, gang.pod_group))
            .collect()
    };
    let before = order(&page);
    assert!(before.len() > 2, "{before:?}");
    open_live(&browser, &page.at("/waiting"));
    let kept = before.last().unwrap();
    browser.run(&format!(
        "const link = document.querySelector('a[href=\"/gangs/{kept}\"]'); link.focus()"
    ));
    // The first gang leaves, and the others change their order.
    page.change(|view| {
        let first = &before[0];
        let gangs = view.gangs.as_mut().unwrap();
        for gang in gangs.iter_mut().filter(|gang| gang.waiting > 0) {
            if format!("{}/{}", gang.namespace, gang.pod_group) == *first {
                gang.waiting = 0;
            } else {
                gang.position = gang.position.map(|position| 1_000 - position);
            }
        }
    });
    let after = order(&page);
    assert_ne!(after, before[1..], "the order has to change");
    let shown = "[...document.querySelectorAll('tbody th a[href^=\"/gangs/\"]')].map(link => link.getAttribute('href').slice(7)).join()";
    browser.until(&format!("{shown} === '{}'", after.join(",")));
    browser.until(&format!(
        "document.activeElement.getAttribute('href') === '/gangs/{kept}'"
    ));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_cell_says_whose_it_is_and_leads_to_its_pod() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    open_live(&browser, &page.at("/gpus?cells=small"));
    let view = page.view();
    let nodes = view.nodes.iter().flatten();
    let (node, user) = nodes
        .flat_map(|node| node.gpus.iter().map(move |gpu| (node, gpu)))
        .find_map(|(node, gpu)| match (gpu.state, gpu.pods.as_slice()) {
            (kai_view::GpuState::Whole, [user]) if !user.foreign => Some((node, user)),
            _ => None,
        })
        .unwrap();
    let pod = view.pods.iter().flatten().find(|pod| pod.name == user.name).unwrap();
    let gangs = view.gangs.iter().flatten();
    let queue = gangs
        .filter(|gang| gang.namespace == pod.namespace)
        .find(|gang| Some(&gang.pod_group) == pod.pod_group.as_ref())
        .map(|gang| gang.queue.clone())
        .unwrap();
    let cell = format!(
        "[id=\"n:{}\"] a[href=\"/pods/{}/{}\"]",
        node.name, user.namespace, user.name
    );
    browser.run(&format!(
        "document.querySelector('{cell}').scrollIntoView({{ block: 'center' }})"
    ));
    browser.hover(&cell);
    browser.until("!document.getElementById('tip').hidden");
    let tip = browser.run("return document.getElementById('tip').textContent");
    let expected = format!(
        "{}\n{}/{}\nqueue {queue}\nthe whole GPU",
        node.name, user.namespace, user.name
    );
    assert_eq!(tip, expected.as_str());
    browser.screenshot("gpus-hover");
    browser.click(&cell);
    browser.until(&format!(
        "location.pathname === '/pods/{}/{}'",
        user.namespace, user.name
    ));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn what_would_help_is_shown_beside_the_list() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    open_live(&browser, &page.at("/waiting"));
    browser.click("a.help");
    browser.until("document.getElementById('panel').open");
    browser.until_text("end Job team-vision/nightly");
    browser.screenshot("waiting-help");
    browser.press("\u{e00c}");
    browser.until("!document.getElementById('panel').open");
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
        ("5", "/gangs"),
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
    let at = |row: u32| {
        browser.until(&format!(
            "[...document.querySelectorAll('tbody > tr')].indexOf(document.activeElement.closest('tr')) === {row}"
        ));
    };
    for (key, row) in [
        ("j", 0),
        ("j", 1),
        ("k", 0),
        ("\u{e015}", 1),
        ("\u{e015}", 2),
        ("\u{e013}", 1),
    ] {
        browser.press(key);
        at(row);
    }
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

/// More queues than plain colours: the others have stripes, and text stands on them.
#[test]
fn text_and_marks_are_readable_in_every_colour_of_a_queue() {
    let page = small();
    page.change(|view| {
        let queues = view.queues.as_mut().unwrap();
        let leaf = queues.last().unwrap().clone();
        queues.extend((0..30).map(|number| kai_view::Queue {
            name: format!("more-{number:02}"),
            ..leaf.clone()
        }));
        for (number, gang) in view.gangs.as_mut().unwrap().iter_mut().enumerate() {
            gang.queue = format!("more-{:02}", number % 30).into();
        }
    });
    for colours in [Colours::Light, Colours::Dark] {
        let Some(browser) = browser(colours) else { return };
        for (name, path) in [
            ("stripes-large", "/gpus?cells=large"),
            ("stripes-small", "/gpus?cells=small"),
            ("stripes-queues", "/queues"),
            ("stripes-overview", "/"),
        ] {
            open_live(&browser, &page.at(path));
            browser.screenshot(&format!("{name}-{colours:?}"));
            if name == "stripes-large" {
                let striped = browser.run("return document.querySelectorAll('.tiles.large p.st').length");
                assert!(striped.as_i64() > Some(0), "no cell has stripes");
            }
            assert_eq!(browser.run(CONTRAST), Value::Array(Vec::new()), "{name} {colours:?}");
        }
    }
}

/// From another machine, over plain HTTP: browsers say less about where a form comes from than on loopback.
#[test]
fn the_form_for_a_token_works_from_elsewhere() {
    let page = small();
    let Some(address) = page.at_from_elsewhere("/queues") else {
        println!("skipped: this machine has no address but loopback");
        return;
    };
    let Some(browser) = browser(Colours::Light) else { return };
    browser.open(&address);
    browser.until_text("Token of Kubernetes");
    browser.screenshot("login");
    assert_eq!(browser.run(CONTRAST), Value::Array(Vec::new()));
    browser.fill("#token", "wrong");
    browser.click("form button");
    browser.until_text("the token is not valid");
    browser.fill("#token", "vision");
    browser.click("form button");
    browser.until(LIVE);
    browser.until("location.pathname === '/queues'");
    browser.until_text("A part of the cluster");
    browser.click("footer form button");
    browser.until_text("Token of Kubernetes");
    browser.open(&address);
    browser.until_text("Token of Kubernetes");
}

/// A pod that leaves lets its neighbours stay where they are, though the view closes the gap.
#[test]
fn cells_keep_their_places() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    let view = page.view();
    let nodes = view.nodes.as_ref().unwrap();
    let is_full = |node: &&kai_view::Node| {
        let whole = node.gpus.iter().filter(|gpu| gpu.state == kai_view::GpuState::Whole);
        whole.count() > 2
    };
    let node = nodes
        .iter()
        .find(is_full)
        .expect("a node with several pods")
        .name
        .clone();
    open_live(&browser, &page.at("/gpus?cells=small"));
    // Each cell by the pods that it leads to; the numbers of cells are their ids.
    let cells = || -> Vec<String> {
        let script = format!(
            "return [...document.getElementById('n:{node}').querySelector('.c').children].map(cell => \
             (cell.matches('a') ? [cell] : [...cell.querySelectorAll('a')]).map(pod => pod.getAttribute('href')).join(' '))"
        );
        let cells = browser.run(&script);
        let cells = cells.as_array().unwrap().iter();
        cells.map(|cell| cell.as_str().unwrap().to_owned()).collect()
    };
    let before = cells();
    let first = before
        .iter()
        .find(|cell| !cell.is_empty() && !cell.contains(' '))
        .unwrap()
        .clone();
    // The pod with the first whole GPU goes. The view has free GPUs last.
    page.change(|view| {
        let node = view.nodes.as_mut().unwrap().iter_mut().find(|shown| shown.name == node);
        let gpus = &mut node.unwrap().gpus;
        let of_pod = |gpu: &kai_view::Gpu| {
            gpu.pods
                .iter()
                .any(|pod| first == format!("/pods/{}/{}", pod.namespace, pod.name))
        };
        let (mut gone, left): (Vec<_>, Vec<_>) = gpus.drain(..).partition(of_pod);
        for gpu in &mut gone {
            (gpu.state, gpu.pods) = (kai_view::GpuState::Idle, Vec::new());
        }
        gpus.extend(left.into_iter().chain(gone));
    });
    browser.until(&format!(
        "!document.querySelector('[id=\"n:{node}\"] a[href=\"{first}\"]')"
    ));
    let after = cells();
    let expect: Vec<String> = before
        .iter()
        .map(|cell| if *cell == first { String::new() } else { cell.clone() })
        .collect();
    assert_eq!(after, expect);
    browser.screenshot("gpus-after-a-pod-left");
}

/// While the API server is away nobody can say what a reader may see. The page stays, and comes back by itself.
#[test]
fn an_open_page_outlives_an_outage_and_says_when_all_places_are_taken() {
    let page = small();
    let Some(browser) = browser(Colours::Light) else { return };
    open_live(&browser, &page.at("/queues"));
    browser.run("window.isTheSame = true");
    // The module connects again when the page becomes visible.
    let connect = "document.dispatchEvent(new Event('visibilitychange'))";
    page.set_away(true);
    browser.run(connect);
    browser.until("document.getElementById('state').textContent === 'reconnecting'");
    page.change(|view| view.queues.as_mut().unwrap()[1].gangs_waiting = Some(77));
    page.set_away(false);
    browser.until(LIVE);
    browser.until_text("77 waiting");
    assert_eq!(
        browser.run("return window.isTheSame"),
        true,
        "the page was not loaded again"
    );

    browser.open("about:blank");
    let address = page.address.trim_start_matches("http://");
    let others: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET /events?view=%2Fnodes HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
            stream
        })
        .collect();
    browser.open(&page.at("/queues"));
    browser.until("document.getElementById('state').textContent === 'too many pages are open'");
    browser.screenshot("too-many");
    drop(others);
    browser.until(LIVE);
}

/// Prints the times, which are for docs/performance.md, and checks them with what is required. An update takes from the event to the end of
/// the frame after it. The median counts: one of them may have waited for another program.
#[test]
fn a_thousand_nodes_are_light_and_fluid() {
    let page = Page::serve(Simulation::large(1_000, START_MS));
    let Some(browser) = browser(Colours::Light) else { return };
    for path in ["/", "/gpus", "/queues", "/waiting", "/gangs", "/decisions", "/nodes"] {
        open_live(&browser, &page.at(path));
        let weight = browser.run(
            "return performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource')) \
             .filter(entry => !entry.name.includes('/events')).reduce((sum, entry) => sum + entry.encodedBodySize, 0)",
        );
        browser.until("performance.getEntriesByName('first-contentful-paint').length > 0");
        let paint = browser.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
        let mut round = 0;
        let updates = measured(|| {
            round += 1;
            let changed = format!("document.getElementById('view').dataset.changes >= {round}");
            browser.until_by(|| page.advance(5), &changed);
            let drawn = "document.getElementById('view').dataset.drawn?.split(' ')";
            browser.until(&format!("{drawn}[0] >= {round}"));
            browser.run(&format!("return Number({drawn}[1])"))
        });
        println!("1,000 nodes {path}: {weight} bytes, first paint {paint} ms, updates {updates:?} ms");
        assert!(weight.as_u64() < Some(WEIGHT_BYTES_MAX), "{path} weighs {weight} bytes");
        let paint = paint.as_f64().unwrap();
        assert!(
            paint < PAINT_MILLIS_MAX * SLOWNESS,
            "{path} is painted after {paint} ms"
        );
        assert!(median(&updates) < UPDATE_MILLIS_MAX, "{path} changes in {updates:?} ms");
    }
    open_live(&browser, &page.at("/gpus"));
    browser.screenshot("gpus-1000");
    let mut node = 0;
    let searches = measured(|| {
        node += 1;
        let name = format!("gpu-01-02-{node:02}");
        browser.run(&timed(
            &format!(
                "const search = document.getElementById('search'); search.value = '{name}'; \
                 search.dispatchEvent(new Event('input', {{ bubbles: true }}))"
            ),
            &format!("[...document.querySelectorAll('.tiles > li:not(.dim)')].map(row => row.firstElementChild.textContent).join() === '{name}'"),
        ))
    });
    let hovers = measured(|| {
        browser.run("document.getElementById('tip').hidden = true");
        browser.run(&timed(
            "const cell = document.querySelector('.tiles .c > *'); cell.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }))",
            "!document.getElementById('tip').hidden",
        ))
    });
    println!("1,000 nodes /gpus: searches {searches:?} ms, hovers {hovers:?} ms");
    for (what, times) in [("search", searches), ("hover", hovers)] {
        assert!(median(&times) < UPDATE_MILLIS_MAX, "a {what} takes {times:?} ms");
    }
}

/// Five times in milliseconds, sorted; again if they are above what is required, since other programs may have had the processor. A page that is
/// too slow stays so.
fn measured(mut measure: impl FnMut() -> Value) -> Vec<f64> {
    const ATTEMPTS: usize = 4;
    let mut times = Vec::new();
    for _ in 0..ATTEMPTS {
        times = (0..5).map(|_| measure().as_f64().unwrap_or(f64::INFINITY)).collect();
        times.sort_unstable_by(f64::total_cmp);
        if median(&times) < UPDATE_MILLIS_MAX {
            break;
        }
    }
    times
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

/// A script that acts and returns the milliseconds until the next frame in which the condition is true; nothing after five seconds.
fn timed(action: &str, condition: &str) -> String {
    format!(
        "const begun = performance.now(); {action}; return new Promise((done) => {{ const look = () => {{ \
         if ({condition}) done(performance.now() - begun); \
         else if (performance.now() - begun > 5000) done(null); \
         else requestAnimationFrame(look); }}; look(); }})"
    )
}
