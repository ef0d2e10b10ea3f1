use proptest::prelude::*;

use super::*;
use crate::RawGpuRequest;
use crate::gpu_request::gpu_request;

const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";
const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
const MODE: &str = "nvidia.com/container.main.gpu-compute.mode";
const PORTION: &str = "kai.scheduler/container.main.gpu-memory.portion.limit";

fn map(annotations: &[(&str, &str)]) -> TextMap {
    annotations
        .iter()
        .map(|(key, value)| (Text::from(*key), Text::from(*value)))
        .collect()
}

fn ask(annotations: &TextMap) -> Result<GpuRequest, (String, Error)> {
    gpu_request(&RawGpuRequest {
        annotations,
        whole: 0,
        mig: Vec::new(),
    })
}

fn read(annotations: &[(&str, &str)]) -> Result<(GpuRequest, GpuShareTerms), String> {
    let annotations = map(annotations);
    let text = |(field, error): (String, Error)| format!("{field}: {error}");
    let request = ask(&annotations).map_err(text)?;
    let terms = GpuShareAnnotations::of(&annotations).terms(&request).map_err(text)?;
    Ok((request, terms))
}

fn check(annotations: &[(&str, &str)], mib: i64, limit: Option<GpuMemoryLimit>) {
    let (request, terms) = read(annotations).unwrap();
    assert_eq!(request, GpuRequest::Memory { mib, devices: 1 }, "{annotations:?}");
    assert_eq!(terms.limit, limit, "{annotations:?}");
    created(annotations, "");
}

/// Checks the error of a pod that is created with these annotations; an empty one for none.
fn created(annotations: &[(&str, &str)], expect: &str) {
    let map = map(annotations);
    let text = |(field, error): (String, Error)| format!("{field}: {error}");
    let error = match ask(&map) {
        Ok(request) => GpuShareAnnotations::of(&map).check_created(&request).map_err(text),
        Err(error) => Err(text(error)),
    };
    match (error, expect) {
        (Ok(()), "") => {}
        (Ok(()), _) => panic!("{annotations:?} is accepted"),
        (Err(error), "") => panic!("{annotations:?}: {error}"),
        (Err(error), _) => assert!(
            error.starts_with("metadata.annotations.") && error.contains(expect),
            "{annotations:?}: {error}"
        ),
    }
}

#[test]
fn memory_of_a_container_is_a_request_of_memory() {
    let mib = |mib| Some(GpuMemoryLimit::Mib(mib));
    check(&[(REQUEST, "8Gi")], 8192, None);
    check(&[(REQUEST, "1000M")], 954, None);
    check(&[(REQUEST, "1048577")], 2, None);
    check(&[(LIMIT, "8Gi")], 8192, mib(8192));
    check(&[(REQUEST, "8Gi"), (LIMIT, "16Gi")], 8192, mib(16384));
    check(&[(REQUEST, "8Gi"), (LIMIT, "8192Mi")], 8192, mib(8192));
    check(&[("gpu-memory", "4096")], 4096, None);
    check(&[("gpu-memory", "4096"), (REQUEST, "4Gi")], 4096, None);
    check(&[("gpu-memory", "4096"), ("gpu-memory.limit", "6Gi")], 4096, mib(6144));
    check(
        &[("gpu-memory", "4096"), ("gpu-memory.limit", "6Gi"), (LIMIT, "6144Mi")],
        4096,
        mib(6144),
    );
    check(&[(REQUEST, "4Gi"), ("gpu-memory.limit", "6Gi")], 4096, mib(6144));
    check(&[("gpu-memory.limit", "6Gi")], 6144, mib(6144));
}

