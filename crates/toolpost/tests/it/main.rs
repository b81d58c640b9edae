//! What a user of the façade relies on.

mod alone;
mod misuse;
