//! The CA bundle of a webhook configuration. Every replica generates its own certificate authority and adds its certificate to the
//! certificates of the other replicas, so that no private key leaves its process. Text in, text out.
//!
//! A header line before each certificate names its replica and its expiry. PEM readers skip such lines.

use jiff::Timestamp;

/// More replicas than an installation has. Restarted replicas leave certificates behind until they expire; the newest are kept.
const CERTIFICATES_MAX: usize = 32;
const HEADER_PREFIX: &str = "# kai-admission";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The certificate of one replica's certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CaCertificate {
    /// Name of the replica.
    pub(crate) identity: String,
    /// End of the certificate's validity.
    pub(crate) expires: Timestamp,
    /// The certificate in PEM.
    pub(crate) pem: String,
}

/// The bundle with this replica's certificates and the unexpired ones of other replicas. Certificates without our header line are
/// dropped.
pub(crate) fn merge(bundle: &str, own: &[CaCertificate], now: Timestamp) -> String {
    let is_own = |entry: &CaCertificate| own.iter().any(|own| own.identity == entry.identity);
    let others = parse(bundle)
        .into_iter()
        .filter(|entry| entry.expires > now && !is_own(entry));
    let mut entries: Vec<CaCertificate> = own.to_vec();
    entries.extend(others);
    // This replica serves requests now, so the bound never drops its own certificates.
    entries[own.len()..].sort_by(|a, b| b.expires.cmp(&a.expires).then_with(|| a.identity.cmp(&b.identity)));
    entries.truncate(CERTIFICATES_MAX.max(own.len()));
    // The order must not depend on the last writer; otherwise replicas would overwrite each other for ever.
    entries.sort_by(|a, b| (&a.identity, a.expires, &a.pem).cmp(&(&b.identity, b.expires, &b.pem)));
    entries.dedup();
    entries.iter().map(render).collect()
}

fn render(entry: &CaCertificate) -> String {
    format!(
        "{HEADER_PREFIX} {} {}\n{}\n",
        entry.expires,
        entry.identity,
        entry.pem.trim()
    )
}

fn parse(bundle: &str) -> Vec<CaCertificate> {
    let mut entries = Vec::new();
    let mut lines = bundle.lines();
    while let Some(line) = lines.next() {
        let Some((expires, identity)) = line
            .strip_prefix(HEADER_PREFIX)
            .and_then(|rest| rest.trim().split_once(' '))
        else {
            continue;
        };
        let mut pem = String::new();
        for line in lines.by_ref() {
            pem.push_str(line);
            pem.push('\n');
            if line == END {
                break;
            }
        }
        if let (Ok(expires), true) = (expires.parse(), pem.starts_with(BEGIN)) {
            entries.push(CaCertificate {
                identity: identity.to_owned(),
                expires,
                pem,
            });
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn entry(identity: &str, expires: i64) -> CaCertificate {
        CaCertificate {
            identity: identity.to_owned(),
            expires: at(expires),
            pem: format!("{BEGIN}\n{identity}{expires}\n{END}\n"),
        }
    }

    fn identities(bundle: &str) -> Vec<String> {
        parse(bundle)
            .into_iter()
            .map(|entry| format!("{}@{}", entry.identity, entry.expires.as_second()))
            .collect()
    }

    #[test]
    fn replicas_add_themselves_and_drop_what_has_expired() {
        let first = merge("", &[entry("a", 100)], at(0));
        let both = merge(&first, &[entry("b", 120)], at(10));
        assert_eq!(identities(&both), ["a@100", "b@120"]);
        assert_eq!(merge(&both, &[entry("a", 100)], at(20)), both, "nothing to write");
        assert_eq!(identities(&merge(&both, &[entry("b", 120)], at(100))), ["b@120"]);
    }

    #[test]
    fn a_replica_that_restarts_replaces_its_entry() {
        let bundle = merge("", &[entry("a", 100)], at(0));
        assert_eq!(identities(&merge(&bundle, &[entry("a", 200)], at(50))), ["a@200"]);
        let rotating = merge(&bundle, &[entry("a", 100), entry("a", 200)], at(50));
        assert_eq!(identities(&rotating), ["a@100", "a@200"]);
    }

    #[test]
    fn what_is_not_ours_is_left_out_and_nothing_grows_for_ever() {
        for text in [
            "garbage",
            "# kai-admission x",
            "# kai-admission 1970-01-01T01:00:00Z a\nno certificate",
            HEADER_PREFIX,
        ] {
            assert_eq!(identities(&merge(text, &[entry("a", 100)], at(0))), ["a@100"], "{text}");
        }
        let mut bundle = String::new();
        for replica in 0..100 {
            bundle = merge(&bundle, &[entry(&format!("r{replica:03}"), 1000 + replica)], at(0));
        }
        let left = identities(&bundle);
        assert_eq!(
            (left.len(), left.last().map(String::as_str)),
            (CERTIFICATES_MAX, Some("r099@1099"))
        );
    }
}
