//! The GPU request of a pod: whole devices, a fraction or memory of one or more devices, or MIG slices.
//!
//! A fraction is parsed as an exact decimal: `0.7` is 700,000,000 billionths and never 0.6999... A pod with two requests that exclude each
//! other is refused, because the device plugin would allocate both.

use kai_engine::model::{GpuFraction, GpuRequest};
use kai_engine::reasons::GpuConflict;

use crate::decimal::{read_decimal, read_exponent};
use crate::error::FieldError;
use crate::gpu_share_annotations::{GpuShareAnnotations, GpuShareTerms};
use crate::quantity::shorten;
use crate::text::TextMap;
use crate::{Error, keys};

/// The bound on devices of a pod, above any node.
const DEVICES_MAX: i64 = 65_536;
/// The bound on memory of a device: a pebibyte.
pub(crate) const MEMORY_MIB_MAX: i64 = 1 << 30;
const BILLIONTHS: u128 = GpuFraction::WHOLE.billionths() as u128;

/// The parts of a pod that make up its GPU request, not yet parsed.
#[derive(Clone, Debug)]
pub struct RawGpuRequest<'a> {
    /// Annotations of the pod.
    pub annotations: &'a TextMap,
    /// Whole devices over all containers: the most that the pod needs at a time.
    pub whole: i64,
    /// MIG slices over all containers, sorted by name.
    pub mig: Vec<(String, i64)>,
}

/// The kinds of GPU requests that a pod has, whatever their amounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuRequestKinds<'a> {
    /// Annotations of a GPU share.
    pub share: GpuShareAnnotations<'a>,
    /// Whole GPUs of any vendor in the containers' resources: [`keys::is_gpu_resource`].
    pub whole: bool,
    /// MIG slices in the containers' resources.
    pub mig: bool,
}

impl<'a> GpuRequestKinds<'a> {
    /// The annotation of a GPU share that another request excludes, and why; in KAI's order of checks.
    pub fn share_conflict(self) -> Option<(&'a str, Error)> {
        let share = self.share.share_key()?;
        if self.whole {
            return Some((share, Error::Conflict(GpuConflict::WholeGpus)));
        }
        if self.share.fraction.is_some() && self.share.memory.is_some() {
            return Some((keys::GPU_MEMORY, Error::Conflict(GpuConflict::GpuFraction)));
        }
        let mig = Error::Conflict(GpuConflict::MigSlices);
        self.mig.then_some((share, mig))
    }
}

/// Parses the request. An error names the annotation or resource.
pub fn gpu_request(ask: &RawGpuRequest<'_>) -> Result<GpuRequest, (String, Error)> {
    gpu_request_with_terms(ask).map(|(request, _)| request)
}

/// The same with what a share asks besides its amount.
pub(crate) fn gpu_request_with_terms(ask: &RawGpuRequest<'_>) -> Result<(GpuRequest, GpuShareTerms), (String, Error)> {
    read(ask).map_err(|error| (error.field, error.error))
}

/// The devices in the resources of the containers; `None` if there are none.
pub(crate) fn devices(ask: &RawGpuRequest<'_>) -> Option<GpuRequest> {
    if !ask.mig.is_empty() {
        return Some(GpuRequest::Mig {
            slices: ask.mig.clone(),
            legacy: false,
        });
    }
    (ask.whole > 0).then_some(GpuRequest::Whole { devices: ask.whole })
}

/// The GPUs that a running pod with an invalid request occupies: the first valid part of the request, in KAI's order of precedence.
pub(crate) fn occupied(ask: &RawGpuRequest<'_>) -> GpuRequest {
    let annotated = |key: &str| ask.annotations.text(key);
    let number = annotated(keys::GPU_FRACTION_DEVICES)
        .and_then(|text| parse_devices(text).ok())
        .unwrap_or(1);
    if let Some(Ok(fraction)) = annotated(keys::GPU_FRACTION).map(parse_fraction) {
        return GpuRequest::Fraction {
            fraction,
            devices: number,
        };
    }
    if let Some(Ok(mib)) = annotated(keys::GPU_MEMORY).map(parse_memory) {
        return GpuRequest::Memory { mib, devices: number };
    }
    if let Ok(Some(mib)) = GpuShareAnnotations::of(ask.annotations).requested_memory() {
        return GpuRequest::Memory { mib, devices: number };
    }
    devices(ask).unwrap_or(GpuRequest::None)
}

