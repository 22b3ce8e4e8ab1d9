//! What is spoken with a VM's screen: the client's side of VNC (RFC 6143), with pictures as they are.
//!
//! By hand, because the one maintained library for clients, vnc-rs, needs an asynchronous runtime with tasks
//! of its own, and takes the sizes that a server names on trust. What is needed is little: a handshake, four
//! messages to QEMU and four from it.

use super::screen::{Area, Screen};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest picture that is taken, in pixels each way.
const MOST_PIXELS: u16 = 4096;
/// The longest name of a desktop, or reason of a refusal, in bytes.
const LONGEST_TEXT: u32 = 4096;
/// A message that has begun is there within this.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long QEMU may take for the handshake beside busy VMs.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// Between moving the pointer, pressing its button and letting it go.
const CLICK_PAUSE: Duration = Duration::from_millis(20);

/// Pixels as numbers, row by row, and pictures of another size.
const ENCODINGS: [i32; 2] = [RAW, DESKTOP_SIZE];
const RAW: i32 = 0;
const DESKTOP_SIZE: i32 = -223;

/// Keys that are not letters, as X calls them.
pub(super) mod keys {
    pub(crate) const RETURN: u32 = 0xff0d;
    pub(crate) const SHIFT: u32 = 0xffe1;
    pub(crate) const CONTROL: u32 = 0xffe3;
}

/// The screen of a VM cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VncError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// QEMU says what it must not, or refuses.
    #[error("{0}")]
    Protocol(String),
}

fn protocol<T>(what: impl Into<String>) -> Result<T, VncError> {
    Err(VncError::Protocol(what.into()))
}

/// What a message from the server changed.
#[derive(Clone, Debug)]
pub(super) struct Update {
    /// When it came.
    pub(super) at: Instant,
    /// Where the picture changed.
    pub(super) areas: Vec<Area>,
}

/// A connection to the screen, the keyboard and the pointer of a VM.
#[derive(Debug)]
pub(super) struct Vnc<S = UnixStream> {
    stream: BufReader<S>,
    screen: Screen,
    /// Where the pointer is.
    pointer: (u16, u16),
}

/// A stream of bytes to the server, which can be told how long to wait.
pub(super) trait Stream: Read + Write {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Vnc {
    /// Connects to a server's socket and asks for its picture.
    pub(super) fn connect(path: &Path) -> Result<Vnc, VncError> {
        Vnc::open(UnixStream::connect(path)?)
    }
}

impl<S: Stream> Vnc<S> {
    fn open(stream: S) -> Result<Vnc<S>, VncError> {
        stream.set_timeout(HANDSHAKE_TIMEOUT)?;
        let mut stream = BufReader::new(stream);
        let version: [u8; 12] = bytes(&mut stream)?;
        if !version.starts_with(b"RFB 003.") {
            return protocol(format!("not a VNC server: it says {:?}", version.escape_ascii().to_string()));
        }
        stream.get_mut().write_all(b"RFB 003.008\n")?;
        let [kinds] = bytes(&mut stream)?;
        if kinds == 0 {
            return protocol(format!("the VNC server refuses: {}", text(&mut stream)?));
        }
        let mut offered = vec![0; usize::from(kinds)];
        stream.read_exact(&mut offered)?;
        // 1 is no password: the socket's folder is only root's.
        if !offered.contains(&1) {
            return protocol("the VNC server wants a password");
        }
        stream.get_mut().write_all(&[1])?;
        if u32::from_be_bytes(bytes(&mut stream)?) != 0 {
            return protocol(format!("the VNC server refuses: {}", text(&mut stream)?));
        }
        // Beside others who look at the same screen.
        stream.get_mut().write_all(&[1])?;
        let (width, height) = pair(bytes(&mut stream)?);
        let _pixel_format: [u8; 16] = bytes(&mut stream)?;
        text(&mut stream)?;
        let mut vnc = Vnc { stream, screen: Screen::default(), pointer: (0, 0) };
        vnc.resize(width, height)?;
        // 32 bits a pixel, 24 of colour, little-endian, true colour: 0x00RRGGBB.
        let format = [32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0];
        vnc.send(&[[0, 0, 0, 0].as_slice(), &format].concat())?;
        let mut message = vec![2, 0];
        message.extend(u16::try_from(ENCODINGS.len()).unwrap_or_default().to_be_bytes());
        message.extend(ENCODINGS.iter().flat_map(|encoding| encoding.to_be_bytes()));
        vnc.send(&message)?;
        vnc.request(false)?;
        Ok(vnc)
    }