#[test]
fn a_fraction_has_a_limit_as_a_fraction() {
    for key in ["gpu-fraction.limit", PORTION] {
        let annotations = [("gpu-fraction", "0.5"), (key, "0.75")];
        let portion = GpuMemoryLimit::Portion(GpuFraction::from_hundredths(75));
        assert_eq!(read(&annotations).unwrap().1.limit, Some(portion), "{key}");
        created(&annotations, "");
        for bad in [
            "0", "1", "1.0", "0.123456", "-0.7", "+0.7", "7e-1", "NaN", "", "0.7.1", "75%",
        ] {
            created(&[("gpu-fraction", "0.5"), (key, bad)], "is not a limit of a GPU share");
        }
        for low in ["0.5", "0.49999"] {
            created(
                &[("gpu-fraction", "0.5"), (key, low)],
                "is not above the request \"0.50\"",
            );
        }
        created(&[("gpu-memory", "4096"), (key, "0.75")], "needs gpu-fraction");
        created(&[(REQUEST, "4Gi"), (key, "0.75")], "needs gpu-fraction");
        created(&[(key, "0.75")], "needs gpu-fraction");
    }
    created(
        &[
            ("gpu-fraction", "0.5"),
            ("gpu-fraction.limit", "0.75"),
            (PORTION, "0.750"),
        ],
        "",
    );
    created(
        &[
            ("gpu-fraction", "0.5"),
            ("gpu-fraction.limit", "0.75"),
            (PORTION, "0.8"),
        ],
        "it says another amount than the annotation gpu-fraction.limit",
    );
}

#[test]
fn amounts_that_are_none() {
    for bad in ["", "much", "0", "-8Gi", "1Ki", "1048575", "4096", "8GB"] {
        created(&[(REQUEST, bad)], "is not an amount of GPU memory");
        created(&[(REQUEST, "1Gi"), (LIMIT, bad)], "is not an amount of GPU memory");
    }
    created(&[(REQUEST, "8Ei")], "more than any machine has");
    created(&[(REQUEST, "9999999E")], "more than any machine has");
    for bare in ["8192", "8192.5"] {
        created(&[("gpu-memory", "4096"), ("gpu-memory.limit", bare)], "has no unit");
    }
    created(
        &[("gpu-memory", "4096"), ("gpu-memory.limit", "lots")],
        "is not an amount",
    );
    created(
        &[(REQUEST, "8Gi"), (LIMIT, "8191Mi")],
        "the limit \"8191Mi\" is below the request \"8192Mi\"",
    );
    created(
        &[("gpu-memory", "4096"), ("gpu-memory.limit", "4095Mi")],
        "is below the request",
    );
}

#[test]
fn annotations_that_exclude_each_other() {
    created(
        &[("gpu-fraction", "0.5"), (REQUEST, "4Gi")],
        "can't be combined with the annotation gpu-fraction; remove it",
    );
    created(&[("gpu-fraction", "0.5"), (LIMIT, "4Gi")], "write gpu-fraction.limit");
    created(
        &[("gpu-fraction", "0.5"), ("gpu-memory.limit", "4Gi")],
        "write gpu-fraction.limit",
    );
    created(&[("gpu-memory", "4096"), (LIMIT, "8Gi")], "write gpu-memory.limit");
    created(
        &[("gpu-memory", "4096"), (REQUEST, "8Gi")],
        "it says another amount than the annotation gpu-memory, which is \"4096\"",
    );
    created(
        &[(REQUEST, "4Gi"), ("gpu-memory.limit", "6Gi"), (LIMIT, "7Gi")],
        "another amount than the annotation gpu-memory.limit",
    );
    let other = "nvidia.com/container.side.gpu-memory.request";
    created(
        &[(REQUEST, "4Gi"), (other, "4Gi")],
        "container.side.gpu-memory.request: it names container \"side\", but the GPU share is for container \"main\"",
    );
    let mode = "nvidia.com/container.side.gpu-compute.mode";
    for share in [("gpu-fraction", "0.5"), ("gpu-memory", "4096")] {
        created(
            &[share, (MODE, "sm-sharing"), (mode, "time-slicing")],
            "container.side.gpu-compute.mode: it names container \"side\"",
        );
    }
    created(&[("gpu-fraction", "0.5"), ("gpu-memory", "4096")], "can't be combined");
    let map = map(&[(REQUEST, "4Gi")]);
    let whole = RawGpuRequest {
        annotations: &map,
        whole: 1,
        mig: Vec::new(),
    };
    assert_eq!(
        gpu_request(&whole).unwrap_err().0,
        format!("metadata.annotations.{REQUEST}")
    );
    created(
        &[("gpu-fraction-num-devices", "2")],
        "it needs gpu-fraction or gpu-memory",
    );
}

