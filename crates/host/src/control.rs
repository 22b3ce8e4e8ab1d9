//! The server for those who look in and reserve, over a Unix socket ([`frontdesk_control_protocol`]); and
//! metrics for Prometheus, over HTTP.
//!
//! Clients are served by threads at ordinary priority; these ask the daemon's loop, which only copies its
//! state ([`Status`](frontdesk_control_protocol::Status)) and never waits. A client that stalls, floods or
//! talks nonsense is dropped within seconds, and the loop does not notice.
//!
//! Root and the daemon's own user may look in and change reservations. The configuration names a group that
//! may look in, and another that may do both.

mod access;
mod config;
mod error;
pub(crate) mod http;
mod metrics;
mod permit;
mod request;
mod server;
mod targets;
#[cfg(test)]
mod tests;

pub use config::ControlConfig;
pub use error::ControlError;
pub use metrics::exposition;
pub use request::{ControlRequest, RecordRequest, ReservationRequest, StatusRequest};
pub use server::Control;
