//! Uses that the attributes accept: the files beside those that `misuse` rejects.

mod function;
mod methods;
mod offers;
mod state;
