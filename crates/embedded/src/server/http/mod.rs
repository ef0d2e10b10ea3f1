//! The HTTP API: requests in, responses and watch streams out. The store decides about objects.
//!
//! `service` is the entry, `listen` the TCP port. `route` and `request` parse, `resources` dispatches; `writes`, `watch`, `scale`,
//! `reviews` and `unsupported` handle. `discovery` and `openapi` describe the API. `format` and `table` render objects.

mod discovery;
mod field_validation;
mod format;
mod json;
mod listen;
mod openapi;
mod protobuf;
mod query;
mod request;
mod resources;
mod reviews;
mod route;
mod scale;
mod schemas;
mod service;
mod table;
mod unsupported;
mod watch;
mod writes;

pub use listen::Listening;
pub(crate) use listen::listen;
pub(crate) use request::User;
pub use service::{ConnectionLost, Service};

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use serde_json::Value;

use super::status_error::StatusError;

/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

fn json_response(code: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body(bytes));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn value_response(value: &Value) -> Response<Body> {
    json_response(StatusCode::OK, value.to_string())
}

/// The response to a successful write without an object to return.
fn success(code: StatusCode) -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()
    });
    json_response(code, status.to_string())
}

fn text_response(text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(body(text));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

fn error_response(error: &StatusError) -> Response<Body> {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(code, error.status().to_string());
    if error.code == 429 || error.code == 503 {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
