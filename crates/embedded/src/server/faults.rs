//! Fault injection: the server asks the [`Faults`] of a test before every request and before every batch of a watch. The policies
//! are in the tests; this module has [`NoFaults`] only.

use std::time::Duration;

/// The attributes of a request, by which a policy decides.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the HTTP method for paths that are no
    /// resource.
    pub verb: String,
    /// The whole path.
    pub path: String,
    /// API group; empty for core.
    pub group: String,
    /// Version in the group.
    pub version: String,
    /// Plural name; empty for paths that are no resource.
    pub resource: String,
    /// Namespace; empty if the path has none.
    pub namespace: String,
    /// Name; empty if the path has none.
    pub name: String,
    /// Subresource; empty if the path has none.
    pub subresource: String,
    /// The user.
    pub user: String,
}

/// The fault of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// No fault.
    Pass,
    /// The request fails with this status code and has no effect.
    Fail(u16),
    /// The server handles the request after this time.
    Delay(Duration),
    /// The request takes effect, and the connection breaks before the response.
    DropResponse,
}

/// The fault of a watch before its next batch.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchFault {
    /// No fault.
    Pass,
    /// The watch ends as after a timeout.
    End,
    /// The watch ends with 410 Gone.
    Gone,
    /// The server sends the batch after this time.
    Lag(Duration),
}

/// A fault policy.
pub trait Faults: Send + Sync + 'static {
    /// The fault of a request. The server asks once, before it handles the request.
    fn request(&self, request: &RequestInfo) -> Fault;

    /// The fault of a watch. The server asks before every batch; `delivered` counts the events sent so far.
    fn watch(&self, watch: &RequestInfo, delivered: u64) -> WatchFault {
        let _ = (watch, delivered);
        WatchFault::Pass
    }
}

/// No request and no watch fails.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn request(&self, _: &RequestInfo) -> Fault {
        Fault::Pass
    }
}

impl<F: Fn(&RequestInfo) -> Fault + Send + Sync + 'static> Faults for F {
    fn request(&self, request: &RequestInfo) -> Fault {
        self(request)
    }
}
