//! The form for a token. The token is kept in a cookie that scripts cannot read and other sites cannot send.

use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Uri};
use serde::Deserialize;

use super::App;
use super::access::{COOKIE, Caller, foreign_origin, is_same_origin, peer};
use super::pages::now;
use super::respond::{html, plain, see_other};
use crate::document::Document;
use crate::route::{Route, parameter};

/// Browsers keep cookies of up to 4,096 bytes, with name and attributes, and drop larger ones without a word.
const TOKEN_BYTES_MAX: usize = 3_900;
/// How long a client may take to send the form.
const FORM_TIMEOUT: Duration = Duration::from_secs(10);
const TOO_LARGE: &str = "this token is larger than a browser keeps (3,900 bytes); use `kubectl port-forward`, or a client that sends it as `Authorization: Bearer`";

#[derive(Deserialize)]
pub(super) struct LogIn {
    #[serde(default)]
    token: String,
    #[serde(default)]
    next: String,
}

/// The page with the form.
pub(super) fn page(app: &App, status: StatusCode, next: &str, refusal: Option<&str>) -> Response {
    let document = Document {
        title: "Log in",
        cluster_name: &app.cluster_name,
        place: None,
        digest: None,
        now: &now(),
        time: None,
        logged_in: false,
    };
    html(status, document.write_login(own_address(next), refusal), false)
}

/// An address of this page; others lead to the overview.
fn own_address(next: &str) -> &str {
    match Route::parse_address(next) {
        Some(_) => next,
        None => "/",
    }
}

pub(super) async fn form(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let next = parameter(uri.query().unwrap_or_default(), "next").unwrap_or_default();
    page(&app, StatusCode::OK, &next, None)
}

pub(super) async fn log_in(State(app): State<Arc<App>>, request: Request) -> Response {
    let (peer, headers) = (peer(&request), request.headers().clone());
    if !is_same_origin(&headers) {
        return foreign_origin();
    }
    let form = <Form<LogIn> as axum::extract::FromRequest<()>>::from_request(request, &());
    let form = tokio::time::timeout(FORM_TIMEOUT, form).await;
    let (Some(peer), Ok(Ok(Form(LogIn { token, next })))) = (peer, form) else {
        return plain(StatusCode::BAD_REQUEST, "the form could not be read");
    };
    let token = token.trim();
    // Visible characters only, and none that ends a value of a cookie.
    let is_token = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b';' | b',' | b'"' | b'\\');
    if token.len() > TOKEN_BYTES_MAX {
        return page(&app, StatusCode::UNAUTHORIZED, &next, Some(TOO_LARGE));
    }
    if token.is_empty() || !token.bytes().all(is_token) {
        return page(&app, StatusCode::UNAUTHORIZED, &next, Some("this is not a token"));
    }
    match Caller::judge(&app, peer, Some(token.to_owned())).await {
        Ok(_) => with_cookie(see_other(own_address(&next)), token, &headers),
        Err((status, text)) => page(&app, status, &next, Some(&text)),
    }
}

pub(super) async fn log_out(request: Request) -> Response {
    if !is_same_origin(request.headers()) {
        return foreign_origin();
    }
    with_cookie(see_other("/login"), "", request.headers())
}

/// Sets the cookie; an empty token ends it.
fn with_cookie(mut response: Response, token: &str, headers: &HeaderMap) -> Response {
    let over_https = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let secure = if over_https { "; Secure" } else { "" };
    let end = if token.is_empty() { "; Max-Age=0" } else { "" };
    let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/{secure}{end}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}
