fn sum(before: i64, mine: i64, theirs: i64) -> i64 {
    mine + theirs - before
}

/// No state.
#[toolpost::tool(conflict = "retry")]
fn no_state(x: i64) {}

/// Only read.
#[toolpost::tool(conflict = "error")]
fn only_read(#[state(id = "a")] x: &i64) {}

/// Another word.
#[toolpost::tool(conflict = "ignore")]
fn other_word(#[state(id = "a")] x: &mut i64) {}

/// Waits for nothing.
#[toolpost::tool(conflict = "error", max_retries = 3)]
fn waits_for_nothing(#[state(id = "a")] x: &mut i64) {}

/// Merges without saying how.
#[toolpost::tool(conflict = "merge")]
fn says_not_how(#[state(id = "a")] x: &mut i64) {}

/// Says both.
#[toolpost::tool(conflict = "retry", merge = sum)]
fn says_both(#[state(id = "a")] x: &mut i64) {}

/// Merges two.
#[toolpost::tool(merge = sum)]
fn merges_two(#[state(id = "a")] x: &mut i64, #[state(id = "b")] y: &mut i64) {}

/// Merges by name.
#[toolpost::tool(merge = "sum")]
fn by_name(#[state(id = "a")] x: &mut i64) {}

/// The longest first.
#[toolpost::tool(conflict = "retry", backoff = "1s..5ms")]
fn longest_first(#[state(id = "a")] x: &mut i64) {}

fn main() {}
