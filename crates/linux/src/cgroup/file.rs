//! Reading and writing control files.

use super::CgroupError;
use std::{fs, io, path::Path};

/// An error maker for `map_err`.
pub fn file_error<'a>(
    action: &'a str,
    path: &'a Path,
    advice: &'static str,
) -> impl FnOnce(io::Error) -> CgroupError + use<'a> {
    move |source| CgroupError::File { action: action.into(), path: path.into(), source, advice }
}

/// Writes something; the `advice` is for when it does not.
///
/// # Errors
/// The kernel refuses.
pub fn write(path: &Path, content: String, advice: &'static str) -> Result<(), CgroupError> {
    fs::write(path, &content).map_err(|source| CgroupError::File {
        action: format!("write {content} to"),
        path: path.into(),
        source,
        advice,
    })
}

/// Reads a number.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read_number(path: &Path) -> Result<i64, CgroupError> {
    let text = fs::read_to_string(path).map_err(file_error("read", path, ""))?;
    text.trim().parse().map_err(|_| CgroupError::Content {
        path: path.into(),
        content: text.trim().into(),
        expected: "a number".into(),
    })
}

/// What a weight's file holds. Those of idle groups say what nobody set, and refuse to be set.
///
/// # Errors
/// The file cannot be read, or the group is idle.
pub fn read_weight(file: &Path) -> Result<u32, CgroupError> {
    let idle = file.with_file_name("cpu.idle");
    if read_number(&idle).is_ok_and(|idle| idle != 0) {
        return Err(CgroupError::Content {
            path: idle,
            content: "1".into(),
            expected: "0: the group has no weight, but gets what others leave".into(),
        });
    }
    Ok(u32::try_from(read_number(file)?).unwrap_or(u32::MAX))
}
