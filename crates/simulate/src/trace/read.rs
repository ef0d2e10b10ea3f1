//! The files of a trace: comma-separated values with a line of column names, plain or compressed by gzip.
//!
//! A folder has for each trace the pods in the order of their arrival, `NAME-SEED-pods.csv`, the nodes in the order in which ties are
//! broken, `NAME-SEED-nodes.csv`, and the pods that the typical mix is taken from, `original-NAME.csv`; each name may end in `.gz`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use kai_engine::replay::{TraceNode, TracePod};

use super::Trace;
use crate::Error;

/// The most bytes of a file after decompression.
const BYTES_MAX: u64 = 256 << 20;
/// The most GPUs of a node or pod.
const GPUS_MAX: i64 = 63;
/// The most milli-cores or MiB of a node or pod.
const AMOUNT_MAX: i64 = 1 << 32;

/// The files of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFiles {
    /// The pods, in the order of their arrival.
    pub pods: PathBuf,
    /// The nodes.
    pub nodes: PathBuf,
    /// The pods that the typical mix is taken from; `None` = those that arrive.
    pub typical: Option<PathBuf>,
}

impl TraceFiles {
    /// The files of a trace in a folder.
    pub fn in_folder(folder: &Path, name: &str, seed: u64) -> Result<TraceFiles, Error> {
        let existing = |file: String| {
            let found = [file.clone(), format!("{file}.gz")].map(|file| folder.join(file));
            let missing = folder.join(file);
            found.into_iter().find(|path| path.exists()).ok_or(missing)
        };
        let required = |file: String| existing(file).map_err(|path| Error::NoTrace { path });
        Ok(TraceFiles {
            pods: required(format!("{name}-{seed}-pods.csv"))?,
            nodes: required(format!("{name}-{seed}-nodes.csv"))?,
            typical: existing(format!("original-{name}.csv")).ok(),
        })
    }

    /// Reads the trace.
    pub fn read(&self, name: String, seed: u64) -> Result<Trace, Error> {
        let pods = Table::read(&self.pods)?.rows(pod)?;
        let typical = match &self.typical {
            Some(path) => Table::read(path)?.rows(pod)?,
            None => pods.clone(),
        };
        Ok(Trace {
            name,
            seed,
            nodes: Table::read(&self.nodes)?.rows(node)?,
            pods,
            typical,
        })
    }
}

fn pod(row: &Row<'_>) -> Result<TracePod, String> {
    let (gpus, gpu_milli) = (row.amount("num_gpu", GPUS_MAX)?, row.amount("gpu_milli", 1000)?);
    if gpus > 1 && gpu_milli < 1000 {
        return Err(format!(
            "num_gpu {gpus} with gpu_milli {gpu_milli}: only a pod of one GPU can share it"
        ));
    }
    if gpus > 0 && gpu_milli == 0 {
        return Err(format!("num_gpu {gpus} with gpu_milli 0"));
    }
    let models = row.text("gpu_spec").unwrap_or_default().split('|');
    Ok(TracePod {
        cpu_milli: row.amount("cpu_milli", AMOUNT_MAX)?,
        memory_mib: row.amount("memory_mib", AMOUNT_MAX)?,
        gpus: gpus as u32,
        gpu_milli: if gpus == 0 { 0 } else { gpu_milli as u32 },
        models: models.filter(|model| !model.is_empty()).map(str::to_owned).collect(),
    })
}

fn node(row: &Row<'_>) -> Result<TraceNode, String> {
    let name = row.text("name").or_else(|| row.text("sn"));
    Ok(TraceNode {
        name: name.ok_or("column name is missing")?.to_owned(),
        cpu_milli: row.amount("cpu_milli", AMOUNT_MAX)?,
        memory_mib: row.amount("memory_mib", AMOUNT_MAX)?,
        gpus: row.amount("gpu", GPUS_MAX)? as u32,
        model: row.text("model").unwrap_or_default().to_owned(),
    })
}

/// The text of a file.
struct Table {
    path: PathBuf,
    text: String,
}

/// A line with the names of its columns.
struct Row<'t> {
    columns: &'t [&'t str],
    values: Vec<&'t str>,
}

impl Table {
    fn read(path: &Path) -> Result<Table, Error> {
        Table::read_bounded(path, BYTES_MAX)
    }

