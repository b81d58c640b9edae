//! Programs that know nothing of us, as tools.

mod arguments;
mod grants;
mod hostile;
mod keys;
mod schema;
mod shipped;
mod support;
mod wrong;
