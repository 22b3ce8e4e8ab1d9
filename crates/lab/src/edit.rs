//! A client that types into a text editor of a guest over ssh (TAVS §5.3).

mod client;
mod config;
mod screen;
mod session;

pub(crate) use client::EditClient;
pub(crate) use config::EditConfig;
