//! Overlapping tiles: each decoded or encoded by itself, then blended. The result is close to the whole, not equal to it.

/// Where the tiles of a latent lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Height and width of the latent.
    size: [usize; 2],
    /// Height and width of a tile.
    pub tile: [usize; 2],
    /// Where tiles begin, down and across.
    starts: [Vec<usize>; 2],
}

impl Tiles {
    /// Tiles of about this size, of which neighbours share at least `overlap` of their length.
    pub fn new(size: [usize; 2], tile: [usize; 2], overlap: f64) -> Tiles {
        let tile = [0, 1].map(|i| tile[i].clamp(1, size[i]));
        let starts = [0, 1].map(|i| {
            let (rest, step) = (size[i] - tile[i], tile[i] - ((tile[i] as f64 * overlap) as usize).min(tile[i] - 1));
            let gaps = rest.div_ceil(step);
            (0..=gaps).map(|n| (n * rest).checked_div(gaps).unwrap_or(0)).collect()
        });
        Tiles { size, tile, starts }
    }

    /// Where each tile begins: row, column.
    pub fn places(&self) -> Vec<[usize; 2]> {
        self.starts[0].iter().flat_map(|&y| self.starts[1].iter().map(move |&x| [y, x])).collect()
    }

    /// A tile of an image `(height, width, channels)` that has `scale` pixels for each of the latent.
    pub fn cut(&self, image: &[f32], channels: usize, scale: usize, [y, x]: [usize; 2]) -> Vec<f32> {
        let (width, across) = (self.size[1] * scale, self.tile[1] * scale);
        let rows = y * scale..(y + self.tile[0]) * scale;
        rows.flat_map(|row| &image[(row * width + x * scale) * channels..][..across * channels]).copied().collect()
    }

    /// Tiles `(height, width, channels)`, in the order of [`Tiles::places`], as one image. Where they overlap each fades into the next, and the
    /// weights sum to one.
    pub fn blend(&self, channels: usize, scale: usize, tiles: impl IntoIterator<Item = Vec<f32>>) -> Vec<f32> {
        let [height, width] = self.size.map(|n| n * scale);
        let [down, across] = [0, 1].map(|i| self.weights(i, scale));
        let (mut sums, mut totals) = (vec![0.0; height * width * channels], vec![0.0; height * width]);
        let places = (0..self.starts[0].len()).flat_map(|i| (0..self.starts[1].len()).map(move |j| [i, j]));
        for ([i, j], tile) in places.zip(tiles) {
            let [y, x] = [self.starts[0][i] * scale, self.starts[1][j] * scale];
            for (row, pixels) in tile.chunks_exact(across[j].len() * channels).enumerate() {
                for (column, pixel) in pixels.chunks_exact(channels).enumerate() {
                    let (weight, at) = (down[i][row] * across[j][column], (y + row) * width + x + column);
                    totals[at] += weight;
                    sums[at * channels..][..channels].iter_mut().zip(pixel).for_each(|(sum, p)| *sum += weight * p);
                }
            }
        }
        sums.chunks_exact_mut(channels).zip(totals).for_each(|(pixel, all)| pixel.iter_mut().for_each(|p| *p /= all));
        sums
    }

    /// For each tile along an axis the weight of each of its pixels: it rises over what the tile before covers too, and falls over what the
    /// next one covers.
    fn weights(&self, axis: usize, scale: usize) -> Vec<Vec<f32>> {
        let (starts, len) = (&self.starts[axis], self.tile[axis] * scale);
        let smooth = |x: f64| x * x * x * (x * (6.0 * x - 15.0) + 10.0);
        (0..starts.len())
            .map(|i| {
                let shared = |a: usize, b: usize| len - (starts[b] - starts[a]) * scale;
                let before = if i > 0 { shared(i - 1, i) } else { 0 };
                let after = if i + 1 < starts.len() { shared(i, i + 1) } else { 0 };
                let ramp =
                    |at: usize, over: usize| if at < over { smooth((at as f64 + 0.5) / over as f64) } else { 1.0 };
                (0..len).map(|at| (ramp(at, before) * ramp(len - 1 - at, after)) as f32).collect()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_everything_and_blend_into_what_they_were_cut_from() {
        for (size, tile, overlap) in [
            ([8, 8], [4, 4], 0.5),
            ([9, 13], [4, 5], 0.5),
            ([17, 5], [6, 8], 0.25),
            ([7, 7], [7, 7], 0.5),
            ([31, 8], [10, 3], 0.0),
            ([12, 12], [5, 5], 0.9),
            ([5, 6], [1, 1], 0.5),
        ] {
            for scale in [1, 3] {
                let tiles = Tiles::new(size, tile, overlap);
                let [h, w] = size.map(|n| n * scale);
                let image: Vec<f32> = (0..h * w * 2).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 + 0.1).collect();
                let pieces: Vec<Vec<f32>> = tiles.places().iter().map(|&at| tiles.cut(&image, 2, scale, at)).collect();
                let back = tiles.blend(2, scale, pieces);
                let worst = image.iter().zip(&back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-6 && back.len() == image.len(), "{size:?} {tile:?} {overlap}: {worst}");
            }
        }
    }

    #[test]
    fn two_tiles_that_overlap_have_weights_that_sum_to_one() {
        let tiles = Tiles::new([1, 12], [1, 8], 0.5);
        let weights = tiles.weights(1, 4);
        assert_eq!(tiles.starts[1], [0, 4]);
        for at in 16..32 {
            let sum = weights[0][at] + weights[1][at - 16];
            assert!((sum - 1.0).abs() < 1e-6, "{at}: {sum}");
        }
        assert!(weights[0][16] > 0.999 && weights[1][0] < 0.001);
    }
}
