//! Names of an enum's variants, written once: `ALL`, `name()`, `Display`, `FromStr` and serde all read one table.

/// Gives an enum its names. `$what` is what users call such a thing.
macro_rules! named {
    ($type:ident, $what:literal, [$(($variant:ident, $name:literal)),+ $(,)?]) => {
        impl $type {
            /// Every one, in the order of help texts.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::sampling::SamplingError;

            fn from_str(name: &str) -> Result<$type, $crate::sampling::SamplingError> {
                $type::ALL.iter().copied().find(|one| one.name() == name).ok_or_else(|| {
                    let known = $type::ALL.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
                    $crate::sampling::SamplingError::UnknownName { what: $what, name: name.to_string(), known }
                })
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let name = <String as serde::Deserialize>::deserialize(deserializer)?;
                name.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(super) use named;