#[test]
fn modes_and_enforcement() {
    let terms = |annotations: &[(&str, &str)]| read(annotations).unwrap().1;
    let half = ("gpu-fraction", "0.5");
    assert_eq!(terms(&[half]).compute_mode, ComputeMode::TimeSlicing);
    assert_eq!(
        terms(&[half, (MODE, "sm-sharing")]).compute_mode,
        ComputeMode::SmSharing
    );
    let required = ("kai.scheduler/gpu-enforcement", "required");
    assert_eq!(terms(&[half]).enforcement, Enforcement::Preferred);
    assert_eq!(terms(&[half, required]).enforcement, Enforcement::Required);
    created(&[required], "");
    created(
        &[half, (MODE, "mps")],
        "\"mps\" is unknown; known are time-slicing and sm-sharing",
    );
    // KAI admits a mode without a share, too; its value must be known.
    created(&[(MODE, "sm-sharing")], "");
    created(&[(MODE, "mps")], "known are time-slicing and sm-sharing");
    created(
        &[("kai.scheduler/gpu-enforcement", "always")],
        "\"always\" is unknown; known are required and preferred",
    );
}

/// The binder writes request and limit of the container on bound pods.
#[test]
fn annotations_of_the_binder_do_not_change_a_request() {
    let bound = [("gpu-fraction", "0.5"), (REQUEST, "20000Mi"), (LIMIT, "20000Mi")];
    let half = GpuRequest::Fraction {
        fraction: GpuFraction::from_hundredths(50),
        devices: 1,
    };
    let (request, terms) = read(&bound).unwrap();
    assert_eq!((request, terms.limit), (half, None));
    let bound = [("gpu-memory", "4096"), (REQUEST, "4096Mi"), (LIMIT, "4096Mi")];
    let (request, terms) = read(&bound).unwrap();
    assert_eq!(
        (request, terms.limit),
        (GpuRequest::Memory { mib: 4096, devices: 1 }, None)
    );
}

#[test]
fn short_forms_are_translated_once() {
    let translated = |annotations: &[(&str, &str)]| {
        let map = map(annotations);
        let translated = GpuShareAnnotations::of(&map).translated("main");
        let texts: Vec<String> = translated.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut again: Vec<(&str, &str)> = annotations.to_vec();
        again.extend(translated.iter().map(|(key, value)| (key.as_str(), &**value)));
        let again = self::map(&again);
        assert!(GpuShareAnnotations::of(&again).translated("main").is_empty());
        let request = ask(&again).unwrap();
        GpuShareAnnotations::of(&again).check_created(&request).unwrap();
        texts.join(" ")
    };
    assert_eq!(translated(&[("gpu-memory", "4096")]), format!("{REQUEST}=4096Mi"));
    assert_eq!(
        translated(&[("gpu-memory", "4096"), ("gpu-memory.limit", "6Gi")]),
        format!("{REQUEST}=4096Mi {LIMIT}=6Gi")
    );
    assert_eq!(
        translated(&[("gpu-fraction", "0.5"), ("gpu-fraction.limit", "0.7")]),
        format!("{PORTION}=0.7")
    );
    let invalid = [("gpu-memory.limit", "8")];
    assert!(
        GpuShareAnnotations::of(&self::map(&invalid))
            .translated("main")
            .is_empty()
    );
    created(&invalid, "metadata.annotations.gpu-memory.limit: ");
    assert_eq!(translated(&[("gpu-fraction", "0.5")]), "");
    assert_eq!(translated(&[(REQUEST, "4Gi")]), "");
    let map = map(&[("gpu-memory", "4096")]);
    let long = "c".repeat(63);
    assert!(
        GpuShareAnnotations::of(&map).translated(&long).is_empty(),
        "no valid key"
    );
}

