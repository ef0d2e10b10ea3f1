//! Draws the state of the screen.

use kai_view::{ClusterView, GpuState};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Clear, Paragraph, Row as DrawnRow, Table as DrawnTable, TableState};

use super::app::{Answer, App, Overlay};
use super::tables::{Subject, Tab};
use crate::draw::{DIM, GREEN, RED, YELLOW};
use crate::grid::{Align, Cell, Colour, Cut, Screen};
use crate::inspect::{explain, words};

/// A screen with fewer lines for table and selected row shows the table only.
const BODY_MIN: u16 = 14;

const HELP: &str = "
 1-5, tab      GPUs, queues, what waits, pods, decisions
 up, down      select; also j and k
 pgup, pgdn    half a screen; also ctrl-b and ctrl-f, g and G for the ends
 enter, d, e   everything about the selected object, and what would help it
 /             show only rows that contain a text; esc shows all again
 s, S          sort by the next column; reverse the order
 f             decisions: keep the newest selected
 esc, q        back
 q, ctrl-c     quit

 GPUs: \u{2588} used  \u{2591} free  ~ time-sliced  x unhealthy  ? unknown
 Decisions are the scheduler's, of the last hour, from the Events that it writes.
";

/// Above the changes that stand in for decisions.
const NO_EVENTS: &str = " Events can't be read: changes of kai top's own cycle, not the scheduler's";

pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    app.size = (area.width, area.height);
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(header(app), head);
    frame.render_widget(tab_line(app), tabs);
    match app.overlay.clone() {
        Overlay::None => draw_table(frame, app, body),
        Overlay::Help => draw_text(frame, app, HELP.lines().map(str::to_owned).collect(), body),
        Overlay::Details(subject) => {
            let lines = details(app, &subject, usize::from(body.width));
            draw_text(frame, app, lines, body);
        }
    }
    frame.render_widget(footer(app), foot);
}

/// `kai top  16 GPUs, 4 idle  3 waiting  12:34:56  https://...`
fn header(app: &App) -> Line<'static> {
    let mut spans = vec![
        Span::styled(
            " kai top ",
            Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
        ),
        Span::raw("  "),
    ];
    match app.view.as_deref() {
        None => spans.push(Span::raw("reading the cluster ...")),
        Some(view) => {
            spans.push(Span::raw(gpu_summary(view)));
            spans.push(Span::raw(match &view.gangs {
                Some(_) => format!("  {} waiting", view.waiting_gangs().len()),
                None => "  waiting: ?".to_owned(),
            }));
            spans.push(Span::raw(format!("  {}", words::time_of_day(view.time))));
            if !view.missing.is_empty() {
                spans.push(styled("  partly unknown", Some(YELLOW), app.colours));
            }
        }
    }
    // Last: a narrow screen cuts it off.
    match app.trouble.as_deref().and_then(|trouble| trouble.lines().next()) {
        Some(trouble) => spans.push(styled(&format!("  {trouble}"), Some(RED), app.colours)),
        None => spans.push(Span::raw(format!("  {}", app.address))),
    }
    Line::from(spans)
}

fn gpu_summary(view: &ClusterView) -> String {
    let Some(nodes) = &view.nodes else {
        return "GPUs: ?".to_owned();
    };
    let gpus = || nodes.iter().flat_map(|node| &node.gpus);
    let count = |state: GpuState| gpus().filter(|gpu| gpu.state == state).count();
    let mut text = format!("{} GPUs, {} idle", gpus().count(), count(GpuState::Idle));
    for (state, word) in [(GpuState::Unhealthy, "unhealthy"), (GpuState::Unknown, "unknown")] {
        match count(state) {
            0 => {}
            count => text.push_str(&format!(", {count} {word}")),
        }
    }
    text
}

fn tab_line(app: &App) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, tab) in Tab::ALL.into_iter().enumerate() {
        let style = match tab == app.tab {
            true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            false => Style::new(),
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(format!("{} {}", at + 1, tab.title()), style));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

fn footer(app: &App) -> Line<'static> {
    let text = match (&app.overlay, app.is_filtering, app.filter.as_str()) {
        (Overlay::None, true, filter) => format!(" /{filter}_  enter keeps it, esc shows all"),
        (Overlay::None, false, "") => " enter explain  / filter  s sort  ? help  q quit".to_owned(),
        (Overlay::None, false, filter) => format!(" only rows with \"{filter}\"; esc shows all"),
        (Overlay::Help | Overlay::Details(_), ..) => " esc back  up, down scroll  ctrl-c quit".to_owned(),
    };
    Line::from(Span::styled(text, Style::new().add_modifier(Modifier::DIM)))
}

