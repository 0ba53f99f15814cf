//! A latent as a small picture, without a network: each pixel's channels, mixed into colours.

use impasto_model::LatentShape;

use crate::picture::Picture;

/// The projection of a latent `(channels, height, width)`, a pixel for each of its own. `colours` are red, green and blue for each channel, then
/// where all are 0.
pub(crate) fn projection(colours: &[[f32; 3]], latent: &[f32], shape: LatentShape) -> Picture {
    let area = shape.area();
    let mut picture = Vec::with_capacity(3 * area);
    for pixel in 0..area {
        for colour in 0..3 {
            // After the channels of the latent stands what is there without them.
            let channel = |c: usize| latent.get(c * area + pixel).copied().unwrap_or(1.0);
            picture.push(colours.iter().enumerate().map(|(c, factors)| channel(c) * factors[colour]).sum());
        }
    }
    Picture::from_signed(shape.height, shape.width, &picture)
}
