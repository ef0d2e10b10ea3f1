//! A view of the page as keyed blocks, and what changes between two of them.
//!
//! A view is a list of sections; a section may hold rows. Each is an HTML element with an id. The HTML of the whole view is one string,
//! and blocks are ranges of it. An [`Outline`] has the ids and hashes without the HTML: the server keeps one per event stream, and
//! [`changes`] tells which blocks a browser with that outline needs.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::html::Html;

/// Keyed by chance, so that nobody can write an object whose change has the same hash.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A view in the making, or made.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) html: Html,
    sections: Vec<Section>,
}

#[derive(Debug)]
struct Section {
    id: String,
    html: Range<usize>,
    /// Where its rows are; the rest of the section is its shell.
    inner: Range<usize>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    id: String,
    html: Range<usize>,
}

impl Blocks {
    pub(crate) fn with_capacity(bytes: usize) -> Blocks {
        Blocks {
            html: Html::with_capacity(bytes),
            sections: Vec::new(),
        }
    }

    /// Adds a section without rows. `write` writes one element with the id that it is given.
    pub(crate) fn section(&mut self, id: &str, write: impl FnOnce(&mut Html, &str)) {
        let start = self.html.len();
        write(&mut self.html, id);
        let end = self.html.len();
        self.sections.push(Section {
            id: id.to_owned(),
            html: start..end,
            inner: end..end,
            rows: Vec::new(),
        });
    }

    /// Begins a section with rows: `write` writes its beginning, up to and with the start tag of the element that holds the rows. The id of
    /// that element is the second text that `write` is given.
    pub(crate) fn open(&mut self, id: &str, write: impl FnOnce(&mut Html, &str, &str)) {
        let start = self.html.len();
        write(&mut self.html, id, &rows_id(id));
        let end = self.html.len();
        self.sections.push(Section {
            id: id.to_owned(),
            html: start..end,
            inner: end..end,
            rows: Vec::new(),
        });
    }

    /// Adds a row to the section that was begun last. `write` writes one element with the id that it is given.
    pub(crate) fn row(&mut self, id: &str, write: impl FnOnce(&mut Html, &str)) {
        let start = self.html.len();
        write(&mut self.html, id);
        let end = self.html.len();
        if let Some(section) = self.sections.last_mut() {
            section.inner.end = end;
            section.rows.push(Row {
                id: id.to_owned(),
                html: start..end,
            });
        }
    }

    /// Ends a section with rows.
    pub(crate) fn close(&mut self, markup: &'static str) {
        self.html.raw(markup);
        if let Some(section) = self.sections.last_mut() {
            section.html.end = self.html.len();
        }
    }

    fn of(&self, range: &Range<usize>) -> &str {
        &self.html.as_str()[range.clone()]
    }

    /// Ids and hashes of all blocks.
    pub(crate) fn outline(&self) -> Outline {
        let sections = self.sections.iter().map(|section| {
            let shell = (
                self.of(&(section.html.start..section.inner.start)),
                self.of(&(section.inner.end..section.html.end)),
            );
            let rows = section.rows.iter().map(|row| Mark {
                id: row.id.clone(),
                hash: HASHES.hash_one(self.of(&row.html)),
            });
            SectionOutline {
                mark: Mark {
                    id: section.id.clone(),
                    hash: HASHES.hash_one(shell),
                },
                rows: rows.collect(),
            }
        });
        let sections: Vec<SectionOutline> = sections.collect();
        let digest = format!("{:016x}", HASHES.hash_one(&sections));
        Outline { digest, sections }
    }
}

fn rows_id(section: &str) -> String {
    let mut id = String::with_capacity(section.len() + 1);
    let _ = write!(id, "{section}+");
    id
}

/// The ids and hashes of a view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    /// The hash of all of it: outlines with equal digests are equal.
    pub(crate) digest: String,
    sections: Vec<SectionOutline>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SectionOutline {
    mark: Mark,
    rows: Vec<Mark>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mark {
    id: String,
    hash: u64,
}

/// One step of bringing a browser from one view to the next. Steps are carried out in order.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Change<'a> {
    /// The element goes away.
    Remove {
        /// Its id.
        id: &'a str,
    },
    /// The element gets other HTML in its place.
    Replace {
        /// Its id.
        id: &'a str,
        /// Its new HTML.
        html: &'a str,
    },
    /// A new element.
    Insert {
        /// The id of the element that holds it.
        into: String,
        /// The id of the element before it; `None` = it is the first.
        after: Option<&'a str>,
        /// Its HTML.
        html: &'a str,
    },
    /// The element changes its place.
    Move {
        /// The id of the element that holds it.
        into: String,
        /// The id of the element before it; `None` = it is the first.
        after: Option<&'a str>,
        /// Its id.
        id: &'a str,
    },
}

/// The id of the element that holds the sections.
pub(crate) const VIEW_ID: &str = "view";

