//! Types as the kernel describes them (BTF). By hand: what libbpf offers for a module's types asks the kernel
//! for them, which takes CAP_SYS_ADMIN; the files are for everybody.

use std::{fs, io, path::Path};

const MAGIC: u16 = 0xeb9f;

/// Kinds of types.
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;
/// Typedef, volatile, const, restrict and type tag: another type under it.
const ALIASES: [u32; 5] = [8, 9, 10, 11, 18];

/// Bytes of what every type begins with, and of a member.
const HEAD: usize = 12;
const MEMBER: usize = 12;

/// The kernel's own types, or those of a module, whose numbers and names go on where the kernel's end.
pub(super) struct Btf<'a> {
    kernel: Option<&'a Btf<'a>>,
    bytes: Vec<u8>,
    /// Where the names begin, and where they end.
    names: (usize, usize),
    /// Where each type begins.
    types: Vec<usize>,
}

impl<'a> Btf<'a> {
    /// Reads a file of `/sys/kernel/btf`; a module's takes the kernel's.
    pub(super) fn read(path: &Path, kernel: Option<&'a Btf<'a>>) -> io::Result<Btf<'a>> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "it is no BTF that is known here");
        Btf::parse(fs::read(path)?, kernel).ok_or_else(invalid)
    }

    fn parse(bytes: Vec<u8>, kernel: Option<&'a Btf<'a>>) -> Option<Btf<'a>> {
        let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let header = [4, 8, 12, 16, 20].map(|at| word(&bytes, at).map(|word| word as usize));
        let [Some(length), Some(types), Some(types_length), Some(names), Some(names_length)] = header else {
            return None;
        };
        let mut btf =
            Btf { kernel, bytes, names: (length + names, length + names + names_length), types: Vec::new() };
        let (mut at, end) = (length + types, length + types + types_length);
        while magic == MAGIC && at < end {
            btf.types.push(at);
            let info = word(&btf.bytes, at + 4)?;
            let count = (info & 0xffff) as usize;
            at += HEAD
                + match kind(info) {
                    2 | 7..=12 | 16 | 18 => 0,
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => count * MEMBER,
                    6 | 13 => count * 8,
                    _ => return None,
                };
        }
        (at == end && magic == MAGIC && btf.names.1 <= btf.bytes.len()).then_some(btf)
    }

    /// Where a member of a structure is, or a member's member, in bytes from the structure's begin.
    pub(super) fn offset(&self, structure: &str, path: &[&str]) -> Option<u32> {
        let own = self.types.iter().copied().find(|&at| self.is_structure(at, structure));
        let Some(mut at) = own else { return self.kernel?.offset(structure, path) };
        let (mut btf, mut bits) = (self, 0);
        for (depth, name) in path.iter().enumerate() {
            let (offset, number) = btf.member(at, name)?;
            bits += offset;
            if depth + 1 < path.len() {
                (btf, at) = self.resolve(number)?;
            }
        }
        Some(bits / 8)
    }

    /// How many parameters a function has, if there is one of this name.
    pub(super) fn parameters(&self, function: &str) -> Option<u32> {
        let info = |at: usize| word(&self.bytes, at + 4);
        let is_it = |at: usize| {
            let name = word(&self.bytes, at).and_then(|called| self.name(called));
            info(at).map(kind) == Some(FUNCTION) && name == Some(function.as_bytes())
        };
        let at = self.types.iter().copied().find(|at| is_it(*at))?;
        let (btf, prototype) = self.numbered(word(&self.bytes, at + 8)?)?;
        Some(word(&btf.bytes, prototype + 4)? & 0xffff)
    }

    /// The offset of a member, in bits, and the number of its type. Those of members without a name are
    /// members, too.
    fn member(&self, at: usize, name: &str) -> Option<(u32, u32)> {
        let info = word(&self.bytes, at + 4)?;
        (0..(info & 0xffff) as usize).map(|index| at + HEAD + index * MEMBER).find_map(|member| {
            let [called, number, offset] = [0, 4, 8].map(|field| word(&self.bytes, member + field));
            let (called, number, offset) = (called?, number?, offset?);
            // With bit fields, their size is in the upper byte.
            let offset = if info >> 31 == 1 { offset & 0x00ff_ffff } else { offset };
            if self.name(called)? == name.as_bytes() {
                return Some((offset, number));
            }
            if called != 0 {
                return None;
            }
            let (btf, inner) = self.resolve(number)?;
            let (more, number) = btf.member(inner, name)?;
            Some((offset + more, number))
        })
    }

    /// The structure or union of this number, under whatever names.
    fn resolve(&self, mut number: u32) -> Option<(&Btf<'a>, usize)> {
        loop {
            let (btf, at) = self.numbered(number)?;
            match kind(word(&btf.bytes, at + 4)?) {
                STRUCT | UNION => return Some((btf, at)),
                alias if ALIASES.contains(&alias) => number = word(&btf.bytes, at + 8)?,
                _ => return None,
            }
        }
    }

    fn numbered(&self, number: u32) -> Option<(&Btf<'a>, usize)> {
        let before = self.kernel.map_or(1, |kernel| kernel.types.len() + 1);
        match (number as usize).checked_sub(before) {
            Some(index) => Some((self, *self.types.get(index)?)),
            None => self.kernel?.numbered(number),
        }
    }

    fn is_structure(&self, at: usize, name: &str) -> bool {
        let [called, info] = [0, 4].map(|field| word(&self.bytes, at + field));
        // One without members is only named.
        info.is_some_and(|info| kind(info) == STRUCT && info & 0xffff > 0)
            && called.and_then(|called| self.name(called)) == Some(name.as_bytes())
    }

    fn name(&self, offset: u32) -> Option<&[u8]> {
        let before = self.kernel.map_or(0, |kernel| kernel.names.1 - kernel.names.0);
        let Some(offset) = (offset as usize).checked_sub(before) else { return self.kernel?.name(offset) };
        let name = self.bytes.get(self.names.0..self.names.1)?.get(offset..)?;
        name.split(|byte| *byte == 0).next()
    }
}