fn draw_table(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let Some(view) = app.view.clone() else { return };
    let Some(table) = app.table() else {
        let reasons = view.missing.iter().map(words::missing);
        let lines: Vec<Line<'_>> = std::iter::once("unknown:".to_owned())
            .chain(reasons)
            .map(|text| Line::from(format!(" {text}")))
            .collect();
        frame.render_widget(Paragraph::new(lines).wrap(ratatui::widgets::Wrap { trim: false }), area);
        return;
    };
    let rows = &table.rows;
    let columns = app.tab.columns();
    let widths = app.tab.widths(&table.widest, usize::from(area.width));
    let is_cut = table.widest.iter().zip(&widths).any(|(widest, width)| widest > width);
    let selected_lines = app.tab.selected_lines();
    let area = match is_cut && selected_lines > 0 && area.height >= BODY_MIN {
        true => {
            let [table_area, selected] =
                Layout::vertical([Constraint::Min(0), Constraint::Length(selected_lines)]).areas(area);
            if let Some(row) = rows.get(app.selected_at(rows)) {
                draw_selected(frame, &row.cells, &widths, selected);
            }
            table_area
        }
        false => area,
    };
    let area = match app.tab == Tab::Decisions && view.decisions.is_none() {
        true => {
            let [note, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
            frame.render_widget(Paragraph::new(NO_EVENTS), note);
            rest
        }
        false => area,
    };
    if rows.is_empty() {
        let text = match app.filter.is_empty() {
            true => app.tab.nothing(&view),
            false => "no row contains the text",
        };
        frame.render_widget(Paragraph::new(format!(" {text}")), area);
        return;
    }
    let headings = columns
        .iter()
        .zip(&widths)
        .enumerate()
        .map(|(at, ((name, align), width))| {
            let mark = match app.sort() {
                Some((column, descends)) if column == at => {
                    if descends {
                        "v"
                    } else {
                        "^"
                    }
                }
                _ => "",
            };
            aligned(&Cell::from(format!("{name}{mark}")), *align, *width, Cut::End, false)
        });
    let heading = DrawnRow::new(headings).style(Style::new().add_modifier(Modifier::BOLD));
    // Only the rows on the screen are drawn: the cost does not grow with the cluster.
    let height = usize::from(area.height.saturating_sub(1)).max(1);
    let selected = app.selected_at(rows);
    let first = selected
        .saturating_sub(height / 2)
        .min(rows.len().saturating_sub(height));
    let shown = rows.iter().skip(first).take(height).map(|row| {
        let cells = row.cells.iter().zip(columns).zip(&widths).enumerate();
        DrawnRow::new(cells.map(|(at, ((cell, (_, align)), width))| {
            let cut = if at + 1 == columns.len() { Cut::End } else { Cut::Middle };
            aligned(cell, *align, *width, cut, app.colours)
        }))
    });
    let constraints = widths
        .iter()
        .map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
    let drawn = DrawnTable::new(shown, constraints)
        .header(heading)
        .column_spacing(2)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(selected - first));
    frame.render_stateful_widget(drawn, area, &mut state);
}

