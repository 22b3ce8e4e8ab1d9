//! A picture of a screen.

use std::io::{self, Read};

/// A part of a screen, in pixels from its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) x: u16,
    pub(super) y: u16,
    pub(super) width: u16,
    pub(super) height: u16,
}

impl Area {
    /// Pixels that are in both.
    pub(super) fn common(self, other: Area) -> u32 {
        let length = |begin: [u16; 2], size: [u16; 2]| {
            let end = |index: usize| u32::from(begin[index]) + u32::from(size[index]);
            end(0).min(end(1)).saturating_sub(begin[0].max(begin[1]).into())
        };
        length([self.x, other.x], [self.width, other.width])
            * length([self.y, other.y], [self.height, other.height])
    }
}

/// What is to be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Screen {
    width: u16,
    height: u16,
    /// 0x00RRGGBB each, row by row.
    pixels: Vec<u32>,
}

impl Screen {
    /// A black one.
    pub(super) fn new(width: u16, height: u16) -> Screen {
        Screen { width, height, pixels: vec![0; usize::from(width) * usize::from(height)] }
    }

    /// Width and height.
    pub(super) fn size(&self) -> (u16, u16) {
        (self.width, self.height)
    }

    /// The colour there, 0xRRGGBB; none outside.
    pub(super) fn pixel(&self, x: u16, y: u16) -> Option<u32> {
        let inside = x < self.width && y < self.height;
        inside.then(|| self.pixels[usize::from(y) * usize::from(self.width) + usize::from(x)] & 0xff_ffff)
    }

    /// Pixels of an area that have not this colour.
    pub(super) fn differing(&self, area: Area, colour: u32) -> usize {
        self.rows(area).flatten().filter(|pixel| **pixel & 0xff_ffff != colour).count()
    }

    /// The rows of an area, as far as it is on the screen.
    fn rows(&self, area: Area) -> impl Iterator<Item = &[u32]> {
        let range = |begin: u16, length: u16, most: u16| {
            let end = begin.saturating_add(length).min(most);
            usize::from(begin.min(end))..usize::from(end)
        };
        let columns = range(area.x, area.width, self.width);
        let rows = self.pixels.chunks_exact(usize::from(self.width.max(1)));
        let lines = range(area.y, area.height, self.height);
        rows.skip(lines.start).take(lines.len()).map(move |row| &row[columns.clone()])
    }

    /// Takes the pixels of an area, 4 bytes each, little-endian; false if it is not on the screen.
    pub(super) fn read(&mut self, area: Area, from: &mut impl Read) -> io::Result<bool> {
        let [x, y, width, height] = [area.x, area.y, area.width, area.height].map(usize::from);
        let whole = usize::from(self.width);
        if x + width > whole || y + height > usize::from(self.height) {
            return Ok(false);
        }
        let mut bytes = vec![0; 4 * width];
        for row in y..y + height {
            from.read_exact(&mut bytes)?;
            let begin = row * whole + x;
            let (pixels, _) = bytes.as_chunks();
            for (to, pixel) in self.pixels[begin..begin + width].iter_mut().zip(pixels) {
                *to = u32::from_le_bytes(*pixel);
            }
        }
        Ok(true)
    }

    /// As a PNG file.
    pub(super) fn png(&self) -> io::Result<Vec<u8>> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width.into(), self.height.into());
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let colours = |pixel: &u32| {
            let [_, red, green, blue] = pixel.to_be_bytes();
            [red, green, blue]
        };
        let data: Vec<u8> = self.pixels.iter().flat_map(colours).collect();
        encoder.write_header()?.write_image_data(&data)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Area = Area { x: 0, y: 0, width: u16::MAX, height: u16::MAX };

    #[test]
    fn colours_are_looked_for_within_an_area() {
        let mut screen = Screen::new(4, 3);
        let area = Area { x: 1, y: 1, width: 2, height: 2 };
        assert!(screen.read(area, &mut [7; 16].as_slice()).unwrap());
        assert_eq!(screen.differing(ALL, 0), 4);
        assert_eq!(screen.differing(Area { x: 2, ..ALL }, 0), 2);
        assert_eq!(screen.differing(Area { x: 4, ..ALL }, 0), 0);
        assert_eq!(screen.differing(Area { y: 2, ..ALL }, 0), 2);
        assert_eq!(screen.differing(area, 0x07_07_07), 0);
    }

    #[test]
    fn areas_have_pixels_in_common() {
        let area = Area { x: 10, y: 10, width: 10, height: 10 };
        assert_eq!(area.common(ALL), 100);
        assert_eq!(area.common(Area { x: 15, y: 5, width: 100, height: 7 }), 10);
        assert_eq!(area.common(Area { x: 20, ..area }), 0);
        assert_eq!(Area { x: u16::MAX, ..ALL }.common(ALL), 0);
    }

    #[test]
    fn a_png_file_has_the_colours() {
        let mut screen = Screen::new(2, 1);
        let pixels = [0x00ff_8001_u32, 0x0000_00ff].map(u32::to_le_bytes);
        screen.read(Area { x: 0, y: 0, width: 2, height: 1 }, &mut pixels.as_flattened()).unwrap();
        let png = screen.png().unwrap();
        let mut reader = png::Decoder::new(io::Cursor::new(png)).read_info().unwrap();
        let mut data = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut data).unwrap();
        assert_eq!((info.width, info.height), (2, 1));
        assert_eq!(data, [0xff, 0x80, 0x01, 0x00, 0x00, 0xff]);
    }
}
