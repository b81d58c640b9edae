fn sum(before: i64, mine: i64, theirs: i64) -> i64 {
    mine + theirs - before
}

/// No state.
#[toolpost::tool(conflict_policy = "retry")]
fn no_state(x: i64) {}

/// Only read.
#[toolpost::tool(conflict_policy = "error")]
fn only_read(#[state(id = "a")] x: &i64) {}

/// Another word.
#[toolpost::tool(conflict_policy = "ignore")]
fn other_word(#[state(id = "a")] x: &mut i64) {}

/// Waits for nothing.
#[toolpost::tool(conflict_policy = "error", max_retries = 3)]
fn waits_for_nothing(#[state(id = "a")] x: &mut i64) {}

/// Merges without saying how.
#[toolpost::tool(conflict_policy = "merge")]
fn says_not_how(#[state(id = "a")] x: &mut i64) {}

/// Says both.
#[toolpost::tool(conflict_policy = "retry", policy(merge = sum))]
fn says_both(#[state(id = "a")] x: &mut i64) {}

/// Merges two.
#[toolpost::tool(policy(merge = sum))]
fn merges_two(#[state(id = "a")] x: &mut i64, #[state(id = "b")] y: &mut i64) {}

/// Merges by name.
#[toolpost::tool(policy(merge = "sum"))]
fn by_name(#[state(id = "a")] x: &mut i64) {}

/// The longest first.
#[toolpost::tool(conflict_policy = "retry", backoff_initial_ms = 1000, backoff_max_ms = 5)]
fn longest_first(#[state(id = "a")] x: &mut i64) {}

fn main() {}