fn annotation() -> impl Strategy<Value = (String, String)> {
    let keys = [
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction.limit",
        "gpu-memory.limit",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "kai.scheduler/gpu-enforcement",
        REQUEST,
        LIMIT,
        MODE,
        PORTION,
        "nvidia.com/container.side.gpu-memory.request",
        "nvidia.com/container..gpu-memory.limit",
    ];
    let value = prop_oneof![
        "[0-9]{1,5}(Mi|Gi|M)?",
        "0\\.[0-9]{1,6}",
        "\\PC*",
        "required|sm-sharing|main"
    ];
    (prop::sample::select(keys.to_vec()), value).prop_map(|(key, value)| (key.to_owned(), value))
}

proptest! {
    /// Whatever a tenant writes: no panic, errors name the annotation, and limits are not below requests.
    #[test]
    fn any_annotations_are_read(written in prop::collection::vec(annotation(), 0..8)) {
        let pairs: Vec<(&str, &str)> = written.iter().map(|(key, value)| (&**key, &**value)).collect();
        let map = map(&pairs);
        match ask(&map) {
            Err((field, error)) => {
                let key = field.strip_prefix("metadata.annotations.").unwrap_or_default();
                prop_assert!(map.contains_key(key), "{field}: {error}");
            }
            Ok(request) => {
                let share = GpuShareAnnotations::of(&map);
                let terms = share.terms(&request).unwrap();
                match (terms.limit, request.clone()) {
                    (Some(GpuMemoryLimit::Mib(limit)), GpuRequest::Memory { mib, .. }) => prop_assert!(limit >= mib),
                    (Some(GpuMemoryLimit::Portion(limit)), GpuRequest::Fraction { fraction, .. }) => {
                        prop_assert!(limit > fraction && limit < GpuFraction::WHOLE);
                    }
                    (limit, _) => prop_assert_eq!(limit, None),
                }
                prop_assert_eq!(share.share_key().is_some(), matches!(request, GpuRequest::Fraction { .. } | GpuRequest::Memory { .. }));
                if share.check_created(&request).is_ok() {
                    // The translation of an accepted pod is accepted, and means the same.
                    let mut all = pairs.clone();
                    let translated = share.translated("main");
                    all.extend(translated.iter().map(|(key, value)| (key.as_str(), &**value)));
                    let all = self::map(&all);
                    if let Ok(again) = ask(&all) {
                        prop_assert_eq!(&again, &request);
                        prop_assert_eq!(GpuShareAnnotations::of(&all).terms(&again).unwrap(), terms);
                    }
                }
            }
        }
    }

    #[test]
    fn order_does_not_matter(written in prop::collection::vec(annotation(), 0..6)) {
        let mut unique: Vec<(&str, &str)> = Vec::new();
        for (key, value) in &written {
            if !unique.iter().any(|(known, _)| known == key) {
                unique.push((key, value));
            }
        }
        let forward = read(&unique);
        unique.reverse();
        prop_assert_eq!(forward, read(&unique));
    }

    #[test]
    fn quantities_are_rounded_up(bytes in BYTES_PER_MIB..(MEMORY_MIB_MAX / 2) * BYTES_PER_MIB) {
        let mib = parse_quantity(&bytes.to_string()).unwrap();
        prop_assert!(mib * BYTES_PER_MIB >= bytes && (mib - 1) * BYTES_PER_MIB < bytes);
        prop_assert_eq!(parse_quantity(&quantity_of_mib(mib)).unwrap(), mib);
    }
}
