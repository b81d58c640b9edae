//! The latest conversation of each directory.

use std::sync::Arc;

use serde_json::json;
use toolpost_core::{Document, ScopeId, ToolError};

use super::ledger::Ledger;

/// The prefix of the documents that name the latest conversation of a directory.
const PREFIX: &str = "conversation-last/";

/// Stores the latest conversation of a directory.
pub(super) async fn set_latest(ledger: &Ledger, folder: &str, id: ScopeId) -> Result<(), ToolError> {
    let name = document_name(folder);
    let document =
        ledger.head(&name).await?.unwrap_or_else(|| Document { id: name, version: 0, value: Arc::default() });
    // On a conflict another conversation of the directory is the latest, which is as good.
    let value = json!({ "v": 1, "id": id });
    if *document.value != value {
        drop(ledger.commit(document, value, None).await);
    }
    Ok(())
}

/// The latest conversation of a directory, as stored.
pub(super) async fn latest(ledger: &Ledger, folder: &str) -> Result<Option<ScopeId>, ToolError> {
    let document = ledger.head(&document_name(folder)).await?;
    Ok(document.and_then(|document| document.value.get("id")?.as_str()?.parse().ok()))
}

/// The document of a directory. A path may be too long for a document id and have any characters, so that its FNV-1a hash
/// of 128 bits is used.
fn document_name(folder: &str) -> String {
    let hash = folder.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{PREFIX}{hash:032x}")
}
