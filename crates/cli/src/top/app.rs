//! The state of the screen: what is shown, selected, sorted and filtered. Keys and views change it; it draws nothing.

use std::sync::Arc;

use kai_mirror::ExplanationView;
use kai_view::{ClusterView, Pod, Text};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::changes::Changes;
use super::feed::News;
use super::tables::{Row, Subject, Tab, Table, rows};

/// What the state asks its owner to do.
#[derive(Debug, PartialEq)]
pub(super) enum Wish {
    Quit,
    /// Find out what would let this pod start.
    Explain(Box<Pod>),
}

/// What covers the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    None,
    Help,
    /// Everything about an object.
    Details(Subject),
}

/// The answer to what would help a pod.
pub(super) enum Answer {
    /// It is being tried.
    Awaited,
    Known(Option<Box<ExplanationView>>),
}

/// How a table is shown. Each table keeps its own.
struct Shown {
    selected: Option<Subject>,
    /// Column and whether descending; `None` = the order of the view.
    sort: Option<(usize, bool)>,
}

/// What the rows of a table depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BuiltFrom {
    /// Number of the view.
    view: u64,
    tab: Tab,
    filter: String,
    sort: Option<(usize, bool)>,
    /// Of the screen.
    width: u16,
}

pub(super) struct App {
    pub(super) address: String,
    pub(super) colours: bool,
    pub(super) view: Option<Arc<ClusterView>>,
    /// Why the view is an old one.
    pub(super) trouble: Option<String>,
    pub(super) changes: Changes,
    pub(super) tab: Tab,
    pub(super) overlay: Overlay,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) is_filtering: bool,
    /// Whether the newest decision stays selected.
    pub(super) follows: bool,
    /// Lines that are scrolled off above the details.
    pub(super) scroll: u16,
    /// Width and height of the screen in the last drawing.
    pub(super) size: (u16, u16),
    tables: [Shown; Tab::ALL.len()],
    /// The pod whose remedies were asked for last, by uid.
    answer: Option<(Text, Answer)>,
    /// Views so far.
    views: u64,
    /// The rows that were built last: a key that only selects builds none, however many pods the cluster has.
    built: Option<(BuiltFrom, Arc<Table>)>,
    /// How often rows were built, for tests.
    #[cfg(test)]
    pub(super) tables_built: usize,
}

impl App {
    pub(super) fn new(address: &str, colours: bool) -> App {
        App {
            address: address.to_owned(),
            colours,
            view: None,
            trouble: None,
            changes: Changes::default(),
            tab: Tab::Nodes,
            overlay: Overlay::None,
            filter: String::new(),
            is_filtering: false,
            follows: true,
            scroll: 0,
            size: (80, 24),
            tables: std::array::from_fn(|_| Shown {
                selected: None,
                sort: None,
            }),
            answer: None,
            views: 0,
            built: None,
            #[cfg(test)]
            tables_built: 0,
        }
    }

    pub(super) fn on_news(&mut self, news: News) -> Option<Wish> {
        match news {
            News::View(view) => {
                self.views += 1;
                self.trouble = None;
                if let Some(before) = self.view.replace(Arc::clone(&view)) {
                    self.changes.add(&before, &view);
                }
                if self.follows && self.tab == Tab::Decisions {
                    self.shown_mut().selected = None;
                }
                self.ask(false)
            }
            News::Explained(uid, answer) => {
                if self.answer.as_ref().is_some_and(|(asked, _)| *asked == uid) {
                    self.answer = Some((uid, Answer::Known(answer)));
                }
                None
            }
            News::Lost(error) => {
                self.trouble = Some(error);
                None
            }
        }
    }

