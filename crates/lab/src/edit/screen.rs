//! What a terminal shows.

/// Something that appears on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// A character.
    Byte(u8),
    /// The screen was cleared, or a part of it.
    Cleared,
}

/// Takes apart what a terminal gets: characters, and control sequences (ECMA-48).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parser {
    /// Outside of sequences.
    Text,
    /// After ESC.
    Escape,
    /// After `ESC [`, up to a letter.
    Control,
    /// After what begins a text that is not shown, like a window's title: up to BEL or ESC `\`.
    Hidden,
}

impl Parser {
    pub(super) fn feed(&mut self, byte: u8) -> Option<Shown> {
        const ESCAPE: u8 = 0x1b;
        const BELL: u8 = 0x07;
        let (next, shown) = match (*self, byte) {
            (_, ESCAPE) => (Parser::Escape, None),
            (Parser::Text, b' '..=b'~') => (Parser::Text, Some(Shown::Byte(byte))),
            (Parser::Text, _) => (Parser::Text, None),
            (Parser::Escape, b'[') => (Parser::Control, None),
            (Parser::Escape, b']' | b'P' | b'X' | b'^' | b'_') => (Parser::Hidden, None),
            // Like the choice of a character set, which ends with the next byte.
            (Parser::Escape, b' '..=b'/') => (Parser::Escape, None),
            (Parser::Escape, b'0'..=b'~') => (Parser::Text, None),
            (Parser::Control, b'J') => (Parser::Text, Some(Shown::Cleared)),
            (Parser::Control, b'@'..=b'~') => (Parser::Text, None),
            (Parser::Hidden, BELL) => (Parser::Text, None),
            // A control character within a sequence is not part of it.
            (state, _) => (state, None),
        };
        *self = next;
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nano sends when it starts.
    const START: &[u8] =
        b"\x1b[?2004h\x1b(B\x1b)0\x1b[1;24r\x1b[m\x0f\x1b[?7h\x1b[?1h\x1b=\x1b[?1h\x1b=\x1b[H\x1b[J";

    fn shown(bytes: &[u8]) -> Vec<Shown> {
        let mut parser = Parser::Text;
        bytes.iter().filter_map(|byte| parser.feed(*byte)).collect()
    }

    #[test]
    fn letters_of_control_sequences_are_not_on_the_screen() {
        assert_eq!(shown(START), [Shown::Cleared]);
        assert_eq!(shown(b"a"), [Shown::Byte(b'a')]);
        // New lines: within the screen, and when it scrolls.
        assert_eq!(shown(b"\r\x1b[1BA"), [Shown::Byte(b'A')]);
        assert_eq!(shown(b"\r\nW"), [Shown::Byte(b'W')]);
        // A title, a character set, a key pad mode, and a line feed amid a sequence.
        assert_eq!(shown(b"\x1b]0;nano\x07x\x1b]0;nano\x1b\\y"), [Shown::Byte(b'x'), Shown::Byte(b'y')]);
        assert_eq!(shown(b"\x1b(0\x1b>q\x1b[\n3mz"), [Shown::Byte(b'q'), Shown::Byte(b'z')]);
    }
}
