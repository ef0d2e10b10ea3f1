//! Bars as SVG. The page has no inline styles, so widths are attributes of shapes.

use crate::html::Html;

/// The width of a bar in its own units.
const WIDTH: i64 = 1_000;

/// A bar on a scale from 0 to `max`.
pub(crate) struct Bar<'a> {
    html: &'a mut Html,
    max: i64,
    at: i64,
}

impl<'a> Bar<'a> {
    /// Begins a bar. Screen readers get the label.
    pub(crate) fn begin(html: &'a mut Html, class: &'static str, max: i64, label: &str) -> Bar<'a> {
        html.raw("<svg class=\"").raw(class);
        html.raw("\" viewBox=\"0 0 1000 12\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"");
        html.text(label).raw("\">");
        Bar {
            html,
            max: max.max(1),
            at: 0,
        }
    }

    fn scaled(&self, amount: i64) -> i64 {
        let scaled = i128::from(amount.max(0)) * i128::from(WIDTH) / i128::from(self.max);
        i64::try_from(scaled).unwrap_or(WIDTH).min(WIDTH)
    }

    /// Adds a part after the last one.
    pub(crate) fn part(mut self, amount: i64, class: &'static str) -> Bar<'a> {
        let (from, to) = (self.scaled(self.at), self.scaled(self.at.saturating_add(amount.max(0))));
        self.at = self.at.saturating_add(amount.max(0));
        if to > from {
            self.html
                .raw("<rect x=\"")
                .show(from)
                .raw("\" width=\"")
                .show(to - from);
            self.html.raw("\" height=\"12\" class=\"").raw(class).raw("\"/>");
        }
        self
    }

    /// Adds a line at an amount.
    pub(crate) fn mark(self, amount: Option<i64>, class: &'static str) -> Bar<'a> {
        if let Some(amount) = amount {
            // A line at the very edge would be cut in half.
            let at = self.scaled(amount).clamp(3, WIDTH - 3);
            self.html
                .raw("<path d=\"M")
                .show(at)
                .raw(" 0V12\" class=\"")
                .raw(class)
                .raw("\"/>");
        }
        self
    }

    pub(crate) fn end(self) {
        self.html.raw("</svg>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_stay_inside() {
        let mut html = Html::default();
        Bar::begin(&mut html, "bar", 8, "a \"label\"")
            .part(2, "a")
            .part(0, "none")
            .part(-4, "none")
            .part(i64::MAX, "b")
            .mark(Some(4), "m")
            .mark(None, "none")
            .end();
        let html = html.into_string();
        assert!(
            html.contains("<rect x=\"0\" width=\"250\" height=\"12\" class=\"a\"/>"),
            "{html}"
        );
        assert!(
            html.contains("<rect x=\"250\" width=\"750\" height=\"12\" class=\"b\"/>"),
            "{html}"
        );
        assert!(html.contains("M500 0V12"), "{html}");
        assert!(
            html.contains("a &quot;label&quot;") && !html.contains("none\"/>"),
            "{html}"
        );
    }
}
