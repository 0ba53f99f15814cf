//! Whether a JPEG is all there.

/// Whether a JPEG reaches its end marker. Segments with a length are skipped, since a thumbnail in one has an end of its own.
pub(super) fn is_complete(bytes: &[u8]) -> bool {
    let marker_at = |at: usize| Some(()).and_then(|()| Some((*bytes.get(at)?, *bytes.get(at + 1)?)));
    let mut at = 2;
    loop {
        match marker_at(at) {
            None => return false,
            Some((0xff, 0xd9)) => return true,
            // Restarts and the like have no length; filling bytes may stand before a marker.
            Some((0xff, 0x01 | 0xd0..=0xd8)) => at += 2,
            Some((0xff, 0xff)) => at += 1,
            // Coded data, in which a marker's first byte is followed by zero.
            Some((0xff, 0x00)) => at += 2,
            Some((0xff, _)) => {
                let Some((high, low)) = marker_at(at + 2) else { return false };
                at += 2 + usize::from(u16::from_be_bytes([high, low]));
            }
            Some(_) => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_complete;
    use crate::picture::Picture;

    fn picture() -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.jpg");
        let rgb = (0..64 * 48 * 3u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        Picture { width: 64, height: 48, rgb }.write(&path, "what it shows", false).expect("written");
        std::fs::read(path).expect("it is there")
    }

    #[test]
    fn a_jpeg_without_its_end_is_not_complete() {
        let whole = picture();
        assert!(is_complete(&whole));
        (0..whole.len()).for_each(|length| assert!(!is_complete(&whole[..length]), "{length} of {}", whole.len()));
        assert!(is_complete(&[&whole[..], b"what a camera adds"].concat()));
        // A thumbnail with an end of its own, in a segment.
        let inner = [&whole[..2], &[0xff, 0xe2, 0x00, 0x06, 0xff, 0xd8, 0xff, 0xd9], &whole[2..]].concat();
        assert!(is_complete(&inner) && !is_complete(&inner[..inner.len() / 2]));
    }

    #[test]
    fn a_truncated_picture_is_refused_by_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let whole = picture();
        for share in [4, 6, 9] {
            let path = folder.path().join("cut.jpg");
            std::fs::write(&path, &whole[..whole.len() * share / 10]).expect("written");
            let error = Picture::read(&path, 64, 48).expect_err("cut off").to_string();
            assert!(error.contains("cut.jpg"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe.png");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
        assert!(made.success());
        for error in
            [Picture::size_of(&path).expect_err("a pipe"), Picture::read_mask(&path, 8, 8).expect_err("a pipe")]
        {
            let text = error.to_string();
            assert!(text.contains("pipe.png") && text.contains("it is a pipe"), "{text}");
        }
    }
}
