//! What a guest may send: the body of a property test, and of fuzzing with coverage (`fuzz/`).

use crate::{Decoder, GuestMessage, HostMessage, MAX_ENCODED, encode};

/// A stream of messages has the same ones however it is cut, and each is one when it is sent again. How much
/// of garbage is left out depends on where it is cut.
pub fn stream(bytes: &[u8]) {
    let (mut whole, mut cut) = (Vec::new(), Vec::new());
    Decoder::default().feed(bytes, |message: Option<GuestMessage>| whole.push(message));
    let mut decoder = Decoder::default();
    bytes.chunks(7).for_each(|piece| decoder.feed(piece, |message: Option<GuestMessage>| cut.push(message)));
    assert!(whole == cut || whole.contains(&None) || cut.contains(&None), "{whole:?}, cut {cut:?}");
    for message in whole.iter().flatten() {
        let (mut again, mut found) = (Vec::new(), Vec::new());
        assert!(encode(message, MAX_ENCODED, &mut again), "{message:?} is longer than any");
        Decoder::default().feed(&again, |message: Option<GuestMessage>| found.extend(message));
        assert_eq!(found, [*message]);
    }
    // And the guest's side.
    Decoder::default().feed(bytes, |_: Option<HostMessage>| ());
}
