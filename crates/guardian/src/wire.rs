//! What owner and guardian say to each other: length-prefixed JSON, each message answered by one byte.

use super::undo::Undo;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};

/// Larger frames are refused: no undo comes near.
const FRAME_MAX: u32 = 1 << 20;
const ACKNOWLEDGEMENT: u8 = b'+';

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum JournalMessage {
    Record { id: u64, undo: Undo },
    Forget { id: u64 },
}

pub(super) fn write_frame(mut to: impl Write, value: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(value)?;
    let length = u32::try_from(body.len()).ok().filter(|&length| length <= FRAME_MAX);
    let length =
        length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the message is too large"))?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend(body);
    to.write_all(&frame)
}

/// Reads one frame; `None` if the other side closed before one began.
pub(super) fn read_frame<T: DeserializeOwned>(mut from: impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    let got = loop {
        match from.read(&mut length) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if got == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[got..])?;
    let length = u32::from_le_bytes(length);
    if length > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too large"));
    }
    let mut body = Vec::new();
    from.take(length.into()).read_to_end(&mut body)?;
    if u32::try_from(body.len()) != Ok(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(serde_json::from_slice(&body)?))
}

pub(super) fn acknowledge(mut to: impl Write) -> io::Result<()> {
    to.write_all(&[ACKNOWLEDGEMENT])
}

pub(super) fn read_acknowledgement(mut from: impl Read) -> io::Result<()> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    match byte[0] {
        ACKNOWLEDGEMENT => Ok(()),
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected answer {other:#04x}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_and_broken_ones_are_refused() {
        let message = JournalMessage::Forget { id: 7 };
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &message).unwrap();
        assert_eq!(read_frame::<JournalMessage>(&bytes[..]).unwrap(), Some(message));
        assert_eq!(read_frame::<JournalMessage>(&[][..]).unwrap(), None, "closed between frames");
        for cut in 1..bytes.len() {
            assert!(read_frame::<JournalMessage>(&bytes[..cut]).is_err(), "closed {cut} bytes into a frame");
        }
        assert!(read_frame::<JournalMessage>(&u32::MAX.to_le_bytes()[..]).is_err(), "too large");
        assert!(write_frame(&mut bytes, &"x".repeat(2 << 20)).is_err(), "too large");
    }

    proptest::proptest! {
        #[test]
        fn fuzz_frames(length in 0..200u32, body in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let bytes = [&length.to_le_bytes()[..], &body].concat();
            proptest::prop_assert!(read_frame::<JournalMessage>(&bytes[..]).is_err());
            crate::fuzzing::frame(&bytes);
        }
    }
}
