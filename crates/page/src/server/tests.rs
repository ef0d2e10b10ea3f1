use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use kai_view::{ClusterView, ExplanationView};
use parking_lot::Mutex;
use serde_json::json;
use tower::ServiceExt as _;

use super::STREAMS_MAX;
use super::answers::{ANSWERS_MAX, SEND};
use crate::source::{Access, Authorizer, BoxFuture, PageOptions, Source, StoryStep, StorySteps};
use crate::synthetic::{START_MS, Simulation};

/// A cluster, a story and the rights of callers, which tests change.
struct World {
    view: Mutex<Option<Arc<ClusterView>>>,
    submitted: AtomicUsize,
    revoked: AtomicBool,
    /// The API server does not answer.
    is_away: AtomicBool,
}

/// An explanation that names work of two namespaces.
fn explanation(pod: &str) -> ExplanationView {
    let remedy = |workload: &str| {
        let text = format!("end Job {workload}");
        json!({ "text": text, "tried": true, "steps": [{ "kind": "end", "text": text, "podGroup": workload }] })
    };
    let explanation = json!({
        "remedies": [remedy("team-speech/secret"), remedy("team-vision/own")], "nearestNodes": [],
        "noRemedy": format!("no node could hold <{pod}>"), "cut": false, "trials": 1,
    });
    serde_json::from_value(explanation).unwrap()
}

impl Source for World {
    fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
        Box::pin(async { self.view.lock().clone() })
    }

    fn explain(&self, namespace: &str, pod: &str) -> BoxFuture<'_, Option<ExplanationView>> {
        let explanation = explanation(&format!("{namespace}/{pod}"));
        Box::pin(async { Some(explanation) })
    }
}

impl Authorizer for World {
    fn authorize(&self, peer: IpAddr, token: Option<&str>) -> BoxFuture<'_, Access> {
        let access = match token {
            _ if self.is_away.load(Ordering::Relaxed) => Access::Refused(503, "the API server does not say".to_owned()),
            _ if self.revoked.load(Ordering::Relaxed) => Access::Refused(401, "the token has expired".to_owned()),
            None if peer.is_loopback() => Access::Everything,
            Some("all") => Access::Everything,
            Some("vision") => Access::Namespaces(Arc::new(BTreeSet::from(["team-vision".to_owned()]))),
            Some("nobody") => Access::Refused(403, "you may not list pods".to_owned()),
            None | Some(_) => Access::Refused(401, "a token is needed".to_owned()),
        };
        Box::pin(async { access })
    }
}

impl StorySteps for World {
    fn steps(&self) -> Vec<StoryStep> {
        let submitted = self.submitted.load(Ordering::Relaxed);
        let step = |at: usize| StoryStep {
            title: format!("step {at}"),
            submitted: at < submitted,
        };
        (0..2).map(step).collect()
    }

    fn submit(&self, step: usize) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let next = self
                .submitted
                .compare_exchange(step, step + 1, Ordering::Relaxed, Ordering::Relaxed);
            next.map(|_| ())
                .map_err(|_| "the step before it comes first".to_owned())
        })
    }
}

struct Page {
    world: Arc<World>,
    router: Router,
}

const REMOTE: [u8; 4] = [10, 0, 0, 7];
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];

impl Page {
    fn new() -> Page {
        Page::with(true)
    }

    fn with(has_story: bool) -> Page {
        let world = Arc::new(World {
            view: Mutex::new(Some(Arc::new(Simulation::small(START_MS).view()))),
            submitted: AtomicUsize::new(0),
            revoked: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
        });
        let router = super::router(PageOptions {
            source: world.clone(),
            authorizer: world.clone(),
            story: has_story.then(|| world.clone() as Arc<dyn StorySteps>),
            cluster_name: "test <cluster>".to_owned(),
        });
        Page { world, router }
    }

    async fn send(&self, peer: [u8; 4], request: Request<Body>) -> Response {
        let mut request = request;
        request
            .extensions_mut()
            .insert(ConnectInfo(SocketAddr::from((peer, 4_000))));
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, peer: [u8; 4], address: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::get(address).header("host", "localhost:8080");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.send(peer, request.body(Body::empty()).unwrap()).await;
        read(response).await
    }

