//! The file APIs of the providers.

use percent_encoding::utf8_percent_encode;
use toolpost_core::Timestamp;

use super::StoredFile;
use crate::RawJson;
use crate::fields::Members;
use crate::http::client::UNRESERVED;

/// The path where an upload to Gemini starts.
pub(super) const GEMINI_UPLOAD: &str = "/upload/v1beta/files";

/// Maximum number of files on a page.
const PAGE_SIZE: usize = 100;

const MIB: u64 = 1024 * 1024;

/// A page of files.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FilePage {
    /// The files, in the provider's order.
    pub(super) files: Vec<StoredFile>,
    /// The token of the next page; `None` at the end.
    pub(super) next: Option<String>,
}

/// A provider's file API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileApi {
    Anthropic,
    OpenAi,
    Gemini,
    Xai,
}

impl FileApi {
    /// The providers with file storage.
    pub(super) const NAMES: [&str; 4] = ["anthropic", "openai", "gemini", "xai"];

    pub(super) fn for_provider(provider: &str) -> Option<Self> {
        Some(match provider {
            "anthropic" => Self::Anthropic,
            "openai" => Self::OpenAi,
            "gemini" => Self::Gemini,
            "xai" => Self::Xai,
            _ => return None,
        })
    }

    /// The path of the files.
    pub(super) fn files_path(self) -> &'static str {
        match self {
            Self::Gemini => "/v1beta/files",
            _ => "/v1/files",
        }
    }

    /// The suffix of a file's path for its content.
    pub(super) fn content_suffix(self) -> &'static str {
        match self {
            Self::Gemini => ":download?alt=media",
            _ => "/content",
        }
    }

    /// The `purpose` of an upload, for APIs that require one.
    pub(super) fn purpose(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("user_data"),
            Self::Xai => Some("assistants"),
            Self::Anthropic | Self::Gemini => None,
        }
    }

    /// The limit of an upload in bytes. Uploads stay in memory for retries, so Gemini's limit of 2 GiB is not used.
    pub(super) fn max_upload_bytes(self) -> u64 {
        match self {
            Self::Anthropic => 500 * MIB,
            Self::OpenAi | Self::Gemini => 512 * MIB,
            Self::Xai => 48 * MIB,
        }
    }

    /// Whether container files have their own path.
    pub(super) fn has_containers(self) -> bool {
        self == Self::OpenAi
    }

    /// The path of a page.
    pub(super) fn list_path(self, next: Option<&str>) -> String {
        let (size, token) = match self {
            // The older API continues after a file's id.
            Self::Anthropic if next.is_some_and(|next| !next.starts_with("page_")) => ("limit", "after_id"),
            Self::Anthropic => ("limit", "page"),
            Self::OpenAi => ("limit", "after"),
            Self::Gemini => ("pageSize", "pageToken"),
            Self::Xai => ("limit", "pagination_token"),
        };
        let mut path = format!("{}?{size}={PAGE_SIZE}", self.files_path());
        if let Some(next) = next {
            path.push('&');
            path.push_str(token);
            path.push('=');
            path.extend(utf8_percent_encode(next, UNRESERVED));
        }
        path
    }

    /// Reads a page of files.
    pub(super) fn read_page(self, answer: &RawJson) -> Option<FilePage> {
        let members: Members<'_> = serde_json::from_str(answer.get()).ok()?;
        let list = if self == Self::Gemini { "files" } else { "data" };
        // Gemini omits an empty list.
        let files = match members.get(list) {
            None if self == Self::Gemini => Vec::new(),
            _ => members.read::<Vec<RawJson>>(list)?,
        };
        let files: Vec<StoredFile> = files.iter().filter_map(|file| self.read_file(file)).collect();
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

    /// Reads a file. Gemini wraps the answer to an upload.
    pub(super) fn read_file(self, answer: &RawJson) -> Option<StoredFile> {
        let members: Members<'_> = serde_json::from_str(answer.get()).ok()?;
        if let Some(inner) = members.get("file").filter(|_| self == Self::Gemini) {
            return self.read_file(&inner.into());
        }
        let text = |name: &str| members.read::<String>(name).filter(|text| !text.is_empty());
        let number = |name: &str| {
            members
                .read::<u64>(name)
                .or_else(|| members.read::<String>(name).and_then(|text| text.parse().ok()))
        };
        let time = |name: &str| {
            members.read::<Timestamp>(name).or_else(|| members.read(name).and_then(from_seconds))
        };
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
                // A container file has a path.
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

/// A time from Unix seconds.
fn from_seconds(number: u64) -> Option<Timestamp> {
    number.checked_mul(1_000_000).map(Timestamp::from_micros)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn page(api: FileApi, rest: &Value) -> FilePage {
        let record =
            |id: &str| json!({"id": id, "bytes": 9, "created_at": 1_783_000_000, "filename": "a.csv"});
        let mut page = json!({"data": [record("a"), record("b"), {"no": "file"}]});
        page.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        api.read_page(&RawJson::from(&page)).unwrap()
    }

    #[test]
    fn openai_and_xai_have_their_own_page_tokens() {
        for (api, rest, next, path) in [
            (
                FileApi::OpenAi,
                json!({"has_more": true, "last_id": "b"}),
                Some("b"),
                "/v1/files?limit=100&after=b",
            ),
            (FileApi::OpenAi, json!({"has_more": true}), Some("b"), "/v1/files?limit=100&after=b"),
            (FileApi::OpenAi, json!({"has_more": false, "last_id": "b"}), None, "/v1/files?limit=100"),
            (
                FileApi::Xai,
                json!({"pagination_token": "t/1"}),
                Some("t/1"),
                "/v1/files?limit=100&pagination_token=t%2F1",
            ),
            (FileApi::Xai, json!({"pagination_token": ""}), None, "/v1/files?limit=100"),
        ] {
            let page = page(api, &rest);
            assert_eq!(page.next.as_deref(), next, "{rest}");
            assert_eq!(api.list_path(page.next.as_deref()), path);
            assert_eq!(page.files.len(), 2);
            assert_eq!(page.files[0].created.unwrap().as_micros(), 1_783_000_000_000_000);
            assert_eq!((page.files[0].size, page.files[0].name.as_deref()), (Some(9), Some("a.csv")));
        }
    }

    #[test]
    fn a_container_file_has_its_path_as_name() {
        let record =
            json!({"id": "cfile_1", "container_id": "cntr_1", "path": "/mnt/data/plot.png", "bytes": 3});
        let file = FileApi::OpenAi.read_file(&RawJson::from(&record)).unwrap();
        assert_eq!(file.name.as_deref(), Some("/mnt/data/plot.png"));
        assert_eq!(FileApi::OpenAi.read_file(&RawJson::from(&json!({"error": "no"}))), None);
    }
}
