//! What several tests share.

pub mod audit;
pub mod device;
