//! Versions of kai, in the order of semantic versioning. Build metadata does not count.

use std::cmp::Ordering;

/// A version of kai.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    numbers: [u64; 3],
    /// Empty for a release.
    pre_release: Vec<Identifier>,
}

/// A part of a pre-release version. Numbers sort before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

impl Version {
    /// The version of this program.
    pub(crate) const OURS: &'static str = kai_cluster::VERSION;

    /// The version of this program.
    pub(crate) fn ours() -> Version {
        Version::parse(Version::OURS).expect("the build checks the version")
    }

    /// Reads `1.2.3` or `v1.2.3-rc.1`; `None` for other texts.
    pub(crate) fn parse(text: &str) -> Option<Version> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split('+').next().unwrap_or_default();
        let (numbers, pre_release) = match text.split_once('-') {
            Some((numbers, pre_release)) => (numbers, Some(pre_release)),
            None => (text, None),
        };
        let numbers: Vec<u64> = numbers
            .split('.')
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        let identifier = |part: &str| match part.parse() {
            Ok(number) => Identifier::Number(number),
            Err(_) => Identifier::Word(part.to_owned()),
        };
        Some(Version {
            numbers: numbers.try_into().ok()?,
            pre_release: pre_release
                .into_iter()
                .flat_map(|text| text.split('.'))
                .map(identifier)
                .collect(),
        })
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Version) -> Ordering {
        let releases = || self.pre_release.is_empty().cmp(&other.pre_release.is_empty());
        let numbers = self.numbers.cmp(&other.numbers).then_with(releases);
        numbers.then_with(|| self.pre_release.cmp(&other.pre_release))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Version) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_order() {
        let texts = [
            "0.0.0",
            "0.9.0-alpha.2",
            "0.9.0-alpha.10",
            "0.9.0-rc",
            "0.9.0",
            "v0.10.0+build",
            "1.0.0",
        ];
        let versions: Vec<Version> = texts.iter().map(|text| Version::parse(text).unwrap()).collect();
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "latest"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert_eq!(Version::parse("1.2.3+a"), Version::parse("v1.2.3"));
        assert_eq!(Version::ours(), Version::parse(Version::OURS).unwrap());
    }
}
