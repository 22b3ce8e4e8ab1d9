//! Inference: what the facts say about a guest, one question a file.

mod answers;
mod delivery;
mod dispatch;
mod guest;
mod io_bound;
mod ports;
mod reads;
mod routing;

pub(crate) use dispatch::TaskDispatch;
pub(crate) use guest::{Guest, GuestVcpu, bit};
pub(crate) use ports::{Port, PortMap};
pub(crate) use routing::Device;