    fn read_bounded(path: &Path, bytes_max: u64) -> Result<Table, Error> {
        let unreadable = |source| Error::Unreadable {
            path: path.to_owned(),
            source,
        };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        // One byte more tells a file of this size from a larger one.
        let read = match path.extension().is_some_and(|extension| extension == "gz") {
            true => GzDecoder::new(file).take(bytes_max + 1).read_to_end(&mut bytes),
            false => file.take(bytes_max + 1).read_to_end(&mut bytes),
        };
        if read.map_err(unreadable)? as u64 > bytes_max {
            return Err(Error::TooLarge {
                path: path.to_owned(),
                bytes_max,
            });
        }
        let text = String::from_utf8(bytes).map_err(|_| Error::NotText {
            path: path.to_owned(),
            expected: "comma-separated values",
        })?;
        Ok(Table {
            path: path.to_owned(),
            text,
        })
    }

    /// The rows, each read by `read`.
    fn rows<T>(&self, read: impl Fn(&Row<'_>) -> Result<T, String>) -> Result<Vec<T>, Error> {
        let mut lines = self.text.lines().enumerate();
        let columns: Vec<&str> = lines
            .next()
            .map(|(_, line)| line.split(',').collect())
            .unwrap_or_default();
        let filled = lines.filter(|(_, line)| !line.is_empty());
        let row = |(at, line): (usize, &str)| {
            let values: Vec<&str> = line.split(',').collect();
            let row = Row {
                columns: &columns,
                values,
            };
            read(&row).map_err(|problem| Error::TraceRow {
                path: self.path.clone(),
                line: at + 1,
                problem,
            })
        };
        filled.map(row).collect()
    }
}

impl Row<'_> {
    /// The value of a column; `None` if the row has none.
    fn text(&self, column: &str) -> Option<&str> {
        let at = self.columns.iter().position(|name| *name == column)?;
        self.values.get(at).copied()
    }

    /// The number in a column.
    fn amount(&self, column: &str, max: i64) -> Result<i64, String> {
        let text = self.text(column).ok_or_else(|| format!("column {column} is missing"))?;
        let amount = text.parse::<i64>().ok().filter(|amount| (0..=max).contains(amount));
        amount.ok_or_else(|| format!("{column} {text:?} is not a whole number from 0 to {max}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<T>(text: &str, read: impl Fn(&Row<'_>) -> Result<T, String>) -> Result<Vec<T>, String> {
        let table = Table {
            path: PathBuf::from("file.csv"),
            text: text.to_owned(),
        };
        table.rows(read).map_err(|error| error.to_string())
    }

    #[test]
    fn columns_are_found_by_name() {
        let pods = rows(
            "name,gpu_spec,cpu_milli,memory_mib,num_gpu,gpu_milli\na,P100|T4,4000,8,1,500\n\nb,,1,2,0,\n",
            |row| Ok((row.text("gpu_spec").map(str::to_owned), row.amount("cpu_milli", 5000)?)),
        );
        assert_eq!(
            pods,
            Ok(vec![(Some("P100|T4".to_owned()), 4000), (Some(String::new()), 1)])
        );
    }

    #[test]
    fn a_file_that_is_too_large_or_no_text_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let told = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            match Table::read_bounded(&path, 10) {
                Ok(table) => table.text,
                Err(error) => error.to_string().replace(&*folder.path().to_string_lossy(), ""),
            }
        };
        assert_eq!(told("a.csv", b"0123456789"), "0123456789");
        let large = "has more than 10 bytes (uncompressed), which is too large; divide it";
        assert_eq!(told("b.csv", b"0123456789\n"), format!("/b.csv: {large}"));
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut packed, &[b'x'; 1_000]).unwrap();
        assert_eq!(
            told("c.csv.gz", &packed.finish().unwrap()),
            format!("/c.csv.gz: {large}")
        );
        assert_eq!(
            told("d.csv", b"\xff"),
            "/d.csv: is not UTF-8 text; it has to be comma-separated values"
        );
    }

    #[test]
    fn a_wrong_row_is_named_with_its_line() {
        let problem = |row: &str| rows(&format!("cpu_milli,memory_mib,num_gpu,gpu_milli\n{row}\n"), pod).unwrap_err();
        assert_eq!(
            problem("1,1,2,500"),
            "file.csv: line 2: num_gpu 2 with gpu_milli 500: only a pod of one GPU can share it"
        );
        assert_eq!(
            problem("-1,1,0,0"),
            "file.csv: line 2: cpu_milli \"-1\" is not a whole number from 0 to 4294967296"
        );
        assert_eq!(problem("1,1"), "file.csv: line 2: column num_gpu is missing");
    }
}
