//! A device that is not here, as the user describes it: `name:memory=8GiB,max-buffer=1GiB`.

use impasto_device::{Api, DeviceInfo, DeviceKind, Features, Limits, Standing};

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
    let is_vulkan = api == Api::Vulkan;
    Ok(DeviceInfo {
        name,
        api,
        label: label.into(),
        kind,
        ids: None,
        uuid: None,
        pci: None,
        driver: String::new(),
        driver_version: String::new(),
        api_version: String::new(),
        // Kernels of most drivers reach a byte less than 4 GiB.
        limits: Limits { memory, max_allocation: largest, max_binding: largest.min(4 * GIB - 1) },
        cores: None,
        features: Features { f16: is_vulkan, ..Features::default() },
        vulkan: is_vulkan.then(|| common_features(kind)),
        portability: false,
        standing: if api == Api::Cuda { Standing::NotYet { instead: "cpu".into() } } else { Standing::Usable },
        index: 0,
        manifest: None,
    })
}

/// What nearly every card of the last ten years has.
fn common_features(kind: DeviceKind) -> impasto_vulkan::Features {
    impasto_vulkan::Features {
        version: (1, 3),
        f16: true,
        storage16: true,
        timeline: true,
        memory_model: true,
        visible: kind == DeviceKind::Integrated,
        cached: kind == DeviceKind::Integrated,
        limits: impasto_vulkan::KernelLimits { binding: 4 * GIB - 1, alignment: 64, ..Default::default() },
        ..Default::default()
    }
}
