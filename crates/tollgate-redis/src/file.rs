//! Files that settings name: passwords, certificates.

use std::{
    fs::{self, File, FileType},
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::Path,
};

/// Reads a regular file of at most `max` bytes. Links are followed.
///
/// # Errors
///
/// When the path names something else, such as a pipe, whose reader could wait forever; when the
/// file is longer; and when it cannot be read.
///
/// # Examples
///
/// ```
/// use std::path::Path;
/// use tollgate_redis::read_regular;
///
/// let error = read_regular(Path::new("/dev/null"), 100).unwrap_err();
/// assert!(error.to_string().starts_with("it is a device, not a regular file"));
/// ```
pub fn read_regular(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    // Before it is opened: to open a pipe waits for its writer.
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() {
        let text = format!(
            "it is {}, not a regular file; name a regular file, or a link to one",
            named(kind)
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        let text = format!("it is longer than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

fn named(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a named pipe (FIFO)",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "something else",
    }
}