    async fn post(
        &self,
        peer: [u8; 4],
        address: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::post(address)
            .header("host", "localhost:8080")
            .header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self
            .send(peer, request.body(Body::from(body.to_owned())).unwrap())
            .await;
        read(response).await
    }
}

async fn read(response: Response) -> (StatusCode, HeaderMap, String) {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (
        parts.status,
        parts.headers,
        String::from_utf8_lossy(&bytes).into_owned(),
    )
}

const SAME_ORIGIN: (&str, &str) = ("sec-fetch-site", "same-origin");
const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml");

#[tokio::test]
async fn every_answer_has_the_headers() {
    let page = Page::new();
    let addresses = [
        "/",
        "/gpus",
        "/view.json",
        "/assets/page.js",
        "/login",
        "/nothing",
        "/remedies/a/b",
        "/events",
    ];
    for address in addresses {
        let (_, headers, _) = page.get(LOOPBACK, address, &[]).await;
        let policy = headers["content-security-policy"].to_str().unwrap();
        let expected = [
            "default-src 'none'",
            "style-src 'self'",
            "script-src 'self'",
            "connect-src 'self'",
            "img-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ];
        assert_eq!(policy.split("; ").collect::<Vec<_>>(), expected, "{address}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["referrer-policy"], "same-origin");
        let cache = headers["cache-control"].to_str().unwrap();
        assert_eq!(
            cache == "no-store",
            !address.starts_with("/assets"),
            "{address}: {cache}"
        );
    }
}

#[tokio::test]
async fn views_are_whole_documents_without_inline_code() {
    let page = Page::new();
    let (status, headers, html) = page.get(LOOPBACK, "/gpus", &[]).await;
    assert_eq!(
        (status, headers["content-type"].to_str().unwrap()),
        (StatusCode::OK, "text/html; charset=utf-8")
    );
    assert!(
        html.starts_with("<!doctype html>") && html.ends_with("</html>"),
        "{html}"
    );
    assert!(
        html.contains("test &lt;cluster&gt;") && html.contains("data-digest=\""),
        "{html}"
    );
    assert!(
        !html.contains("style=") && !html.contains("<script>") && !html.contains(" onclick"),
        "{html}"
    );
    let (status, _, html) = page.get(LOOPBACK, "/nothing", &[]).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(html.contains("No such page"), "{html}");
}

#[tokio::test]
async fn answers_are_compressed_for_those_who_take_it() {
    let page = Page::new();
    let (_, headers, plain) = page.get(LOOPBACK, "/gpus", &[]).await;
    assert!(!headers.contains_key("content-encoding"));
    let (_, headers, zipped) = page.get(LOOPBACK, "/gpus", &[("accept-encoding", "gzip, br")]).await;
    assert_eq!(headers["content-encoding"], "gzip");
    assert!(zipped.len() < plain.len());
    let (_, headers, _) = page
        .get(LOOPBACK, "/assets/page.css", &[("accept-encoding", "gzip")])
        .await;
    assert_eq!(headers["content-encoding"], "gzip");
    let (_, _, style) = page.get(LOOPBACK, "/assets/page.css", &[]).await;
    assert!(style.contains(".p0{--p:0%}") && style.contains(".p100{--p:100%}"));
}

#[tokio::test]
async fn loopback_is_open_by_its_own_names_only() {
    let page = Page::new();
    for host in ["localhost:8080", "127.0.0.1:1", "[::1]"] {
        let request = Request::get("/").header("host", host).body(Body::empty()).unwrap();
        assert_eq!(page.send(LOOPBACK, request).await.status(), StatusCode::OK, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example:80"] {
        for address in ["/", "/view.json", "/assets/page.js", "/events?view=/"] {
            let request = Request::get(address).header("host", host).body(Body::empty()).unwrap();
            let (status, _, text) = read(page.send(LOOPBACK, request).await).await;
            assert_eq!(status, StatusCode::FORBIDDEN);
            assert!(text.contains("localhost") && text.contains(host), "{text}");
        }
    }
    // Other addresses need a token, and may have any name.
    let request = Request::get("/")
        .header("host", "kai.example")
        .header("authorization", "Bearer all");
    let response = page.send(REMOTE, request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mapped = SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0x7f00, 1], 4_000));
    let mut request = Request::get("/")
        .header("host", "evil.example")
        .body(Body::empty())
        .unwrap();
    request.extensions_mut().insert(ConnectInfo(mapped));
    let response = page.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN, "127.0.0.1 as an IPv6 address");
}

