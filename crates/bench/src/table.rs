//! The figures as a Markdown table.

use std::fmt;

/// The figures so far.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<[String; 4]>,
}

impl Table {
    /// Adds a figure and prints it at once, because a run takes minutes.
    pub(crate) fn row(&mut self, what: &str, figure: String, must: &str, aim: &str) {
        println!("{what}: {figure}");
        self.rows
            .push([what.to_owned(), figure, must.to_owned(), aim.to_owned()]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | figure | must | aim |\n|---|---|---|---|")?;
        for [what, figure, must, aim] in &self.rows {
            writeln!(f, "| {what} | {figure} | {must} | {aim} |")?;
        }
        Ok(())
    }
}
