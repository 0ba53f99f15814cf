//! The shape of latents, and their two layouts: `(channels, height, width)` while sampling, since torch draws noise in that order;
//! `(height, width, channels)` in networks.

/// The shape of a latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape {
    /// Channels.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl LatentShape {
    /// Pixels of one channel.
    pub fn area(self) -> usize {
        self.height * self.width
    }

    /// Elements of all channels.
    #[allow(clippy::len_without_is_empty, reason = "a shape is no collection")]
    pub fn len(self) -> usize {
        self.channels * self.area()
    }
}

/// `(channels, pixels)` to `(pixels, channels)`.
pub fn channels_last(x: &[f32], channels: usize) -> Vec<f32> {
    let area = x.len() / channels;
    (0..area).flat_map(|pixel| (0..channels).map(move |c| x[c * area + pixel])).collect()
}

/// `(pixels, channels)` to `(channels, pixels)`.
pub fn channels_first(x: &[f32], channels: usize) -> Vec<f32> {
    (0..channels).flat_map(|c| x.iter().skip(c).step_by(channels).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_layout_and_back() {
        let planes: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let pixels = channels_last(&planes, 4);
        assert_eq!(pixels[..5], [0.0, 6.0, 12.0, 18.0, 1.0]);
        assert_eq!(channels_first(&pixels, 4), planes);
    }
}
