//! Model files: read, damaged, converted.

mod blocks;
mod convert;
mod damage;
mod files;
mod hostile;
mod lora;
mod peak;
mod strangers;
