//! Derivatives of kernels against finite differences, forward mode and closed forms.

mod articulated;
mod chain;
mod custom;
mod derivatives;
mod device;
mod grad;
mod places;
mod structs;
