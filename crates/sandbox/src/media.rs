//! Detects the media type of a file from its first bytes and its extension.

/// First bytes that determine the type, whatever the extension.
const MAGIC: [(&[u8], &str); 11] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\0", "application/x-xz"),
    (b"\x7fELF", "application/x-elf"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"PAR1", "application/vnd.apache.parquet"),
];

const EXTENSIONS: [(&str, &str); 30] = [
    ("txt", "text/plain"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("csv", "text/csv"),
    ("tsv", "text/tab-separated-values"),
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("js", "text/javascript"),
    ("mjs", "text/javascript"),
    ("py", "text/x-python"),
    ("rs", "text/x-rust"),
    ("sh", "text/x-shellscript"),
    ("json", "application/json"),
    ("jsonl", "application/x-ndjson"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("toml", "application/toml"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("webp", "image/webp"),
    ("zip", "application/zip"),
    ("tar", "application/x-tar"),
    ("wav", "audio/wav"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
];

/// The media type; `application/octet-stream` if unknown.
pub(crate) fn media_type(name: &str, first: &[u8]) -> &'static str {
    if let Some((_, kind)) = MAGIC.iter().find(|(magic, _)| first.starts_with(magic)) {
        return kind;
    }
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    extension
        .and_then(|extension| EXTENSIONS.iter().find(|(known, _)| *known == extension))
        .map_or("application/octet-stream", |(_, kind)| kind)
}