/// A proxy in the pod connects over loopback, for clients from anywhere.
#[tokio::test]
async fn what_a_proxy_forwards_is_not_of_this_machine() {
    let page = Page::new();
    let proxies = [
        ("forwarded", "for=192.0.2.7"),
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-proto", "https"),
        ("x-real-ip", "192.0.2.7"),
        ("x-envoy-external-address", "192.0.2.7"),
        ("l5d-client-id", "somebody"),
        ("via", "1.1 proxy"),
    ];
    for proxy in proxies {
        let (status, _, text) = page.get(LOOPBACK, "/view.json", &[proxy]).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{proxy:?}: {text}");
        let token = ("authorization", "Bearer vision");
        let (status, _, text) = page.get(LOOPBACK, "/view.json", &[proxy, token]).await;
        assert_eq!(status, StatusCode::OK, "{proxy:?}");
        assert!(text.contains("\"hidden\":{"), "{proxy:?}: only what the token may see");
    }
    // With a token it may have any name, as from elsewhere.
    let request = Request::get("/view.json")
        .header("host", "kai.example")
        .header("x-forwarded-for", "192.0.2.7")
        .header("authorization", "Bearer all");
    let response = page.send(LOOPBACK, request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_browser_without_a_token_gets_the_form() {
    let page = Page::new();
    let (status, _, html) = page.get(REMOTE, "/queues?a='b", &[BROWSER]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(
        html.contains("action=\"/login\"") && html.contains("value=\"/queues?a=&#39;b\""),
        "{html}"
    );
    assert!(!html.contains("team-vision"), "{html}");
    let (status, headers, text) = page.get(REMOTE, "/view.json", &[]).await;
    assert_eq!(
        (status, text.as_str()),
        (StatusCode::UNAUTHORIZED, "a token is needed\n")
    );
    assert_eq!(headers["www-authenticate"], "Bearer");
    let (status, _, text) = page.get(REMOTE, "/", &[BROWSER, ("cookie", "kai-token=nobody")]).await;
    assert_eq!(
        (status, text.as_str()),
        (StatusCode::FORBIDDEN, "you may not list pods\n")
    );
}

#[tokio::test]
async fn the_form_sets_a_cookie_that_only_this_page_gets() {
    let page = Page::new();
    let body = "token=all&next=%2Fqueues";
    let (status, headers, _) = page.post(REMOTE, "/login", &[SAME_ORIGIN], body).await;
    assert_eq!(
        (status, headers["location"].to_str().unwrap()),
        (StatusCode::SEE_OTHER, "/queues")
    );
    assert_eq!(
        headers["set-cookie"],
        "kai-token=all; HttpOnly; SameSite=Strict; Path=/"
    );
    let (_, headers, _) = page
        .post(REMOTE, "/login", &[SAME_ORIGIN, ("x-forwarded-proto", "https")], body)
        .await;
    assert_eq!(
        headers["set-cookie"],
        "kai-token=all; HttpOnly; SameSite=Strict; Path=/; Secure"
    );
    let (status, _, _) = page.get(REMOTE, "/", &[("cookie", "kai-token=all")]).await;
    assert_eq!(status, StatusCode::OK);
    // Not from elsewhere, not with another token, not to elsewhere.
    for origin in [
        ("sec-fetch-site", "cross-site"),
        ("origin", "http://evil.example"),
        ("accept", "*/*"),
    ] {
        let (status, headers, _) = page.post(REMOTE, "/login", &[origin], body).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{origin:?}");
        assert!(!headers.contains_key("set-cookie"));
    }
    for token in ["wrong", "", "a%3B%20Domain%3Devil", "a%0D%0Ab"] {
        let (status, headers, _) = page
            .post(REMOTE, "/login", &[SAME_ORIGIN], &format!("token={token}"))
            .await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{token}");
        assert!(!headers.contains_key("set-cookie"));
    }
    for next in ["//evil.example", "https://evil.example", "/login", ""] {
        let (_, headers, _) = page
            .post(REMOTE, "/login", &[SAME_ORIGIN], &format!("token=all&next={next}"))
            .await;
        assert_eq!(headers["location"], "/", "{next}");
    }
    // Over plain HTTP a browser says its origin only.
    let own = ("origin", "http://localhost:8080");
    let (status, headers, _) = page.post(REMOTE, "/login", &[own], body).await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert!(headers.contains_key("set-cookie"));
    let (status, _, _) = page.post(REMOTE, "/login", &[("origin", "null")], body).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    // A browser would drop the cookie.
    let (status, headers, html) = page
        .post(
            REMOTE,
            "/login",
            &[SAME_ORIGIN],
            &format!("token={}", "a".repeat(4_000)),
        )
        .await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(
        html.contains("larger than a browser keeps") && !headers.contains_key("set-cookie"),
        "{html}"
    );
    let (status, headers, _) = page.post(REMOTE, "/logout", &[SAME_ORIGIN], "").await;
    assert_eq!(status, StatusCode::SEE_OTHER);
    assert_eq!(
        headers["set-cookie"],
        "kai-token=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"
    );
}

#[tokio::test]
async fn remedies_are_for_those_who_see_the_pod() {
    let page = Page::new();
    let (status, _, html) = page.get(LOOPBACK, "/remedies/team/pod?fragment=1", &[]).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        html.starts_with("<h2>") && html.contains("no node could hold &lt;team/pod&gt;"),
        "{html}"
    );
    let (_, _, html) = page.get(LOOPBACK, "/remedies/team/pod", &[]).await;
    assert!(html.starts_with("<!doctype html>"), "{html}");
    let (_, _, text) = page.get(LOOPBACK, "/remedies/team/pod?json", &[]).await;
    assert!(text.starts_with('{') && text.contains("team-speech/secret"), "{text}");
    // A tenant asks for its own pods, and gets no foreign names.
    let token = [("authorization", "Bearer vision")];
    let (status, _, _) = page.get(REMOTE, "/remedies/team-speech/pod", &token).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    for form in ["", "?fragment=1", "?json"] {
        let address = format!("/remedies/team-vision/pod{form}");
        let (status, _, text) = page.get(REMOTE, &address, &token).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        assert!(
            text.contains("end Job team-vision/own") && text.contains("end other work"),
            "{text}"
        );
        assert!(!text.contains("secret"), "{text}");
    }
    *page.world.view.lock() = None;
    // Without a view nobody can say which names are foreign.
    tokio::time::sleep(crate::hub::POLL_PERIOD).await;
    let (status, _, text) = page.get(REMOTE, "/remedies/team-vision/pod", &token).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
}

#[tokio::test]
async fn a_tenant_gets_no_foreign_names() {
    let page = Page::new();
    let token = [("authorization", "Bearer vision")];
    let view = page.world.view.lock().clone().unwrap();
    let foreign: Vec<&str> = view
        .pods
        .iter()
        .flatten()
        .filter(|pod| pod.namespace != "team-vision")
        .map(|pod| pod.name.as_str())
        .collect();
    for address in [
        "/",
        "/gpus",
        "/gpus?cells=small",
        "/queues",
        "/waiting",
        "/gangs",
        "/decisions",
        "/nodes",
        "/nodes/h100-1",
        "/view.json",
    ] {
        let (status, _, text) = page.get(REMOTE, address, &token).await;
        assert_eq!(status, StatusCode::OK);
        for name in &foreign {
            assert!(!text.contains(name), "{name} in {address}");
        }
        assert!(!text.contains("/story/"), "{address}");
    }
    let (status, _, _) = page.post(REMOTE, "/story/0", &[SAME_ORIGIN, token[0]], "").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn the_story_is_submitted_from_the_page_only() {
    let page = Page::new();
    let (status, _, _) = page
        .post(LOOPBACK, "/story/0", &[("origin", "http://evil.example")], "")
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _, _) = page.post(LOOPBACK, "/story/0", &[], "").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _, text) = page.post(LOOPBACK, "/story/1", &[SAME_ORIGIN], "").await;
    assert_eq!(
        (status, text.as_str()),
        (StatusCode::CONFLICT, "the step before it comes first\n")
    );
    let (status, headers, _) = page
        .post(LOOPBACK, "/story/0", &[("origin", "http://localhost:8080")], "")
        .await;
    assert_eq!(
        (status, headers["location"].to_str().unwrap()),
        (StatusCode::SEE_OTHER, "/")
    );
    assert_eq!(page.world.submitted.load(Ordering::Relaxed), 1);
    let (status, _, _) = page.post(LOOPBACK, "/story/7", &[SAME_ORIGIN], "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _, _) = Page::with(false).post(LOOPBACK, "/story/0", &[SAME_ORIGIN], "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    for address in ["/", "/queues", "/view.json", "/remedies/a/b"] {
        let (status, _, _) = page.post(LOOPBACK, address, &[SAME_ORIGIN], "").await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{address}");
    }
}

/// An event stream as a browser reads it.
struct Events {
    body: Body,
    text: String,
}

struct Event {
    id: Option<String>,
    name: String,
    data: String,
}

impl Events {
    async fn open(page: &Page, address: &str, headers: &[(&str, &str)]) -> Events {
        let mut request = Request::get(address).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = page.send(LOOPBACK, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events {
            body: response.into_body(),
            text: String::new(),
        }
    }

    /// The next event that is not the time; `None` = the stream has ended.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let Some((event, rest)) = self.text.split_once("\n\n") else {
                let frame = self.body.frame().await?.unwrap();
                self.text
                    .push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
                continue;
            };
            let field = |name: &str| {
                event
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map(|text| text.trim_start().to_owned())
            };
            let found = field("event:").filter(|name| name != "time").map(|name| Event {
                id: field("id:"),
                name,
                data: field("data:").unwrap_or_default(),
            });
            self.text = rest.to_owned();
            if found.is_some() {
                return found;
            }
        }
    }
}

