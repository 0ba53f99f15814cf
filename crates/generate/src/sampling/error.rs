//! What can be wrong with a run, and with a step of it.

/// A run that cannot begin, or cannot go on from what was stored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// No method, schedule or prediction has this name.
    #[error("there is no {what} '{name}'; known are {known}")]
    UnknownName {
        /// What was named.
        what: &'static str,
        /// How.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// The noise that a model was trained on cannot be as described.
    #[error(transparent)]
    Training(#[from] impasto_model::NoiseError),
    /// A schedule has at least one step, and at most as many as its model tells apart.
    #[error(
        "the schedule {schedule} has 1 to {most} steps for this model, not {steps}; choose fewer steps or another schedule"
    )]
    Steps {
        /// The schedule.
        schedule: &'static str,
        /// The steps asked for.
        steps: usize,
        /// The most steps that it has.
        most: usize,
    },
    /// Noise levels that do not fall.
    #[error("the noise levels of a run must be finite and fall from step to step, to zero or above: {problem}")]
    Sigmas {
        /// Where they do not.
        problem: String,
    },
    /// `eta` scales noise.
    #[error("eta is the share of noise that a step adds, from 0 up; {eta} cannot be used")]
    Eta {
        /// What was given.
        eta: f64,
    },
    /// `strength` is a share of the steps.
    #[error("strength is the share of the steps to take on a given picture, from 0 to 1; {strength} cannot be used")]
    Strength {
        /// What was given.
        strength: f64,
    },
    /// Two latents that must be of one size.
    #[error("{what} has {got} numbers, the latent {wanted}; both must belong to one picture size")]
    Length {
        /// Which one.
        what: &'static str,
        /// Its numbers.
        got: usize,
        /// The latent's.
        wanted: usize,
    },
    /// A stored run that no run can have stored.
    #[error("the stored run is damaged: {problem}; begin it again")]
    Stored {
        /// What does not fit.
        problem: String,
    },
}

/// A step that did not happen: the run stands where it stood before it, and the step can be tried again, for instance on another device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError<E> {
    /// There are no more steps.
    #[error("all {steps} steps are done; take the latent, or begin another run")]
    Done {
        /// The steps of the run.
        steps: usize,
    },
    /// The network failed.
    #[error("step {step} of {steps}: {cause}")]
    Denoise {
        /// The step, counted from 1.
        step: usize,
        /// The steps of the run.
        steps: usize,
        /// Why.
        cause: E,
    },
    /// The network, or the noise, is of another size than the latent.
    #[error(
        "step {step} of {steps}: {what} has {got} numbers, the latent {wanted}; both must belong to one picture size"
    )]
    Length {
        /// The step, counted from 1.
        step: usize,
        /// The steps of the run.
        steps: usize,
        /// Which of them.
        what: &'static str,
        /// Its numbers.
        got: usize,
        /// The latent's.
        wanted: usize,
    },
    /// The network's numbers overflowed. Going on would end in a black picture.
    #[error(
        "step {step} of {steps}: the result has {bad} NaN or infinite values of {of}; \
         try again in higher precision or on another device"
    )]
    NotFinite {
        /// The step, counted from 1.
        step: usize,
        /// The steps of the run.
        steps: usize,
        /// How many are not finite.
        bad: usize,
        /// Of how many.
        of: usize,
    },
}
