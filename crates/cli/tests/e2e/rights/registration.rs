//! Webhooks that the installation registered, served by an account without the right to register webhooks.

use std::net::TcpListener;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kai_api::{Resource, Scope, keys};
use kai_cli::roles::RoleSettings;
use kai_cluster::{Deletion, Target};
use kai_controllers::admission::{self, CertificateSource, Endpoint};
use kai_embedded::kubelet::NodeTemplate;
use serde_json::json;

use crate::harness::manifest::PodManifest;
use crate::harness::scenario;
use crate::harness::user::refused;

const REGISTRATION: &str = "kai-admission-registration";

#[test]
fn webhooks_are_served_without_the_right_to_register_them() {
    scenario(&[NodeTemplate::new("node", "h100:1")], async |cluster| {
        let Some(kube) = cluster.kube() else { return };
        cluster.kill_roles().await;
        admission::uninstall(&cluster.client).await.unwrap();
        let bindings = Resource::new(
            "rbac.authorization.k8s.io",
            "v1",
            "ClusterRoleBinding",
            "clusterrolebindings",
            Scope::Cluster,
        );
        let binding = Target {
            resource: &bindings,
            namespace: "",
            name: REGISTRATION,
        };
        let mut given = cluster.client.get_value(binding).await.unwrap().unwrap();
        cluster.client.delete(binding, &Deletion::default()).await.unwrap();

        // The steps of an installation: a certificate, and the webhook configurations.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let certificates = tempfile::tempdir().unwrap();
        let authority = certificate(certificates.path());
        let mut settings = RoleSettings::every_role().unwrap();
        let mut webhooks = settings.admission.take().unwrap();
        webhooks.register = false;
        webhooks.certificates = CertificateSource::Directory(certificates.path().to_owned());
        webhooks.endpoint = Endpoint::Url(format!("https://{address}"));
        let bundle = STANDARD.encode(authority);
        let configurations = admission::webhook_configurations(&webhooks, &bundle);
        for object in admission::admission_policies(&webhooks)
            .into_iter()
            .chain(configurations)
        {
            kube.apply(object).await;
        }
        let context = kube.context_of("admission").await;
        let serving = tokio::spawn(admission::serve(context, webhooks, listener));
        let roles = {
            let kube = kube.clone();
            tokio::spawn(async move { kube.run_roles(settings).await })
        };
        cluster.until_guarded().await;
        cluster.create(PodManifest::new("half").fraction("0.5").build()).await;
        cluster.until_only_running(&["half"]).await;
        let nonsense = PodManifest::new("nonsense").annotation(keys::GPU_FRACTION, "much");
        refused("fraction", cluster.try_create(nonsense.build()).await, "gpu-fraction");

        assert!(!serving.is_finished() && !roles.is_finished());
        serving.abort();
        roles.abort();
        admission::uninstall(&cluster.client).await.unwrap();
        given["metadata"] = json!({ "name": REGISTRATION });
        given["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
        given["kind"] = "ClusterRoleBinding".into();
        kube.apply(given).await;
        cluster.start_roles();
        cluster.until_guarded().await;
    });
}

/// Writes a certificate for this machine to the files of `--cert-dir`. Returns its authority: the certificate itself.
fn certificate(directory: &std::path::Path) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    let (key, chain) = (path("tls.key"), path("tls.crt"));
    let made = std::process::Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=kai",
        ])
        .args([
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            &key,
            "-out",
            &chain,
        ])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::read_to_string(chain).unwrap()
}
