//! Replicas: one replica of each role writes at a time, whatever fails, and webhooks answer on all replicas. The audit log of the API
//! server shows it; only a real API server has leader election.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kai_api::Resource;
use kai_cli::roles::RoleSettings;
use kai_cluster::Target;
use kai_embedded::kubelet::NodeTemplate;

use crate::harness::audit::{self, Audit, Write};
use crate::harness::line::Line;
use crate::harness::manifest::PodManifest;
use crate::harness::replicas::Replica;
use crate::harness::{Choice, Cluster, Kube, scenario_with};

const ROLES: [&str; 3] = ["scheduler", "binder", "controllers"];

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, last).into()
}

/// Webhooks only; the scenario starts the other roles.
fn webhooks_only() -> RoleSettings {
    RoleSettings {
        admission: RoleSettings::every_role().unwrap().admission,
        ..RoleSettings::default()
    }
}

/// A scenario with replicas. It is skipped on the embedded server, where roles run without leader election.
fn with_replicas(settings: RoleSettings, nodes: &[NodeTemplate], story: impl AsyncFnOnce(&Cluster, &Kube)) {
    match Choice::of_environment() {
        Choice::Embedded => {}
        Choice::Kube => scenario_with(settings, nodes, async |cluster| {
            story(cluster, cluster.kube().expect("it was chosen")).await;
        }),
    }
}

/// A scenario with two replicas of every role, which call from these addresses. The first one leads. The audit log begins before them.
fn with_a_pair(addresses: [u8; 2], gpus: &str, story: impl AsyncFnOnce(&Cluster, &Audit, [IpAddr; 2], [Replica; 2])) {
    let nodes = [NodeTemplate::new("node", gpus)];
    with_replicas(webhooks_only(), &nodes, async |cluster, kube| {
        let audit = Audit::from_now();
        let [one, two] = addresses.map(address);
        let first = kube.replica(one).await;
        until_leads(cluster, &audit, one).await;
        cluster.until_queues().await;
        let second = kube.replica(two).await;
        story(cluster, &audit, [one, two], [first, second]).await;
    });
}

/// Writes of these replicas, in order.
fn writes_of(audit: &Audit, sources: &[IpAddr]) -> Vec<Write> {
    let sources: BTreeSet<String> = sources.iter().map(ToString::to_string).collect();
    let mut writes = audit.writes();
    writes.retain(|write| sources.contains(&write.source));
    writes
}

/// Waits until this replica holds the lease of every role.
async fn until_leads(cluster: &Cluster, audit: &Audit, source: IpAddr) {
    let what = format!("{source} leads");
    cluster
        .until(&what, |_| {
            let writes = audit.writes();
            ROLES.iter().all(|role| {
                let mut leases = writes
                    .iter()
                    .filter(|write| write.user == *role && write.resource == "leases");
                leases.next_back().is_some_and(|last| last.source == source.to_string())
            })
        })
        .await;
}

/// Asserts that between two writes of a lease only its holder writes. Returns the sequence of leaders by role.
fn successions(writes: &[Write]) -> BTreeMap<String, Vec<String>> {
    let mut leaders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for write in writes {
        let leaders = leaders.entry(write.user.clone()).or_default();
        if write.resource == "leases" {
            if leaders.last() != Some(&write.source) {
                leaders.push(write.source.clone());
            }
        } else {
            assert_eq!(leaders.last(), Some(&write.source), "acts without leading: {write:?}");
        }
    }
    leaders
}

/// Asserts that both replicas wrote in each role; else the test would show nothing.
fn assert_all_acted(writes: &[Write], sources: &[IpAddr]) {
    for role in ROLES {
        for source in sources {
            let acted = writes
                .iter()
                .any(|write| write.user == role && write.source == source.to_string() && write.resource != "leases");
            assert!(acted, "{source} never acted as {role}");
        }
    }
}

