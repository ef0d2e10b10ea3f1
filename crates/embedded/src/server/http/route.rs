//! Parses paths. Pure.

use super::query::decode;

/// The part of the API that a path names.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Route {
    /// `/healthz`, `/livez`, `/readyz`.
    Health,
    /// `/version`.
    Version,
    /// `/`.
    Root,
    /// `/api`: versions of the core group.
    CoreVersions,
    /// `/apis`: all groups.
    Groups,
    /// `/apis/<group>`.
    Group(String),
    /// `/api/v1`, `/apis/<group>/<version>`: its resources.
    Resources { group: String, version: String },
    /// `/openapi/v2`.
    OpenApi2,
    /// `/openapi/v3` and below.
    OpenApi3(String),
    /// A resource, an object or a subresource.
    Resource(Target),
    /// An unknown path.
    Unknown,
}

/// A resource, an object or a subresource. Missing parts are empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Target {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
}

impl Route {
    pub(super) fn of(path: &str) -> Self {
        let parts: Vec<String> = path
            .split('/')
            .filter(|p| !p.is_empty())
            .map(|p| decode(p, false))
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let own = |text: &str| text.to_owned();
        match parts.as_slice() {
            [] => Self::Root,
            ["healthz" | "readyz" | "livez", ..] => Self::Health,
            ["version"] => Self::Version,
            ["openapi", "v2"] => Self::OpenApi2,
            ["openapi", "v3", rest @ ..] => Self::OpenApi3(rest.join("/")),
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", group] => Self::Group(own(group)),
            ["api", version] => Self::Resources {
                group: String::new(),
                version: own(version),
            },
            ["apis", group, version] => Self::Resources {
                group: own(group),
                version: own(version),
            },
            ["api", version, rest @ ..] => Self::resource("", version, rest),
            ["apis", group, version, rest @ ..] => Self::resource(group, version, rest),
            _ => Self::Unknown,
        }
    }

    fn resource(group: &str, version: &str, rest: &[&str]) -> Self {
        let target = |namespace: &str, plural: &str, name: &str, subresource: &str| {
            Self::Resource(Target {
                group: group.to_owned(),
                version: version.to_owned(),
                plural: plural.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                subresource: subresource.to_owned(),
            })
        };
        match rest {
            // A Namespace object and its subresources.
            ["namespaces", name] => target("", "namespaces", name, ""),
            ["namespaces", name, sub @ ("status" | "finalize")] => target("", "namespaces", name, sub),
            ["namespaces", namespace, plural] => target(namespace, plural, "", ""),
            ["namespaces", namespace, plural, name] => target(namespace, plural, name, ""),
            ["namespaces", namespace, plural, name, sub] => target(namespace, plural, name, sub),
            [plural] => target("", plural, "", ""),
            [plural, name] => target("", plural, name, ""),
            [plural, name, sub] => target("", plural, name, sub),
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str) -> Target {
        let Route::Resource(target) = Route::of(path) else {
            panic!("{path}: no resource")
        };
        target
    }

    #[test]
    fn paths() {
        assert_eq!(Route::of("/api"), Route::CoreVersions);
        assert_eq!(Route::of("/apis/apps"), Route::Group("apps".into()));
        assert_eq!(
            Route::of("/apis/apps/v1"),
            Route::Resources {
                group: "apps".into(),
                version: "v1".into()
            }
        );
        assert_eq!(Route::of("/nonsense"), Route::Unknown);
        let pod = target("/api/v1/namespaces/a/pods/b/status");
        assert_eq!(
            (&*pod.namespace, &*pod.plural, &*pod.name, &*pod.subresource),
            ("a", "pods", "b", "status")
        );
        let namespace = target("/api/v1/namespaces/a");
        assert_eq!((&*namespace.plural, &*namespace.name), ("namespaces", "a"));
        let all = target("/apis/apps/v1/deployments");
        assert_eq!((&*all.group, &*all.namespace, &*all.name), ("apps", "", ""));
    }
}
