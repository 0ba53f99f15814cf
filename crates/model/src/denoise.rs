//! What a network says about a noisy picture, and how to ask it.

use crate::Prediction;

impl Prediction {
    /// All there are.
    pub const ALL: &[Prediction] = &[Prediction::Epsilon, Prediction::V];

    /// What a latent is multiplied by before the network sees it: networks see inputs of variance one at every noise level.
    pub fn input_scale(self, sigma: f32) -> f32 {
        (1.0 / f64::from(sigma).hypot(1.0)) as f32
    }

    /// What the network sees of a latent.
    pub fn input(self, x: &[f32], sigma: f32) -> Vec<f32> {
        let scale = self.input_scale(sigma);
        x.iter().map(|x| x * scale).collect()
    }

    /// The picture that the network sees behind the noise of `x`, from its output for [`input`](Prediction::input). If the lengths
    /// differ, the result has the shorter one, which a sampler refuses.
    pub fn denoised(self, x: &[f32], sigma: f32, output: &[f32]) -> Vec<f32> {
        let sigma = f64::from(sigma);
        let (keep, take) = match self {
            Prediction::Epsilon => (1.0, sigma),
            Prediction::V => (1.0 / (sigma * sigma + 1.0), sigma / sigma.hypot(1.0)),
        };
        x.iter().zip(output).map(|(&x, &out)| (keep * f64::from(x) - take * f64::from(out)) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network that knows the picture must be understood, whatever it was trained to predict.
    #[test]
    fn a_perfect_prediction_gives_the_picture() {
        let (picture, noise) = ([0.3f32, -1.2, 0.0, 2.5], [-0.7f32, 0.1, 1.4, -2.0]);
        for sigma in [0.03f32, 0.5, 1.0, 14.6] {
            let x: Vec<f32> = picture.iter().zip(&noise).map(|(p, n)| p + sigma * n).collect();
            let scale = Prediction::V.input_scale(sigma);
            let v: Vec<f32> = picture.iter().zip(&noise).map(|(p, n)| scale * n - sigma * scale * p).collect();
            for (prediction, output) in [(Prediction::Epsilon, &noise[..]), (Prediction::V, &v[..])] {
                for (got, want) in prediction.denoised(&x, sigma, output).iter().zip(&picture) {
                    assert!((got - want).abs() < 1e-5, "{prediction:?} {sigma}: {got} {want}");
                }
            }
        }
    }
}
