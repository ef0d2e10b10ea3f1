//! Instant queries to a Prometheus server over HTTP. An answer is bounded in size; the caller bounds the time.

use std::sync::Arc;

use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kai_engine::model::Millis;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// The largest answer. A series takes about 200 bytes: enough for tens of thousands of queues.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How much of an answer that is an error is told.
const ERROR_CHARS_MAX: usize = 300;

/// A Prometheus server.
pub(super) struct Server {
    client: Client<HttpsConnector<HttpConnector>, Empty<bytes::Bytes>>,
    /// Without a slash at its end.
    base: String,
    /// Where it is, for the log: without the path.
    name: String,
}

impl Server {
    /// A server at this address, which may have a path.
    pub(super) fn new(address: &str) -> Result<Server, String> {
        let parsed: http::Uri = address
            .parse()
            .map_err(|error| format!("{address:?} is not an address: {error}"))?;
        let (Some(scheme), Some(authority)) = (parsed.scheme_str(), parsed.authority()) else {
            return Err(format!("{address:?} is not an address such as http://prometheus:9090"));
        };
        if authority.as_str().contains('@') {
            return Err("the address has a user: kai sends none; use a server that needs none".to_owned());
        }
        let connector = match scheme {
            "https" => HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(ring::default_provider())
                .map_err(|error| format!("https needs the certificates of the system: {error}"))?,
            _ => HttpsConnectorBuilder::new().with_tls_config(without_certificates()),
        };
        let connector = connector.https_or_http().enable_http1().build();
        Ok(Server {
            client: Client::builder(TokioExecutor::new()).build(connector),
            base: address.trim_end_matches('/').to_owned(),
            name: format!("{scheme}://{authority}"),
        })
    }

    /// Where the server is.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The answer to an instant query at a time.
    pub(super) async fn query(&self, query: &str, now: Millis) -> Result<Vec<u8>, String> {
        let seconds = now.0 as f64 / 1000.0;
        let address = format!("{}/api/v1/query?query={}&time={seconds:.3}", self.base, encode(query));
        let address: http::Uri = address.parse().map_err(|error| format!("{error}"))?;
        let answer = self.client.get(address).await.map_err(|error| with_sources(&error))?;
        let code = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| format!("its answer can't be read: {error}"))?;
        let body = Vec::from(body.to_bytes());
        // Prometheus tells errors of a query in JSON, with code 4xx or 5xx.
        if code.is_success() || body.starts_with(b"{\"status\"") {
            return Ok(body);
        }
        let text: String = String::from_utf8_lossy(&body).chars().take(ERROR_CHARS_MAX).collect();
        Err(format!("it answered {code}: {}", text.trim()))
    }
}

/// The connector's type is the same for HTTP, which reads no certificates.
fn without_certificates() -> ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions");
    config
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

/// An error with its causes: the first alone says only that connecting failed.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// A value of a query string.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_one_value() {
        assert_eq!(encode("sum(a{b=\"c\"}) + 1"), "sum%28a%7Bb%3D%22c%22%7D%29%20%2B%201");
    }

    #[test]
    fn an_address_without_meaning_is_refused() {
        for (address, told) in [
            ("prometheus:9090", "not an address"),
            ("http://u:p@host", "has a user"),
            ("http://a b", "not an address"),
        ] {
            let error = Server::new(address).err().unwrap();
            assert!(error.contains(told), "{address}: {error}");
            assert!(!error.contains("u:p"), "{error}");
        }
        assert_eq!(Server::new("http://p:9090/path/").unwrap().name(), "http://p:9090");
    }
}
