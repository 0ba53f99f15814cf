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
