struct Plain;

/// No JSON form.
#[toolpost::tool]
fn plain(#[state(id = "a")] x: &mut Plain) {
    let _ = x;
}

/// No beginning.
#[toolpost::tool]
fn borrowed(#[state(id = "a")] x: &std::net::IpAddr) {
    let _ = x;
}

fn other(mine: i64) -> i64 {
    mine
}

/// Merges something else.
#[toolpost::tool(policy(merge = other))]
fn merges(#[state(id = "a")] x: &mut i64) {
    *x += 1;
}

fn text(_: i64, _: i64, _: i64) -> String {
    String::new()
}

/// Merges to something else.
#[toolpost::tool(policy(merge = text))]
fn merges_to_text(#[state(id = "a")] x: &mut i64) {
    *x += 1;
}

fn main() {}
