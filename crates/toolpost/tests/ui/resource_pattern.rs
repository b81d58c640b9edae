/// A note.
#[toolpost::resource("notes://{user}/{page}")]
async fn note(user: String) -> String {
    user
}

fn main() {}
