//! The tower service: authenticates, reads the body, asks the fault policy, and passes the request on.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::request::{ApiRequest, User};
use super::{Body, error_response, resources};
use crate::server::faults::Fault;
use crate::server::status_error::StatusError;
use crate::server::{ADMIN, Server};

/// The longest request body, as in Kubernetes.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The connection broke before the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection was lost before the answer came")]
pub struct ConnectionLost;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, ConnectionLost>> + Send>>;

/// The server as a tower service, for `kube::Client::new` or an HTTP server.
#[derive(Debug, Clone)]
pub struct Service {
    server: Server,
    /// The user of an in-process client; `None` on a port, where the request has credentials.
    user: Option<String>,
    /// The claims of the user's token.
    extra: BTreeMap<String, Vec<String>>,
}

impl Service {
    pub(crate) fn in_process(server: Server, user: &str) -> Self {
        Self {
            server,
            user: Some(user.to_owned()),
            extra: BTreeMap::new(),
        }
    }

    /// The same user, with a token that has this claim, e.g. `authentication.kubernetes.io/node-name`.
    pub fn claiming(mut self, claim: &str, value: &str) -> Self {
        self.extra.insert(claim.to_owned(), vec![value.to_owned()]);
        self
    }

    pub(super) fn on_port(server: Server) -> Self {
        Self {
            server,
            user: None,
            extra: BTreeMap::new(),
        }
    }

    /// Answers a request that has been read. Boxed and not generic: otherwise every crate with a client of this server would compile the
    /// whole server again.
    fn answer(self, request: Result<ApiRequest, StatusError>) -> Answer {
        Box::pin(async move {
            match request {
                Ok(request) => self.respond(request).await,
                Err(error) => Ok(error_response(&error)),
            }
        })
    }

    async fn respond(&self, request: ApiRequest) -> Result<Response<Body>, ConnectionLost> {
        let fault = self.server.faults().request(&request.info());
        match fault {
            Fault::Pass | Fault::DropResponse => {}
            Fault::Delay(time) => tokio::time::sleep(time).await,
            Fault::Fail(code) => {
                return Ok(error_response(&StatusError::of_code(
                    code,
                    "a fault that was asked for",
                )));
            }
        }
        let mut warnings = Vec::new();
        let handled = resources::handle(&self.server, &request, &mut warnings).await;
        if fault == Fault::DropResponse {
            return Err(ConnectionLost);
        }
        let mut response = handled.unwrap_or_else(|error| error_response(&error));
        for warning in warnings {
            let escaped = warning.replace('\n', " ").replace('\\', "\\\\").replace('"', "\\\"");
            let quoted = format!("299 - \"{escaped}\"");
            if let Ok(value) = HeaderValue::from_str(&quoted) {
                response.headers_mut().append(header::WARNING, value);
            }
        }
        Ok(response)
    }

    fn authenticate(&self, headers: &HeaderMap) -> Result<User, StatusError> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
        let name = match &self.user {
            Some(user) => user.clone(),
            None => self.user_of_token(text("authorization"))?,
        };
        // All users may impersonate, because the server has no RBAC.
        let impersonated = text("impersonate-user");
        if impersonated.is_empty() {
            return Ok(User {
                extra: self.extra.clone(),
                ..User::named(&name)
            });
        }
        let mut user = User::named(impersonated);
        let groups = headers
            .get_all("impersonate-group")
            .iter()
            .filter_map(|v| v.to_str().ok().map(str::to_owned));
        user.groups.extend(groups);
        Ok(user)
    }

    fn user_of_token(&self, authorization: &str) -> Result<String, StatusError> {
        let token = authorization.strip_prefix("Bearer ").unwrap_or("");
        match &self.server.shared.token {
            None if token.starts_with("system:") => Ok(token.to_owned()),
            None => Ok(ADMIN.to_owned()),
            Some(expect) if expect == token => Ok(ADMIN.to_owned()),
            Some(_) => Err(StatusError::of_code(401, "Unauthorized")),
        }
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = ConnectionLost;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        let (parts, body) = request.into_parts();
        let user = self.authenticate(&parts.headers);
        Box::pin(async move {
            let request = match user {
                Ok(user) => read_body(body).await.map(|body| ApiRequest::new(&parts, user, body)),
                Err(error) => Err(error),
            };
            service.answer(request).await
        })
    }
}

async fn read_body<B>(body: B) -> Result<Bytes, StatusError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {BODY_BYTES_MAX}");
            Err(StatusError::of_code(413, message))
        }
        Err(error) => Err(StatusError::bad_request(format!("reading the body: {error}"))),
    }
}