/// What a browser that shows `old` needs to show `new`. `outline` is the outline of `new`.
pub(crate) fn changes<'a>(old: &'a Outline, new: &'a Blocks, outline: &'a Outline) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    let old_rows: FxHashMap<&str, &SectionOutline> = old.sections.iter().map(|at| (at.mark.id.as_str(), at)).collect();
    let html = |at: usize| new.of(&new.sections[at].html);
    let (was, is) = (
        old.sections.iter().map(|section| &section.mark).collect::<Vec<_>>(),
        outline.sections.iter().map(|section| &section.mark).collect::<Vec<_>>(),
    );
    list_changes(VIEW_ID, &was, &is, html, &mut changes);
    for (at, section) in outline.sections.iter().enumerate() {
        // A section that is new or whose shell changed was sent with its rows.
        let Some(before) = old_rows.get(section.mark.id.as_str()) else {
            continue;
        };
        if before.mark != section.mark {
            continue;
        }
        let html = |row: usize| new.of(&new.sections[at].rows[row].html);
        let (was, is): (Vec<_>, Vec<_>) = (before.rows.iter().collect(), section.rows.iter().collect());
        list_changes(&rows_id(&section.mark.id), &was, &is, html, &mut changes);
    }
    changes
}

/// The changes of the elements in one parent.
///
/// The elements of a longest increasing run of old places stay; every other one is put after its new predecessor, from first to last. That
/// gives the new order: whatever stands between two neighbours at some step is put elsewhere in a later one.
fn list_changes<'a>(
    into: &str,
    old: &[&'a Mark],
    new: &[&'a Mark],
    html: impl Fn(usize) -> &'a str,
    changes: &mut Vec<Change<'a>>,
) {
    if old == new {
        return;
    }
    let ids: FxHashSet<&str> = new.iter().map(|mark| mark.id.as_str()).collect();
    let removed = old.iter().filter(|mark| !ids.contains(mark.id.as_str()));
    changes.extend(removed.map(|mark| Change::Remove { id: &mark.id }));
    let old_places: FxHashMap<&str, usize> = old
        .iter()
        .enumerate()
        .map(|(at, mark)| (mark.id.as_str(), at))
        .collect();
    let places: Vec<Option<usize>> = new
        .iter()
        .map(|mark| old_places.get(mark.id.as_str()).copied())
        .collect();
    let stays = longest_increasing(&places);
    let mut after: Option<&str> = None;
    for (at, mark) in new.iter().enumerate() {
        let id = mark.id.as_str();
        match places[at] {
            None => changes.push(Change::Insert {
                into: into.to_owned(),
                after,
                html: html(at),
            }),
            Some(place) => {
                if !stays[at] {
                    let into = into.to_owned();
                    changes.push(Change::Move { into, after, id });
                }
                if old[place].hash != mark.hash {
                    changes.push(Change::Replace { id, html: html(at) });
                }
            }
        }
        after = Some(id);
    }
}

/// Marks a longest increasing subsequence of the places that are known.
fn longest_increasing(places: &[Option<usize>]) -> Vec<bool> {
    // `tails[n]` is the index of the smallest last element of an increasing run of length n + 1.
    let mut tails: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = vec![None; places.len()];
    for (at, place) in places.iter().enumerate() {
        if place.is_none() {
            continue;
        }
        let length = tails.partition_point(|tail| places[*tail] < *place);
        before[at] = length.checked_sub(1).map(|shorter| tails[shorter]);
        match tails.get_mut(length) {
            Some(tail) => *tail = at,
            None => tails.push(at),
        }
    }
    let mut stays = vec![false; places.len()];
    let mut at = tails.last().copied();
    while let Some(index) = at {
        stays[index] = true;
        at = before[index];
    }
    stays
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Spec = Vec<(u8, u8, Vec<(u8, u8)>)>;

    /// A view from ids and contents; the first of equal ids counts.
    fn blocks(spec: &Spec) -> Blocks {
        let mut blocks = Blocks::with_capacity(0);
        let mut seen = FxHashSet::default();
        for (id, content, rows) in spec {
            if !seen.insert(*id) {
                continue;
            }
            blocks.open(&format!("s{id}"), |html, id, _| {
                html.raw("<s>").text(id).raw("=").show(content).raw("|");
            });
            let mut seen = FxHashSet::default();
            for (row, content) in rows.iter().filter(|(row, _)| seen.insert(*row)) {
                blocks.row(&format!("s{id}r{row}"), |html, id| {
                    html.raw("[").text(id).raw("=").show(content).raw("]");
                });
            }
            blocks.close("</s>");
        }
        blocks
    }

    /// What a browser has: (section id, shell, rows), by the same rules as the module of the page.
    #[derive(Clone, Debug, PartialEq)]
    struct Screen(Vec<ShownSection>);

    type ShownSection = (String, String, Vec<(String, String)>);

    impl Screen {
        fn of(blocks: &Blocks) -> Screen {
            let sections = blocks.sections.iter().map(|section| {
                let rows = section
                    .rows
                    .iter()
                    .map(|row| (row.id.clone(), blocks.of(&row.html).to_owned()));
                let shell = format!(
                    "{}{}",
                    blocks.of(&(section.html.start..section.inner.start)),
                    blocks.of(&(section.inner.end..section.html.end))
                );
                (section.id.clone(), shell, rows.collect())
            });
            Screen(sections.collect())
        }

        fn section_of(target: &Screen, html: &str, blocks: &Blocks) -> ShownSection {
            let at = blocks
                .sections
                .iter()
                .position(|section| blocks.of(&section.html) == html);
            target.0[at.unwrap()].clone()
        }

        fn row_of(html: &str) -> (String, String) {
            let id = html.trim_start_matches('[').split('=').next().unwrap();
            (id.to_owned(), html.to_owned())
        }

        fn apply(&mut self, change: &Change<'_>, target: &Screen, blocks: &Blocks) {
            fn place<T>(list: &mut Vec<T>, item: T, after: Option<&str>, id: impl Fn(&T) -> &str) {
                let at = after.map_or(0, |after| list.iter().position(|item| id(item) == after).unwrap() + 1);
                list.insert(at, item);
            }
            match change {
                Change::Remove { id } => {
                    self.0.retain(|section| section.0 != *id);
                    self.0
                        .iter_mut()
                        .for_each(|section| section.2.retain(|row| row.0 != *id));
                }
                Change::Replace { id, html } => {
                    for section in &mut self.0 {
                        if section.0 == *id {
                            *section = Screen::section_of(target, html, blocks);
                        }
                        for row in section.2.iter_mut().filter(|row| row.0 == *id) {
                            *row = Screen::row_of(html);
                        }
                    }
                }
                Change::Insert { into, after, html } if into == VIEW_ID => {
                    let section = Screen::section_of(target, html, blocks);
                    place(&mut self.0, section, *after, |section| &section.0);
                }
                Change::Insert { into, after, html } => {
                    let rows = self.0.iter_mut().find(|section| rows_id(&section.0) == *into).unwrap();
                    place(&mut rows.2, Screen::row_of(html), *after, |row| &row.0);
                }
                Change::Move { into, after, id } if into == VIEW_ID => {
                    let at = self.0.iter().position(|section| section.0 == *id).unwrap();
                    let section = self.0.remove(at);
                    place(&mut self.0, section, *after, |section| &section.0);
                }
                Change::Move { into, after, id } => {
                    let rows = self.0.iter_mut().find(|section| rows_id(&section.0) == *into).unwrap();
                    let at = rows.2.iter().position(|row| row.0 == *id).unwrap();
                    let row = rows.2.remove(at);
                    place(&mut rows.2, row, *after, |row| &row.0);
                }
            }
        }
    }

    fn spec() -> impl Strategy<Value = Spec> {
        vec((0u8..5, 0u8..2, vec((0u8..8, 0u8..3), 0..8)), 0..5)
    }

    proptest! {
        #[test]
        fn changes_lead_from_the_old_view_to_the_new_one(old in spec(), new in spec()) {
            let (old, new) = (blocks(&old), blocks(&new));
            let (was, is) = (old.outline(), new.outline());
            let mut screen = Screen::of(&old);
            let target = Screen::of(&new);
            let changes = changes(&was, &new, &is);
            prop_assert_eq!(was == is, changes.is_empty());
            for change in &changes {
                screen.apply(change, &target, &new);
            }
            prop_assert_eq!(screen, target);
        }

        #[test]
        fn a_browser_without_a_view_gets_all_of_it(new in spec()) {
            let new = blocks(&new);
            let (nothing, is) = (Outline::default(), new.outline());
            let sent: String = changes(&nothing, &new, &is).iter().map(|change| match change {
                Change::Insert { html, .. } => *html,
                other => panic!("{other:?}"),
            }).collect();
            prop_assert_eq!(sent.as_str(), new.html.as_str());
        }
    }

    #[test]
    fn few_changes_are_few_steps() {
        let row = |id: u8, content: u8| (id, content);
        let of = |rows: Vec<(u8, u8)>| blocks(&vec![(0, 0, rows)]);
        let old = of(vec![row(1, 0), row(2, 0), row(3, 0), row(4, 0)]);
        // The first row goes to the end, and one changes.
        let new = of(vec![row(2, 0), row(3, 1), row(4, 0), row(1, 0)]);
        let (was, is) = (old.outline(), new.outline());
        let changes = changes(&was, &new, &is);
        let expected = [
            Change::Replace {
                id: "s0r3",
                html: "[s0r3=1]",
            },
            Change::Move {
                into: "s0+".to_owned(),
                after: Some("s0r4"),
                id: "s0r1",
            },
        ];
        assert_eq!(changes, expected);
        assert_eq!(
            serde_json::to_string(&changes).unwrap(),
            r#"[{"replace":{"id":"s0r3","html":"[s0r3=1]"}},{"move":{"into":"s0+","after":"s0r4","id":"s0r1"}}]"#
        );
    }

    #[test]
    fn equal_views_have_equal_digests() {
        let spec: Spec = vec![(1, 1, vec![(1, 1)])];
        assert_eq!(blocks(&spec).outline().digest, blocks(&spec).outline().digest);
        let other: Spec = vec![(1, 1, vec![(1, 2)])];
        assert_ne!(blocks(&spec).outline().digest, blocks(&other).outline().digest);
    }
}
