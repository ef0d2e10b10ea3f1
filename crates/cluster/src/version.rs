//! The version of this program.

/// The version of this program: that of the workspace, or `KAI_VERSION` at build time, which `make build VERSION=...` sets.
pub const VERSION: &str = match option_env!("KAI_VERSION") {
    Some(version) if !version.is_empty() => version,
    Some(_) | None => env!("CARGO_PKG_VERSION"),
};

const _: () = assert!(
    begins_with_three_numbers(VERSION),
    "KAI_VERSION must be a semantic version without `v`, such as 1.2.3 or 1.2.3-rc.1"
);

/// Whether the text begins with three numbers, separated by dots.
const fn begins_with_three_numbers(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (mut at, mut numbers) = (0, 0);
    while numbers < 3 {
        let start = at;
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            at += 1;
        }
        if at == start {
            return false;
        }
        numbers += 1;
        if numbers < 3 {
            if at == bytes.len() || bytes[at] != b'.' {
                return false;
            }
            at += 1;
        }
    }
    at == bytes.len() || bytes[at] == b'-' || bytes[at] == b'+'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_begin_with_three_numbers() {
        for version in ["0.1.0", "10.20.30-rc.1", "1.2.3+build"] {
            assert!(begins_with_three_numbers(version), "{version}");
        }
        for other in ["", "v1.2.3", "1.2", "1.2.", "1.2.x", "1.2.3.4", "1..3"] {
            assert!(!begins_with_three_numbers(other), "{other}");
        }
    }
}