const fn kind(info: u32) -> u32 {
    info >> 24 & 0x1f
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: u32 = 1;
    const CONST: u32 = 10;

    /// Types are words: name, kind, count of members and size, and what follows.
    fn btf(types: &[u32], names: &str) -> Vec<u8> {
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let length = u32::try_from(types.len()).unwrap();
        let header = [24, 0, length, length, u32::try_from(names.len()).unwrap()];
        let mut bytes = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        bytes.extend(header.iter().flat_map(|word| word.to_ne_bytes()));
        [bytes, types, names.as_bytes().to_vec()].concat()
    }

    fn of(kind: u32, count: u32) -> u32 {
        kind << 24 | count
    }

    #[test]
    fn members_are_found_in_a_module_and_in_the_kernel() {
        // 1: int; 2: struct inner { int; int b; }; 3: const inner.
        let kernel = [
            [1, of(INT, 0), 4, 32].as_slice(),
            &[5, of(STRUCT, 2), 8, 0, 1, 0, 11, 1, 32],
            &[0, of(CONST, 0), 2],
        ]
        .concat();
        let kernel = Btf::parse(btf(&kernel, "\0int\0inner\0b\0"), None).unwrap();
        assert_eq!(kernel.offset("inner", &["b"]), Some(4));
        // 4: union { struct inner x; }; 5: struct outer { int b; union; }. Names go on at 13.
        let module =
            [[0, of(UNION, 1), 8, 13, 3, 0].as_slice(), &[15, of(STRUCT, 2), 16, 11, 1, 0, 0, 4, 64]]
                .concat();
        let module = Btf::parse(btf(&module, "x\0outer\0"), Some(&kernel)).unwrap();
        assert_eq!(module.offset("outer", &["x", "b"]), Some(12));
        assert_eq!(module.offset("outer", &["b"]), Some(0));
        assert_eq!(module.offset("inner", &["b"]), Some(4));
        assert_eq!(module.offset("outer", &["y"]), None);
        assert_eq!(module.offset("other", &["b"]), None);
    }

    #[test]
    fn the_parameters_of_a_function_are_counted() {
        // 1: int; 2: int (int, int); 3: int f(int, int).
        let types = [1, of(INT, 0), 4, 32, 0, of(13, 2), 1, 0, 1, 0, 1, 5, of(FUNCTION, 0), 2];
        let btf = Btf::parse(btf(&types, "\0int\0f\0"), None).unwrap();
        assert_eq!([btf.parameters("f"), btf.parameters("int"), btf.parameters("g")], [Some(2), None, None]);
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let whole = btf(&[1, of(INT, 0), 4, 32], "\0int\0");
        assert!(Btf::parse(whole.clone(), None).is_some());
        for length in 0..whole.len() {
            assert!(Btf::parse(whole[..length].to_vec(), None).is_none(), "{length} bytes");
        }
        assert!(Btf::parse(btf(&[1, of(31, 0), 4], ""), None).is_none());
    }
}
