//! The program as its users meet it.

mod browser;
mod changing_files;
mod command;
mod convert;
mod cuda_driver;
mod default_model;
mod devices;
mod finishing;
mod generations;
mod kernel_modules;
mod networks;
mod paint;
mod plan;
mod rooms;
mod serve;
mod true_size;
mod worker;
mod world;
