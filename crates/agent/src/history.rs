//! Conversations that are merged from parts.

use toolpost_llm::Turn;

/// Merges consecutive turns of the same role: prompts, instructions, results, and answers of the same model.
///
/// Some providers reject consecutive turns of one role, which a conversation that is merged from several ones has.
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
