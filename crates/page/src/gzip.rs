//! Compression of answers.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Answers below this size are sent as they are.
pub(crate) const MIN_BYTES: usize = 1_024;

/// The bytes as gzip. The level is the library's default: twice as fast as the best one, for a few percent of size.
pub(crate) fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 6 + 64), Compression::default());
    // Writing to a vector does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Whether a client that sends this header takes gzip.
pub(crate) fn is_accepted(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = quality
            .trim()
            .trim_start_matches("q=")
            .trim_end_matches(['0', '.'])
            .is_empty();
        name.trim().eq_ignore_ascii_case("gzip") && (quality.trim().is_empty() || !refused)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn compression_can_be_undone() {
        let text = "a page ".repeat(1_000);
        let compressed = compress(text.as_bytes());
        assert!(compressed.len() < 200);
        let mut back = String::new();
        flate2::read::GzDecoder::new(compressed.as_slice())
            .read_to_string(&mut back)
            .unwrap();
        assert_eq!(back, text);
    }

    #[test]
    fn clients_say_whether_they_take_gzip() {
        assert!(is_accepted("gzip, deflate, br"));
        assert!(is_accepted("br;q=1.0, GZIP;q=0.8"));
        assert!(!is_accepted("br, deflate"));
        assert!(!is_accepted("gzip;q=0"));
        assert!(!is_accepted("gzip;q=0.0"));
        assert!(!is_accepted(""));
    }
}
