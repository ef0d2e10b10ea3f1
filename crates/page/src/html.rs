//! Writing HTML. All text goes through [`Html::text`], the only place that escapes; names of pods are written by tenants.
//!
//! Markup is `&'static str`: a string that was made at run time cannot be written as markup by mistake.

use std::fmt::{self, Write as _};

use kai_view::{GpuAmount, Time};

/// HTML in the making: one string that everything is appended to.
#[derive(Debug, Default)]
pub(crate) struct Html {
    text: String,
}

impl Html {
    pub(crate) fn with_capacity(bytes: usize) -> Html {
        Html {
            text: String::with_capacity(bytes),
        }
    }

    /// Markup of the program.
    pub(crate) fn raw(&mut self, markup: &'static str) -> &mut Html {
        self.text.push_str(markup);
        self
    }

    /// Text, for content and for attributes in double quotes.
    pub(crate) fn text(&mut self, text: &str) -> &mut Html {
        escape_into(&mut self.text, text);
        self
    }

    /// A value whose text form is made by the program and may still contain names.
    pub(crate) fn show(&mut self, value: impl fmt::Display) -> &mut Html {
        // Writing to a string cannot fail.
        let _ = write!(Escaping(&mut self.text), "{value}");
        self
    }

    /// Joins markup that was made by another writer.
    pub(crate) fn append(&mut self, other: &Html) -> &mut Html {
        self.text.push_str(&other.text);
        self
    }

    /// A segment of a path or a value of a query, percent-encoded.
    pub(crate) fn segment(&mut self, segment: &str) -> &mut Html {
        for byte in segment.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => self.text.push(byte as char),
                _ => {
                    let _ = write!(self.text, "%{byte:02X}");
                }
            }
        }
        self
    }

    /// A number of GPUs with at most two digits after the point.
    pub(crate) fn gpus(&mut self, amount: GpuAmount) -> &mut Html {
        let hundredths = (amount.millionths + 5_000 * amount.millionths.signum()) / 10_000;
        let _ = match (hundredths / 100, (hundredths % 100).abs()) {
            (0, rest) if hundredths < 0 => write!(self.text, "-0.{rest:02}"),
            (whole, 0) => write!(self.text, "{whole}"),
            (whole, rest) if rest % 10 == 0 => write!(self.text, "{whole}.{}", rest / 10),
            (whole, rest) => write!(self.text, "{whole}.{rest:02}"),
        };
        self
    }

    /// A number of GPUs, or that it is unknown.
    pub(crate) fn gpus_or_unknown(&mut self, amount: Option<GpuAmount>) -> &mut Html {
        match amount {
            Some(amount) => self.gpus(amount),
            None => self.unknown(),
        }
    }

    /// An integer, or that it is unknown.
    pub(crate) fn or_unknown(&mut self, number: Option<impl fmt::Display>) -> &mut Html {
        match number {
            Some(number) => self.show(number),
            None => self.unknown(),
        }
    }

    /// Unknown is never shown as a zero.
    pub(crate) fn unknown(&mut self) -> &mut Html {
        self.raw("<span class=\"unknown\">unknown</span>")
    }

    /// An amount of memory.
    pub(crate) fn mib(&mut self, mib: i64) -> &mut Html {
        let _ = match mib {
            ..1_024 => write!(self.text, "{mib} MiB"),
            _ if mib % 1_024 == 0 => write!(self.text, "{} GiB", mib / 1_024),
            _ => write!(self.text, "{:.1} GiB", mib as f64 / 1_024.0),
        };
        self
    }

    /// A time in RFC 3339. The module shows its age, so that the passing of time changes no block.
    pub(crate) fn time(&mut self, time: Time) -> &mut Html {
        let time = time.to_string();
        self.raw("<time datetime=\"").text(&time).raw("\">");
        self.text(time.get(..19).unwrap_or(&time)).raw("</time>")
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    pub(crate) fn into_string(self) -> String {
        self.text
    }
}

/// Escapes what is written to it.
struct Escaping<'a>(&'a mut String);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape_into(self.0, text);
        Ok(())
    }
}

fn escape_into(out: &mut String, text: &str) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let entity = match byte {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&quot;",
            b'\'' => "&#39;",
            // Control characters are not allowed in HTML; a line break is.
            0..=8 | 11..=31 | 127 => "\u{fffd}",
            _ => continue,
        };
        out.push_str(&text[from..at]);
        out.push_str(entity);
        from = at + 1;
    }
    out.push_str(&text[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut html = Html::default();
        html.text("<script>alert(\"1\" + '2' & 3)</script>\u{0}é");
        assert_eq!(
            html.as_str(),
            "&lt;script&gt;alert(&quot;1&quot; + &#39;2&#39; &amp; 3)&lt;/script&gt;\u{fffd}é"
        );
        let mut html = Html::default();
        html.show(format_args!("{}-{}", "<b>", 3));
        assert_eq!(html.as_str(), "&lt;b&gt;-3");
    }

    #[test]
    fn segments_of_paths_are_encoded() {
        let mut html = Html::default();
        html.segment("a/../b?c=\"d\" é");
        assert_eq!(html.as_str(), "a%2F..%2Fb%3Fc%3D%22d%22%20%C3%A9");
    }

    #[test]
    fn amounts_are_short() {
        let check = |millionths: i64, text: &str| {
            let mut html = Html::default();
            html.gpus(GpuAmount { millionths });
            assert_eq!(html.as_str(), text);
        };
        check(0, "0");
        check(8_000_000, "8");
        check(1_500_000, "1.5");
        check(2_625_000, "2.63");
        check(333_333, "0.33");
        check(999_999, "1");
        check(-1_250_000, "-1.25");
        check(-250_000, "-0.25");
        let check = |mib: i64, text: &str| {
            let mut html = Html::default();
            html.mib(mib);
            assert_eq!(html.as_str(), text);
        };
        check(512, "512 MiB");
        check(81_920, "80 GiB");
        check(40_000, "39.1 GiB");
    }

    #[test]
    fn unknown_is_a_word() {
        let mut html = Html::default();
        html.gpus_or_unknown(None).or_unknown(None::<u32>);
        assert_eq!(html.as_str().matches(">unknown<").count(), 2);
        assert!(!html.as_str().contains('0'));
    }
}
