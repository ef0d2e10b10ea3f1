//! Suggestions for misspelt names.

/// The largest edit distance of a typo.
const CHANGES_MAX: usize = 3;

/// The nearest known name, if its distance is that of a typo.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let changes = |known: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase());
    // A few changes turn a short name into another word.
    let bound = CHANGES_MAX.min(name.chars().count() / 2);
    known
        .map(|known| (changes(known), known))
        .filter(|(changes, _)| *changes <= bound)
        .min()
        .map(|(_, known)| known)
}

/// `; did you mean quota?`, or nothing.
pub fn suggestion<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    nearest(name, known).map_or(String::new(), |known| format!("; did you mean {known}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_recognised() {
        let check = |name: &str, expect: Option<&str>| {
            let known = ["quota", "limit", "overQuotaWeight", "expect", "id"];
            assert_eq!(nearest(name, known.into_iter()), expect, "{name}");
        };
        check("qouta", Some("quota"));
        check("Limit", Some("limit"));
        check("overquotaWieght", Some("overQuotaWeight"));
        check("expects", Some("expect"));
        check("replicas", None);
        check("x", None);
    }
}
