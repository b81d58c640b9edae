//! Parameters that are parts of documents.

use std::collections::BTreeMap;

use toolpost::{Ctx, ToolError, data, tool, tools};

#[data]
#[derive(Default)]
struct Cart {
    items: Vec<String>,
}

/// All of a document.
#[tool]
async fn all(#[state(id = "carts/{owner}")] cart: &Cart) -> usize {
    cart.items.len()
}

/// Parts of documents, changed and read.
#[tool(conflict_policy = "retry", max_retries = 3, backoff_initial_ms = 1, backoff_max_ms = 1000)]
async fn parts(
    #[state(id = "carts/{scope}/{shop}", path = "/by_name/{type}/{page}")] list: &mut Vec<u8>,
    #[state(id = "settings", path = "/a~1b", existing)] settings: &BTreeMap<String, bool>,
    shop: String,
    #[arg(default = 1)] page: u8,
    r#type: bool,
    ctx: &Ctx,
) -> Result<(), ToolError> {
    list.push(settings.len() as u8);
    ctx.state("log/{owner}")?.replace(&1).await?;
    Ok(())
}

fn larger(_before: i64, mine: i64, theirs: i64) -> i64 {
    mine.max(theirs)
}

/// On a thread, with a merge.
#[tool(policy(merge = larger))]
fn highest(#[state(id = "scores", path = "/{name}")] score: &mut i64, name: String, new: i64) -> i64 {
    *score = new.max(*score);
    *score
}

struct Counters {
    step: u64,
}

#[tools]
impl Counters {
    fn sum(before: u64, mine: u64, theirs: u64) -> Result<u64, ToolError> {
        (mine + theirs).checked_sub(before).ok_or_else(|| ToolError::conflict("it has shrunk"))
    }

    /// A method.
    #[tool(policy(merge = Self::sum))]
    fn add(
        &self,
        #[state(id = "counters/{owner}", path = "/by_name/{name}")] count: &mut u64,
        name: String,
    ) -> u64 {
        *count += self.step;
        *count
    }

    /// Fails rather than running twice.
    #[tool(conflict_policy = "error")]
    async fn strict(&self, #[state(id = "counters")] counts: &mut BTreeMap<String, u64>) -> usize {
        counts.len()
    }
}

#[test]
fn parameters_that_are_state() {
    let mut count = 1;
    assert_eq!(Counters { step: 1 }.add(&mut count, "a".into()), 2);
    assert_eq!(highest::run(&mut 3, "a".into(), 2), 3);
    let _ = toolpost::Toolbox::builder()
        .tool(all)
        .tool(parts)
        .tool(highest)
        .tools(Counters { step: 1 })
        .build()
        .unwrap();
}
