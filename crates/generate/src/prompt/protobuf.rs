//! Protocol buffers, as far as `spiece.model` needs them.

/// The value of a field.
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64,
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message with their numbers; `None` where it is damaged, after which nothing follows.
pub(super) fn fields(bytes: &[u8]) -> impl Iterator<Item = Option<(u64, Field<'_>)>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field)
    })
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let tag = varint(rest)?;
    let field = match tag & 7 {
        0 => Field::Varint(varint(rest)?),
        1 => {
            rest.split_off(..8)?;
            Field::Fixed64
        }
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Field::Bytes(rest.split_off(..length)?)
        }
        5 => Field::Fixed32(u32::from_le_bytes(rest.split_off(..4)?.try_into().ok()?)),
        _ => return None,
    };
    Some((tag >> 3, field))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}
