/// Not borrowed.
#[toolpost::tool]
fn owned(#[state(id = "a")] x: i64) {}

/// Of no document.
#[toolpost::tool]
fn nameless(#[state(path = "/a")] x: &mut i64) {}

/// Misspelt.
#[toolpost::tool]
fn misspelt(#[state(id = "a", paht = "/a")] x: &mut i64) {}

/// No pointer.
#[toolpost::tool]
fn no_pointer(#[state(id = "a", path = "a")] x: &mut i64) {}

/// Escaped in another way.
#[toolpost::tool]
fn wrong_escape(#[state(id = "a", path = "/~2")] x: &mut i64) {}

/// The owner in the path.
#[toolpost::tool]
fn owner_in_path(#[state(id = "a", path = "/{owner}")] x: &mut i64) {}

/// Braces within a part.
#[toolpost::tool]
fn braces(#[state(id = "a/x{name}")] x: &mut i64, name: String) {}

/// An empty part.
#[toolpost::tool]
fn empty(#[state(id = "a//b")] x: &mut i64) {}

/// Somebody else's document.
#[toolpost::tool]
fn of_bob(#[state(id = "a/@bob")] x: &mut i64) {}

/// No such argument.
#[toolpost::tool]
fn no_argument(#[state(id = "a/{nmae}")] x: &mut i64, name: String) {}

/// Two meanings of one name.
#[toolpost::tool]
fn two_meanings(#[state(id = "a/{owner}")] x: &mut i64, owner: String) {}

/// A secret in a name.
#[toolpost::tool]
fn secret(#[state(id = "a/{token}")] x: &mut i64, #[arg(sensitive)] token: String) {}

/// An argument too.
#[toolpost::tool]
fn both(#[state(id = "a")] #[arg(default = 1)] x: &mut i64) {}

/// Cached.
#[toolpost::tool(policy(idempotent, cache = "1s"))]
fn cached(#[state(id = "a")] x: &i64) {}

/// Borrowed from nobody.
#[toolpost::tool]
fn from_nobody(x: &mut i64) {}

fn main() {}
