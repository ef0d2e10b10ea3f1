//! Amounts, times and names within the text of a reason.

use std::fmt;

use crate::model::Millis;
use crate::reasons::Resource;

impl Resource {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "CPU",
            Resource::Memory => "memory",
            Resource::Gpu => "GPU",
        }
    }

    pub(super) fn text(self, amount: i64) -> String {
        match self {
            Resource::Cpu => counted(&Decimal(amount, 1_000).to_string(), "core"),
            Resource::Memory => format!("{} GB of memory", Decimal(amount / 1_000_000, 1_000)),
            Resource::Gpu => counted(&Decimal(amount / 1_000, 1_000).to_string(), "GPU"),
        }
    }
}

/// `3 pods`, `1 pod`.
pub(super) fn counted(number: &str, what: &str) -> String {
    format!("{number} {what}{}", if number == "1" { "" } else { "s" })
}

/// `24,576`.
pub(super) fn thousands(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A point in time in the format of Kubernetes (RFC 3339, UTC).
pub(super) struct Instant(pub(super) Millis);

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.0.div_euclid(1000);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Days since 1970 to a date. Years begin in March here, in cycles of 400 years with 146,097 days.
        let shifted = days + 719_468;
        let (cycle, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let year = year + cycle * 400 + carry;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// A fixed-point number without trailing zeros.
struct Decimal(i64, i64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decimal(amount, unit) = *self;
        let (sign, amount, unit) = (
            if amount < 0 { "-" } else { "" },
            amount.unsigned_abs(),
            unit.unsigned_abs(),
        );
        write!(f, "{sign}{}", amount / unit)?;
        let digits = unit.ilog10() as usize;
        let rest = format!("{:0digits$}", amount % unit);
        let rest = rest.trim_end_matches('0');
        if rest.is_empty() { Ok(()) } else { write!(f, ".{rest}") }
    }
}

/// A name in a sentence: as it is, or in quotes if it would not be seen as one word.
pub(super) struct Name<'a>(pub(super) &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |letter: char| letter.is_ascii_graphic() && letter != '"';
        match !self.0.is_empty() && self.0.chars().all(plain) {
            true => f.write_str(self.0),
            false => write!(f, "{:?}", self.0),
        }
    }
}