/// What the table leaves out of the selected row: its names, and the text of its last column.
fn draw_selected(frame: &mut Frame<'_>, cells: &[Cell], widths: &[usize], area: Rect) {
    let screen = Screen {
        width_max: Some(usize::from(area.width.saturating_sub(2)).max(1)),
        colours: false,
    };
    let Some((last, names)) = cells.split_last() else {
        return;
    };
    let cut = names.iter().zip(widths).filter(|(cell, width)| cell.width() > **width);
    let names: Vec<String> = cut.map(|(cell, _)| cell.text()).collect();
    let names = Cell::from(names.join("  "));
    let is_cut = widths.last().is_some_and(|width| last.width() > *width);
    let last = Some(last).filter(|_| is_cut);
    let mut lines = Vec::new();
    for text in [Some(&names).filter(|names| !names.is_empty()), last]
        .into_iter()
        .flatten()
    {
        lines.extend(screen.lines(text));
    }
    let room = usize::from(area.height.saturating_sub(1));
    if lines.len() > room {
        lines.truncate(room);
        lines.pop();
        lines.push("… (enter shows all)".to_owned());
    }
    let rule = Line::from("─".repeat(usize::from(area.width))).style(Style::new().add_modifier(Modifier::DIM));
    let lines = lines.into_iter().map(|text| Line::from(format!(" {text}")));
    let text: Vec<Line<'_>> = std::iter::once(rule).chain(lines).collect();
    frame.render_widget(Paragraph::new(text), area);
}

fn aligned(cell: &Cell, align: Align, width: usize, cut: Cut, colours: bool) -> Text<'static> {
    let mut spans = Vec::new();
    let cell = cell.shortened(width, cut);
    if align == Align::Right {
        spans.push(Span::raw(" ".repeat(width.saturating_sub(cell.width()))));
    }
    for (text, colour) in cell.pieces() {
        spans.push(styled(&text, colour, colours));
    }
    Text::from(Line::from(spans))
}

fn styled(text: &str, colour: Option<Colour>, colours: bool) -> Span<'static> {
    let style = match colour.filter(|_| colours) {
        Some(GREEN) => Style::new().fg(Color::Green),
        Some(YELLOW) => Style::new().fg(Color::Yellow),
        Some(RED) => Style::new().fg(Color::Red),
        Some(DIM) => Style::new().add_modifier(Modifier::DIM),
        Some(_) | None => Style::new(),
    };
    Span::styled(text.to_owned(), style)
}

fn draw_text(frame: &mut Frame<'_>, app: &mut App, lines: Vec<String>, area: Rect) {
    let longest = u16::try_from(lines.len())
        .unwrap_or(u16::MAX)
        .saturating_sub(area.height);
    app.scroll = app.scroll.min(longest);
    let text: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).scroll((app.scroll, 0)), area);
}

