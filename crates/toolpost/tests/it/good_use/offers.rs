//! Prompts and resources.

use toolpost::{Ctx, Toolbox, prompt, resource, tool};

/// A note.
#[resource("notes://{user}/{page}", mime_types("text/plain"), tags("notes"), timeout_s = 1)]
async fn note(user: String, page: u32, ctx: &Ctx) -> String {
    format!("{user} {page} {}", ctx.attempt())
}

/// Ask for a review.
#[prompt(name = "code_review", tags("writing"))]
fn review(text: String, tone: Option<String>) -> String {
    format!("{}: {text}", tone.unwrap_or_default())
}

/// Count.
#[tool(streaming, policy(task = "at_once", dry_run))]
async fn count(ctx: &Ctx) -> bool {
    ctx.is_dry_run()
}

#[test]
fn prompts_and_resources() {
    let toolbox = Toolbox::builder().resource(note).prompt(review).tool(count).build().unwrap();
    assert_eq!(toolbox.specs()[0].task, toolpost::spec::TaskUse::AtOnce);
}
