//! Networks and families: graphs against references, files as people have them.

mod against;
mod complete;
mod encoders;
mod files;
mod flow;
mod folders;
mod headers;
mod parity;
mod recognise;
mod small;
mod transformers;
