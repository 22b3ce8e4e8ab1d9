//! Which source tells the guest tasks of which VM: for each, the best that it has.

mod error;
mod identities;
mod names;
mod wake;

pub use error::IdentityError;
pub use identities::{Identities, Identity, IdentityChoice};
