//! Graphs and plans.

mod common;
mod errors;
mod files;
mod planner;
mod rest;
mod stream;
mod text;
