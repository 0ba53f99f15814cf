//! Noise levels of flow matching, as diffusers' `FlowMatchEulerDiscreteScheduler` and the pipelines give them.

/// `1, (n - 1)/n, .., 1/n`.
pub(in crate::families) fn even_levels(steps: usize) -> Vec<f64> {
    (0..steps).map(|i| 1.0 + (1.0 / steps as f64 - 1.0) * i as f64 / (steps.max(2) - 1) as f64).collect()
}

/// Shifted towards noise: `a s / (1 + (a - 1) s)`.
pub(in crate::families) fn shift_by_factor(a: f64, s: f64) -> f64 {
    a * s / (1.0 + (a - 1.0) * s)
}

/// The same with the logarithm of the factor.
pub(in crate::families) fn shift_exponentially(mu: f64, s: f64) -> f64 {
    shift_by_factor(mu.exp(), s)
}

/// Levels in the type of a run, and after the last of them none.
pub(in crate::families) fn with_end(levels: Vec<f64>) -> Vec<f32> {
    levels.into_iter().map(|s| s as f32).chain([0.0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_levels_end_at_one_step() {
        assert_eq!(even_levels(1), [1.0]);
        assert_eq!(even_levels(4), [1.0, 0.75, 0.5, 0.25]);
    }

    #[test]
    fn a_shift_keeps_the_ends() {
        for a in [0.5, 1.0, 3.0] {
            assert_eq!((shift_by_factor(a, 0.0), shift_by_factor(a, 1.0)), (0.0, 1.0));
        }
        assert!((shift_exponentially(1.15, 0.5) - 0.759_510_5).abs() < 1e-6);
    }
}
