//! Conversations that were put together from pieces.

use toolpost_llm::Turn;

/// Joins turns of the same side that follow each other: users' turns, instructions, results, and answers of the same
/// model. Some providers refuse two of the same side in a row, and a conversation that was put together from several
/// has them.
pub fn merge_turns(turns: Vec<Turn>) -> Vec<Turn> {
    let mut merged: Vec<Turn> = Vec::with_capacity(turns.len());
    for turn in turns {
        match (merged.last_mut(), turn) {
            (Some(Turn::User(before)), Turn::User(more))
            | (Some(Turn::System(before)), Turn::System(more)) => {
                before.extend(more);
            }
            (Some(Turn::ToolResults(before)), Turn::ToolResults(more)) => before.extend(more),
            (Some(Turn::Assistant(before)), Turn::Assistant(more)) if before.origin == more.origin => {
                before.items.extend(more.items);
            }
            (_, turn) => merged.push(turn),
        }
    }
    merged
}
