//! How each provider speaks of files.

use toolpost_core::Timestamp;

use super::{FilePage, StoredFile};
use crate::RawJson;
use crate::fields::Members;

/// Where Gemini is told of an upload.
pub(super) const GEMINI_UPLOAD: &str = "/upload/v1beta/files";

/// How many files a page has, at most.
const PAGE: usize = 100;

const MIB: u64 = 1024 * 1024;

/// A provider's way with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Anthropic,
    OpenAi,
    Gemini,
    Xai,
}

impl Dialect {
    /// The providers that keep files.
    pub(super) const NAMES: [&str; 4] = ["anthropic", "openai", "gemini", "xai"];

    pub(super) fn of(provider: &str) -> Option<Self> {
        Some(match provider {
            "anthropic" => Self::Anthropic,
            "openai" => Self::OpenAi,
            "gemini" => Self::Gemini,
            "xai" => Self::Xai,
            _ => return None,
        })
    }

    /// Where files are.
    pub(super) fn files(self) -> &'static str {
        match self {
            Self::Gemini => "/v1beta/files",
            _ => "/v1/files",
        }
    }

    /// What stands behind a file's path for its content.
    pub(super) fn content(self) -> &'static str {
        match self {
            Self::Gemini => ":download?alt=media",
            _ => "/content",
        }
    }

    /// What a file is for, where that must be said.
    pub(super) fn purpose(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("user_data"),
            Self::Xai => Some("assistants"),
            Self::Anthropic | Self::Gemini => None,
        }
    }

    /// The largest file that is taken, in bytes. Whole files are kept in memory, so that an upload can be tried again:
    /// of Gemini's 2 GiB no more than the others'.
    pub(super) fn largest_upload(self) -> u64 {
        match self {
            Self::Anthropic => 500 * MIB,
            Self::OpenAi | Self::Gemini => 512 * MIB,
            Self::Xai => 48 * MIB,
        }
    }

    /// Whether files of a container have an address of their own.
    pub(super) fn has_containers(self) -> bool {
        self == Self::OpenAi
    }

    /// The path of a page.
    pub(super) fn list(self, next: Option<&str>) -> String {
        let (size, mark) = match self {
            // The older form of the interface goes on from a file's id.
            Self::Anthropic if next.is_some_and(|next| !next.starts_with("page_")) => ("limit", "after_id"),
            Self::Anthropic => ("limit", "page"),
            Self::OpenAi => ("limit", "after"),
            Self::Gemini => ("pageSize", "pageToken"),
            Self::Xai => ("limit", "pagination_token"),
        };
        let mut path = format!("{}?{size}={PAGE}", self.files());
        if let Some(next) = next {
            path.push('&');
            path.push_str(mark);
            path.push('=');
            path.push_str(&escaped(next));
        }
        path
    }

    /// A page of files.
    pub(super) fn page(self, answer: &RawJson) -> Option<FilePage> {
        let members: Members<'_> = serde_json::from_str(answer.get()).ok()?;
        let list = if self == Self::Gemini { "files" } else { "data" };
        // An empty list is left out by Gemini.
        let files = match members.get(list) {
            None if self == Self::Gemini => Vec::new(),
            _ => members.read::<Vec<RawJson>>(list)?,
        };
        let files: Vec<StoredFile> = files.iter().filter_map(|file| self.stored(file)).collect();
        let has_more = members.read("has_more").unwrap_or(true);
        let final_id =
            || members.read::<String>("last_id").or_else(|| files.last().map(|file| file.id.clone()));
        let next: Option<String> = match self {
            Self::Anthropic => members
                .read("next_page")
                .or_else(|| members.get("has_more").filter(|_| has_more).and_then(|_| final_id())),
            Self::OpenAi => final_id().filter(|_| members.get("has_more").is_some() && has_more),
            Self::Gemini => members.read("nextPageToken"),
            Self::Xai => members.read("pagination_token"),
        };
        Some(FilePage { next: next.filter(|next| !next.is_empty()), files })
    }

    /// A file. Gemini wraps the answer to an upload.
    pub(super) fn stored(self, answer: &RawJson) -> Option<StoredFile> {
        let members: Members<'_> = serde_json::from_str(answer.get()).ok()?;
        if let Some(inner) = members.get("file").filter(|_| self == Self::Gemini) {
            return self.stored(&inner.into());
        }
        let text = |name: &str| members.read::<String>(name).filter(|text| !text.is_empty());
        let number = |name: &str| {
            members
                .read::<u64>(name)
                .or_else(|| members.read::<String>(name).and_then(|text| text.parse().ok()))
        };
        let time =
            |name: &str| members.read::<Timestamp>(name).or_else(|| members.read(name).and_then(seconds));
        let file = match self {
            Self::Gemini => StoredFile {
                id: text("name")?,
                name: text("displayName"),
                size: number("sizeBytes"),
                media_type: text("mimeType"),
                created: time("createTime"),
                expires: time("expirationTime"),
                uri: text("uri"),
                downloadable: Some(text("downloadUri").is_some()),
                raw: answer.clone(),
            },
            Self::Anthropic => StoredFile {
                id: text("id")?,
                name: text("filename"),
                size: number("size_bytes"),
                media_type: text("mime_type"),
                created: time("created_at"),
                expires: time("expires_at"),
                uri: None,
                downloadable: members.read("downloadable"),
                raw: answer.clone(),
            },
            Self::OpenAi | Self::Xai => StoredFile {
                id: text("id")?,
                // A file of a container has a path.
                name: text("filename").or_else(|| text("path")),
                size: number("bytes").or_else(|| number("size")),
                media_type: None,
                created: time("created_at"),
                expires: time("expires_at"),
                uri: None,
                downloadable: None,
                raw: answer.clone(),
            },
        };
        Some(file)
    }
}

