//! A latent as a small picture, without a network: each pixel's channels, mixed into colours.

use impasto_model::{Family, Model};

use crate::picture::Picture;

/// Red, green and blue for each channel of a latent, and where there is none of any. Fitted by their users to what the autoencoders give.
const SD: [[f32; 3]; 5] = [
    [0.3512, 0.2297, 0.3227],
    [0.3250, 0.4974, 0.2350],
    [-0.2829, 0.1762, 0.2721],
    [-0.2120, -0.2616, -0.7177],
    [0.0; 3],
];
const SDXL: [[f32; 3]; 5] = [
    [0.3651, 0.4232, 0.4341],
    [-0.2533, -0.0042, 0.1068],
    [0.1076, 0.1111, -0.0362],
    [-0.3165, -0.2492, -0.2188],
    [0.1084, -0.0175, -0.0011],
];

/// The colours of a model's latents: its own, or those of its family.
pub(crate) fn colours(model: &Model) -> Vec<[f32; 3]> {
    let usual = if model.family == Family::Sdxl { SDXL } else { SD };
    model.colours.clone().unwrap_or_else(|| usual.to_vec())
}

/// The projection of a latent `(channels, height, width)`, a pixel for each of its own.
pub(crate) fn projection(colours: &[[f32; 3]], latent: &[f32], height: usize, width: usize) -> Picture {
    let area = height * width;
    let mut picture = Vec::with_capacity(3 * area);
    for pixel in 0..area {
        for colour in 0..3 {
            // Behind the channels of the latent stands what is there without them.
            let channel = |c: usize| latent.get(c * area + pixel).copied().unwrap_or(1.0);
            picture.push(colours.iter().enumerate().map(|(c, factors)| channel(c) * factors[colour]).sum());
        }
    }
    Picture::from_signed(height, width, &picture)
}
