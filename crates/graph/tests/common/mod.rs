//! What several tests share.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod audit;
pub mod device;
pub mod random_graph;
pub mod rng;
