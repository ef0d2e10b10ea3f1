//! The users that may write the scheduler's labels and annotations. Only names: RBAC decides the rest.

use std::str::FromStr;

use super::review::User;

/// The user group of all kubelets.
pub(crate) const KUBELET_GROUP: &str = "system:nodes";
/// Users of the control plane that delete objects whose owner or namespace is gone. The last one is the controller manager, where its
/// controllers have no accounts of their own.
pub(crate) const GARBAGE_COLLECTORS: [&str; 3] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:kube-controller-manager",
];

/// Matches users by name, by prefix of the name, or by group. Written `name`, `prefix*` and `group:name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserMatcher {
    /// The user of this name.
    User(String),
    /// All users whose name has this prefix.
    Prefix(String),
    /// All members of this group.
    Group(String),
}

/// The text is no user matcher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no users; write a user name, a prefix followed by *, or group: and a group")]
pub struct InvalidUserMatcher(String);

impl FromStr for UserMatcher {
    type Err = InvalidUserMatcher;

    fn from_str(text: &str) -> Result<UserMatcher, InvalidUserMatcher> {
        // The names are used in CEL expressions and messages; no real name has any of these characters.
        let odd = |c: char| c.is_control() || matches!(c, '\'' | '"' | '\\');
        let (group, name) = match text.strip_prefix("group:") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let (prefix, name) = match name.strip_suffix('*') {
            Some(name) => (true, name),
            None => (false, name),
        };
        // A lone `*` would trust every user; an administrator who wants that leaves the policies out.
        if name.is_empty() || name.contains('*') || name.contains(odd) || (group && prefix) {
            return Err(InvalidUserMatcher(text.to_owned()));
        }
        let name = name.to_owned();
        Ok(match (group, prefix) {
            (true, _) => UserMatcher::Group(name),
            (false, true) => UserMatcher::Prefix(name),
            (false, false) => UserMatcher::User(name),
        })
    }
}

impl UserMatcher {
    /// Matches all service accounts of a namespace.
    pub fn accounts_of(namespace: &str) -> UserMatcher {
        UserMatcher::Prefix(format!("system:serviceaccount:{namespace}:"))
    }

    /// Whether the user matches.
    pub fn matches(&self, user: &User) -> bool {
        match self {
            UserMatcher::User(name) => user.username == *name,
            UserMatcher::Prefix(prefix) => user.username.starts_with(prefix.as_str()),
            UserMatcher::Group(group) => user.groups.contains(group),
        }
    }

    /// The matcher as a CEL expression over `request`.
    pub(crate) fn cel(&self) -> String {
        match self {
            UserMatcher::User(name) => format!("request.userInfo.username == '{name}'"),
            UserMatcher::Prefix(prefix) => format!("request.userInfo.username.startsWith('{prefix}')"),
            UserMatcher::Group(group) => {
                format!("(has(request.userInfo.groups) && '{group}' in request.userInfo.groups)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(username: &str, group: &str) -> User {
        User {
            username: username.to_owned(),
            groups: vec![group.to_owned()],
        }
    }

    #[test]
    fn users_are_named_in_three_ways() {
        let check = |text: &str, username: &str, group: &str, expect: bool| {
            assert_eq!(
                text.parse::<UserMatcher>().unwrap().matches(&user(username, group)),
                expect,
                "{text}"
            );
        };
        check("admin", "admin", "", true);
        check("admin", "admin2", "", false);
        check(
            "system:serviceaccount:kai:*",
            "system:serviceaccount:kai:binder",
            "",
            true,
        );
        check(
            "system:serviceaccount:kai:*",
            "system:serviceaccount:kai-evil:binder",
            "",
            false,
        );
        check("group:system:masters", "x", "system:masters", true);
        check("group:system:masters", "system:masters", "", false);
        assert!(UserMatcher::accounts_of("kai").matches(&user("system:serviceaccount:kai:x", "")));
    }

    #[test]
    fn what_would_trust_everybody_or_break_out_of_cel_is_no_name() {
        for text in ["", "*", "a*b", "group:", "group:a*", "it's", "a\\", "a\n"] {
            assert_eq!(text.parse::<UserMatcher>(), Err(InvalidUserMatcher(text.to_owned())));
        }
    }
}