async fn half(cluster: &Cluster, name: &str) {
    cluster.create(PodManifest::new(name).fraction("0.5").build()).await;
}

#[test]
fn never_do_two_leaders_act_when_one_is_cut_off_or_killed() {
    with_a_pair(
        [1, 2],
        "h100:4",
        async |cluster, audit, [one, two], [mut first, mut second]| {
            half(cluster, "a").await;
            cluster.until_running(1).await;

            // The leader loses its connection during work and continues, because it does not know.
            half(cluster, "b").await;
            first.line.cut();
            half(cluster, "c").await;
            until_leads(cluster, audit, two).await;
            cluster.until_running(3).await;
            first.line.mend();
            half(cluster, "d").await;
            cluster.until_running(4).await;
            first.assert_alive();

            // Now the other replica, whose connections are closed.
            half(cluster, "e").await;
            second.line.tear();
            cluster.delete::<kai_api::Pod>("default", "a").await.unwrap();
            until_leads(cluster, audit, one).await;
            cluster.until_running(4).await;
            second.line.mend();
            second.assert_alive();
            half(cluster, "f").await;
            cluster.until_running(5).await;

            first.kill().await;
            half(cluster, "g").await;
            cluster.until_running(6).await;
            cluster.settle().await;

            let writes = writes_of(audit, &[one, two]);
            assert_all_acted(&writes, &[one, two]);
            let expect: Vec<String> = [one, two, one, two].iter().map(ToString::to_string).collect();
            for (role, leaders) in successions(&writes) {
                assert_eq!(leaders, expect, "{role}");
            }
            second.kill().await;
        },
    );
}

/// A request that was sent by the leader can't be recalled. It carries a precondition, so that it does no harm.
#[test]
fn what_an_old_leader_sent_in_time_may_arrive_late() {
    with_a_pair([6, 7], "h100:2", async |cluster, audit, [one, two], [first, second]| {
        for number in 0..4 {
            half(cluster, &format!("pod-{number}")).await;
            if number == 1 {
                first.line.cut();
            }
        }
        until_leads(cluster, audit, two).await;
        first.line.release();
        cluster.until_running(4).await;
        half(cluster, "one-more").await;
        cluster.until_waiting("one-more", "GPU").await;
        let mut leases = writes_of(audit, &[one, two])
            .into_iter()
            .filter(|write| write.resource == "leases");
        assert_eq!(leases.next_back().map(|write| write.source), Some(two.to_string()));
        first.kill().await;
        cluster.delete::<kai_api::Pod>("default", "pod-0").await.unwrap();
        cluster.until_running(4).await;
        cluster.settle().await;
        second.kill().await;
    });
}

#[test]
fn a_leader_that_is_back_in_time_stays_one() {
    with_a_pair([3, 4], "h100:1", async |cluster, audit, [one, two], [first, second]| {
        // Shorter than the leadership: only connections break.
        for number in 0..3 {
            first.line.cut();
            half(cluster, &format!("pod-{number}")).await;
            first.line.mend();
            cluster.until_running(usize::min(number + 1, 2)).await;
        }
        cluster.until_waiting("pod-2", "GPU").await;
        let leaders = successions(&writes_of(audit, &[one, two]));
        assert_eq!(leaders.len(), ROLES.len());
        for (role, leaders) in leaders {
            assert_eq!(leaders, [one.to_string()], "{role}");
        }
        cluster.settle().await;
        first.kill().await;
        second.kill().await;
    });
}

const CONFIGURATIONS: [(&str, &str, &str); 4] = [
    (
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        "mutating-kai-admission",
    ),
    (
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "validating-kai-admission",
    ),
    (
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "kai-queue-validation-v2",
    ),
    (
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "kai-podgroup-validation-v2alpha2",
    ),
];

