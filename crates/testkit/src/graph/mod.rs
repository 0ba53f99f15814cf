//! Random graphs, and the random numbers of tests of graphs and backends.

pub mod random_graph;
pub mod rng;
