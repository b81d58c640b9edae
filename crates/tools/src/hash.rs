//! `hash_text`.

use base64::Engine as _;
use sha2::Digest;
use toolpost::{ToolError, data, tool};

use crate::files::TextEncoding;

/// The digest of a text.
#[data]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextHash {
    /// The digest in `output_format`.
    pub hash: String,
    /// The algorithm.
    pub algorithm: String,
    /// Format of the digest.
    pub output_format: String,
    /// Number of hashed bytes.
    pub bytes: u64,
}

fn digest<D: Digest>(bytes: &[u8]) -> Vec<u8> {
    D::digest(bytes).to_vec()
}

/// Compute the digest (hash) of a text.
///
/// Use sha256 or longer unless another algorithm is required: md5 and sha1 are broken. blake2b has 64 bytes and blake2s
/// 32, as in Python's hashlib.
#[tool(
    summary = "Hash text",
    tags("hash", "digest", "checksum", "md5", "sha256", "blake2"),
    examples(r#"{"text": "hello", "algorithm": "sha256"}"#),
    policy(category = "data_processing", group = "text", read_only, idempotent)
)]
pub fn hash_text(
    /// The text to hash.
    text: String,
    /// The algorithm, for example "sha256".
    #[arg(default = "sha256", enum("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s"))]
    algorithm: String,
    /// Encoding of the text, for example "utf-8" or "utf-16le".
    #[arg(default = "utf-8")]
    encoding: String,
    /// Format of the digest: "hex" in lower case, or "base64" with padding.
    #[arg(default = "hex", enum("hex", "base64"))]
    output_format: String,
) -> Result<TextHash, ToolError> {
    let bytes = TextEncoding::named(&encoding)?.encode(&text).map_err(|error| {
        error.with("pointer", "/text").suggest("Use the encoding `utf-8`, or remove the character.")
    })?;
    let digest = match algorithm.as_str() {
        "md5" => digest::<md5::Md5>(&bytes),
        "sha1" => digest::<sha1::Sha1>(&bytes),
        "sha256" => digest::<sha2::Sha256>(&bytes),
        "sha512" => digest::<sha2::Sha512>(&bytes),
        "blake2b" => digest::<blake2::Blake2b512>(&bytes),
        "blake2s" => digest::<blake2::Blake2s256>(&bytes),
        // The schema rejects other values.
        other => return Err(ToolError::internal(format!("the algorithm `{other}` is not implemented"))),
    };
    let hash = if output_format == "base64" {
        base64::engine::general_purpose::STANDARD.encode(&digest)
    } else {
        toolpost::hex(digest)
    };
    Ok(TextHash { hash, algorithm, output_format, bytes: bytes.len() as u64 })
}