/// The version of each webhook configuration, and the replicas whose authorities are in its `caBundle`.
async fn configurations(cluster: &Cluster) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    for (kind, plural, name) in CONFIGURATIONS {
        let target = Target {
            resource: &Resource::new(
                "admissionregistration.k8s.io",
                "v1",
                kind,
                plural,
                kai_api::Scope::Cluster,
            ),
            namespace: "",
            name,
        };
        let object = cluster.client.get_value(target).await.unwrap().unwrap_or_default();
        let bundle = object["webhooks"][0]["clientConfig"]["caBundle"]
            .as_str()
            .unwrap_or_default();
        let entries = String::from_utf8(STANDARD.decode(bundle).unwrap()).unwrap();
        let identities = entries
            .lines()
            .filter_map(|line| line.strip_prefix("# kai-admission ")?.split(' ').nth(1));
        let version = object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        found.push((version, identities.map(str::to_owned).collect()));
    }
    found
}

/// How often admission has read each configuration so far.
fn reads(audit: &Audit) -> usize {
    let calls = audit.calls();
    let by_admission = calls.iter().filter(|call| audit::user(call).ends_with(":admission"));
    let reads = by_admission.filter(|event| event["verb"] == "get");
    reads
        .filter(|event| event["objectRef"]["name"] == CONFIGURATIONS[3].2)
        .count()
}

/// Whether all pods of this round can be created. Pods of earlier rounds may be bound, and may be terminating.
async fn admitted(cluster: &Cluster, kube: &Kube, rounds: &AtomicUsize) -> bool {
    let round = rounds.fetch_add(1, Ordering::Relaxed);
    // Each pod over its own connection, or the server would call one replica only.
    let names: Vec<String> = (0..20).map(|number| format!("pod-{round}-{number}")).collect();
    let mut creations = tokio::task::JoinSet::new();
    for name in &names {
        let (client, pod) = (
            kube.client.clone(),
            PodManifest::new(name).scheduler("kai-scheduler").build(),
        );
        creations.spawn(async move {
            client
                .create(&<kai_api::Pod as kai_api::Object>::RESOURCE, "default", pod)
                .await
        });
    }
    let all = creations.join_all().await.iter().all(Result::is_ok);
    for name in &names {
        cluster.delete::<kai_api::Pod>("default", name).await.unwrap();
    }
    all
}

#[test]
fn two_replicas_of_the_webhooks_answer_and_do_not_quarrel() {
    let without = RoleSettings {
        admission: None,
        ..RoleSettings::every_role().unwrap()
    };
    with_replicas(
        without,
        &[NodeTemplate::new("node", "h100:1")],
        async |cluster, kube| {
            let audit = Audit::from_now();
            let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
            let servers = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
            let service = Line::new(address(5), &servers).await;
            let [one, two] = listeners;
            let one = kube.webhooks("one", service.address, one).await;
            let two = kube.webhooks("two", service.address, two).await;
            let both = BTreeSet::from(["one".to_owned(), "two".to_owned()]);
            cluster
                .until_async("both are in the bundle", async || {
                    configurations(cluster)
                        .await
                        .iter()
                        .all(|(_, identities)| *identities == both)
                })
                .await;
            cluster.until_guarded().await;

            let rounds = AtomicUsize::new(0);
            cluster
                .until_async("both are asked", async || {
                    admitted(cluster, kube, &rounds).await && one.asked() > 0 && two.asked() > 0
                })
                .await;

            // One period of each replica, in which it writes nothing.
            let (settled, before) = (configurations(cluster).await, reads(&audit));
            cluster
                .until("both looked again", |_| reads(&audit) >= before + 2)
                .await;
            assert_eq!(configurations(cluster).await, settled);

            one.kill().await;
            let asked = two.asked();
            // The server notices dead connections at its next call.
            cluster
                .until_async("the other answers for both", async || {
                    admitted(cluster, kube, &rounds).await
                })
                .await;
            assert!(two.asked() > asked);
            two.kill().await;
        },
    );
}
