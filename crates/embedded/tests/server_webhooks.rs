//! Webhooks behind real TLS: the embedded API server calls them as kube-apiserver does.

#![allow(clippy::unwrap_used)] // Helpers of tests: a panic is the failure.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kai_embedded::server::{Options, Server};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn bundle(&self) -> String {
        STANDARD.encode(self.0.pem())
    }
}

/// A webhook on a port of its own.
struct Hook {
    url: String,
    asked: Arc<AtomicU32>,
}

impl Hook {
    /// Starts a webhook with a certificate for `host`. It labels pods, rejects pods named `bad`, and does not respond for pods
    /// named `slow`.
    async fn start(authority: &Authority, host: &str) -> Hook {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority.0).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://127.0.0.1:{}/admit", listener.local_addr().unwrap().port());
        let asked = Arc::new(AtomicU32::new(0));
        let (acceptor, counted) = (TlsAcceptor::from(Arc::new(config)), Arc::clone(&asked));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), Arc::clone(&counted));
                tokio::spawn(async move {
                    // A client that does not trust the certificate closes the connection.
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(|request| answer(request, Arc::clone(&counted)));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Hook { url, asked }
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn answer(request: Request<Incoming>, asked: Arc<AtomicU32>) -> Result<Response<Full<Bytes>>, Infallible> {
    asked.fetch_add(1, Ordering::SeqCst);
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let name = review["request"]["object"]["metadata"]["name"].as_str().unwrap();
    if name.starts_with("slow") {
        std::future::pending::<()>().await;
    }
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]).to_string();
    let response = json!({
        "uid": review["request"]["uid"], "allowed": name != "bad", "status": {"code": 422, "reason": "Invalid", "message": "bad name"},
        "patchType": "JSONPatch", "patch": STANDARD.encode(patch),
    });
    let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Ok(Response::new(Full::new(Bytes::from(answer.to_string()))))
}

fn configuration(kind: &str, hook: &Hook, bundle: &str, failure: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "hook"},
        "webhooks": [{
            "name": "hook.test.example", "failurePolicy": failure, "timeoutSeconds": 1,
            "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": hook.url, "caBundle": bundle},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "matchConditions": [{"name": "ours", "expression": "object.metadata.name != 'other'"}],
        }],
    })
}

const MUTATING: &str = "MutatingWebhookConfiguration";
const VALIDATING: &str = "ValidatingWebhookConfiguration";

/// Creates a pod over HTTP; the error is the message of the rejection.
async fn create(server: &Server, name: &str) -> Result<Pod, String> {
    let pods: Api<Pod> = Api::default_namespaced(Client::new(server.service(), "default"));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    match pods.create(&PostParams::default(), &pod).await {
        Ok(pod) => Ok(pod),
        Err(kube::Error::Api(status)) => {
            // If there are details, kubectl shows only the name.
            assert!(status.details.is_none_or(|details| details.kind.is_empty()));
            Err(format!("{}: {}", status.code, status.message))
        }
        Err(other) => panic!("not an answer of the server: {other}"),
    }
}

async fn refused(server: &Server, name: &str, why: &str) {
    let message = create(server, name).await.unwrap_err();
    assert!(message.contains(why), "{message}");
}

#[tokio::test]
async fn a_webhook_that_is_trusted_changes_and_refuses() {
    let (server, authority) = (Server::new(Options::default()), Authority::new());
    let hook = Hook::start(&authority, "127.0.0.1").await;
    let mutating = configuration(MUTATING, &hook, &authority.bundle(), "Fail");
    server.store().create(mutating).unwrap();
    assert_eq!(create(&server, "a").await.unwrap().labels()["seen"], "yes");
    refused(
        &server,
        "bad",
        "422: admission webhook \"hook.test.example\" denied the request: bad name",
    )
    .await;
    let asked = hook.asked();
    create(&server, "other").await.unwrap();
    assert_eq!(hook.asked(), asked, "its condition does not hold");

    server
        .store()
        .delete(
            "mutatingwebhookconfigurations.admissionregistration.k8s.io",
            "",
            "hook",
            &Default::default(),
        )
        .unwrap();
    let validating = configuration(VALIDATING, &hook, &authority.bundle(), "Ignore");
    server.store().create(validating).unwrap();
    assert!(
        create(&server, "b").await.unwrap().labels().is_empty(),
        "it only judges"
    );
    refused(&server, "bad", "denied the request: bad name").await;
}

#[tokio::test]
async fn a_webhook_of_another_authority_is_not_believed() {
    let (server, authority) = (Server::new(Options::default()), Authority::new());
    let hook = Hook::start(&authority, "127.0.0.1").await;
    let other_authority = Authority::new().bundle();
    server
        .store()
        .put(configuration(VALIDATING, &hook, &other_authority, "Fail"))
        .unwrap();
    refused(
        &server,
        "a",
        "500: Internal error occurred: failed calling webhook \"hook.test.example\"",
    )
    .await;
    server
        .store()
        .put(configuration(VALIDATING, &hook, &other_authority, "Ignore"))
        .unwrap();
    create(&server, "a").await.unwrap();
    assert_eq!(hook.asked(), 0, "nothing was sent to a server of another authority");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_not_believed() {
    let (server, authority) = (Server::new(Options::default()), Authority::new());
    let hook = Hook::start(&authority, "elsewhere.example").await;
    let configuration = configuration(MUTATING, &hook, &authority.bundle(), "Fail");
    server.store().create(configuration).unwrap();
    refused(&server, "a", "tls: ").await;
    assert_eq!(hook.asked(), 0);
}

#[tokio::test]
async fn a_webhook_that_does_not_answer_is_given_up() {
    let (server, authority) = (Server::new(Options::default()), Authority::new());
    let hook = Hook::start(&authority, "127.0.0.1").await;
    let with = |failure| configuration(VALIDATING, &hook, &authority.bundle(), failure);
    server.store().put(with("Fail")).unwrap();
    refused(&server, "slow", "context deadline exceeded").await;
    server.store().put(with("Ignore")).unwrap();
    create(&server, "slow").await.unwrap();
    assert_eq!(hook.asked(), 2);
}
