//! The style sheet, the module and the icon, which are part of the program.

use std::sync::LazyLock;

use bytes::Bytes;

use crate::gzip;

const MODULE: &str = include_str!("../assets/page.js");
const STYLE: &str = include_str!("../assets/page.css");
const ICON: &str = include_str!("../assets/icon.svg");

/// A file of the program.
pub(crate) struct Asset {
    pub(crate) content_type: &'static str,
    pub(crate) plain: Bytes,
    pub(crate) gzipped: Bytes,
}

impl Asset {
    fn new(content_type: &'static str, text: String) -> Asset {
        Asset {
            content_type,
            gzipped: gzip::compress(text.as_bytes()).into(),
            plain: text.into(),
        }
    }
}

static ASSETS: LazyLock<[(&str, Asset); 3]> = LazyLock::new(|| {
    [
        ("page.css", Asset::new("text/css; charset=utf-8", style())),
        (
            "page.js",
            Asset::new("text/javascript; charset=utf-8", MODULE.to_owned()),
        ),
        ("icon.svg", Asset::new("image/svg+xml", ICON.to_owned())),
    ]
});

/// The hash of all files. Addresses have it, so that browsers can keep files forever.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let bytes = ASSETS.iter().flat_map(|(_, asset)| asset.plain.iter());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
});

/// The file with this name.
pub(crate) fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|(known, _)| *known == name).map(|(_, asset)| asset)
}

/// See [`VERSION`].
pub(crate) fn version() -> &'static str {
    &VERSION
}

/// The style sheet with the classes `p0` to `p100`, which stand for sizes in percent: the policy of the page forbids inline styles.
fn style() -> String {
    let percents = (0..=100).map(|percent| format!(".p{percent}{{--p:{percent}%}}"));
    STYLE.chars().chain("\n".chars()).collect::<String>() + &percents.collect::<String>()
}
