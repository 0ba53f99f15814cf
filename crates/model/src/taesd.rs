//! The tiny autoencoder.

/// What distinguishes one tiny autoencoder from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaesdConfig {
    /// Channels of a latent.
    pub latent: usize,
    /// Channels inside.
    pub width: usize,
}

/// Not there yet.
pub fn taesd_decoder(
    _: &TaesdConfig,
    _: usize,
    _: [usize; 2],
    _: crate::Numbers,
) -> Result<impasto_graph::Graph, impasto_graph::GraphError> {
    Ok(impasto_graph::Graph::new())
}