fn read(ask: &RawGpuRequest<'_>) -> Result<(GpuRequest, GpuShareTerms), FieldError> {
    let share = GpuShareAnnotations::of(ask.annotations);
    let request = match share.share_key() {
        Some(_) => read_share(ask, share)?,
        None => read_devices(ask)?,
    };
    let terms = share.read_terms(&request)?;
    Ok((request, terms))
}

fn read_devices(ask: &RawGpuRequest<'_>) -> Result<GpuRequest, FieldError> {
    if ask.annotations.get(keys::GPU_FRACTION_DEVICES).is_some() {
        return Err(at(keys::GPU_FRACTION_DEVICES, Error::DevicesWithoutShare));
    }
    let legacy = legacy_slices(ask.annotations)?;
    if !legacy.is_empty() {
        return Ok(GpuRequest::Mig {
            slices: legacy,
            legacy: true,
        });
    }
    match (ask.whole, ask.mig.is_empty()) {
        (0, true) => Ok(GpuRequest::None),
        (devices, true) => Ok(GpuRequest::Whole { devices }),
        (0, false) => Ok(GpuRequest::Mig {
            slices: ask.mig.clone(),
            legacy: false,
        }),
        (_, false) => {
            let field = format!("spec.containers[].resources.requests.{}", ask.mig[0].0);
            Err(FieldError::new(field, Error::Conflict(GpuConflict::WholeGpusOfPod)))
        }
    }
}

fn read_share(ask: &RawGpuRequest<'_>, share: GpuShareAnnotations<'_>) -> Result<GpuRequest, FieldError> {
    let kinds = GpuRequestKinds {
        share,
        whole: ask.whole > 0,
        mig: !ask.mig.is_empty(),
    };
    if let Some((key, error)) = kinds.share_conflict() {
        return Err(at(key, error));
    }
    let devices = match ask.annotations.text(keys::GPU_FRACTION_DEVICES) {
        Some(text) => parse_devices(text).map_err(|error| at(keys::GPU_FRACTION_DEVICES, error))?,
        None => 1,
    };
    if let Some(text) = share.fraction {
        let fraction = parse_fraction(text).map_err(|error| at(keys::GPU_FRACTION, error))?;
        return Ok(GpuRequest::Fraction { fraction, devices });
    }
    if let Some(text) = share.memory {
        let mib = parse_memory(text).map_err(|error| at(keys::GPU_MEMORY, error))?;
        return Ok(GpuRequest::Memory { mib, devices });
    }
    let mib = share.requested_memory()?;
    Ok(mib.map_or(GpuRequest::None, |mib| GpuRequest::Memory { mib, devices }))
}

fn at(key: &str, error: Error) -> FieldError {
    FieldError::new(format!("metadata.annotations.{key}"), error)
}

/// Parses a decimal in (0, 1], rounded to the nearest billionth.
pub(crate) fn parse_fraction(text: &str) -> Result<GpuFraction, Error> {
    match read_fraction(text)? {
        GpuFraction::ZERO => Err(Error::NotAFraction(shorten(text))),
        fraction => Ok(fraction),
    }
}

/// Parses the portion of a BindRequest. `None` if it is not a decimal; more than a GPU is the whole GPU.
pub(crate) fn parse_portion(text: &str) -> Option<GpuFraction> {
    match read_fraction(text) {
        Ok(portion) => Some(portion),
        Err(Error::FractionAboveOne(_)) => Some(GpuFraction::WHOLE),
        Err(_) => None,
    }
}

fn read_fraction(text: &str) -> Result<GpuFraction, Error> {
    let invalid = || Error::NotAFraction(shorten(text));
    let (decimal, rest) = read_decimal(text).ok_or_else(invalid)?;
    let exponent = if rest.is_empty() {
        0
    } else {
        read_exponent(rest).ok_or_else(invalid)?
    };
    if decimal.negative {
        return Err(invalid());
    }
    let above_one = || Error::FractionAboveOne(shorten(text));
    let scaled = decimal
        .times_ten_to(exponent)
        .scaled(BILLIONTHS)
        .ok_or_else(above_one)?;
    if scaled.up() > BILLIONTHS {
        return Err(above_one());
    }
    let billionths = i64::try_from(scaled.nearest()).map_err(|_| above_one())?;
    Ok(GpuFraction::from_billionths(billionths))
}

