//! A latent as a small picture, without a network: each pixel's channels, mixed into colours.

use impasto_model::Family;

use crate::picture::Picture;

/// Red, green and blue for each channel of a latent, and where there is none of any.
type Mix = ([[f32; 3]; 4], [f32; 3]);

/// Fitted by their users to what the autoencoders give.
const SD: Mix = (
    [[0.3512, 0.2297, 0.3227], [0.3250, 0.4974, 0.2350], [-0.2829, 0.1762, 0.2721], [-0.2120, -0.2616, -0.7177]],
    [0.0; 3],
);
const SDXL: Mix = (
    [[0.3651, 0.4232, 0.4341], [-0.2533, -0.0042, 0.1068], [0.1076, 0.1111, -0.0362], [-0.3165, -0.2492, -0.2188]],
    [0.1084, -0.0175, -0.0011],
);

/// The projection of a latent `(channels, height, width)`, a pixel for each of its own.
pub(crate) fn projection(family: Family, latent: &[f32], height: usize, width: usize) -> Picture {
    let (factors, base) = if family == Family::Sdxl { SDXL } else { SD };
    let area = height * width;
    let mut colours = Vec::with_capacity(3 * area);
    for pixel in 0..area {
        for colour in 0..3 {
            let mixed =
                factors.iter().enumerate().map(|(c, f)| latent.get(c * area + pixel).unwrap_or(&0.0) * f[colour]);
            colours.push(base[colour] + mixed.sum::<f32>());
        }
    }
    Picture::from_signed(height, width, &colours)
}