    /// The picture as far as it has come.
    pub(super) fn screen(&self) -> &Screen {
        &self.screen
    }

    /// Waits for the next change of the picture, until `deadline`.
    pub(super) fn update(&mut self, deadline: Instant) -> Result<Option<Update>, VncError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.get_ref().set_timeout(left)?;
            match self.stream.fill_buf() {
                Ok([]) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            let at = Instant::now();
            self.stream.get_ref().set_timeout(MESSAGE_TIMEOUT)?;
            let areas = match bytes(&mut self.stream)? {
                [0] => self.read_update()?,
                // A colour map, which true colour does not have; the length is that of its entries.
                [1] => {
                    let [.., high, low] = bytes::<5>(&mut self.stream)?;
                    self.skip(6 * u64::from(u16::from_be_bytes([high, low])))?;
                    continue;
                }
                // A bell.
                [2] => continue,
                // What somebody copied in the guest.
                [3] => {
                    let [_, _, _, length @ ..] = bytes::<7>(&mut self.stream)?;
                    self.skip(u32::from_be_bytes(length).into())?;
                    continue;
                }
                [other] => return protocol(format!("the VNC server sends a message of kind {other}")),
            };
            return Ok(Some(Update { at, areas }));
        }
    }

    /// The rest of an update of the picture; asks for the next one.
    fn read_update(&mut self) -> Result<Vec<Area>, VncError> {
        let [_, high, low] = bytes(&mut self.stream)?;
        let mut areas = Vec::new();
        let mut whole = false;
        for _ in 0..u16::from_be_bytes([high, low]) {
            let (x, y) = pair(bytes(&mut self.stream)?);
            let (width, height) = pair(bytes(&mut self.stream)?);
            match i32::from_be_bytes(bytes(&mut self.stream)?) {
                RAW => {
                    let area = Area { x, y, width, height };
                    if !self.screen.read(area, &mut self.stream)? {
                        let size = self.screen.size();
                        return protocol(format!("the VNC server paints {area:?} on a screen of {size:?}"));
                    }
                    areas.push(area);
                }
                DESKTOP_SIZE => {
                    self.resize(width, height)?;
                    whole = true;
                }
                other => return protocol(format!("the VNC server encodes a picture in way {other}")),
            }
        }
        self.request(!whole)?;
        Ok(areas)
    }

    fn resize(&mut self, width: u16, height: u16) -> Result<(), VncError> {
        if width > MOST_PIXELS || height > MOST_PIXELS {
            return protocol(format!(
                "a screen of {width} x {height} pixels: at most {MOST_PIXELS} each way are taken"
            ));
        }
        self.screen = Screen::new(width, height);
        Ok(())
    }

    /// Asks for the picture, or for what changes in it.
    fn request(&mut self, changes: bool) -> Result<(), VncError> {
        let (width, height) = self.screen.size();
        let [[w1, w2], [h1, h2]] = [width, height].map(u16::to_be_bytes);
        self.send(&[3, u8::from(changes), 0, 0, 0, 0, w1, w2, h1, h2])
    }

    /// Takes bytes that are for nothing.
    fn skip(&mut self, length: u64) -> Result<(), VncError> {
        io::copy(&mut self.stream.by_ref().take(length), &mut io::sink())?;
        Ok(())
    }

    fn send(&mut self, message: &[u8]) -> Result<(), VncError> {
        Ok(self.stream.get_mut().write_all(message)?)
    }

