//! The seam at which a test breaks the API: consulted for every request and every delivery of a watch. Policies live
//! with the tests; none is here but "no faults".

use std::time::Duration;

/// What a request is about, for a policy to decide by.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; the method's name for paths
    /// that are no resource.
    pub verb: String,
    /// The whole path.
    pub path: String,
    /// API group; empty for core.
    pub group: String,
    /// Version in the group.
    pub version: String,
    /// Plural name; empty for paths that are no resource.
    pub resource: String,
    /// Namespace, if one is named.
    pub namespace: String,
    /// Name, if one is named.
    pub name: String,
    /// Subresource, if one is named.
    pub subresource: String,
    /// Who asks.
    pub user: String,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Nothing special.
    Pass,
    /// It fails with this status code and has no effect.
    Fail(u16),
    /// It is served after this time.
    Delay(Duration),
    /// It takes effect, and the connection breaks before the answer.
    DropAnswer,
}

/// What happens to a watch before the next delivery.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchFault {
    /// Nothing special.
    Pass,
    /// It ends as if it had timed out.
    End,
    /// It ends with 410 Gone.
    Gone,
    /// The delivery comes this much later.
    Lag(Duration),
}

/// A policy of faults.
pub trait Faults: Send + Sync + 'static {
    /// Asked once per request, before anything is done.
    fn request(&self, request: &RequestInfo) -> Fault;

    /// Asked before every delivery of a watch; `delivered` counts the events it has had.
    fn watch(&self, watch: &RequestInfo, delivered: u64) -> WatchFault {
        let _ = (watch, delivered);
        WatchFault::Pass
    }
}

/// Every request passes.
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
