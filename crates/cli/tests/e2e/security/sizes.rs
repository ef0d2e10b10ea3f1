//! Objects that are needlessly large.

use kai_api::keys;
use serde_json::{Value, json};

use super::{node, tenant};
use crate::harness::manifest::{PodManifest, pod_group};
use crate::harness::scenario;
use crate::harness::user::refused;

fn with_sub_groups(name: &str, count: usize, sub_group: impl Fn(usize) -> Value) -> Value {
    let mut group = pod_group(name, keys::DEFAULT_QUEUE, 1);
    group["spec"] = json!({ "queue": keys::DEFAULT_QUEUE, "subGroups": (0..count).map(sub_group).collect::<Vec<_>>() });
    group
}

#[test]
fn thousands_of_subgroups_or_tolerations_stall_nobody() {
    scenario(&[node("h100:2")], async |cluster| {
        let tenant = tenant(cluster).await;
        let in_chain = |at: usize| match at {
            0 => json!({ "name": "s0", "minSubGroup": 1 }),
            _ => json!({ "name": format!("s{at}"), "parent": format!("s{}", at - 1), "minSubGroup": 1 }),
        };
        let chain = with_sub_groups("chain", 3_000, in_chain);
        refused("a chain", tenant.create(chain).await, "nested more than 16 levels deep");
        let flat = with_sub_groups("flat", 5_000, |at| json!({ "name": format!("s{at}"), "minMember": 1 }));
        refused("a crowd", tenant.create(flat).await, "4096");

        let mut many = PodManifest::new("many").gpus(1).build();
        let toleration = |at: usize| json!({ "key": format!("k{at}"), "operator": "Exists" });
        many["spec"]["tolerations"] = (0..3_000).map(toleration).collect();
        tenant.create(many).await.unwrap();
        tenant.create(PodManifest::new("plain").gpus(1).build()).await.unwrap();
        cluster.until("plain runs", |cluster| cluster.runs("plain")).await;
        // The API server adds its own tolerations.
        cluster
            .until_waiting("many", "entries are more than the 128 that are scheduled")
            .await;
        tenant.delete::<kai_api::Pod>("default", "many").await.unwrap();
        cluster.until_only_running(&["plain"]).await;
    });
}
