//! The views of the page and their addresses.

/// A view, as its address names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    /// `/`
    Overview,
    /// `/gpus?group=…&cells=…`
    Gpus { group: Grouping, cells: Cells },
    /// `/queues`
    Queues,
    /// `/waiting?queue=…`
    Waiting { queue: Option<String> },
    /// `/gangs?queue=…`
    Gangs { queue: Option<String> },
    /// `/gangs/{namespace}/{pod group}`
    Gang { namespace: String, pod_group: String },
    /// `/pods/{namespace}/{name}`
    Pod { namespace: String, name: String },
    /// `/decisions?kind=…&queue=…&namespace=…`
    Decisions(DecisionFilter),
    /// `/nodes`
    Nodes,
    /// `/nodes/{name}`
    Node { name: String },
}

/// How the GPU map groups nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Grouping {
    /// By the outermost level of the topology if there is one, or else by pool, or else by model.
    Default,
    /// By the domains of a level: the node label of the level, or `topology-level` for the outermost one.
    Level(String),
    Pool,
    Model,
    None,
}

/// How large the GPU map draws GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cells {
    /// Large in a small cluster.
    Default,
    /// With the names of pods.
    Large,
    Small,
}

/// Which decisions to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct DecisionFilter {
    /// `bind`, `promise` or `evict`.
    pub(crate) kind: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) namespace: Option<String>,
}

/// The name of the outermost level of a topology in addresses.
const OUTERMOST_LEVEL: &str = "topology-level";

impl Route {
    /// The view at an address of the page.
    pub(crate) fn parse(path: &str, query: &str) -> Option<Route> {
        let segments: Vec<String> = path.strip_prefix('/')?.split('/').map(decode).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let parameter = |name: &str| parameter(query, name).filter(|value| !value.is_empty());
        let route = match segments.as_slice() {
            [""] => Route::Overview,
            ["gpus"] => Route::Gpus {
                group: match parameter("group").as_deref() {
                    None => Grouping::Default,
                    Some("pool") => Grouping::Pool,
                    Some("model") => Grouping::Model,
                    Some("none") => Grouping::None,
                    Some(level) => Grouping::Level(level.to_owned()),
                },
                cells: match parameter("cells").as_deref() {
                    Some("large") => Cells::Large,
                    Some("small") => Cells::Small,
                    _ => Cells::Default,
                },
            },
            ["queues"] => Route::Queues,
            ["waiting"] => Route::Waiting {
                queue: parameter("queue"),
            },
            ["gangs"] => Route::Gangs {
                queue: parameter("queue"),
            },
            ["gangs", namespace, pod_group] => Route::Gang {
                namespace: (*namespace).to_owned(),
                pod_group: (*pod_group).to_owned(),
            },
            ["pods", namespace, name] => Route::Pod {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
            },
            ["decisions"] => Route::Decisions(DecisionFilter {
                kind: parameter("kind"),
                queue: parameter("queue"),
                namespace: parameter("namespace"),
            }),
            ["nodes"] => Route::Nodes,
            ["nodes", name] => Route::Node {
                name: (*name).to_owned(),
            },
            _ => return None,
        };
        Some(route)
    }

    /// The view at an address with its query.
    pub(crate) fn parse_address(address: &str) -> Option<Route> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        Route::parse(path, query)
    }

    /// The entry of the navigation that the view belongs to: its place in [`VIEWS`].
    pub(crate) fn place(&self) -> usize {
        match self {
            Route::Overview => 0,
            Route::Gpus { .. } => 1,
            Route::Queues => 2,
            Route::Waiting { .. } => 3,
            Route::Gangs { .. } | Route::Gang { .. } | Route::Pod { .. } => 4,
            Route::Decisions(_) => 5,
            Route::Nodes | Route::Node { .. } => 6,
        }
    }
}

/// The navigation: address and name. Their keys are 1 to 7.
pub(crate) const VIEWS: [(&str, &str); 7] = [
    ("/", "Overview"),
    ("/gpus", "GPUs"),
    ("/queues", "Queues"),
    ("/waiting", "Waiting"),
    ("/gangs", "Workloads"),
    ("/decisions", "Decisions"),
    ("/nodes", "Nodes"),
];

impl Grouping {
    /// Whether this names the outermost level, whatever it is called.
    pub(crate) fn is_outermost(level: &str) -> bool {
        level == OUTERMOST_LEVEL
    }
}

/// The value of a parameter of a query.
pub(crate) fn parameter(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then(|| decode(&value.replace('+', " ")))
    })
}

/// Undoes percent-encoding. What is not valid stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |offset: usize| bytes.get(at + offset).and_then(|byte| (*byte as char).to_digit(16));
        match (bytes[at], digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, _, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_has_an_address() {
        for (place, (address, _)) in VIEWS.iter().enumerate() {
            let route = Route::parse_address(address).unwrap();
            assert_eq!(route.place(), place, "{address}");
        }
        let pod = Route::Pod {
            namespace: "a b".to_owned(),
            name: "c/d".to_owned(),
        };
        assert_eq!(Route::parse_address("/pods/a%20b/c%2Fd"), Some(pod));
        let group = Route::Gpus {
            group: Grouping::Level("topology.kubernetes.io/zone".to_owned()),
            cells: Cells::Small,
        };
        let address = "/gpus?group=topology.kubernetes.io%2Fzone&cells=small";
        assert_eq!(Route::parse_address(address), Some(group));
        let filter = DecisionFilter {
            kind: Some("evict".to_owned()),
            queue: Some("a b".to_owned()),
            namespace: None,
        };
        let address = "/decisions?kind=evict&queue=a+b&namespace=";
        assert_eq!(Route::parse_address(address), Some(Route::Decisions(filter)));
    }

    #[test]
    fn other_addresses_are_no_views() {
        for address in ["", "gpus", "//", "/gpus/", "/pods/a", "/pods/a/b/c", "/nodes/a/b", "/x"] {
            assert_eq!(Route::parse_address(address), None, "{address:?}");
        }
    }

    #[test]
    fn broken_encodings_stay_as_they_are() {
        assert_eq!(decode("%"), "%");
        assert_eq!(decode("%4"), "%4");
        assert_eq!(decode("%zz%41"), "%zzA");
        assert_eq!(decode("%ff"), "\u{fffd}");
        assert_eq!(decode("é%"), "é%");
    }
}
