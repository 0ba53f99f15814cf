//! The memory of a card, which is one however many APIs show it.

use std::sync::Arc;

use impasto_backend::{Profile, WithLimits};
use impasto_graph::Limits;

use super::Place;

/// Memory that a place shares with every other place on the same card, by whichever API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardMemory {
    /// All names of the card: `cuda0, vulkan0`.
    pub name: String,
    /// Bytes that plans may take there together.
    pub bytes: u64,
    /// Bytes beside them that are left to the driver.
    pub driver: u64,
}

impl CardMemory {
    /// A device that is the only one of its card.
    pub(super) fn of(device: &dyn Profile) -> CardMemory {
        CardMemory { name: device.name().into(), bytes: device.limits().memory, driver: 0 }
    }
}

/// Places that use one card by different APIs get what the least of them could have: each API has taken off what it needs itself.
pub(super) fn share(places: &mut [Place]) {
    let least = |place: &Place| {
        let same = |other: &&Place| other.card.name == place.card.name;
        let apart = places.iter().filter(same).any(|other| other.device.name() != place.device.name());
        apart.then(|| places.iter().filter(same).map(|other| other.card.bytes).min()).flatten()
    };
    let shared: Vec<Option<u64>> = places.iter().map(least).collect();
    for (place, bytes) in places.iter_mut().zip(shared) {
        let Some(bytes) = bytes else { continue };
        place.card.bytes = bytes;
        let limits = place.device.limits();
        if bytes < limits.memory {
            place.device = Arc::new(WithLimits::new(place.device.clone(), Limits { memory: bytes, ..limits }));
        }
    }
}
