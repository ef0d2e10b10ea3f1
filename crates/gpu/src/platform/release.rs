//! `/etc/nv_tegra_release`, L4T's version file. Parsing only.

/// The content of the release file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Release {
    /// L4T version, for example `36.4.3`.
    pub version: Option<String>,
    /// Directory of the driver libraries (from R36 on), absolute.
    pub library_dir: Option<String>,
}

impl Release {
    /// Parses the file. Unknown lines are skipped.
    pub fn parse(text: &str) -> Self {
        let mut release = Self::default();
        for line in text.lines() {
            if let Some(dir) = line.trim().strip_prefix("TARGET_USERSPACE_LIB_DIR_PATH=") {
                release.library_dir = Some(format!("/{}", dir.trim_matches('"').trim_start_matches('/')));
            } else if release.version.is_none() {
                release.version = parse_version(line);
            }
        }
        release
    }
}

/// `# R36 (release), REVISION: 4.3, GCID: ...` is 36.4.3.
fn parse_version(line: &str) -> Option<String> {
    let digits_or_dots =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let mut fields = line.trim_start_matches('#').split(',').map(str::trim);
    let major = fields.next()?.split_whitespace().next()?.strip_prefix('R')?;
    if !digits_or_dots(major) {
        return None;
    }
    let revision = fields.find_map(|field| field.strip_prefix("REVISION:")).map(str::trim);
    Some(match revision.filter(|revision| digits_or_dots(revision)) {
        Some(revision) => format!("{major}.{revision}"),
        None => major.to_owned(),
    })
}

/// The JetPack version of an L4T version, if known.
pub fn jetpack_of(l4t_version: &str) -> Option<&'static str> {
    let mut parts = l4t_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (parts.next()?, parts.next().unwrap_or(0));
    match (major, minor) {
        (32, _) => Some("4"),
        (34 | 35, _) => Some("5"),
        (36, _) => Some("6"),
        (38, 0..=3) => Some("7.0"),
        (38, _) => Some("7.1"),
        (39, _) => Some("7.2"),
        (_, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_all_releases() {
        for (line, version, jetpack) in [
            (
                "# R32 (release), REVISION: 7.1, GCID: 1, BOARD: t186ref, EABI: aarch64, DATE: x",
                Some("32.7.1"),
                Some("4"),
            ),
            (
                "# R35 (release), REVISION: 4.1, GCID: 1, BOARD: t186ref, EABI: aarch64, DATE: x",
                Some("35.4.1"),
                Some("5"),
            ),
            (
                "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic, EABI: aarch64, DATE: x",
                Some("36.4.3"),
                Some("6"),
            ),
            ("# R38 (release), REVISION: 2.0, GCID: 1", Some("38.2.0"), Some("7.0")),
            ("# R38 (release), REVISION: 4.0, GCID: 1", Some("38.4.0"), Some("7.1")),
            ("# R39 (release), REVISION: 2.0, GCID: 1", Some("39.2.0"), Some("7.2")),
            ("# R77", Some("77"), None),
            ("# Rubbish (release), REVISION: 4.0", None, None),
            ("", None, None),
        ] {
            let parsed = Release::parse(line);
            assert_eq!(parsed.version.as_deref(), version, "{line}");
            assert_eq!(parsed.version.as_deref().and_then(jetpack_of), jetpack, "{line}");
        }
    }

    #[test]
    fn newer_files_name_the_library_directory() {
        let text = "# R36 (release), REVISION: 4.3\n# KERNEL_VARIANT: oot\nTARGET_USERSPACE_LIB_DIR=nvidia\n\
                    TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia\n";
        assert_eq!(
            Release::parse(text).library_dir.as_deref(),
            Some("/usr/lib/aarch64-linux-gnu/nvidia")
        );
    }
}
