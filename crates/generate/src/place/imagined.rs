//! A device that is not here, as the user describes it: `name:memory=8GiB,max-buffer=1GiB`.

use impasto_device::{Api, DeviceInfo, DeviceKind, Limits};

use super::budget::Amount;

const GIB: u64 = 1 << 30;

/// The device of a description.
///
/// ```
/// let card = impasto_generate::place::imagine("vulkan0:memory=8GiB,max-buffer=1GiB").unwrap();
/// assert_eq!((card.limits.memory, card.limits.max_binding), (8 << 30, 1 << 30));
/// assert!(impasto_generate::place::imagine("vulkan0:memory=much").is_err());
/// ```
pub fn imagine(text: &str) -> Result<DeviceInfo, String> {
    let wrong = |what: &str| {
        Err(format!(
            "--device {text}: {what}; one is written as name:memory=8GiB,max-buffer=1GiB, and may have kind=discrete or kind=integrated"
        ))
    };
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let label = name.trim();
    let name = label.to_lowercase();
    if name.is_empty() || name.contains([',', '=', '&']) {
        return wrong("a name is missing");
    }
    let api = Api::DRIVEN.into_iter().chain([Api::Cpu]).find(|api| name.starts_with(api.name())).unwrap_or(Api::Vulkan);
    let (mut memory, mut largest) = (None, None);
    let mut kind = if api == Api::Cpu { DeviceKind::Cpu } else { DeviceKind::Discrete };
    for option in options.split(',').filter(|option| !option.trim().is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let bytes = match Amount::parse(value) {
            Some(Some(Amount::Bytes(bytes))) => Some(bytes),
            _ => None,
        };
        match (key.trim().to_lowercase().replace('_', "-").as_str(), bytes, value.trim().to_lowercase().as_str()) {
            ("memory", Some(bytes), _) => memory = Some(bytes),
            ("max-buffer", Some(bytes), _) => largest = Some(bytes),
            ("kind", _, "discrete") => kind = DeviceKind::Discrete,
            ("kind", _, "integrated") => kind = DeviceKind::Integrated,
            _ => return wrong(&format!("'{}' is not understood", option.trim())),
        }
    }
    let Some(memory) = memory else { return wrong("its memory is missing") };
    let most = if api == Api::Cpu { memory } else { 4 * GIB };
    let largest = largest.unwrap_or(most).min(memory);
    // Kernels of most drivers reach a byte less than 4 GiB.
    let limits = Limits { memory, max_allocation: largest, max_binding: largest.min(4 * GIB - 1) };
    Ok(DeviceInfo { label: label.into(), ..DeviceInfo::imagined(&name, api, kind, limits) })
}
