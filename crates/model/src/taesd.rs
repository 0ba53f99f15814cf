//! The tiny autoencoder.

/// What distinguishes one tiny autoencoder from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaesdConfig {
    /// Channels of a latent.
    pub latent: usize,
    /// Channels inside.
    pub width: usize,
}
