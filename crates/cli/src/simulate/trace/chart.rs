//! Allocation and fragmentation by load as a picture: two panels, a line per run.

use std::fmt::Write as _;

use kai_simulate::trace::curve::Point;
use kai_simulate::trace::policy_name;

use super::output::Results;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
/// The corner of the first panel, its size, and where the second one begins.
const LEFT: f64 = 56.0;
const TOP: f64 = 44.0;
const PANEL_WIDTH: f64 = 390.0;
const PANEL_HEIGHT: f64 = 290.0;
const SECOND: f64 = 474.0;
/// Allocation is drawn from this load on: below it all policies place nearly all pods.
const LOAD_FROM: usize = 80;
/// Colours that people with any vision can tell apart (Okabe and Ito), then dashed.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5c6670",
];

/// One panel: the range of both axes, and the value of a point.
struct Panel {
    title: &'static str,
    left: f64,
    loads: (usize, usize),
    values: (f64, f64),
    value: fn(Point) -> f64,
}

/// The picture.
pub(super) fn svg(results: &Results<'_>) -> String {
    let outcomes = || {
        results
            .iter()
            .flat_map(|(trace, outcomes)| outcomes.iter().map(move |outcome| (*trace, outcome)))
    };
    let load_max = outcomes()
        .map(|(_, outcome)| outcome.curve.load_max())
        .max()
        .unwrap_or(0)
        .max(1);
    let from = LOAD_FROM.min(load_max / 2);
    let points = |from: usize| {
        outcomes().flat_map(move |(_, outcome)| (from..=load_max).filter_map(|load| outcome.curve.at(load)))
    };
    let lowest = points(from).map(|point| point.allocation_percent).fold(100.0, f64::min);
    let highest = points(0).map(|point| point.fragmentation_percent).fold(0.0, f64::max);
    let panels = [
        Panel {
            title: "GPUs allocated, % of all",
            left: LEFT,
            loads: (from, load_max),
            values: ((lowest / 5.0).floor() * 5.0, 100.0),
            value: |point| point.allocation_percent,
        },
        Panel {
            title: "GPUs fragmented, % of all",
            left: LEFT + SECOND,
            loads: (0, load_max),
            values: (0.0, (highest / 5.0).ceil().max(1.0) * 5.0),
            value: |point| point.fragmentation_percent,
        },
    ];
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"GPUs allocated and fragmented by load\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\" fill=\"#ffffff\"/>\n"
    );
    let seeds = results.len() > 1;
    for panel in &panels {
        panel.frame(&mut svg);
        for (at, (_, outcome)) in outcomes().enumerate() {
            panel.line(&mut svg, at, |load| outcome.curve.at(load));
        }
    }
    let mut left = LEFT;
    for (at, (trace, outcome)) in outcomes().enumerate() {
        let mut name = policy_name(outcome.policy).to_owned();
        if seeds {
            let _ = write!(name, " ({} {})", trace.name, trace.seed);
        }
        let name = name.replace('&', "&amp;").replace('<', "&lt;");
        let top = HEIGHT - 18.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" {2}/>\n<text x=\"{3}\" y=\"{top}\" fill=\"#1c2430\">{name}</text>",
            top - 4.0,
            left + 22.0,
            stroke(at),
            left + 28.0
        );
        left += 48.0 + 7.5 * name.len() as f64;
    }
    svg.push_str("</svg>\n");
    svg
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
    fn x(&self, load: usize) -> f64 {
        let (from, to) = self.loads;
        self.left + PANEL_WIDTH * (load - from) as f64 / (to - from).max(1) as f64
    }

    fn y(&self, value: f64) -> f64 {
        let (from, to) = self.values;
        TOP + PANEL_HEIGHT * (1.0 - (value - from) / (to - from))
    }

    /// Title, axes and their numbers.
    fn frame(&self, svg: &mut String) {
        let (left, bottom) = (self.left, TOP + PANEL_HEIGHT);
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\" fill=\"#1c2430\">{}</text>",
            TOP - 16.0,
            self.title
        );
        for part in 0..=5 {
            let value = self.values.0 + (self.values.1 - self.values.0) * f64::from(part) / 5.0;
            let y = self.y(value);
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
        let step = if self.loads.1 - self.loads.0 > 60 { 20 } else { 10 };
        for load in (self.loads.0..=self.loads.1).filter(|load| load % step == 0) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#5c6670\">{load}</text>",
                self.x(load),
                bottom + 18.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#5c6670\">GPUs requested, % of all</text>",
            left + PANEL_WIDTH,
            bottom + 36.0
        );
    }

    fn line(&self, svg: &mut String, at: usize, point: impl Fn(usize) -> Option<Point>) {
        let loads = self.loads.0..=self.loads.1;
        let points = loads.filter_map(|load| {
            let value = (self.value)(point(load)?);
            Some(format!("{:.1},{:.1}", self.x(load), self.y(value.max(self.values.0))))
        });
        let points: Vec<String> = points.collect();
        let _ = writeln!(svg, "<polyline {} points=\"{}\"/>", stroke(at), points.join(" "));
    }
}
