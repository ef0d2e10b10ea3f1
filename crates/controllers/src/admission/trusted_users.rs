//! Who is one of us. Names only: what such a user may do is RBAC's matter.

use std::str::FromStr;

use super::review::User;

/// The group of all kubelets.
pub(crate) const KUBELET_GROUP: &str = "system:nodes";
/// Users of the control plane that delete objects whose owner or namespace is gone. The last one is all of them, where they have no
/// accounts of their own.
pub(crate) const GARBAGE_COLLECTORS: [&str; 3] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:kube-controller-manager",
];

/// Users by name, or by how the name begins, or by group. Written `name`, `prefix*` and `group:name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserMatcher {
    /// This user.
    User(String),
    /// All whose name begins so.
    Prefix(String),
    /// All of this group.
    Group(String),
}

/// Why a text names no users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no users; write a user name, a beginning followed by *, or group: and a group")]
pub struct InvalidUserMatcher(String);

impl FromStr for UserMatcher {
    type Err = InvalidUserMatcher;

    fn from_str(text: &str) -> Result<UserMatcher, InvalidUserMatcher> {
        // The names go into CEL texts and messages. No real name has any of these.
        let odd = |c: char| c.is_control() || matches!(c, '\'' | '"' | '\\');
        let (group, name) = match text.strip_prefix("group:") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let (prefix, name) = match name.strip_suffix('*') {
            Some(name) => (true, name),
            None => (false, name),
        };
        // A lone * would trust everybody, which nobody can want: the policies could be left out instead.
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
    /// All service accounts of a namespace.
    pub fn accounts_of(namespace: &str) -> UserMatcher {
        UserMatcher::Prefix(format!("system:serviceaccount:{namespace}:"))
    }

    /// Whether it is about this user.
    pub fn matches(&self, user: &User) -> bool {
        match self {
            UserMatcher::User(name) => user.username == *name,
            UserMatcher::Prefix(prefix) => user.username.starts_with(prefix.as_str()),
            UserMatcher::Group(group) => user.groups.contains(group),
        }
    }

    /// The same as a CEL expression over `request`.
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
