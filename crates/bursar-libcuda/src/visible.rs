//! The devices that `CUDA_VISIBLE_DEVICES` leaves, and their order.

use bursar_core::{DeviceId, DeviceUuid};

/// Returns the devices that a value of the variable leaves. The list ends before the first entry that names no device, as
/// the driver ends it; one that names a device twice leaves none.
pub(crate) fn visible(value: Option<&str>, uuids: &[DeviceUuid]) -> Vec<DeviceId> {
    let Some(value) = value else {
        return (0..uuids.len() as u32).map(DeviceId).collect();
    };
    let mut devices = Vec::new();
    for entry in value.split(',').map(str::trim) {
        let Some(device) = named(entry, uuids) else { break };
        if devices.contains(&device) {
            return Vec::new();
        }
        devices.push(device);
    }
    devices
}

/// Returns the device that an entry names: by its ordinal, or by the beginning of its UUID that no other device has.
fn named(entry: &str, uuids: &[DeviceUuid]) -> Option<DeviceId> {
    if entry.starts_with("GPU-") {
        let entry = entry.to_ascii_lowercase().replacen("gpu-", "GPU-", 1);
        let mut matching = (0u32..).zip(uuids).filter(|(_, uuid)| uuid.to_string().starts_with(&entry));
        return match (matching.next(), matching.next()) {
            (Some((ordinal, _)), None) => Some(DeviceId(ordinal)),
            _ => None,
        };
    }
    let ordinal: u32 = entry.parse().ok()?;
    ((ordinal as usize) < uuids.len()).then_some(DeviceId(ordinal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_the_variable_is_read_as_the_driver_reads_it() {
        let uuids = [DeviceUuid([0x11; 16]), DeviceUuid([0x12; 16]), DeviceUuid([0x22; 16])];
        let seen = |value| visible(value, &uuids).iter().map(|device| device.0).collect::<Vec<_>>();
        assert_eq!(seen(None), [0, 1, 2]);
        for (value, expected) in [
            ("", vec![]),
            ("-1", vec![]),
            ("nonsense", vec![]),
            ("2,0", vec![2, 0]),
            (" 1 , 2 ", vec![1, 2]),
            ("0,99,1", vec![0]),
            ("0,-1,1", vec![0]),
            ("1,1", vec![]),
            ("GPU-12", vec![1]),
            ("GPU-1", vec![]),
            ("GPU-2,0", vec![2, 0]),
        ] {
            assert_eq!(seen(Some(value)), expected, "{value:?}");
        }
        assert_eq!(seen(Some(&uuids[1].to_string())), [1]);
    }
}