    pub(super) fn on_key(&mut self, key: KeyEvent) -> Option<Wish> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Some(Wish::Quit),
                KeyCode::Char('f') => self.scroll_by(self.page()),
                KeyCode::Char('b') => self.scroll_by(-self.page()),
                _ => {}
            }
            return None;
        }
        if self.is_filtering {
            self.type_filter(key.code);
            return None;
        }
        match key.code {
            KeyCode::Char('q') if self.overlay == Overlay::None => return Some(Wish::Quit),
            KeyCode::Char('q') | KeyCode::Esc => self.back(),
            KeyCode::Char('?') => self.overlay = Overlay::Help,
            KeyCode::Char('/') if self.overlay == Overlay::None => self.is_filtering = true,
            KeyCode::Char(digit @ '1'..='9') => self.open(digit as usize - '1' as usize),
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.turn(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => self.turn(Tab::ALL.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_by(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll_by(self.page()),
            KeyCode::PageUp => self.scroll_by(-self.page()),
            KeyCode::Home | KeyCode::Char('g') => self.scroll_by(isize::MIN / 2),
            KeyCode::End | KeyCode::Char('G') => self.scroll_by(isize::MAX / 2),
            KeyCode::Char('s') => self.sort_next(),
            KeyCode::Char('S') => self.reverse(),
            KeyCode::Char('f') => self.follow(),
            KeyCode::Enter | KeyCode::Char('d' | 'e') => return self.details(),
            _ => {}
        }
        None
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => {
                self.is_filtering = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) => self.filter.push(character),
            _ => {}
        }
    }

    fn back(&mut self) {
        match self.overlay {
            Overlay::None => self.filter.clear(),
            Overlay::Help | Overlay::Details(_) => self.overlay = Overlay::None,
        }
        self.scroll = 0;
    }

    fn open(&mut self, at: usize) {
        if let Some(tab) = Tab::ALL.get(at) {
            self.tab = *tab;
            self.overlay = Overlay::None;
            self.scroll = 0;
        }
    }

    fn turn(&mut self, by: usize) {
        self.open((self.tab as usize + by) % Tab::ALL.len());
    }

    /// Half a screen.
    fn page(&self) -> isize {
        (isize::try_from(self.size.1).unwrap_or(2) / 2).max(1)
    }

    /// Moves the selection of the table, or the text that covers it.
    fn scroll_by(&mut self, by: isize) {
        if self.overlay != Overlay::None {
            let to = isize::try_from(self.scroll).unwrap_or(0).saturating_add(by);
            // The drawing limits it to the length of the text.
            self.scroll = u16::try_from(to.max(0)).unwrap_or(u16::MAX);
            return;
        }
        let Some(table) = self.table() else { return };
        let rows = &table.rows;
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = isize::try_from(self.selected_at(rows)).unwrap_or(0);
        let to = usize::try_from(at.saturating_add(by).max(0)).unwrap_or(0).min(last);
        let selected = rows[to].subject.clone();
        self.shown_mut().selected = Some(selected);
        self.follows = self.tab == Tab::Decisions && to == 0;
    }

    fn sort_next(&mut self) {
        let columns = self.tab.columns().len();
        let shown = self.shown_mut();
        shown.sort = match shown.sort {
            None => Some((0, false)),
            Some((column, _)) if column + 1 < columns => Some((column + 1, false)),
            Some(_) => None,
        };
    }

    fn reverse(&mut self) {
        let shown = self.shown_mut();
        shown.sort = Some(shown.sort.map_or((0, true), |(column, descends)| (column, !descends)));
    }

    fn follow(&mut self) {
        if self.tab == Tab::Decisions {
            self.follows = !self.follows;
            self.shown_mut().selected = None;
        }
    }

    fn details(&mut self) -> Option<Wish> {
        let table = self.table()?;
        let rows = &table.rows;
        let subject = rows.get(self.selected_at(rows))?.subject.clone();
        self.overlay = Overlay::Details(subject);
        self.scroll = 0;
        self.ask(true)
    }

    /// Asks what would help the pod of the details. A new view asks again once the last answer has come.
    fn ask(&mut self, anew: bool) -> Option<Wish> {
        let pod = self.explained_pod()?.clone();
        let awaited = matches!(&self.answer, Some((uid, Answer::Awaited)) if *uid == pod.uid);
        if awaited && !anew {
            return None;
        }
        // The last answer stays until the next one comes.
        if self.answer.as_ref().is_none_or(|(uid, _)| *uid != pod.uid) {
            self.answer = Some((pod.uid.clone(), Answer::Awaited));
        }
        Some(Wish::Explain(Box::new(pod)))
    }

    /// The waiting pod that the details are about: of a gang, the first that waits.
    fn explained_pod(&self) -> Option<&Pod> {
        let Overlay::Details(subject) = &self.overlay else {
            return None;
        };
        let mut pods = self.view.as_deref()?.pods.iter().flatten();
        match subject {
            Subject::Pod(namespace, name) | Subject::Decision(_, namespace, name) => {
                pods.find(|pod| pod.namespace == *namespace && pod.name == *name && pod.waits())
            }
            Subject::Gang(namespace, group) => {
                pods.find(|pod| pod.namespace == *namespace && pod.pod_group.as_ref() == Some(group) && pod.waits())
            }
            Subject::Node(_) | Subject::Queue(_) => None,
        }
    }

    /// What would help the pod of the details.
    pub(super) fn answer(&self) -> Option<&Answer> {
        let pod = self.explained_pod()?;
        let (uid, answer) = self.answer.as_ref()?;
        (*uid == pod.uid).then_some(answer)
    }

    fn shown(&self) -> &Shown {
        &self.tables[self.tab as usize]
    }

    fn shown_mut(&mut self) -> &mut Shown {
        &mut self.tables[self.tab as usize]
    }

    /// The column that the table is sorted by, and whether descending.
    pub(super) fn sort(&self) -> Option<(usize, bool)> {
        self.shown().sort
    }

    /// The table as it is shown; `None` if the list is missing.
    pub(super) fn table(&mut self) -> Option<Arc<Table>> {
        let from = BuiltFrom {
            view: self.views,
            tab: self.tab,
            filter: self.filter.to_lowercase(),
            sort: self.shown().sort,
            width: self.size.0,
        };
        if let Some((_, table)) = self.built.as_ref().filter(|(built, _)| *built == from) {
            return Some(Arc::clone(table));
        }
        let table = Arc::new(Table::new(self.build(&from)?));
        self.built = Some((from, Arc::clone(&table)));
        #[cfg(test)]
        {
            self.tables_built += 1;
        }
        Some(table)
    }

    fn build(&self, from: &BuiltFrom) -> Option<Vec<Row>> {
        let view = self.view.as_deref()?;
        let mut rows = rows(from.tab, view, &self.changes, usize::from(from.width))?;
        if !from.filter.is_empty() {
            rows.retain(|row| row.contains(&from.filter));
        }
        if let Some((column, descends)) = from.sort {
            // Stable: rows that are equal keep the order of the view.
            rows.sort_by(|a, b| match descends {
                false => a.compare(b, column),
                true => b.compare(a, column),
            });
        }
        Some(rows)
    }

    /// The position of the selected row: the same object as before, wherever it is now.
    pub(super) fn selected_at(&self, rows: &[Row]) -> usize {
        let selected = self.shown().selected.as_ref();
        let at = selected.and_then(|subject| rows.iter().position(|row| row.subject == *subject));
        at.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use kai_view::PodStatus;

    use super::*;
    use crate::top::tables::tests::{pod, view_of};

    fn press(app: &mut App, keys: &str) -> Option<Wish> {
        let mut wish = None;
        for character in keys.chars() {
            let code = match character {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                other => KeyCode::Char(other),
            };
            wish = app.on_key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        wish
    }

    /// The position of the selected row.
    fn selected(app: &mut App) -> usize {
        let table = app.table().unwrap();
        app.selected_at(&table.rows)
    }

    fn names(app: &mut App) -> Vec<String> {
        let table = app.table().unwrap();
        table.rows.iter().map(|row| row.cells[0].text()).collect()
    }

    fn three_pods() -> App {
        let mut app = App::new("cluster", false);
        let view = view_of(vec![
            pod("a", PodStatus::Running),
            pod("b", PodStatus::Pending),
            pod("c", PodStatus::Running),
        ]);
        app.on_news(News::View(Arc::new(view)));
        press(&mut app, "4");
        app
    }

    #[test]
    fn the_selection_stays_on_its_object() {
        let mut app = three_pods();
        press(&mut app, "jj");
        let view = view_of(vec![
            pod("0", PodStatus::Running),
            pod("a", PodStatus::Running),
            pod("c", PodStatus::Running),
        ]);
        app.on_news(News::View(Arc::new(view)));
        assert_eq!(selected(&mut app), 2);
        press(&mut app, "S");
        assert_eq!(names(&mut app), ["team/c", "team/a", "team/0"]);
        assert_eq!(selected(&mut app), 0);
        press(&mut app, "G");
        assert_eq!(selected(&mut app), 2);
        press(&mut app, "g");
        assert_eq!(selected(&mut app), 0);
    }

    #[test]
    fn a_filter_keeps_the_rows_that_contain_it() {
        let mut app = three_pods();
        press(&mut app, "/PEND");
        assert_eq!(names(&mut app), ["team/b"]);
        assert_eq!(
            press(&mut app, "\nq"),
            Some(Wish::Quit),
            "after Enter, keys are commands again"
        );
        press(&mut app, "\u{1b}");
        assert_eq!(names(&mut app).len(), 3);
        press(&mut app, "/q");
        assert!(app.is_filtering && app.filter == "q", "letters go to the filter");
    }

    #[test]
    fn details_of_a_waiting_pod_ask_what_would_help() {
        let mut app = three_pods();
        assert_eq!(press(&mut app, "\n"), None, "pod a runs");
        press(&mut app, "\u{1b}");
        let asked = press(&mut app, "j\n");
        assert_eq!(asked, Some(Wish::Explain(Box::new(pod("b", PodStatus::Pending)))));
        assert!(matches!(app.answer(), Some(Answer::Awaited)));
        let again = app.on_news(News::View(app.view.clone().unwrap()));
        assert_eq!(again, None, "the answer is awaited");
        app.on_news(News::Explained("b".into(), None));
        assert!(matches!(app.answer(), Some(Answer::Known(None))));
        assert!(app.on_news(News::View(app.view.clone().unwrap())).is_some());
        assert!(matches!(app.answer(), Some(Answer::Known(_))), "the last answer stays");
        press(&mut app, "q");
        assert_eq!(app.overlay, Overlay::None);
    }

    #[test]
    fn any_key_on_an_empty_screen_is_harmless() {
        let mut app = App::new("cluster", false);
        for keys in ["\njkgGsSfde", "12345", "?q", "/x\n\u{1b}"] {
            press(&mut app, keys);
        }
        assert!(app.table().is_none());
    }
}
