//! The page with a real token and real rights, by an address that is not loopback: by a plain HTTP client, and in Chromium where it is
//! installed.

use kai_embedded::kubelet::NodeTemplate;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{Program, free_port, get, leading_scheduler, outward};
use crate::harness::manifest::PodManifest;
use crate::harness::{Cluster, scenario};
use crate::webdriver::{Browser, Colours};

const OWN: &str = "team-own";
const VIEWS: [&str; 9] = [
    "/",
    "/gpus",
    "/queues",
    "/waiting",
    "/gangs",
    "/decisions",
    "/nodes",
    "/nodes/node",
    "/view.json",
];

fn in_namespace(namespace: &str, pod: PodManifest) -> Value {
    let mut pod = pod.build();
    pod["metadata"]["namespace"] = namespace.into();
    pod
}

/// An account of the namespace that may see what is in it, and no more.
async fn tenant(cluster: &Cluster) -> String {
    let kube = cluster.kube().unwrap();
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OWN } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "reader", "namespace": OWN } }),
        // The ClusterRole `view` has no rules here: no controller aggregates them.
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "reader", "namespace": OWN },
            "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "reads", "namespace": OWN },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
            "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": OWN }],
        }),
    ];
    for object in objects {
        kube.apply(object).await;
    }
    kube.token(&format!("system:serviceaccount:{OWN}:reader"), &[])
}

/// The scheduler as a process with a page for other machines.
async fn scheduler_with_page(cluster: &Cluster, page: u16) -> (Program, NamedTempFile) {
    let listen = ["--listen-address=", "--plugin-server-port=0"].map(str::to_owned);
    let ui = format!("--ui-address=:{page}");
    let running = leading_scheduler(cluster, &[&listen[..], &[ui]].concat()).await;
    let here = ([127, 0, 0, 1], page).into();
    let shows = |_: &Cluster| get(here, "/view.json", None).is_some_and(|(_, text)| text.contains("secret-one"));
    cluster.until("the page shows the cluster", shows).await;
    running
}

#[test]
fn a_tenant_sees_no_names_of_others_on_the_page() {
    scenario(&[NodeTemplate::new("node", "h100:2")], async |cluster| {
        if cluster.kube().is_none() {
            return;
        }
        let token = tenant(cluster).await;
        cluster.create(PodManifest::new("secret-one").gpus(1).build()).await;
        cluster
            .create(in_namespace(OWN, PodManifest::new("own-one").gpus(1)))
            .await;
        cluster.until_only_running(&["secret-one"]).await;
        cluster.create(PodManifest::new("secret-two").gpus(2).build()).await;
        let port = free_port();
        let program = scheduler_with_page(cluster, port).await;

        let address = outward().expect("this machine has an address besides its loopback");
        let page = (address, port).into();
        assert_eq!(get(page, "/view.json", None).unwrap().0, 401);
        for path in VIEWS {
            let (status, text) = get(page, path, Some(&token)).unwrap();
            assert_eq!(status, 200, "{path}: {text}");
            assert!(!text.contains("secret"), "{path}: {text}");
        }
        let (_, text) = get(page, "/gpus", Some(&token)).unwrap();
        assert!(text.contains("own-one") && text.contains("other work"), "{text}");
        let (_, text) = get(page, "/remedies/default/secret-two", Some(&token)).unwrap();
        assert!(text.contains("you may not list the pods"), "{text}");

        let browse = move || {
            let Some(browser) = Browser::start(Colours::Light) else {
                println!("skipped in a browser: chromium or chromedriver is missing");
                return;
            };
            let at = |path: &str| format!("http://{page}{path}");
            let live = "document.getElementById('state')?.textContent === 'live'";
            // Without a token there is only the form for one.
            browser.open(&at("/gpus"));
            browser.until_text("Token of Kubernetes");
            browser.fill("#token", "not a token");
            browser.click("form button");
            browser.until_text("this is not a token");
            browser.fill("#token", &token);
            browser.click("form button");
            browser.until(live);
            browser.until_text("own-one");
            for path in VIEWS {
                browser.open(&at(path));
                if path != "/view.json" {
                    browser.until(live);
                }
                let html = browser.run("return document.documentElement.outerHTML");
                assert!(!html.as_str().unwrap().contains("secret"), "{path}: {html}");
            }
            browser.open(&at("/gpus"));
            browser.until_text("other work");
            browser.screenshot("real-gpus-tenant");
            browser.click("footer form button");
            browser.until_text("Token of Kubernetes");
            browser.open(&at("/gpus"));
            browser.until_text("Token of Kubernetes");
        };
        tokio::task::spawn_blocking(browse).await.unwrap();
        drop(program);
        cluster.start_roles();
        let is_settled = |cluster: &Cluster| cluster.found_when_settled().is_empty();
        cluster.until("the roles work again", is_settled).await;
    });
}
