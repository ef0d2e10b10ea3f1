//! `--redact`: writes the input without its names, and says whether it still decides as before.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kai_simulate::outcome::Totals;
use kai_simulate::scenario::{self, NameClass, Redaction, Replacements};
use serde_json::json;

use super::Session;
use super::report::Output;
use crate::grid::{Align, Grid, printable};

/// Classes of names that people look up when they read an answer to their report.
const SHOWN: [NameClass; 8] = [
    NameClass::Namespace,
    NameClass::Node,
    NameClass::NodePool,
    NameClass::Queue,
    NameClass::Workload,
    NameClass::PodGroup,
    NameClass::Pod,
    NameClass::LabelKey,
];
/// Names of one class in the table; JSON has all.
const NAMES_MAX: usize = 20;

/// Writes the redacted input. The exit code is 1 if it decides otherwise than the original.
pub(super) fn run(session: &Session, file: &Path) -> anyhow::Result<ExitCode> {
    let in_words = |error: kai_simulate::Error| anyhow::anyhow!("{}", printable(&error.to_string()));
    if session.wishes.output == Output::Junit {
        anyhow::bail!("--redact has no JUnit report; use -o table or -o json");
    }
    let sources = session.sources()?;
    let [source] = sources.as_slice() else {
        anyhow::bail!(
            "--redact writes one cluster, and here are {}; name the files of one",
            sources.len()
        );
    };
    // A file that can't be read is not written either.
    let original = scenario::load(source, &session.installed).map_err(in_words)?;
    let redaction = scenario::redact(source).map_err(in_words)?;
    let redacted = scenario::load_redacted(&redaction, &session.installed).map_err(in_words)?;
    let before = kai_simulate::run::run(original, &session.options);
    let after = kai_simulate::run::run(redacted, &session.options);
    let differences = scenario::redaction_differences(&before, &after, &redaction.names);
    let inputs: Vec<&Path> = source.files().iter().map(scenario::File::path).collect();
    let written = write(&redaction, file, &inputs)?;
    let printed = match session.wishes.output {
        Output::Json => {
            let names = redaction.names.iter();
            let names: Vec<_> = names
                .map(|(class, name, redacted)| json!({ "class": class.word(), "name": name, "redacted": redacted }))
                .collect();
            crate::print(&format!(
                "{}\n",
                json!({ "files": written, "names": names, "differences": differences })
            ))
        }
        Output::Table | Output::Junit => print(session, &written, &redaction.names, after.totals),
    };
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    for difference in &differences {
        eprintln!(
            "warning: the redacted input decides otherwise: {}",
            printable(difference)
        );
    }
    Ok(ExitCode::from(u8::from(!differences.is_empty())))
}

/// Writes the files: one at the path, several into a folder there.
fn write(redaction: &Redaction, path: &Path, inputs: &[&Path]) -> anyhow::Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = match redaction.files.as_slice() {
        [_] => vec![path.to_owned()],
        files => {
            let create = std::fs::create_dir(path);
            create.map_err(|error| {
                let path = path.display();
                anyhow::anyhow!(
                    "{path}: the folder for {} files can't be created: {error}; name a new one",
                    files.len()
                )
            })?;
            let named = files.iter().enumerate();
            named
                .map(|(at, file)| path.join(format!("{}.{}", at + 1, file.extension())))
                .collect()
        }
    };
    for (file, path) in redaction.files.iter().zip(&paths) {
        let resolved = path.canonicalize().ok();
        if resolved.is_some() && inputs.iter().any(|input| input.canonicalize().ok() == resolved) {
            anyhow::bail!("{}: this is the input; name another file for --redact", path.display());
        }
        let bytes = file.bytes(path)?;
        std::fs::write(path, bytes)
            .map_err(|error| anyhow::anyhow!("{}: can't be written: {error}", path.display()))?;
    }
    Ok(paths)
}

fn print(session: &Session, written: &[PathBuf], names: &Replacements, totals: Totals) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for path in written {
        writeln!(out, "{}", printable(&path.display().to_string()))?;
    }
    let Totals {
        bound,
        pipelined,
        evicted,
        pending,
        ..
    } = totals;
    writeln!(
        out,
        "decides: {bound} bound, {pipelined} pipelined, {evicted} evicted, {pending} pending"
    )?;
    writeln!(
        out,
        "It has amounts, times, GPU models and the names of Kubernetes and kai: look at it before you pass it on."
    )?;
    writeln!(out)?;
    let mut grid = Grid::new(&[("NAME", Align::Left), ("IN THE FILE", Align::Left)]);
    let mut by_class: BTreeMap<NameClass, Vec<(&str, &str)>> = BTreeMap::new();
    for (class, name, redacted) in names.iter().filter(|(class, ..)| SHOWN.contains(class)) {
        by_class.entry(class).or_default().push((name, redacted));
    }
    for (class, names) in by_class {
        for (name, redacted) in names.iter().take(NAMES_MAX) {
            grid.row(vec![(*name).into(), (*redacted).into()]);
        }
        if let Some(more) = names.len().checked_sub(NAMES_MAX).filter(|more| *more > 0) {
            let more = format!("... and {more} more of class {} (-o json has all)", class.word());
            grid.row(vec![more.into(), "".into()]);
        }
    }
    for line in grid.lines(session.screen) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}
