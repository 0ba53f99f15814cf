//! The grammar of `--max-vram` and `--max-buffer`: `6`, `512MiB`, `cuda0=6,vulkan0=512MiB`, `-1`.

use crate::settings::{SettingKind, SettingValue};

/// Letters after a number of bytes, as people write them.
const UNITS: [(&str, f64); 13] = [
    ("kib", 1024.0),
    ("mib", 1024.0 * 1024.0),
    ("gib", GIB),
    ("tib", 1024.0 * GIB),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("k", 1024.0),
    ("m", 1024.0 * 1024.0),
    ("g", GIB),
    ("t", 1024.0 * GIB),
    ("b", 1.0),
];
const GIB: f64 = (1u64 << 30) as f64;

/// Bytes that may be used, or that are to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Bytes(u64),
    /// All but so many of those that are free.
    AllBut(u64),
}

impl Amount {
    /// The bytes, where so many are free.
    pub fn of(self, free: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::AllBut(bytes) => free.saturating_sub(bytes),
        }
    }

    /// `6` are gibibytes, a minus is what is left, 0 is no amount.
    pub(super) fn parse(text: &str) -> Option<Option<Amount>> {
        let text = text.trim().to_ascii_lowercase();
        let (size, but) = text.strip_prefix('-').map_or((&*text, false), |rest| (rest, true));
        let unit = UNITS.iter().find(|(letters, _)| size.ends_with(letters));
        let (number, unit) = unit.map_or((size, GIB), |(letters, n)| (&size[..size.len() - letters.len()], *n));
        let number = number.trim();
        let digits = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let bytes = number.parse::<f64>().ok().filter(|_| digits)? * unit;
        if bytes >= u64::MAX as f64 {
            return None;
        }
        Some(match (bytes as u64, but) {
            (0, _) => None,
            (bytes, false) => Some(Amount::Bytes(bytes)),
            (bytes, true) => Some(Amount::AllBut(bytes)),
        })
    }
}

/// Amounts by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// The device as it was written in small letters, none for every GPU; and how much, none for no limit.
    items: Vec<(Option<String>, Option<Amount>)>,
}

impl Budget {
    /// So many bytes of one device.
    pub fn of(device: &str, bytes: Option<u64>) -> Budget {
        Budget {
            items: bytes.map(|bytes| (Some(device.to_lowercase()), Some(Amount::Bytes(bytes)))).into_iter().collect(),
        }
    }

    /// The amount for a device: the last that names it, else for a GPU the last that names none. `names` says whether a written name is
    /// that of the device.
    pub fn amount(&self, is_gpu: bool, names: impl Fn(&str) -> bool) -> Option<Amount> {
        let own = self.items.iter().rfind(|(device, _)| device.as_deref().is_some_and(&names));
        let all = || self.items.iter().rfind(|(device, _)| device.is_none()).filter(|_| is_gpu);
        own.or_else(all).and_then(|(_, amount)| *amount)
    }

    /// The devices that are named.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter_map(|(device, _)| device.as_deref())
    }

    /// Whether an amount is what remains of what is free.
    pub fn asks_for_free(&self) -> bool {
        self.items.iter().any(|(_, amount)| matches!(amount, Some(Amount::AllBut(_))))
    }
}

impl SettingValue for Budget {
    const KIND: SettingKind = SettingKind::Text;

    fn parse(text: &str) -> Result<Budget, String> {
        let mut budget = Budget::default();
        for item in text.split(',').filter(|item| !item.trim().is_empty()) {
            let (device, size) = match item.split_once('=') {
                Some((device, size)) => (Some(device.trim().to_lowercase()), size),
                None => (None, item),
            };
            let device = device.filter(|name| !matches!(name.as_str(), "all" | "default" | "*"));
            match Amount::parse(size) {
                Some(amount) if device.as_deref() != Some("") => budget.items.push((device, amount)),
                _ => {
                    return Err(format!(
                        "is no amount of memory at '{}'; one is written as 6 (GiB), 512MiB, -1 (all that is free but 1 GiB), 0 (no limit), for one \
                         device vulkan0=6",
                        item.trim()
                    ));
                }
            }
        }
        Ok(budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        for (text, name, is_gpu, says) in [
            ("6", "vulkan0", true, Some(Amount::Bytes(6 << 30))),
            ("6", "cpu", false, None),
            ("cpu=6", "cpu", false, Some(Amount::Bytes(6 << 30))),
            ("1.5", "cuda0", true, Some(Amount::Bytes(1536 * MIB))),
            ("512MiB", "cuda0", true, Some(Amount::Bytes(512 * MIB))),
            ("512 mb", "cuda0", true, Some(Amount::Bytes(512_000_000))),
            ("700b", "cuda0", true, Some(Amount::Bytes(700))),
            ("0", "cuda0", true, None),
            ("-1", "cuda0", true, Some(Amount::AllBut(1 << 30))),
            ("-512M", "cuda0", true, Some(Amount::AllBut(512 * MIB))),
            ("cuda0=6,vulkan0=512MiB", "vulkan0", true, Some(Amount::Bytes(512 * MIB))),
            ("cuda0=6,vulkan0=512MiB", "vulkan1", true, None),
            ("4,CUDA0=6", "cuda0", true, Some(Amount::Bytes(6 << 30))),
            ("4,CUDA0=6", "vulkan0", true, Some(Amount::Bytes(4 << 30))),
            ("4,cuda0=0", "cuda0", true, None),
            ("cuda0=1,cuda0=2", "cuda0", true, Some(Amount::Bytes(2 << 30))),
            ("all=3,,", "cuda0", true, Some(Amount::Bytes(3 << 30))),
            ("", "cuda0", true, None),
        ] {
            let budget = Budget::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(budget.amount(is_gpu, |written| written == name), says, "{text} for {name}");
        }
        for text in
            ["six", "=6", "vulkan0=", "1e400", "--1", "nan", "inf", "6 6", "1e3", "vulkan0=6=7", "99999999999999"]
        {
            let problem = Budget::parse(text).expect_err(text);
            assert!(problem.starts_with("is no amount of memory at '"), "{problem}");
        }
        assert_eq!(Amount::AllBut(3).of(10), 7);
        assert_eq!(Amount::AllBut(11).of(10), 0);
        assert_eq!(Amount::Bytes(11).of(10), 11);
    }
}
