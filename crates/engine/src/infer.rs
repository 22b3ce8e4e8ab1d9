//! Inference: what the facts say about a guest, one question a file.

mod answers;
mod asking;
mod delivery;
mod dispatch;
mod frames;
mod guest;
mod io_bound;
mod media;
mod ports;
mod reads;
mod routing;
mod sound;

pub(crate) use dispatch::TaskDispatch;
pub(crate) use frames::{FrameRate, Shown};
pub(crate) use guest::{Guest, GuestVcpu, bit};
pub(crate) use ports::{Port, PortMap};
pub(crate) use routing::Device;
