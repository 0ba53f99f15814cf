//! Latents as tokens of two by two pixels, and back.

use crate::latent::LatentShape;

/// The order of the numbers of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::families) enum PatchOrder {
    /// `(channel, row, column)`.
    ChannelsFirst,
    /// `(row, column, channel)`.
    ChannelsLast,
}

/// For each number of the tokens `(tokens, 4 channels)`, where it is in the latent `(channels, height, width)`.
fn places(order: PatchOrder, shape: LatentShape) -> impl Iterator<Item = usize> {
    let LatentShape { channels, height, width } = shape;
    let across = width / 2;
    (0..height / 2 * across).flat_map(move |token| {
        (0..4 * channels).map(move |i| {
            let (c, place) = match order {
                PatchOrder::ChannelsFirst => (i / 4, i % 4),
                PatchOrder::ChannelsLast => (i % channels, i / channels),
            };
            let (row, column) = (2 * (token / across) + place / 2, 2 * (token % across) + place % 2);
            (c * height + row) * width + column
        })
    })
}

/// The tokens of a latent `(channels, height, width)`.
pub(in crate::families) fn patches(latent: &[f32], order: PatchOrder, shape: LatentShape) -> Vec<f32> {
    places(order, shape).map(|at| latent[at]).collect()
}

/// The latent of tokens; of more than it has, the first.
pub(in crate::families) fn pixels(tokens: &[f32], order: PatchOrder, shape: LatentShape) -> Vec<f32> {
    let mut latent = vec![0.0; shape.len()];
    for (at, value) in places(order, shape).zip(tokens) {
        latent[at] = *value;
    }
    latent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_back() {
        let shape = LatentShape { channels: 3, height: 4, width: 6 };
        let latent: Vec<f32> = (0..shape.len()).map(|i| i as f32).collect();
        for (order, second) in [
            (PatchOrder::ChannelsFirst, [2.0, 3.0, 8.0, 9.0, 26.0]),
            (PatchOrder::ChannelsLast, [2.0, 26.0, 50.0, 3.0, 27.0]),
        ] {
            let tokens = patches(&latent, order, shape);
            assert_eq!(tokens[12..17], second, "{order:?}");
            assert_eq!(pixels(&tokens, order, shape), latent);
        }
    }
}