    /// Presses a key and lets it go.
    pub(super) fn key(&mut self, key: u32) -> Result<(), VncError> {
        self.press(key, true)?;
        self.press(key, false)
    }

    /// Presses a key while another is held.
    pub(super) fn key_with(&mut self, held: u32, key: u32) -> Result<(), VncError> {
        self.press(held, true)?;
        self.key(key)?;
        self.press(held, false)
    }

    fn press(&mut self, key: u32, down: bool) -> Result<(), VncError> {
        let [a, b, c, d] = key.to_be_bytes();
        self.send(&[4, u8::from(down), 0, 0, a, b, c, d])
    }

    /// Types a letter of printable ASCII, as on an American keyboard.
    pub(super) fn letter(&mut self, letter: char) -> Result<(), VncError> {
        const SHIFTED: &str = "~!@#$%^&*()_+{}|:\"<>?";
        if letter.is_ascii_uppercase() || SHIFTED.contains(letter) {
            self.key_with(keys::SHIFT, u32::from(letter))
        } else {
            self.key(u32::from(letter))
        }
    }

    /// Moves the pointer there, and clicks with its first button.
    pub(super) fn click(&mut self, x: u16, y: u16) -> Result<(), VncError> {
        for buttons in [0, 1, 0] {
            self.point((x, y), buttons)?;
            std::thread::sleep(CLICK_PAUSE);
        }
        Ok(())
    }

    /// Moves the pointer there.
    pub(super) fn point_at(&mut self, x: u16, y: u16) -> Result<(), VncError> {
        self.point((x, y), 0)
    }

    /// Moves the pointer a little, as who waits does. Some X servers show what was drawn last only then.
    pub(super) fn stir(&mut self) -> Result<(), VncError> {
        self.point((self.pointer.0 ^ 1, self.pointer.1), 0)
    }

    fn point(&mut self, to: (u16, u16), buttons: u8) -> Result<(), VncError> {
        self.pointer = to;
        let [[x1, x2], [y1, y2]] = [to.0, to.1].map(u16::to_be_bytes);
        self.send(&[5, buttons, x1, x2, y1, y2])
    }
}

