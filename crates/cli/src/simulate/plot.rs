//! Pictures of curves: two panels side by side, a line per series, and a legend.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
/// The corner of the first panel, its size, and where the second one begins.
const LEFT: f64 = 56.0;
const TOP: f64 = 44.0;
const PANEL_WIDTH: f64 = 390.0;
const PANEL_HEIGHT: f64 = 290.0;
const SECOND: f64 = 474.0;
/// Colours that people with any vision can tell apart (Okabe and Ito), then dashed.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5c6670",
];

/// The place of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    First,
    Second,
}

/// One panel: the range of both axes, and the names of them.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) side: Side,
    pub(super) xs: (f64, f64),
    pub(super) ys: (f64, f64),
    /// The numbers below the axis.
    pub(super) marks: Vec<f64>,
    pub(super) x_title: &'static str,
}

/// A picture that grows.
pub(super) struct Plot {
    svg: String,
}

impl Plot {
    /// A picture with this description.
    pub(super) fn new(label: &str) -> Plot {
        Plot {
            svg: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
                 font-family=\"system-ui, sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"{label}\">\n\
                 <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\" fill=\"#ffffff\"/>\n"
            ),
        }
    }

    /// Title, axes and their numbers.
    pub(super) fn frame(&mut self, panel: &Panel) {
        let svg = &mut self.svg;
        let (left, bottom) = (panel.left(), TOP + PANEL_HEIGHT);
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\" fill=\"#1c2430\">{}</text>",
            TOP - 16.0,
            panel.title
        );
        for part in 0..=5 {
            let value = panel.ys.0 + (panel.ys.1 - panel.ys.0) * f64::from(part) / 5.0;
            let y = panel.y(value);
            let _ = writeln!(
                svg,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#d5dae1\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#5c6670\">{}</text>",
                left + PANEL_WIDTH,
                left - 6.0,
                y + 4.0,
                crate::draw::number(value)
            );
        }
        for mark in &panel.marks {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#5c6670\">{}</text>",
                panel.x(*mark),
                bottom + 18.0,
                crate::draw::number(*mark)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#5c6670\">{}</text>",
            left + PANEL_WIDTH,
            bottom + 36.0,
            panel.x_title
        );
    }

    /// The line of a series; what is below the axis is drawn on it.
    pub(super) fn line(&mut self, panel: &Panel, series: usize, points: impl Iterator<Item = (f64, f64)>) {
        let points = points.map(|(x, value)| format!("{:.1},{:.1}", panel.x(x), panel.y(value.max(panel.ys.0))));
        let points: Vec<String> = points.collect();
        let _ = writeln!(
            self.svg,
            "<polyline {} points=\"{}\"/>",
            stroke(series),
            points.join(" ")
        );
    }

    /// The picture with the names of the series.
    pub(super) fn finish(mut self, names: impl Iterator<Item = String>) -> String {
        let mut left = LEFT;
        for (at, name) in names.enumerate() {
            let name = name.replace('&', "&amp;").replace('<', "&lt;");
            let top = HEIGHT - 18.0;
            let _ = writeln!(
                self.svg,
                "<line x1=\"{left}\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" {2}/>\n<text x=\"{3}\" y=\"{top}\" fill=\"#1c2430\">{name}</text>",
                top - 4.0,
                left + 22.0,
                stroke(at),
                left + 28.0
            );
            left += 48.0 + 7.5 * name.len() as f64;
        }
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

fn stroke(at: usize) -> String {
    let colour = COLOURS[at % COLOURS.len()];
    let dashes = if at < COLOURS.len() {
        ""
    } else {
        " stroke-dasharray=\"5 3\""
    };
    format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}")
}

impl Panel {
    fn left(&self) -> f64 {
        match self.side {
            Side::First => LEFT,
            Side::Second => LEFT + SECOND,
        }
    }

    fn x(&self, value: f64) -> f64 {
        let (from, to) = self.xs;
        self.left() + PANEL_WIDTH * (value - from) / if to > from { to - from } else { 1.0 }
    }

    fn y(&self, value: f64) -> f64 {
        let (from, to) = self.ys;
        TOP + PANEL_HEIGHT * (1.0 - (value - from) / (to - from))
    }
}
