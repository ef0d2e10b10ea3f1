//! Invalid amounts of GPUs.

use kai_api::keys;

use super::{node, tenant};
use crate::harness::manifest::PodManifest;
use crate::harness::scenario;
use crate::harness::user::refused;

#[test]
fn odd_amounts_are_refused_and_huge_ones_wait() {
    scenario(&[node("h100:1")], async |cluster| {
        let tenant = tenant(cluster).await;
        let odd = [
            "NaN", "inf", "-inf", "1e30", "-1", "-0.5", "0", "", "0.5Gi", "0x1p-1", "1,5", "٠.٥",
        ];
        for amount in odd {
            for key in [keys::GPU_FRACTION, keys::GPU_MEMORY] {
                let pod = PodManifest::new("odd").annotation(key, amount);
                refused(&format!("{key}={amount}"), tenant.create(pod.build()).await, key);
            }
            let pod = PodManifest::new("odd").fraction("0.5");
            let pod = pod.annotation(keys::GPU_FRACTION_DEVICES, amount);
            refused(
                &format!("devices {amount}"),
                tenant.create(pod.build()).await,
                keys::GPU_FRACTION_DEVICES,
            );
        }
        let nobody = PodManifest::new("odd")
            .fraction("0.5")
            .annotation(keys::GPU_FRACTION_CONTAINER, "nobody");
        refused(
            "no such container",
            tenant.create(nobody.build()).await,
            keys::GPU_FRACTION_CONTAINER,
        );
        for (key, value) in [
            (keys::GPU_FRACTION, "1"),
            (keys::GPU_FRACTION, "2"),
            (keys::GPU_MEMORY, "0.5"),
        ] {
            let pod = PodManifest::new("odd").annotation(key, value);
            refused(&format!("{key}={value}"), tenant.create(pod.build()).await, key);
        }
        let both = PodManifest::new("odd").fraction("0.5").gpus(1);
        refused(
            "a part and a whole",
            tenant.create(both.build()).await,
            keys::GPU_FRACTION,
        );

        for (number, amount) in ["1000000", "9223372036854775807", "1e30"].into_iter().enumerate() {
            let mut pod = PodManifest::new(&format!("huge-{number}")).build();
            for kind in ["limits", "requests"] {
                pod["spec"]["containers"][0]["resources"][kind]["nvidia.com/gpu"] = amount.into();
            }
            // An API server may have its own limits.
            let _ = tenant.create(pod).await;
        }
        tenant.create(PodManifest::new("plain").gpus(1).build()).await.unwrap();
        cluster.until_only_running(&["plain"]).await;
        cluster
            .until("the huge ones say why they wait", |cluster| {
                let huge = cluster
                    .pods()
                    .into_iter()
                    .filter(|pod| pod.metadata.plain_name().starts_with("huge"));
                huge.into_iter()
                    .all(|pod| cluster.reason(pod.metadata.plain_name()).is_some())
            })
            .await;
        for pod in cluster.pods() {
            tenant
                .delete::<kai_api::Pod>("default", pod.metadata.plain_name())
                .await
                .unwrap();
        }
    });
}