fn bytes<const N: usize>(from: &mut impl Read) -> Result<[u8; N], VncError> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn pair([a, b, c, d]: [u8; 4]) -> (u16, u16) {
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// A text after its length.
fn text(from: &mut impl Read) -> Result<String, VncError> {
    let length = u32::from_be_bytes(bytes(from)?);
    if length > LONGEST_TEXT {
        return protocol(format!("the VNC server sends a text of {length} bytes"));
    }
    let mut text = Vec::new();
    from.take(length.into()).read_to_end(&mut text)?;
    Ok(text.escape_ascii().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says what it is to say, whatever it hears.
    struct Fake {
        says: io::Cursor<Vec<u8>>,
        hears: Vec<u8>,
    }

    impl Read for Fake {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.says.read(buffer)
        }
    }

    impl Write for Fake {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.hears.write(data)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Fake {
        fn set_timeout(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }
    }

    fn connected(size: [u16; 2], then: &[u8]) -> Result<Vnc<Fake>, VncError> {
        let mut says = b"RFB 003.008\n\x01\x01\0\0\0\0".to_vec();
        says.extend(size.iter().flat_map(|of| of.to_be_bytes()));
        says.extend([0; 16]);
        says.extend(b"\0\0\0\x04QEMU");
        says.extend(then);
        Vnc::open(Fake { says: io::Cursor::new(says), hears: Vec::new() })
    }

    fn update(vnc: &mut Vnc<Fake>) -> Result<Option<Update>, VncError> {
        vnc.update(Instant::now() + Duration::from_secs(60))
    }

    fn raw(area: [u16; 4], pixels: &[u32]) -> Vec<u8> {
        let mut message = area.iter().flat_map(|of| of.to_be_bytes()).collect::<Vec<u8>>();
        message.extend(RAW.to_be_bytes());
        message.extend(pixels.iter().flat_map(|pixel| pixel.to_le_bytes()));
        message
    }

    #[test]
    fn a_picture_arrives_in_pieces_among_other_messages() {
        let mut then = vec![2];
        then.extend(b"\x03\0\0\0\0\0\0\x05hello");
        then.extend([0, 0, 0, 2]);
        then.extend(raw([0, 0, 2, 1], &[0x0a_0b_0c, 0x01_02_03]));
        then.extend(raw([2, 1, 1, 1], &[0x00ff_ffff]));
        let mut vnc = connected([3, 2], &then).unwrap();
        let areas = update(&mut vnc).unwrap().unwrap().areas;
        assert_eq!(areas.len(), 2);
        assert_eq!(areas[1], Area { x: 2, y: 1, width: 1, height: 1 });
        let at = |x, y| vnc.screen().pixel(x, y);
        assert_eq!([at(0, 0), at(1, 0), at(2, 0)], [Some(0x0a_0b_0c), Some(0x01_02_03), Some(0)]);
        assert_eq!([at(2, 1), at(3, 1), at(2, 2)], [Some(0x00ff_ffff), None, None]);
        // Then the server is gone.
        assert!(matches!(update(&mut vnc), Err(VncError::Io(_))));
        // A request for the whole, and after the update one for changes.
        let hears = &vnc.stream.get_ref().hears;
        assert!(hears.ends_with(&[3, 0, 0, 0, 0, 0, 0, 3, 0, 2, 3, 1, 0, 0, 0, 0, 0, 3, 0, 2]), "{hears:?}");
    }

    #[test]
    fn another_size_begins_a_new_picture() {
        let mut then = vec![0, 0, 0, 1];
        then.extend([0, 0, 0, 0, 0, 4, 0, 5]);
        then.extend(DESKTOP_SIZE.to_be_bytes());
        let mut vnc = connected([3, 2], &then).unwrap();
        assert!(update(&mut vnc).unwrap().unwrap().areas.is_empty());
        assert_eq!(vnc.screen().size(), (4, 5));
        assert!(vnc.stream.get_ref().hears.ends_with(&[3, 0, 0, 0, 0, 0, 0, 4, 0, 5]));
    }

    #[test]
    fn sizes_that_would_cost_memory_are_refused() {
        let refused = |result: Result<Vnc<Fake>, VncError>, why: &str| {
            let error = result.and_then(|mut vnc| update(&mut vnc).map(drop)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(connected([65_535, 65_535], &[]), "at most 4096");
        let update_of = |rectangle: Vec<u8>| [vec![0, 0, 0, 1], rectangle].concat();
        refused(connected([3, 2], &update_of(raw([2, 0, 2, 1], &[]))), "paints");
        refused(connected([3, 2], &update_of(raw([65_535, 0, 65_535, 1], &[]))), "paints");
        let larger = [&[0, 0, 0, 0, 255, 255, 0, 1][..], &DESKTOP_SIZE.to_be_bytes()].concat();
        refused(connected([3, 2], &update_of(larger)), "at most 4096");
        refused(connected([3, 2], &update_of([&[0; 8][..], &7_i32.to_be_bytes()].concat())), "way 7");
        refused(connected([3, 2], &[9]), "kind 9");
        let endless = b"RFB 003.008\n\0\xff\xff\xff\xff".to_vec();
        refused(Vnc::open(Fake { says: io::Cursor::new(endless), hears: Vec::new() }), "4294967295 bytes");
    }

    #[test]
    fn letters_are_typed_with_shift_where_it_is_needed() {
        let mut vnc = connected([3, 2], &[]).unwrap();
        vnc.stream.get_mut().hears.clear();
        vnc.letter('a').unwrap();
        vnc.letter('>').unwrap();
        let key = |down, key: u32| [&[4, down, 0, 0][..], &key.to_be_bytes()].concat();
        let wanted =
            [key(1, 97), key(0, 97), key(1, keys::SHIFT), key(1, 62), key(0, 62), key(0, keys::SHIFT)];
        assert_eq!(vnc.stream.get_ref().hears, wanted.concat());
    }
}