/// Everything about an object, as `kai explain` shows it.
fn details(app: &App, subject: &Subject, width: usize) -> Vec<String> {
    let Some(view) = app.view.as_deref() else {
        return Vec::new();
    };
    let screen = Screen {
        width_max: Some(width),
        colours: false,
    };
    let remedies = match app.answer() {
        Some(Answer::Known(found)) => found.as_deref(),
        Some(Answer::Awaited) | None => None,
    };
    let lines = match subject {
        Subject::Node(name) => explain::node(view, name, screen),
        Subject::Queue(name) => explain::queue(view, name, screen),
        Subject::Gang(namespace, group) => explain::gang(view, namespace, group, remedies, screen),
        Subject::Pod(namespace, name) | Subject::Decision(_, namespace, name) => {
            explain::pod(view, namespace, name, remedies, screen)
        }
    };
    let mut lines = lines.unwrap_or_else(|| vec![" it is gone".to_owned()]);
    if matches!(app.answer(), Some(Answer::Awaited)) {
        lines.extend([String::new(), " what would help is being tried ...".to_owned()]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::top::feed::News;

    /// The screen of this size after these keys.
    fn screen(width: u16, height: u16, app: &mut App, keys: &str) -> String {
        let buffer = cells(width, height, app, keys);
        let lines = buffer.content.chunks(usize::from(width)).map(|line| {
            let text: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
            text.trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn cells(width: u16, height: u16, app: &mut App, keys: &str) -> ratatui::buffer::Buffer {
        for character in keys.chars() {
            let code = match character {
                '\n' => KeyCode::Enter,
                other => KeyCode::Char(other),
            };
            app.on_key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        // Drawn twice: the first drawing learns the size of the screen.
        terminal.draw(|frame| draw(frame, app)).unwrap();
        terminal.backend().buffer().clone()
    }

    fn app() -> App {
        let view: ClusterView = serde_json::from_str(include_str!("../../tests/data/top.json")).unwrap();
        let mut app = App::new("https://10.0.0.1:6443", true);
        app.on_news(News::View(Arc::new(view)));
        app
    }

    #[test]
    fn every_table_fits_eighty_columns() {
        for (name, keys) in [
            ("gpus", "1"),
            ("queues", "2"),
            ("waiting", "3"),
            ("pods", "4"),
            ("node", "1\n"),
            ("shared_node", "1jjj\n"),
            ("gang", "3\n"),
            ("help", "?"),
        ] {
            insta::assert_snapshot!(name, screen(80, 24, &mut app(), keys));
        }
    }

    /// Names as long as those of real clusters.
    fn with_long_names() -> App {
        let mut view: ClusterView = serde_json::from_str(include_str!("../../tests/data/top.json")).unwrap();
        let queue = "department-of-language-models-europe";
        for gang in view.gangs.iter_mut().flatten().filter(|gang| gang.waiting > 0) {
            (gang.queue, gang.namespace) = (queue.into(), "team-inference-europe".into());
            (gang.workload_kind, gang.workload_name) = ("Deployment".into(), "llama-4-maverick-chat".into());
        }
        for pod in view.pods.iter_mut().flatten() {
            let name = format!("llama-4-maverick-chat-7c9f8d6b54-{}", pod.name);
            (pod.namespace, pod.name) = ("team-inference-europe".into(), name.into());
        }
        for queue_view in view.queues.iter_mut().flatten() {
            queue_view.name = queue.into();
        }
        let mut app = App::new("https://10.0.0.1:6443", true);
        app.on_news(News::View(Arc::new(view)));
        app
    }

    #[test]
    fn reasons_are_readable_beside_long_names() {
        for (name, keys) in [("long_queues", "2"), ("long_waiting", "3"), ("long_pods", "4")] {
            insta::assert_snapshot!(name, screen(80, 24, &mut with_long_names(), keys));
        }
        insta::assert_snapshot!("long_waiting_wide", screen(120, 40, &mut with_long_names(), "3"));
        // The whole reason is on the screen, and the names.
        let text = screen(80, 24, &mut with_long_names(), "3").replace(['\n', ' '], "");
        let view = with_long_names().view.unwrap();
        let gang = view.waiting_gangs()[0];
        let name = format!("{} {}/{}", gang.workload_kind, gang.namespace, gang.workload_name);
        for whole in [gang.reason.as_deref().unwrap(), &*gang.queue, &name] {
            assert!(
                text.contains(&whole.replace(' ', "")),
                "{whole} is not on the screen:\n{text}"
            );
        }
    }

    #[test]
    fn decisions_are_the_schedulers_where_events_can_be_read() {
        let decision = |number: u64, kind: &str, pod: &str, reason: Option<&str>| {
            serde_json::from_value::<Arc<kai_view::Decision>>(serde_json::json!({
                "number": number, "time": "2026-01-31T12:34:56Z", "kind": kind, "action": null, "namespace": "default", "pod": pod,
                "podGroup": "pg-blue", "workload": "Job blue", "queue": null, "node": "h100-1", "gpus": null, "beneficiary": null,
                "reason": reason,
            }))
            .unwrap()
        };
        let reclaimed = "reclaimed for Job default/red (2 pods in all)";
        let mut view: ClusterView = serde_json::from_str(include_str!("../../tests/data/top.json")).unwrap();
        view.decisions = Some(vec![
            decision(3, "bind", "red-0", None),
            decision(2, "evict", "", Some(reclaimed)),
            decision(1, "evict", "blue-0", Some(reclaimed)),
        ]);
        let mut with_events = app();
        with_events.on_news(News::View(Arc::new(view)));
        insta::assert_snapshot!("decisions", screen(80, 10, &mut with_events, "5"));
        // Without Events, a pod that is gone in the second view.
        let mut view: ClusterView = serde_json::from_str(include_str!("../../tests/data/top.json")).unwrap();
        view.pods.as_mut().unwrap().remove(0);
        let mut without_events = app();
        without_events.on_news(News::View(Arc::new(view)));
        insta::assert_snapshot!("changes", screen(80, 10, &mut without_events, "5"));
    }

    #[test]
    fn the_documentation_shows_the_first_screen() {
        let docs = include_str!("../../../../docs/cli.md");
        let screen = screen(80, 24, &mut app(), "1");
        for line in screen.lines() {
            assert!(docs.contains(line), "docs/cli.md does not show:\n{line}");
        }
    }

    /// `UPDATE_PICTURES=1` writes it.
    #[test]
    fn the_picture_in_the_readme_is_of_this_program() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images/top.svg");
        let now = crate::top::picture::svg(&cells(100, 14, &mut app(), "1"));
        if std::env::var_os("UPDATE_PICTURES").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap();
        assert!(
            stored == now,
            "docs/images/top.svg is outdated; write it with UPDATE_PICTURES=1"
        );
    }

    #[test]
    fn a_wide_screen_has_wider_bars() {
        insta::assert_snapshot!("gpus_wide", screen(140, 12, &mut app(), "1"));
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        for (width, height) in [(1, 1), (10, 3), (20, 5), (300, 100)] {
            for keys in ["1", "2", "3", "4", "5", "1\n", "2\n", "?"] {
                screen(width, height, &mut app(), keys);
            }
        }
    }

    /// A view of 1,000 nodes and 10,000 pods.
    fn large() -> Arc<ClusterView> {
        let small: ClusterView = serde_json::from_str(include_str!("../../tests/data/top.json")).unwrap();
        let mut large = small.clone();
        let numbered = |name: &str, at: usize| format!("{name}-{at}").into();
        let nodes = small.nodes.unwrap().into_iter().cycle().take(1_000).enumerate();
        let named = nodes.map(|(at, mut node)| {
            node.name = numbered(&node.name, at);
            node
        });
        large.nodes = Some(named.collect());
        let pods = small.pods.unwrap().into_iter().cycle().take(10_000).enumerate();
        let named = pods.map(|(at, mut pod)| {
            (pod.name, pod.uid) = (numbered(&pod.name, at), numbered(&pod.uid, at));
            pod
        });
        large.pods = Some(named.collect());
        Arc::new(large)
    }

    /// On a large cluster the rows are most of the work of a screen.
    #[test]
    fn rows_are_built_once_for_a_view_however_many_keys_are_pressed() {
        let (mut app, large) = (App::new("cluster", true), large());
        app.on_news(News::View(Arc::clone(&large)));
        cells(200, 50, &mut app, "4");
        assert_eq!(app.tables_built, 1);
        cells(200, 50, &mut app, "jjjjGkg\nq");
        assert_eq!(app.tables_built, 1, "keys that select build none");
        cells(200, 50, &mut app, "/x-9");
        assert_eq!(app.tables_built, 2, "a filter is applied once it is drawn");
        cells(200, 50, &mut app, "\ns");
        assert_eq!(app.tables_built, 3, "as is an order");
        app.on_news(News::View(large));
        cells(200, 50, &mut app, "jj");
        assert_eq!(app.tables_built, 4, "and a view");
    }

    /// `cargo test --release -p kai-cli --lib a_large_cluster -- --ignored --nocapture`
    #[test]
    #[ignore = "prints times for docs/performance.md"]
    fn a_large_cluster_is_drawn() {
        let (mut app, large) = (App::new("cluster", true), large());
        for (what, keys) in [("GPUs", "1"), ("pods", "4")] {
            let begun = std::time::Instant::now();
            for _ in 0..10 {
                app.on_news(News::View(Arc::clone(&large)));
                cells(200, 50, &mut app, keys);
            }
            // Each screen is drawn twice.
            println!("{what}: {:?} for a view and two drawings", begun.elapsed() / 10);
            let begun = std::time::Instant::now();
            for _ in 0..10 {
                cells(200, 50, &mut app, "j");
            }
            println!("{what}: {:?} for a key and two drawings", begun.elapsed() / 10);
        }
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut view: ClusterView = serde_json::from_str(include_str!("../../tests/data/top.json")).unwrap();
        view.nodes = None;
        view.missing.push(kai_view::MissingList {
            list: kai_view::List::Nodes,
            only_namespace: None,
            message: "nodes is forbidden".to_owned(),
        });
        let mut app = App::new("cluster", true);
        app.on_news(News::View(Arc::new(view)));
        let text = screen(80, 24, &mut app, "1");
        assert!(
            text.contains("partly unknown") && text.contains("nodes can't be listed"),
            "{text}"
        );
        assert!(text.contains("GPUs: ?"), "{text}");
    }
}
