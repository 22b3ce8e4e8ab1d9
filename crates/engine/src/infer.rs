//! Inference: what the facts say about a guest, one question a file.

mod answers;
mod asking;
mod background;
mod clients;
mod delivery;
mod dispatch;
mod episode;
mod frames;
mod guest;
mod input;
mod interaction;
mod io_bound;
mod media;
mod ports;
mod reads;
mod routing;
mod sound;
mod usage;
mod wakeups;

pub(crate) use dispatch::TaskDispatch;
pub use episode::EpisodeCause;
pub(crate) use frames::{FrameRate, Shown};
pub(crate) use guest::{Guest, GuestVcpu, bit};
pub(crate) use ports::{Port, PortMap};
pub(crate) use routing::Device;
