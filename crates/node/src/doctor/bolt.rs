//! Searches a bbolt database for keys. containerd stores the names of its images in this format. Reads only leaf pages, also while
//! containerd runs. A page that was freed recently may still contain a deleted key.

const META_MAGIC: u32 = 0xED0C_DAED;
const PAGE_HEADER_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;
const LEAF: u16 = 0x02;

/// Whether one of the keys is in the database. `None` if the bytes are no bbolt database.
pub(crate) fn has_key(bytes: &[u8], keys: &[String]) -> Option<bool> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if number(PAGE_HEADER_BYTES)? != META_MAGIC {
        return None;
    }
    let page_bytes = number(PAGE_HEADER_BYTES + 8)? as usize;
    if page_bytes < 512 || !page_bytes.is_power_of_two() {
        return None;
    }
    let starts = (0..bytes.len()).step_by(page_bytes);
    Some(
        starts
            .filter_map(|start| leaf_keys(bytes, start))
            .flatten()
            .any(|key| keys.iter().any(|wanted| wanted.as_bytes() == key)),
    )
}

/// The keys of the leaf page at `start`; `None` for other pages, and within large pages.
fn leaf_keys(bytes: &[u8], start: usize) -> Option<impl Iterator<Item = &[u8]>> {
    let header = bytes.get(start..start + PAGE_HEADER_BYTES)?;
    let flags = u16::from_le_bytes([header[8], header[9]]);
    let count = usize::from(u16::from_le_bytes([header[10], header[11]]));
    let key = move |at: usize| {
        let element = start + PAGE_HEADER_BYTES + at * ELEMENT_BYTES;
        let number = |offset: usize| {
            let field = bytes.get(element + offset..element + offset + 4)?;
            Some(u32::from_le_bytes(field.try_into().ok()?) as usize)
        };
        let from = element.checked_add(number(4)?)?;
        bytes.get(from..from.checked_add(number(8)?)?)
    };
    (flags == LEAF).then(|| (0..count).filter_map(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pages: a meta page, and a leaf with these keys.
    fn database(keys: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        bytes[16..20].copy_from_slice(&META_MAGIC.to_le_bytes());
        bytes[24..28].copy_from_slice(&4096u32.to_le_bytes());
        bytes[4096 + 8] = LEAF as u8;
        bytes[4096 + 10] = keys.len() as u8;
        let mut end = 4096 + 16 + keys.len() * 16;
        for (at, key) in keys.iter().enumerate() {
            let element = 4096 + 16 + at * 16;
            bytes[element + 4..element + 8].copy_from_slice(&((end - element) as u32).to_le_bytes());
            bytes[element + 8..element + 12].copy_from_slice(&(key.len() as u32).to_le_bytes());
            bytes[end..end + key.len()].copy_from_slice(key.as_bytes());
            // The value follows at once, whatever it begins with.
            bytes[end + key.len()] = b'0';
            end += key.len() + 1;
        }
        bytes
    }

    #[test]
    fn only_whole_keys_count() {
        let bytes = database(&["docker.io/kai/kai:10", "docker.io/library/busybox:1"]);
        let has = |key: &str| has_key(&bytes, &[key.to_owned()]);
        assert_eq!(has("docker.io/library/busybox:1"), Some(true));
        assert_eq!(has("docker.io/kai/kai:1"), Some(false));
        assert_eq!(has("docker.io/kai/kai:10"), Some(true));
        assert_eq!(has_key(b"something else entirely, and long enough", &[]), None);
        // Nonsense inside never panics.
        let mut broken = bytes.clone();
        broken[4096 + 10] = 255;
        broken[4096 + 20..4096 + 28].fill(0xff);
        assert_eq!(has_key(&broken, &["x".to_owned()]), Some(false));
        assert_eq!(has_key(&bytes[..4100], &["x".to_owned()]), Some(false));
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let names = ["docker.io/kai/kai:10", "docker.io/library/busybox:1"];
        let whole = database(&names);
        // Without the empty end of its page, so that most mutations hit data.
        let short = whole[..4096 + 128].to_vec();
        let wanted = [names[0].to_owned(), String::new()];
        fuzz.bytes(&[whole, short], &[&META_MAGIC.to_le_bytes()], |bytes| {
            let _ = has_key(bytes, &wanted);
        });
    }

    #[test]
    fn mutated_databases_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("bolt"));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_databases() {
        fuzz(kai_fuzz::Fuzz::long("bolt"));
    }
}
