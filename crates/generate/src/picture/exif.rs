//! The one EXIF field that webui keeps a picture's parameters in, for files that have no text of their own.

/// A TIFF structure with nothing but the field UserComment (0x9286), as UTF-16: what JPEG and WebP carry.
pub(super) fn user_comment(text: &str) -> Vec<u8> {
    let comment: Vec<u8> = b"UNICODE\0".iter().copied().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect();
    let entry = |tag: u16, kind: u16, count: u32, value: u32| -> Vec<u8> {
        [&tag.to_be_bytes()[..], &kind.to_be_bytes(), &count.to_be_bytes(), &value.to_be_bytes()].concat()
    };
    // A directory of one entry has 2 + 12 + 4 bytes. The header has 8, so the second directory is at 26, the text at 44.
    const LONG: u16 = 4;
    const UNDEFINED: u16 = 7;
    [
        b"MM\0\x2a\0\0\0\x08".to_vec(),
        vec![0, 1],
        entry(0x8769, LONG, 1, 26),
        vec![0; 4],
        vec![0, 1],
        entry(0x9286, UNDEFINED, comment.len() as u32, 44),
        vec![0; 4],
        comment,
    ]
    .concat()
}

/// The text of UserComment in a TIFF structure, in either order of bytes; UTF-16 or ASCII, as webui and we write it.
pub(super) fn read_user_comment(exif: &[u8]) -> Option<String> {
    // Some files keep the marker of their JPEG segment before it.
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let big = match tiff.get(..4)? {
        b"MM\0\x2a" => true,
        b"II\x2a\0" => false,
        _ => return None,
    };
    let number = |bytes: &[u8]| match big {
        true => bytes.iter().fold(0u32, |sum, &byte| sum << 8 | u32::from(byte)),
        false => bytes.iter().rev().fold(0u32, |sum, &byte| sum << 8 | u32::from(byte)),
    };
    // The count and value of a tag in the directory at an offset.
    let find = |at: u32, tag: u32| {
        let directory = tiff.get(at as usize..)?;
        let entries = number(directory.get(..2)?) as usize;
        let entry = directory.get(2..)?.chunks_exact(12).take(entries).find(|entry| number(&entry[..2]) == tag)?;
        Some((number(&entry[4..8]), number(&entry[8..])))
    };
    let (_, details) = find(number(tiff.get(4..8)?), 0x8769)?;
    let (length, at) = find(details, 0x9286)?;
    let comment = tiff.get(at as usize..)?.get(..length as usize)?;
    let (code, text) = comment.split_first_chunk::<8>()?;
    match code {
        // Big-endian by those who write it, whatever the rest has.
        b"UNICODE\0" => {
            let words: Vec<u16> = text.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
            String::from_utf16(&words).ok()
        }
        b"ASCII\0\0\0" => std::str::from_utf8(text).ok().map(|text| text.trim_end_matches('\0').into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_comment_comes_back(text: String) {
            prop_assert_eq!(read_user_comment(&user_comment(&text)), Some(text));
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes: Vec<u8>, at: usize, with: u8) {
            let _ = read_user_comment(&bytes);
            bytes = user_comment("a red house");
            let at = at % bytes.len();
            bytes[at] = with;
            let _ = read_user_comment(&bytes);
            let _ = read_user_comment(&bytes[..at]);
        }
    }
}
