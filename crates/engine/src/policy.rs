//! What is decided, one policy a file: facts and deadlines in, claims out. No policy knows another.

mod asymmetric;
mod budget;
mod claim;
mod multimedia;
mod partial_boost;
pub mod reservation;
mod starvation;
mod view;

pub(crate) use asymmetric::Asymmetric;
pub(crate) use claim::{Ask, Claim, Knob, Owner};
pub(crate) use multimedia::Multimedia;
pub(crate) use partial_boost::PartialBoost;
pub(crate) use starvation::{Starvation, turn};
pub(crate) use view::{Debt, Fact, Policy, View};
