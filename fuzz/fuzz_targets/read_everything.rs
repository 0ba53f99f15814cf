//! What holds of any bytes that are opened as a model file: they are refused, or everything in them can be read.

use impasto_weights::{Checkpoint, WeightSource};

pub fn read_everything(bytes: Vec<u8>) {
    let length = bytes.len() as u64;
    let file = match Checkpoint::from_bytes("fuzz", bytes) {
        Ok(file) => file,
        Err(error) => return assert!(error.to_string().contains("fuzz")),
    };
    let mut buffer = vec![];
    for tensor in file.tensors().chain(file.scale_tensors()) {
        assert!(tensor.bytes() <= 2 * length);
        buffer.resize(tensor.bytes() as usize, 0);
        file.read(tensor, 0, &mut buffer).expect("it lies inside the file");
    }
    for tensor in file.tensors() {
        if let Ok(info) = file.describe(&tensor.name) {
            assert!(info.bytes <= 16 * tensor.bytes() + 4);
            buffer.resize(info.bytes as usize, 0);
            file.read_into(&tensor.name, 0, &mut buffer).expect("it is described");
            let scales = file.row_scales(&tensor.name).expect("scales can be read");
            assert!(scales.is_none_or(|scales| scales.len() == tensor.shape.first().copied().unwrap_or(1)));
        }
    }
    for key in file.value_keys() {
        let _ = file.value(key);
    }
}
