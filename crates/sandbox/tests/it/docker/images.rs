//! Images: built, listed, removed.