fn digest(html: &str) -> String {
    html.split("data-digest=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_stream_sends_what_changes_and_no_more() {
    let page = Page::new();
    let (_, _, html) = page.get(LOOPBACK, "/queues", &[]).await;
    let seen = digest(&html);
    let mut events = Events::open(&page, &format!("/events?view=%2Fqueues&seen={seen}"), &[]).await;
    let mut view = page.world.view.lock().clone().unwrap().as_ref().clone();
    view.queues.as_mut().unwrap()[2].gangs_waiting = Some(77);
    view.time = "2026-01-01T13:00:00Z".parse().unwrap();
    *page.world.view.lock() = Some(Arc::new(view));
    let event = events.next().await.unwrap();
    assert_eq!(event.name, "change");
    assert_eq!(event.data.matches("\"replace\"").count(), 1, "{}", event.data);
    assert!(event.data.contains("77 waiting"), "{}", event.data);
    assert!(
        !event.data.contains("insert") && !event.data.contains("remove"),
        "{}",
        event.data
    );
    // The connection breaks and comes back: the browser says what it has, and gets the rest.
    drop(events);
    let mut view = page.world.view.lock().clone().unwrap().as_ref().clone();
    view.queues.as_mut().unwrap().remove(2);
    *page.world.view.lock() = Some(Arc::new(view));
    let last = event.id.unwrap();
    let mut events = Events::open(&page, "/events?view=%2Fqueues&seen=old", &[("last-event-id", &last)]).await;
    let event = events.next().await.unwrap();
    assert_eq!(event.name, "change");
    assert_eq!(event.data.matches("\"remove\"").count(), 1, "{}", event.data);
}

#[tokio::test(start_paused = true)]
async fn a_browser_with_an_unknown_state_gets_everything() {
    let page = Page::new();
    for address in ["/events?view=/queues", "/events?view=/queues&seen=0123456789abcdef"] {
        let event = Events::open(&page, address, &[]).await.next().await.unwrap();
        assert_eq!(event.name, "reset");
        let changes: Vec<serde_json::Value> = serde_json::from_str(&event.data).unwrap();
        assert!(
            changes.len() >= 2 && changes.iter().all(|change| change.get("insert").is_some()),
            "{changes:?}"
        );
    }
    let (status, _, _) = page.get(LOOPBACK, "/events?view=/nothing", &[]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, _, _) = page.get(LOOPBACK, "/events", &[]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn the_page_says_when_the_view_goes_and_comes() {
    let page = Page::new();
    *page.world.view.lock() = None;
    let (status, _, html) = page.get(LOOPBACK, "/", &[]).await;
    assert_eq!(status, StatusCode::OK);
    assert!(html.contains("No view of the cluster"), "{html}");
    let (status, _, _) = page.get(LOOPBACK, "/view.json", &[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let mut events = Events::open(&page, &format!("/events?view=/&seen={}", digest(&html)), &[]).await;
    *page.world.view.lock() = Some(Arc::new(Simulation::small(START_MS).view()));
    let event = events.next().await.unwrap();
    assert!(
        event.data.contains("{\"remove\":{\"id\":\"no-view\"}}") && event.data.contains("Overview"),
        "{}",
        event.data
    );
}

#[tokio::test(start_paused = true)]
async fn a_submitted_step_changes_the_page() {
    let page = Page::new();
    let mut events = Events::open(&page, "/events?view=/", &[]).await;
    assert_eq!(events.next().await.unwrap().name, "reset");
    page.post(LOOPBACK, "/story/0", &[SAME_ORIGIN], "").await;
    let event = events.next().await.unwrap();
    assert!(
        event.data.contains("\"replace\":{\"id\":\"story\"") && event.data.contains("submitted"),
        "{}",
        event.data
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_its_access_does() {
    let page = Page::new();
    let mut events = Events::open(&page, "/events?view=/queues", &[]).await;
    assert_eq!(events.next().await.unwrap().name, "reset");
    page.world.revoked.store(true, Ordering::Relaxed);
    let begin = tokio::time::Instant::now();
    assert_eq!(events.next().await.unwrap().name, "access");
    assert!(begin.elapsed() <= Duration::from_secs(60));
    assert!(events.next().await.is_none());
}

/// The page must not load itself again: it would get a text that nothing loads again.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_without_a_word_while_the_api_server_is_away() {
    let page = Page::new();
    let mut events = Events::open(&page, "/events?view=/queues", &[]).await;
    let seen = events.next().await.unwrap().id.unwrap();
    page.world.is_away.store(true, Ordering::Relaxed);
    assert!(
        events.next().await.is_none(),
        "no event says that the access has changed"
    );
    let (status, headers, _) = page.get(LOOPBACK, "/events?view=/queues", &[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!headers.contains_key("retry-after"), "the browser tries again soon");
    // It is back, and the page goes on with what it has.
    page.world.is_away.store(false, Ordering::Relaxed);
    let mut view = page.world.view.lock().clone().unwrap().as_ref().clone();
    view.queues.as_mut().unwrap()[2].gangs_waiting = Some(77);
    *page.world.view.lock() = Some(Arc::new(view));
    let mut events = Events::open(&page, "/events?view=/queues", &[("last-event-id", &seen)]).await;
    assert_eq!(events.next().await.unwrap().name, "change");
}

/// A view of megabytes for clients that take no compression.
#[tokio::test(start_paused = true)]
async fn large_answers_are_bounded_in_number_and_time() {
    let page = Page::new();
    *page.world.view.lock() = Some(Arc::new(Simulation::large(100, START_MS).view()));
    let open = async || {
        let request = Request::get("/view.json").header("host", "localhost");
        page.send(LOOPBACK, request.body(Body::empty()).unwrap()).await
    };
    let mut stalled = Vec::new();
    for _ in 0..ANSWERS_MAX {
        let response = open().await;
        assert_eq!(response.status(), StatusCode::OK);
        stalled.push(response);
    }
    let response = open().await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
    // Their time is over: others get their answer, and these an error instead of the rest.
    tokio::time::sleep(SEND).await;
    let (status, _, text) = read(open().await).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.len() > 500_000 && text.ends_with('}'), "{} bytes", text.len());
    for response in stalled {
        assert!(response.into_body().collect().await.is_err());
    }
    // An answer that is dropped gives its place back at once; so does one that was read.
    for _ in 0..ANSWERS_MAX + 1 {
        drop(open().await);
        let (status, _, _) = read(open().await).await;
        assert_eq!(status, StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_are_bounded_and_come_free() {
    let page = Page::new();
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        let mut events = Events::open(&page, "/events?view=/queues", &[]).await;
        assert!(events.next().await.is_some());
        streams.push(events);
    }
    let (status, headers, _) = page.get(LOOPBACK, "/events?view=/queues", &[]).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(headers.contains_key("retry-after"));
    // The module asks in this way, since a browser does not tell it why a stream was refused.
    let ask = async || {
        let request = Request::head("/events?view=/queues").header("host", "localhost");
        page.send(LOOPBACK, request.body(Body::empty()).unwrap()).await
    };
    let answer = ask().await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key("retry-after"));
    // One browser leaves; its place is free as soon as its task has noticed.
    streams.pop();
    let freed = async {
        loop {
            let request = Request::get("/events?view=/queues")
                .header("host", "localhost")
                .body(Body::empty())
                .unwrap();
            if page.send(LOOPBACK, request).await.status() == StatusCode::OK {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), freed).await.unwrap();
    streams.pop();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        assert_eq!(ask().await.status(), StatusCode::OK, "asking takes no place");
    }
}

/// The cells of a node's GPUs, by the pods that they lead to.
fn cells(html: &str, node: &str) -> Vec<String> {
    let tile = html.split(&format!("id=\"n:{node}\"")).nth(1).unwrap();
    let tile = tile.split("</li>").next().unwrap();
    let cells = tile
        .split("<div class=\"c\">")
        .nth(1)
        .unwrap()
        .split("</div>")
        .next()
        .unwrap();
    let cells = cells.split("<a class=").flat_map(|part| {
        let pod = part
            .split("href=\"")
            .nth(1)
            .map(|rest| rest.split('"').next().unwrap().to_owned());
        let free = part.matches("<b").count();
        pod.into_iter().chain((0..free).map(|_| "free".to_owned()))
    });
    cells.collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_leaves_moves_no_other_cell() {
    let page = Page::new();
    let mut view = page.world.view.lock().clone().unwrap().as_ref().clone();
    let node = view
        .nodes
        .as_mut()
        .unwrap()
        .iter_mut()
        .find(|node| node.gpus.len() == 8)
        .unwrap();
    let name = node.name.clone();
    let user = node.gpus.iter().find_map(|gpu| gpu.pods.first()).unwrap().clone();
    let gpu = |pod: Option<&str>| kai_view::Gpu {
        state: if pod.is_some() {
            kai_view::GpuState::Whole
        } else {
            kai_view::GpuState::Idle
        },
        uuid: None,
        gpu_group: None,
        used_mib: None,
        pods: pod
            .map(|pod| kai_view::GpuUser {
                name: pod.into(),
                namespace: "a".into(),
                ..user.clone()
            })
            .into_iter()
            .collect(),
    };
    // As the view has them: by name, without gaps.
    let mut show = |pods: &[&str]| {
        let node = view
            .nodes
            .as_mut()
            .unwrap()
            .iter_mut()
            .find(|node| node.name == name)
            .unwrap();
        let used = pods.iter().map(|pod| gpu(Some(pod)));
        node.gpus = used.chain(std::iter::repeat_with(|| gpu(None))).take(8).collect();
        *page.world.view.lock() = Some(Arc::new(view.clone()));
    };
    let shown = async |expect: &str| {
        tokio::time::sleep(crate::hub::POLL_PERIOD).await;
        for token in ["all", "vision"] {
            let token = format!("Bearer {token}");
            let (_, _, html) = page
                .get(REMOTE, "/gpus?cells=small&group=none", &[("authorization", &token)])
                .await;
            let all = cells(&html, &name);
            if token == "Bearer all" {
                let pods = all.iter().map(|cell| cell.trim_start_matches("/pods/a/"));
                assert_eq!(pods.collect::<Vec<_>>().join(" "), expect);
            }
        }
    };
    show(&["p1", "p2", "p2", "p3"]);
    shown("p1 p2 p2 p3 free free free free").await;
    show(&["p2", "p2", "p3"]);
    shown("free p2 p2 p3 free free free free").await;
    show(&["p0", "p2", "p2", "p3", "p4"]);
    shown("p0 p2 p2 p3 p4 free free free").await;
    // Nobody looks for an hour.
    show(&["p2", "p3", "p4", "p9"]);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    shown("p9 p2 free p3 p4 free free free").await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_dropped() {
    let page = Page::new();
    let stalled = Events::open(&page, "/events?view=/queues", &[]).await;
    let app_is_free = async {
        // The world changes; nobody reads the stream.
        for step in 0..400 {
            let mut view = page.world.view.lock().clone().unwrap().as_ref().clone();
            view.queues.as_mut().unwrap()[1].gangs_waiting = Some(step);
            *page.world.view.lock() = Some(Arc::new(view));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    app_is_free.await;
    let Events { body, .. } = stalled;
    // The stream has ended: what is left in it is little, and then comes its end.
    let rest = tokio::time::timeout(Duration::from_secs(5), body.collect())
        .await
        .unwrap()
        .unwrap()
        .to_bytes();
    assert!(rest.len() < 64 * 1_024, "{} bytes", rest.len());
}
