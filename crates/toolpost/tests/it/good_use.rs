//! What the attributes accept: the files beside those that `misuse` refuses.

mod function;
mod methods;
mod offers;
mod state;
