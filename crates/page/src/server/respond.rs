//! Answers, with the headers that every answer has.

use axum::body::Body;
use axum::response::Response;
use http::header::{self, HeaderMap, HeaderValue};
use http::{HeaderName, StatusCode};

use crate::gzip;

/// Nothing from elsewhere, nothing inline, no frames.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
                      form-action 'self'; frame-ancestors 'none'";

/// Headers of every answer.
pub(super) fn harden(headers: &mut HeaderMap) {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`: browsers then send `Origin: null` with the form for a token, unless the page has HTTPS or is on loopback.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What a reader may see depends on the reader: nothing is kept unless a handler says so.
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
}

/// Whether the client takes gzip.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok());
    accepted.is_some_and(gzip::is_accepted)
}

/// An answer of this type, compressed if `zip` says so and it is worth it. Call it on a thread that may block.
pub(super) fn content(status: StatusCode, content_type: &'static str, text: String, zip: bool) -> Response {
    let zip = zip && text.len() >= gzip::MIN_BYTES;
    let bytes = if zip {
        gzip::compress(text.as_bytes())
    } else {
        text.into_bytes()
    };
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if zip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

pub(super) fn html(status: StatusCode, text: String, zip: bool) -> Response {
    content(status, "text/html; charset=utf-8", text, zip)
}

pub(super) fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    let mut text = text.into();
    text.push('\n');
    content(status, "text/plain; charset=utf-8", text, false)
}

/// All places are taken. The header tells the module that the server is well.
pub(super) fn busy(text: &'static str) -> Response {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, text);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    response
}

/// Leads a browser to another page of this server.
pub(super) fn see_other(address: &str) -> Response {
    let mut response = plain(StatusCode::SEE_OTHER, "see the other page");
    let address = HeaderValue::from_str(address).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(header::LOCATION, address);
    response
}

/// Runs what takes milliseconds away from the threads that serve connections.
pub(super) async fn blocking(make: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(make).await {
        Ok(response) => response,
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made"),
    }
}
