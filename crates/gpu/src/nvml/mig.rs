//! MIG devices of one GPU as NVML lists them.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::raw;
use crate::{MigAttributes, MigDevice};

/// Lists the MIG devices. An index without a device, or a device that vanishes meanwhile (repartitioning), is skipped.
pub(super) fn mig_devices(
    nvml: &Nvml,
    parent: &Device<'_>,
    total_mib: Option<u64>,
) -> Result<Vec<MigDevice>, NvmlError> {
    let mut found = Vec::new();
    for index in 0..parent.mig_device_count()? {
        let mig = match parent.mig_device_by_index(index) {
            Ok(mig) => mig,
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            Err(error) => return Err(error),
        };
        let Ok(uuid) = mig.uuid() else { continue };
        let attributes = mig.attributes().ok();
        let memory_mib = attributes.as_ref().map(|attributes| attributes.memory_size_mb);
        let attributes = attributes.map(|attributes| MigAttributes {
            multiprocessors: attributes.multiprocessor_count,
            gpu_instance_slices: attributes.gpu_instance_slice_count,
            compute_instance_slices: attributes.compute_instance_slice_count,
            copy_engines: attributes.shared_copy_engine_count,
            decoders: attributes.shared_decoder_count,
            encoders: attributes.shared_encoder_count,
            jpeg_engines: attributes.shared_jpeg_count,
            ofa_engines: attributes.shared_ofa_count,
        });
        let told = mig.name().ok().and_then(|name| profile_in_name(&name));
        let computed = || profile_from_sizes(attributes?, memory_mib?, total_mib?);
        // A MIG device with an unknown profile has no resource name, so it is left out.
        let Some(profile) = told.or_else(computed) else {
            continue;
        };
        let (gpu_instance_id, compute_instance_id) = instance_ids(nvml, &mig, &uuid);
        let Some(gpu_instance_id) = gpu_instance_id else {
            continue;
        };
        found.push(MigDevice {
            index,
            uuid,
            profile,
            gpu_instance_id,
            compute_instance_id: compute_instance_id.unwrap_or(0),
            placement: raw::placement(nvml, parent, gpu_instance_id).ok(),
            memory_mib,
            attributes,
        });
    }
    Ok(found)
}

/// Ids from NVML, or from an old driver's UUID `MIG-GPU-<uuid>/<gi>/<ci>`.
fn instance_ids(nvml: &Nvml, mig: &Device<'_>, uuid: &str) -> (Option<u32>, Option<u32>) {
    let mut parts = uuid.split('/').skip(1).map(|part| part.parse::<u32>().ok());
    let (old_gpu, old_compute) = (parts.next().flatten(), parts.next().flatten());
    (
        raw::gpu_instance_id(nvml, mig).ok().or(old_gpu),
        raw::compute_instance_id(nvml, mig).ok().or(old_compute),
    )
}

/// Drivers name a MIG device `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
fn profile_in_name(name: &str) -> Option<String> {
    let profile = name.rsplit_once(" MIG ")?.1.trim();
    (!profile.is_empty() && profile.contains("g.")).then(|| profile.to_owned())
}

/// NVIDIA's formula for profile names: slices, then the memory in eighths of the GPU's memory, rounded to GB.
fn profile_from_sizes(attributes: MigAttributes, memory_mib: u64, total_mib: u64) -> Option<String> {
    if total_mib == 0 || attributes.gpu_instance_slices == 0 {
        return None;
    }
    let eighths = (memory_mib * 8).div_ceil(total_mib);
    let total_gib = total_mib.div_ceil(1024);
    // Rounded half up: eighths / 8 * total, with one division.
    let gigabytes = (eighths * total_gib + 4) / 8;
    let (gpu, compute) = (attributes.gpu_instance_slices, attributes.compute_instance_slices);
    let prefix = if compute != gpu && compute != 0 {
        format!("{compute}c.")
    } else {
        String::new()
    };
    Some(format!("{prefix}{gpu}g.{gigabytes}gb"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{MigShape, PROFILES};

    #[test]
    fn the_formula_gives_every_name_in_the_table() {
        for gpu in PROFILES {
            for profile in gpu.mig.iter().filter(|profile| profile.shape != MigShape::OneMedia) {
                let computed = profile_from_sizes(profile.attributes(), profile.memory_mib, gpu.memory_mib);
                assert_eq!(computed.as_deref(), Some(profile.name), "{}", gpu.id);
            }
        }
    }

    #[test]
    fn a_part_of_an_instance_says_so() {
        let attributes = MigAttributes {
            gpu_instance_slices: 3,
            compute_instance_slices: 1,
            ..MigAttributes::default()
        };
        assert_eq!(
            profile_from_sizes(attributes, 20096, 40960).as_deref(),
            Some("1c.3g.20gb")
        );
    }

    #[test]
    fn names_carry_the_profile() {
        assert_eq!(
            profile_in_name("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me").as_deref(),
            Some("1g.5gb+me")
        );
        assert_eq!(profile_in_name("NVIDIA A100-SXM4-40GB"), None);
    }
}
