//! What a denoiser says about a noisy latent, and how to ask it.

/// What a denoiser predicts, and with it how pictures and noise were mixed in its training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Prediction {
    /// The noise in `picture + sigma * noise`.
    #[default]
    #[serde(rename = "eps")]
    Epsilon,
    /// A mixture of noise and picture, the velocity of diffusion, in `picture + sigma * noise`.
    #[serde(rename = "v")]
    V,
    /// `noise - picture`, the velocity of flow matching, in `(1 - sigma) * picture + sigma * noise`.
    #[serde(rename = "flow")]
    Flow,
}

impl Prediction {
    /// What the picture is multiplied by in a latent of this noise level.
    pub fn picture_share(self, sigma: f32) -> f32 {
        match self {
            Prediction::Epsilon | Prediction::V => 1.0,
            Prediction::Flow => 1.0 - sigma,
        }
    }

    /// What a latent is multiplied by before the denoiser sees it, so that its input has variance one at every noise level.
    pub fn input_scale(self, sigma: f32) -> f32 {
        match self {
            Prediction::Epsilon | Prediction::V => (1.0 / f64::from(sigma).hypot(1.0)) as f32,
            Prediction::Flow => 1.0,
        }
    }

    /// What the denoiser sees of a latent.
    pub fn input(self, x: &[f32], sigma: f32) -> Vec<f32> {
        let scale = self.input_scale(sigma);
        x.iter().map(|x| x * scale).collect()
    }

    /// The picture that the denoiser sees in `x`, from its output for [`input`](Prediction::input). If the lengths
    /// differ, the result has the shorter one, which a sampler refuses.
    pub fn denoised(self, x: &[f32], sigma: f32, output: &[f32]) -> Vec<f32> {
        let sigma = f64::from(sigma);
        let (keep, take) = match self {
            Prediction::Epsilon | Prediction::Flow => (1.0, sigma),
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
        for sigma in [0.03f32, 0.5, 1.0] {
            let share = Prediction::Flow.picture_share(sigma);
            let x: Vec<f32> = picture.iter().zip(&noise).map(|(p, n)| share * p + sigma * n).collect();
            let velocity: Vec<f32> = picture.iter().zip(&noise).map(|(p, n)| n - p).collect();
            for (got, want) in Prediction::Flow.denoised(&x, sigma, &velocity).iter().zip(&picture) {
                assert!((got - want).abs() < 1e-5, "flow {sigma}: {got} {want}");
            }
        }
    }
}
