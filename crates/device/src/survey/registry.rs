//! Where Windows keeps the list of Vulkan drivers: in the keys of display adapters, then in the key of Vulkan itself, in the order
//! in which the loader looks. What the values mean is here, for every system to test; how they are read is in `sys`.

use std::path::PathBuf;

/// Manifests as names of values; those with the number 0 are enabled.
#[cfg(windows)]
const DRIVERS: &str = r"SOFTWARE\Khronos\Vulkan\Drivers";
#[cfg(windows)]
const CLASSES: &str = r"SYSTEM\CurrentControlSet\Control\Class";
#[cfg(windows)]
const DEVICES: &str = r"SYSTEM\CurrentControlSet\Enum";
#[cfg(windows)]
const DISPLAY_ADAPTERS: &str = "{4d36e968-e325-11ce-bfc1-08002be10318}";
/// Parts of a driver that are installed for themselves.
#[cfg(windows)]
const SOFTWARE_COMPONENTS: &str = "{5c4c3332-344d-483c-8739-259e934c9cc8}";

const TEXT: u32 = 1;
const TEXTS: u32 = 7;

/// The manifests that the registry names.
#[cfg(windows)]
pub(super) fn manifests() -> Vec<PathBuf> {
    use crate::sys::registry;

    let named = |key: String| registry::value(&format!(r"{CLASSES}\{key}"), "VulkanDriverName");
    let of_adapters = adapter_keys().into_iter().filter_map(named).flat_map(|(kind, data)| paths(kind, &data));
    of_adapters.chain(enabled(registry::numbers(DRIVERS))).collect()
}

/// The keys of display adapters and software components below that of all classes: of those that are here, or if the system does not
/// tell (no machine is without a display adapter), of all.
#[cfg(windows)]
fn adapter_keys() -> Vec<String> {
    use crate::sys::registry;

    let key_of = |device: String| {
        let (kind, data) = registry::value(&format!(r"{DEVICES}\{device}"), "Driver")?;
        texts(kind, &data).into_iter().next()
    };
    let present = |class| strings(&registry::present_devices(class)).into_iter().filter_map(key_of).collect::<Vec<_>>();
    let all = |class| {
        let keys = registry::keys(&format!(r"{CLASSES}\{class}"));
        numbered(keys).into_iter().map(|key| format!(r"{class}\{key}")).collect::<Vec<_>>()
    };
    let mut keys = present(DISPLAY_ADAPTERS);
    match keys.is_empty() {
        false => keys.extend(present(SOFTWARE_COMPONENTS)),
        true => keys.extend([DISPLAY_ADAPTERS, SOFTWARE_COMPONENTS].into_iter().flat_map(all)),
    }
    keys
}

/// The enabled manifests among the values of Vulkan's key. Like the loader, this looks at the four bytes and not at their kind.
fn enabled(values: Vec<(Vec<u16>, Option<u32>)>) -> Vec<PathBuf> {
    let enabled = values.into_iter().filter(|(_, number)| *number == Some(0));
    enabled.filter_map(|(name, _)| strings(&name).into_iter().next()).map(PathBuf::from).collect()
}

/// The manifests in an adapter's value.
fn paths(kind: u32, data: &[u8]) -> Vec<PathBuf> {
    texts(kind, data).into_iter().map(PathBuf::from).collect()
}

/// The text or texts in a value. Nobody promises that they end with a zero, nor that the bytes are even in number.
fn texts(kind: u32, data: &[u8]) -> Vec<String> {
    let units: Vec<u16> = data.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
    let mut texts = strings(&units);
    match kind {
        TEXT => texts.truncate(1),
        TEXTS => {}
        _ => texts.clear(),
    }
    texts
}

/// Splits zero-terminated strings that follow each other; an empty one is the end. What is no text is left out.
fn strings(units: &[u16]) -> Vec<String> {
    let pieces = units.split(|unit| *unit == 0).take_while(|piece| !piece.is_empty());
    pieces.filter_map(|piece| String::from_utf16(piece).ok()).collect()
}

/// The keys that stand for a device, `0000` and on, in their order; others hold settings.
fn numbered(keys: Vec<Vec<u16>>) -> Vec<String> {
    let text = |key: Vec<u16>| String::from_utf16(&key).ok();
    let is_number = |key: &String| key.len() == 4 && key.bytes().all(|byte| byte.is_ascii_digit());
    let mut keys: Vec<String> = keys.into_iter().filter_map(text).filter(is_number).collect();
    keys.sort();
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wide(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
    }

    fn bytes(text: &str) -> Vec<u8> {
        wide(text).into_iter().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn a_driver_is_enabled_by_zero_and_by_nothing_else() {
        let values = [("C:\\a b\\a.json", Some(0)), ("C:\\off.json", Some(1)), ("C:\\text.json", None), ("", Some(0))];
        let values = values.map(|(name, number)| (wide(name), number)).to_vec();
        assert_eq!(enabled(values), [PathBuf::from("C:\\a b\\a.json")]);
        assert!(enabled(vec![(vec![0xD800], Some(0))]).is_empty(), "half a character is no name");
    }

    #[test]
    fn a_text_ends_where_it_ends() {
        for text in ["C:\\é.json", "C:\\é.json\0", "C:\\é.json\0\0", "C:\\é.json\0behind"] {
            assert_eq!(texts(TEXT, &bytes(text)), ["C:\\é.json"], "{text:?}");
        }
        let mut odd = bytes("C:\\é.json");
        odd.push(7);
        assert_eq!(texts(TEXT, &odd), ["C:\\é.json"]);
        assert!(texts(TEXT, b"\0").is_empty() && texts(TEXT, b"").is_empty());
    }

    #[test]
    fn texts_are_split_until_an_empty_one() {
        for text in ["a\0b", "a\0b\0", "a\0b\0\0", "a\0b\0\0c\0\0"] {
            assert_eq!(texts(TEXTS, &bytes(text)), ["a", "b"], "{text:?}");
        }
        assert!(texts(TEXTS, &bytes("\0a\0\0")).is_empty());
    }

    #[test]
    fn other_kinds_name_nothing() {
        for kind in [0, 2, 3, 4, 11, u32::MAX] {
            assert!(texts(kind, &bytes("C:\\a.json\0")).is_empty(), "{kind}");
        }
    }

    #[test]
    fn devices_have_numbers_and_come_in_their_order() {
        let keys = ["0010", "Properties", "0002", "Configuration", "00001", "000x"].map(wide).to_vec();
        assert_eq!(numbered(keys), ["0002", "0010"]);
    }

    proptest! {
        #[test]
        fn no_content_makes_it_panic(kind in 0_u32..12, data: Vec<u8>, name: Vec<u16>, number: Option<u32>) {
            let found = texts(kind, &data);
            prop_assert!(found.iter().all(|text| !text.is_empty() && !text.contains('\0')));
            prop_assert_eq!(paths(kind, &data).len(), found.len());
            enabled(vec![(name.clone(), number)]);
            numbered(vec![name]);
        }
    }
}
