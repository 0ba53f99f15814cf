//! How to go from one noise level to the next.

use super::{Schedule, names::named};

/// How to go from one noise level to the next. Names are those of sd-cli.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// Straight on along the slope (k-diffusion, diffusers).
    Euler,
    /// Further down than needed, and back up with fresh noise (k-diffusion, diffusers). `eta` is the share of that noise, 1 unless told.
    #[default]
    EulerA,
    /// The mean of the slopes at both ends of the step: the network runs twice, but in the last step (k-diffusion, diffusers).
    Heun,
    /// DPM-Solver++ of second order, which remembers the last step (k-diffusion; the same as diffusers' `dpmsolver++`, midpoint).
    Dpmpp2m,
    /// The same with fresh noise. The formula is that of k-diffusion and of diffusers' `sde-dpmsolver++`; the noise of each step is a
    /// draw of its own, as in diffusers and sd-cli, where k-diffusion takes the differences of one Brownian path. `eta` is 1 unless told.
    Dpmpp2mSde,
    /// The curve through the slopes of the last four steps (k-diffusion, diffusers; sd-cli takes other steps' slopes by default).
    Lms,
    /// For models that see the picture in one step (LCM, Turbo): what the network sees, under fresh noise of the next level. As sd-cli
    /// and ComfyUI; diffusers also mixes in the noisy latent, by less than 1e-5 on the timesteps of the schedule `lcm`.
    Lcm,
    /// DDIM. Written in noise levels it is `euler_a`, with an `eta` of 0 unless told; "trailing" is the schedule that it is used with. As
    /// sd-cli, and as diffusers where the number of steps divides 1000; elsewhere diffusers steps to another timestep than it then goes
    /// on from.
    DdimTrailing,
}

named!(
    Method,
    "sampling method",
    [
        (Euler, "euler"),
        (EulerA, "euler_a"),
        (Heun, "heun"),
        (Dpmpp2m, "dpm++2m"),
        (Dpmpp2mSde, "dpm++2m_sde"),
        (Lms, "lms"),
        (Lcm, "lcm"),
        (DdimTrailing, "ddim_trailing"),
    ]
);

impl Method {
    /// What webui calls it, in its own metadata; our name where it has none.
    pub fn title(self) -> &'static str {
        match self {
            Method::Euler => "Euler",
            Method::EulerA => "Euler a",
            Method::Heun => "Heun",
            Method::Dpmpp2m => "DPM++ 2M",
            Method::Dpmpp2mSde => "DPM++ 2M SDE",
            Method::Lms => "LMS",
            Method::Lcm => "LCM",
            Method::DdimTrailing => self.name(),
        }
    }

    /// The method that has this name, ours or webui's.
    pub fn titled(text: &str) -> Option<Method> {
        Method::ALL.iter().copied().find(|method| [method.title(), method.name()].contains(&text))
    }

    /// The share of noise that a step adds unless told, or none if that cannot be chosen.
    pub fn default_eta(self) -> Option<f32> {
        match self {
            Method::EulerA | Method::Dpmpp2mSde => Some(1.0),
            Method::DdimTrailing => Some(0.0),
            Method::Euler | Method::Heun | Method::Dpmpp2m | Method::Lms | Method::Lcm => None,
        }
    }

    /// The schedule that the method is made for.
    pub fn default_schedule(self) -> Schedule {
        match self {
            Method::Lcm => Schedule::Lcm,
            Method::DdimTrailing => Schedule::Trailing,
            _ => Schedule::Discrete,
        }
    }

    /// Whether it also solves the equation of flow matching, whose picture fades as noise grows: methods that only follow the slope do.
    pub fn solves_flow(self) -> bool {
        matches!(self, Method::Euler | Method::Heun | Method::Lms)
    }

    /// Slopes of earlier steps that it reads.
    pub(super) fn slopes(self) -> usize {
        if self == Method::Lms { 3 } else { 0 }
    }
}
