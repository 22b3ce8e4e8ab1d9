//! What a file may hold that is to be a journal, and what may come where owner and guardian talk: bodies of
//! property tests, and of fuzzing with coverage (`fuzz/`).

use crate::journal::{MAGIC, in_memory, read};
use crate::wire::{JournalMessage, read_frame, write_frame};
use std::os::unix::fs::FileExt as _;

/// A journal can be read, whatever is in it, also behind a header that is right.
pub fn journal(bytes: &[u8]) {
    let Ok(file) = in_memory() else { return };
    let headers: [&[u8]; 2] = [&[], &MAGIC];
    for header in headers {
        let written = file.write_all_at(bytes, 0).and_then(|()| file.write_all_at(header, 0));
        assert!(written.is_ok() && read(&file).is_ok());
    }
}

/// A frame is refused, or is the same when it is sent again.
pub fn frame(bytes: &[u8]) {
    if let Ok(Some(message)) = read_frame::<JournalMessage>(bytes) {
        let mut again = Vec::new();
        assert!(write_frame(&mut again, &message).is_ok());
        assert!(read_frame::<JournalMessage>(&again[..]).is_ok_and(|same| same == Some(message)));
    }
}
