#[toolpost::data]
struct Range {
    from: u8,
}

/// Count.
#[toolpost::tool]
fn count(#[arg(input)] range: Range, step: u8) {}

fn check(_: &Range) -> Result<(), toolpost::ToolError> {
    Ok(())
}

/// Count.
#[toolpost::tool(pre_validate = check)]
fn count_from(from: u8) {}

/// Count.
#[toolpost::tool]
fn count_injected(#[arg(inject, min = 1)] from: u8) {}

fn main() {}
