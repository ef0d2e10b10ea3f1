//! The metrics of a running cluster: docs/operations.md lists all of them.
#![allow(clippy::unwrap_used)] // The helpers are test code too.

mod cluster;
mod inventory;
#[path = "../support/mod.rs"]
mod support;

use cluster::{Cluster, TOKEN, await_until, get, own_address};
use inventory::{Inventory, differences, documented, exported};

/// The metrics of all processes.
fn scrape(cluster: &Cluster) -> Inventory {
    let mut all = Inventory::new();
    for address in [cluster.roles, cluster.agent] {
        let (status, text) = get(address, "/metrics", None).unwrap();
        assert_eq!(status, 200, "{text}");
        all.append(&mut exported(&text));
    }
    all
}

#[test]
fn the_metrics_of_a_cluster_are_those_of_the_page() {
    let cluster = Cluster::start();
    let documented = documented();
    assert!(documented.len() > 60, "the tables of docs/operations.md were not found");
    let mut last = Vec::new();
    // The gauges of queues and nodes are set every five seconds.
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_secs(20) {
        last = differences(&documented, &scrape(&cluster));
        if last.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(last.is_empty(), "{}", last.join("\n"));

    let remote = std::net::SocketAddr::new(own_address(), cluster.roles.port());
    if !remote.ip().is_loopback() {
        await_until("a reader on another machine needs a token", || {
            let answered = |token| get(remote, "/metrics", token).map(|(status, _)| status).ok();
            (answered(None) == Some(401) && answered(Some(TOKEN)) == Some(200)).then_some(())
        });
    }
}
