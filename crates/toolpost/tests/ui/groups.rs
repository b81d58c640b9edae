struct Empty;

#[toolpost::tools]
impl Empty {
    fn helper(&self) {}
}

struct Mutable;

#[toolpost::tools]
impl Mutable {
    /// Change.
    #[tool]
    fn change(&mut self) {}
}

struct Associated;

#[toolpost::tools]
impl Associated {
    /// Make.
    #[tool]
    fn make() {}
}

fn main() {}
