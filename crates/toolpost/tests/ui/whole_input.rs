#[toolpost::data]
struct Range {
    from: u8,
}

/// Count.
#[toolpost::tool]
fn count(#[arg(input)] range: Range, step: u8) {}

/// Count two.
#[toolpost::tool]
fn count_two(#[arg(input)] range: Range, #[arg(input)] other: Range) {}

/// Count in secret.
#[toolpost::tool]
fn count_secretly(#[arg(input, sensitive)] range: Range) {}

/// Count by default.
#[toolpost::tool]
fn count_default(#[arg(default = 1, input)] range: Range) {}

fn check(_: &Range) -> Result<(), toolpost::ToolError> {
    Ok(())
}

/// Count.
#[toolpost::tool(policy(pre_validate = check))]
fn count_from(from: u8) {}

/// Count.
#[toolpost::tool]
fn count_injected(#[arg(inject, min = 1)] from: u8) {}

/// Count within a context.
#[toolpost::tool]
fn count_context(#[arg(sensitive)] ctx: &toolpost::Ctx) {}

/// Count what is given.
#[toolpost::tool]
fn count_given(#[arg(input)] range: Range, #[arg(min = 1)] given: toolpost::Inject<u8>) {}

fn main() {}
