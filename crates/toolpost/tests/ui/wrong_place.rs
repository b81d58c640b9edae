/// A struct.
#[toolpost::tool]
struct Tool;

#[toolpost::tools]
fn function() {}

#[toolpost::data]
fn data() {}

/// Unsafe.
#[toolpost::tool]
unsafe fn dangerous() {}

struct Owner;

impl Owner {
    /// A method.
    #[toolpost::tool]
    fn method(&self) {}
}

fn main() {}
