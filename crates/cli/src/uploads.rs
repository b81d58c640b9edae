//! Files for upload to a provider.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use toolpost_llm::FileUpload;

use crate::artifacts::media_type;
use crate::exit::Exit;
use crate::failure::Failure;

/// A file for upload, up to a maximum size.
pub(crate) fn upload_of(path: &Path, name: &str, most: u64) -> Result<FileUpload, Failure> {
    let mut bytes = Vec::new();
    let read = open(path, most)?.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::file("the file", path, &error))?;
    // The file may have grown since the check.
    check_size(path, bytes.len() as u64, most)?;
    Ok(FileUpload::new(name, media_type(path), bytes))
}

/// Checks that a file can be uploaded.
pub(crate) fn check_upload(path: &Path, most: u64) -> Result<(), Failure> {
    open(path, most).map(drop)
}

/// Opens a file for upload.
fn open(path: &Path, most: u64) -> Result<File, Failure> {
    let wrong = |error: &std::io::Error| Failure::file("the file", path, error);
    let file = crate::regular_file::open(path).map_err(|error| wrong(&error))?;
    let metadata = file.metadata().map_err(|error| wrong(&error))?;
    check_size(path, metadata.len(), most)?;
    Ok(file)
}

fn check_size(path: &Path, size: u64, most: u64) -> Result<(), Failure> {
    if size <= most {
        return Ok(());
    }
    let message =
        format!("the file `{}` has {size} bytes, above the provider's maximum of {most}", path.display());
    Err(Failure::new(Exit::Limit, "LIMIT", message).hint("Upload a part of it, or compress it."))
}
