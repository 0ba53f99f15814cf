//! Any bytes as the pickle of a checkpoint in a zip archive, which has a storage `0` of 64 bytes.
#![no_main]

mod read_everything;

use libfuzzer_sys::fuzz_target;

fn archive(pickle: &[u8]) -> Vec<u8> {
    let files: [(&[u8], &[u8]); 2] = [(b"m/data.pkl", pickle), (b"m/data/0", &[1; 64])];
    let (mut out, mut list) = (vec![], vec![]);
    for (name, bytes) in files {
        let at = out.len() as u32;
        let size = (bytes.len() as u32).to_le_bytes();
        let common = [&[0; 10][..], &[0; 4], &size, &size, &(name.len() as u16).to_le_bytes()].concat();
        out.extend([b"PK\x03\x04", &common[..], &[0; 2], name, bytes].concat());
        list.extend([b"PK\x01\x02", &[0; 2][..], &common, &[0; 12], &at.to_le_bytes(), name].concat());
    }
    let (at, length) = ((out.len() as u32).to_le_bytes(), (list.len() as u32).to_le_bytes());
    [&out[..], &list, b"PK\x05\x06", &[0; 4], &[2, 0, 2, 0], &length, &at, &[0; 2]].concat()
}

fuzz_target!(|bytes: &[u8]| read_everything::read_everything(archive(bytes)));