pub(crate) fn parse_memory(text: &str) -> Result<i64, Error> {
    match parse_unsigned(text) {
        Some(mib) if mib > MEMORY_MIB_MAX => Err(Error::TooLarge {
            text: shorten(text),
            max: MEMORY_MIB_MAX,
        }),
        Some(mib) if mib > 0 => Ok(mib),
        _ => Err(Error::NotGpuMemory(shorten(text))),
    }
}

fn parse_devices(text: &str) -> Result<i64, Error> {
    parse_unsigned(text)
        .filter(|devices| (1..=DEVICES_MAX).contains(devices))
        .ok_or_else(|| Error::NotADeviceCount {
            text: shorten(text),
            max: DEVICES_MAX,
        })
}

/// Parses digits only: Rust would accept `+1`, KAI does not. Too many digits saturate, so that the caller's bound rejects them.
fn parse_unsigned(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(i64::MAX))
}

fn legacy_slices(annotations: &TextMap) -> Result<Vec<(String, i64)>, FieldError> {
    let mut slices = Vec::new();
    for (key, value) in annotations.iter().filter(|(key, _)| key.starts_with(keys::MIG_PREFIX)) {
        let count = parse_devices(value).map_err(|error| at(key, error))?;
        slices.push((key.to_owned(), count));
    }
    slices.sort();
    slices.dedup_by(|a, b| a.0 == b.0);
    Ok(slices)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::Text;

    fn ask(annotations: &[(&str, &str)], whole: i64, mig: &[(&str, i64)]) -> Result<GpuRequest, (String, Error)> {
        let entries = annotations
            .iter()
            .map(|(key, value)| (Text::from(*key), Text::from(*value)))
            .collect();
        let mig = mig.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        gpu_request(&RawGpuRequest {
            annotations: &TextMap::from_entries(entries),
            whole,
            mig,
        })
    }

    fn refused(annotations: &[(&str, &str)], whole: i64, mig: &[(&str, i64)], message: &str) {
        let (field, error) = ask(annotations, whole, mig).unwrap_err();
        assert_eq!(format!("{field}: {error}"), message);
    }

    #[test]
    fn kinds_of_requests() {
        assert_eq!(ask(&[], 0, &[]), Ok(GpuRequest::None));
        assert_eq!(ask(&[], 2, &[]), Ok(GpuRequest::Whole { devices: 2 }));
        let fraction = |billionths, devices| {
            let fraction = GpuFraction::from_billionths(billionths);
            Ok(GpuRequest::Fraction { fraction, devices })
        };
        assert_eq!(ask(&[("gpu-fraction", "0.7")], 0, &[]), fraction(700_000_000, 1));
        assert_eq!(ask(&[("gpu-fraction", "1")], 0, &[]), fraction(1_000_000_000, 1));
        assert_eq!(
            ask(&[("gpu-fraction", "5e-1"), ("gpu-fraction-num-devices", "3")], 0, &[]),
            fraction(500_000_000, 3)
        );
        assert_eq!(
            ask(&[("gpu-fraction", "0.3333333333333333")], 0, &[]),
            fraction(333_333_333, 1)
        );
        assert_eq!(
            ask(&[("gpu-memory", "4096")], 0, &[]),
            Ok(GpuRequest::Memory { mib: 4096, devices: 1 })
        );
        let slices = vec![("nvidia.com/mig-1g.5gb".to_owned(), 2)];
        assert_eq!(
            ask(&[], 0, &[("nvidia.com/mig-1g.5gb", 2)]),
            Ok(GpuRequest::Mig {
                slices: slices.clone(),
                legacy: false
            })
        );
        assert_eq!(
            ask(&[("nvidia.com/mig-1g.5gb", "2")], 0, &[]),
            Ok(GpuRequest::Mig { slices, legacy: true })
        );
    }

    #[test]
    fn refusals_name_the_field_and_the_remedy() {
        for text in [
            "NaN", "inf", "-0.5", "0", "0.0", "", "half", "0x1p-1", "50%", "1e-12", "500m",
        ] {
            let message = format!(
                "metadata.annotations.gpu-fraction: {text:?} is not a fraction of a GPU; write a decimal above 0 and at \
                 most 1, as in 0.5"
            );
            refused(&[("gpu-fraction", text)], 0, &[], &message);
        }
        for text in ["1.5", "2", "1e300", "1.0000000000000001"] {
            assert!(
                matches!(
                    ask(&[("gpu-fraction", text)], 0, &[]),
                    Err((_, Error::FractionAboveOne(_)))
                ),
                "{text}"
            );
        }
        for text in ["0", "-1", "2Gi", "1.5", "NaN", "+4"] {
            assert!(
                matches!(ask(&[("gpu-memory", text)], 0, &[]), Err((_, Error::NotGpuMemory(_)))),
                "{text}"
            );
        }
        let huge = ask(&[("gpu-memory", "99999999999999999999")], 0, &[]);
        assert!(matches!(huge, Err((_, Error::TooLarge { .. }))));
        refused(
            &[("gpu-fraction", "0.5"), ("gpu-fraction-num-devices", "0")],
            0,
            &[],
            "metadata.annotations.gpu-fraction-num-devices: \"0\" is not a number of GPUs; write a whole number from 1 to 65536",
        );
    }

    #[test]
    fn ways_that_exclude_each_other_are_refused() {
        refused(
            &[("gpu-fraction", "0.5")],
            1,
            &[],
            "metadata.annotations.gpu-fraction: it can't be combined with whole GPUs in the containers' resources; keep one \
             of them",
        );
        let both = [("gpu-fraction", "0.5"), ("gpu-memory", "100")];
        let annotation =
            "metadata.annotations.gpu-memory: it can't be combined with the annotation gpu-fraction; keep one of them";
        refused(&both, 0, &[], annotation);
        let whole = "metadata.annotations.gpu-fraction: it can't be combined with whole GPUs in the containers' resources; keep one of them";
        refused(&both, 1, &[], whole);
        assert!(ask(&[("gpu-memory", "100")], 0, &[("nvidia.com/mig-1g.5gb", 1)]).is_err());
        assert!(ask(&[("gpu-fraction-num-devices", "2")], 0, &[]).is_err());
        assert!(ask(&[], 1, &[("nvidia.com/mig-1g.5gb", 1)]).is_err());
    }

    #[test]
    fn portions_of_bind_requests() {
        let check = |text: &str, hundredths: Option<i64>| {
            assert_eq!(
                parse_portion(text),
                hundredths.map(GpuFraction::from_hundredths),
                "{text}"
            );
        };
        check("0.50", Some(50));
        check("0.5", Some(50));
        check("0.00", Some(0));
        check("1", Some(100));
        check("1.00", Some(100));
        check("99999.0", Some(100));
        check("", None);
        check("NaN", None);
        check("-0.5", None);
    }

    proptest! {
        #[test]
        fn never_panics(fraction in "\\PC*", memory in "\\PC*", devices in "\\PC*") {
            let _ = ask(&[("gpu-fraction", &fraction), ("gpu-fraction-num-devices", &devices)], 0, &[]);
            let _ = ask(&[("gpu-memory", &memory)], 0, &[]);
        }

        #[test]
        fn hundredths_are_exact(hundredths in 1i64..=100) {
            let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
            let fraction = GpuFraction::from_hundredths(hundredths);
            prop_assert_eq!(ask(&[("gpu-fraction", &text)], 0, &[]), Ok(GpuRequest::Fraction { fraction, devices: 1 }));
            prop_assert_eq!(fraction.to_string(), text);
        }

        #[test]
        fn a_fraction_is_read_as_it_is_written(billionths in 1i64..=1_000_000_000) {
            let fraction = GpuFraction::from_billionths(billionths);
            prop_assert_eq!(parse_fraction(&fraction.to_string()), Ok(fraction));
            prop_assert_eq!(parse_portion(&fraction.to_string()), Some(fraction));
        }

        #[test]
        fn an_accepted_fraction_is_within_a_device(text in "[0-9]{0,2}\\.?[0-9]{0,12}(e-?[0-9])?") {
            if let Ok(GpuRequest::Fraction { fraction, devices }) = ask(&[("gpu-fraction", &text)], 0, &[]) {
                prop_assert!(GpuFraction::ZERO < fraction && fraction <= GpuFraction::WHOLE && devices == 1);
            }
        }
    }
}
