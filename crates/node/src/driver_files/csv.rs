//! Parses JetPack's lists of driver files for container runtimes (`/etc/nvidia-container-runtime/host-files-for-container.d/*.csv`). The
//! caller checks whether the listed files exist.

/// Directory of the lists.
pub const CSV_DIR: &str = "/etc/nvidia-container-runtime/host-files-for-container.d";

/// The lists that apply to every container. Others are for images that ask for them.
pub const BASE_FILES: [&str; 3] = ["devices.csv", "drivers.csv", "l4t.csv"];

/// One line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Kind of the path.
    pub kind: Kind,
    /// Absolute path on the host. The last component of a device path may contain `*`.
    pub path: String,
}

/// Kind of a listed path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A device node (or, under `/dev/dri`, a pattern of them).
    Device,
    /// A directory.
    Directory,
    /// A regular file, mostly a library.
    Library,
    /// A symbolic link: the container gets the target and every link of the chain.
    Link,
}

/// A parsed list, with the malformed lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// The well-formed lines, in order.
    pub entries: Vec<Entry>,
    /// Line number and text of malformed lines.
    pub malformed: Vec<(usize, String)>,
}

/// Parses one list of lines `kind, /path`. Blank lines are skipped.
pub fn parse(text: &str) -> List {
    let mut list = List::default();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match parse_line(line) {
            Some(entry) => list.entries.push(entry),
            None => list.malformed.push((index + 1, line.trim().to_owned())),
        }
    }
    list
}

fn parse_line(line: &str) -> Option<Entry> {
    let (kind, path) = line.split_once(',')?;
    let kind = match kind.trim() {
        "dev" => Kind::Device,
        "dir" => Kind::Directory,
        "lib" => Kind::Library,
        "sym" => Kind::Link,
        _ => return None,
    };
    let path = path.trim();
    path.starts_with('/').then(|| Entry {
        kind,
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_at_the_first_comma_and_trimmed() {
        let list = parse(
            "dev, /dev/nvmap\n\nlib ,/usr/lib/a,b.so\n  sym,   /usr/lib/libcuda.so  \ndir, /lib/firmware/tegra23x\n",
        );
        let read: Vec<_> = list
            .entries
            .iter()
            .map(|entry| (entry.kind, entry.path.as_str()))
            .collect();
        assert_eq!(
            read,
            [
                (Kind::Device, "/dev/nvmap"),
                (Kind::Library, "/usr/lib/a,b.so"),
                (Kind::Link, "/usr/lib/libcuda.so"),
                (Kind::Directory, "/lib/firmware/tegra23x"),
            ]
        );
        assert!(list.malformed.is_empty());
    }

    #[test]
    fn nonsense_is_reported_with_its_line_number() {
        let list = parse("dev, /dev/nvmap\nnonsense\nlib relative\nlib, relative\nfoo, /x\n");
        assert_eq!(list.entries.len(), 1);
        let lines: Vec<_> = list.malformed.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 4, 5]);
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let seeds = [
            "dev, /dev/nvmap\nlib, /usr/lib/a,b.so\nsym, /usr/lib/libcuda.so\ndir, /lib/firmware/tegra23x\n",
            "dev, /dev/dri/card*\r\n\nnonsense\nlib relative\n",
        ];
        let words = [
            "dev,", "lib,", "sym,", "dir,", ",", "*", "\n", "\r", "\u{0}", "/dev/", "../",
        ];
        fuzz.texts(&seeds, &words, |text| {
            let list = parse(text);
            let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
            assert_eq!(
                list.entries.len() + list.malformed.len(),
                lines,
                "each line is taken or reported"
            );
            assert!(list.entries.iter().all(|entry| entry.path.starts_with('/')));
        });
    }

    #[test]
    fn mutated_lists_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("CSV"));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_lists() {
        fuzz(kai_fuzz::Fuzz::long("CSV"));
    }
}
