include!("../other.rs");
