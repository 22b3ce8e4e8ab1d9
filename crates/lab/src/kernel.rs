//! The kernels that lab VMs run.

mod error;
mod image;
mod packages;
mod resolve;
mod series;

pub use error::KernelError;
pub(crate) use error::run;
pub use image::Kernel;