/// A time in seconds since 1970.
fn seconds(number: u64) -> Option<Timestamp> {
    number.checked_mul(1_000_000).map(Timestamp::from_micros)
}

/// A value of a query, with everything escaped that is not a plain character.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn page(dialect: Dialect, rest: &Value) -> FilePage {
        let record =
            |id: &str| json!({"id": id, "bytes": 9, "created_at": 1_783_000_000, "filename": "a.csv"});
        let mut page = json!({"data": [record("a"), record("b"), {"no": "file"}]});
        page.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        dialect.page(&RawJson::from(&page)).unwrap()
    }

    #[test]
    fn openai_and_xai_have_marks_of_their_own() {
        for (dialect, rest, next, path) in [
            (
                Dialect::OpenAi,
                json!({"has_more": true, "last_id": "b"}),
                Some("b"),
                "/v1/files?limit=100&after=b",
            ),
            (Dialect::OpenAi, json!({"has_more": true}), Some("b"), "/v1/files?limit=100&after=b"),
            (Dialect::OpenAi, json!({"has_more": false, "last_id": "b"}), None, "/v1/files?limit=100"),
            (
                Dialect::Xai,
                json!({"pagination_token": "t/1"}),
                Some("t/1"),
                "/v1/files?limit=100&pagination_token=t%2F1",
            ),
            (Dialect::Xai, json!({"pagination_token": ""}), None, "/v1/files?limit=100"),
        ] {
            let page = page(dialect, &rest);
            assert_eq!(page.next.as_deref(), next, "{rest}");
            assert_eq!(dialect.list(page.next.as_deref()), path);
            assert_eq!(page.files.len(), 2);
            assert_eq!(page.files[0].created.unwrap().as_micros(), 1_783_000_000_000_000);
            assert_eq!((page.files[0].size, page.files[0].name.as_deref()), (Some(9), Some("a.csv")));
        }
    }

    #[test]
    fn a_file_of_a_container_is_named_by_its_path() {
        let record =
            json!({"id": "cfile_1", "container_id": "cntr_1", "path": "/mnt/data/plot.png", "bytes": 3});
        let file = Dialect::OpenAi.stored(&RawJson::from(&record)).unwrap();
        assert_eq!(file.name.as_deref(), Some("/mnt/data/plot.png"));
        assert_eq!(Dialect::OpenAi.stored(&RawJson::from(&json!({"error": "no"}))), None);
    }
}
