//! Who may see what: the token of a request, the check of its host, the check of its origin.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{self, HeaderMap};
use http::{Method, StatusCode, Uri};

use super::respond::{harden, plain};
use super::{App, login};
use crate::hub::Scope;
use crate::source::Access;

/// The cookie with the token.
pub(super) const COOKIE: &str = "kai-token";

/// The caller of a request that may see something.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) peer: IpAddr,
    pub(super) token: Option<String>,
    pub(super) scope: Scope,
}

impl Caller {
    /// Judges the caller. The error is a status and a text.
    pub(super) async fn judge(app: &App, peer: IpAddr, token: Option<String>) -> Result<Caller, (StatusCode, String)> {
        match app.authorizer.authorize(peer, token.as_deref()).await {
            Access::Everything => Ok(Caller {
                peer,
                token,
                scope: None,
            }),
            Access::Namespaces(namespaces) => Ok(Caller {
                peer,
                token,
                scope: Some(namespaces),
            }),
            Access::Refused(status, text) => {
                let status = StatusCode::from_u16(status).ok().filter(|status| !status.is_success());
                Err((status.unwrap_or(StatusCode::FORBIDDEN), text))
            }
        }
    }

    pub(super) fn sees_everything(&self) -> bool {
        self.scope.is_none()
    }
}

/// The address of the client. The program that serves the router provides that of the peer.
///
/// A proxy in the same pod (a sidecar of a mesh, a login proxy) connects over loopback for clients from anywhere: such a request counts as one
/// of an unspecified address, which needs a token.
pub(super) fn peer(request: &Request) -> Option<IpAddr> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
    let peer = peer.0.ip().to_canonical();
    match peer.is_loopback() && is_forwarded(request.headers()) {
        true => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        false => Some(peer),
    }
}

/// Whether a proxy says by a header that it forwards the request of another client.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    const NAMES: [&str; 5] = ["forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip"];
    const PREFIXES: [&str; 3] = ["x-forwarded-", "x-envoy-", "l5d-"];
    let says_so = |name: &str| NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    headers.keys().any(|name| says_so(name.as_str()))
}

/// Refuses requests that reach a loopback address by another name, and adds the headers of every answer.
///
/// Callers on loopback need no token, so a browser must not be led there by the name of a stranger's site (DNS rebinding).
pub(super) async fn check_host(request: Request, next: Next) -> Response {
    let refusal = match peer(&request) {
        None => Some((
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server does not know its peers".to_owned(),
        )),
        Some(peer) if peer.is_loopback() && !is_loopback_name(host(request.headers(), request.uri())) => {
            let host = host(request.headers(), request.uri()).unwrap_or("no name");
            let text = format!(
                "this page is open to this machine only, by localhost, 127.0.0.1 or [::1]; the request names {host}"
            );
            Some((StatusCode::FORBIDDEN, text))
        }
        Some(_) => None,
    };
    let mut response = match refusal {
        Some((status, text)) => plain(status, text),
        None => next.run(request).await,
    };
    harden(response.headers_mut());
    response
}

fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    header.or_else(|| uri.authority().map(http::uri::Authority::as_str))
}

fn is_loopback_name(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) => (name, port.strip_prefix(':').or(port.is_empty().then_some("0"))),
            None => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, Some("0")),
        },
    };
    let has_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let bracketed = host.starts_with('[');
    has_port
        && match bracketed {
            true => name == "::1",
            false => name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1",
        }
}

/// Lets requests through that may see something.
pub(super) async fn authorize(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let Some(peer) = peer(&request) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the server does not know its peers");
    };
    match Caller::judge(&app, peer, token(request.headers())).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err((status, text)) => refuse(&app, &request, status, &text),
    }
}

/// A browser without a token gets the form for one.
fn refuse(app: &App, request: &Request, status: StatusCode, text: &str) -> Response {
    let accepted = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    let is_browser = accepted.is_some_and(|types| types.contains("text/html"));
    if status == StatusCode::UNAUTHORIZED && is_browser && request.method() == Method::GET {
        let next = request.uri().path_and_query().map_or("/", |address| address.as_str());
        let refusal = token(request.headers()).is_some().then_some(text);
        return login::page(app, status, next, refusal);
    }
    let mut response = plain(status, text);
    if status == StatusCode::UNAUTHORIZED {
        let scheme = header::HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

/// The token of a request: of its `Authorization`, or of the cookie that the form sets.
pub(super) fn token(headers: &HeaderMap) -> Option<String> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(authorization) = text(header::AUTHORIZATION) {
        let (scheme, token) = authorization.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned());
    }
    let cookies = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut pairs = cookies
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let (_, token) = pairs.find(|(name, _)| *name == COOKIE)?;
    (!token.is_empty()).then(|| token.to_owned())
}

/// Whether a request that changes something comes from this page. Browsers always say so; a request that does not say is refused.
pub(super) fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin";
    }
    let (Some(origin), Some(host)) = (text("origin"), text("host")) else {
        return false;
    };
    let address = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    address.is_some_and(|address| address.eq_ignore_ascii_case(host))
}

/// The text of a refusal by [`is_same_origin`].
pub(super) fn foreign_origin() -> Response {
    plain(
        StatusCode::FORBIDDEN,
        "only this page may send this: the request has neither `Sec-Fetch-Site: same-origin` nor an `Origin` of this host",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loopback() {
        for host in [
            "localhost",
            "localhost:8080",
            "LocalHost:1",
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:8080",
        ] {
            assert!(is_loopback_name(Some(host)), "{host}");
        }
        let others = [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "localhost:evil",
            "::1",
            "[::1",
            "[::1]x",
            "[localhost]",
            "",
        ];
        for host in others {
            assert!(!is_loopback_name(Some(host)), "{host}");
        }
        assert!(!is_loopback_name(None));
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn tokens_of_requests() {
        let check = |pairs, expected: Option<&str>| assert_eq!(token(&headers(pairs)).as_deref(), expected);
        check(&[("authorization", "Bearer abc")], Some("abc"));
        check(&[("authorization", "bearer  abc ")], Some("abc"));
        check(&[("authorization", "Basic abc")], None);
        check(&[("cookie", "a=b; kai-token=abc; c=d")], Some("abc"));
        check(&[("cookie", "kai-token=")], None);
        check(&[("cookie", "xkai-token=abc")], None);
        check(&[], None);
    }

    #[test]
    fn origins_of_requests() {
        let check = |pairs, expected: bool| assert_eq!(is_same_origin(&headers(pairs)), expected, "{pairs:?}");
        check(&[("sec-fetch-site", "same-origin")], true);
        check(&[("sec-fetch-site", "cross-site")], false);
        check(
            &[
                ("sec-fetch-site", "same-site"),
                ("origin", "http://a:1"),
                ("host", "a:1"),
            ],
            false,
        );
        check(&[("origin", "http://a:1"), ("host", "a:1")], true);
        check(&[("origin", "http://a:2"), ("host", "a:1")], false);
        check(&[("origin", "null"), ("host", "a:1")], false);
        check(&[("host", "a:1")], false);
    }
}
