use super::*;
use crate::fuzzing::{self, ENTRIES, TABLE, guest, put};
use proptest::prelude::*;
use vm_memory::GuestMemoryMmap;

const SIZE: u64 = 1 << 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn parsed(memory: &GuestMemoryMmap) -> Result<Request, Malformed> {
    parse(memory, TABLE, ENTRIES, 0)
}

const IOERR: Op = Op::Refuse(1);

#[test]
fn a_read_has_its_data_and_its_status() {
    let chain = [(0x1000, 16, NEXT, 1), (0x4000, 1024, NEXT | WRITE, 2), (0x3000, 1, WRITE, 0)];
    let request = parsed(&guest(0, &chain, (VIRTIO_BLK_T_IN, 3))).unwrap();
    assert_eq!((request.op, request.len()), (Op::Read(1536), 1024));
    assert_eq!(request.status, GuestAddress(0x3000));
}

#[test]
fn a_request_may_be_divided_in_any_way() {
    // Half of the header, the other half with the data, in a table of its own.
    let indirect =
        [(0x1000, 8, NEXT, 1), (0x1008, 8, NEXT, 2), (0x4000, 512, NEXT, 3), (0x3000, 1, WRITE, 0)];
    let memory = guest(0x8000, &indirect, (VIRTIO_BLK_T_OUT, 1));
    put(&memory, 0, &[(0x8000, 64, INDIRECT, 0)]);
    assert_eq!(parsed(&memory).unwrap().op, Op::Write(512));
    // The status is the last byte of the data's segment.
    let chain = [(0x1000, 16, NEXT, 1), (0x4000, 513, WRITE, 0)];
    let request = parsed(&guest(0, &chain, (VIRTIO_BLK_T_IN, 0))).unwrap();
    assert_eq!((request.op, request.len(), request.status), (Op::Read(0), 512, GuestAddress(0x4200)));
}

#[test]
fn what_cannot_be_answered_is_malformed() {
    let says = |chain: &[(u64, u32, u16, u16)]| {
        parsed(&guest(0, chain, (VIRTIO_BLK_T_IN, 0))).unwrap_err().to_string()
    };
    assert!(says(&[(0x1000, 16, NEXT, 0)]).contains("more than 16"));
    assert!(says(&[(0x1000, 16, NEXT, 16)]).contains("beyond its table"));
    assert!(says(&[(0x1000, 16, 0, 0)]).contains("no status byte"));
    assert!(says(&[(0x1000, 16, NEXT, 1), (SIZE, 1, WRITE, 0)]).contains("no status byte"));
    assert!(says(&[(0x1000, 16, NEXT, 1), (u64::MAX, 2, WRITE, 0)]).contains("no status byte"));
    assert!(says(&[(u64::MAX - 3, 32, INDIRECT, 0)]).contains("not in the guest's memory"));
    assert!(says(&[(0x8000, 17, INDIRECT, 0)]).contains("17 bytes"));
    assert!(says(&[(0x8000, 16, INDIRECT | NEXT, 0)]).contains("where none may be"));
    // A table that names itself.
    assert!(says(&[(0, 16, INDIRECT, 0)]).contains("where none may be"));
}

#[test]
fn what_makes_no_sense_is_an_error_for_the_guest() {
    let op = |chain: &[(u64, u32, u16, u16)], header| parsed(&guest(0, chain, header)).unwrap().op;
    let with =
        |address, len, flags| [(0x1000, 16, NEXT, 1), (address, len, NEXT | flags, 2), (0x3000, 1, WRITE, 0)];
    assert_eq!(op(&with(SIZE - 512, 1024, WRITE), (VIRTIO_BLK_T_IN, 0)), IOERR, "unmapped");
    assert_eq!(op(&with(0x4000, u32::MAX, WRITE), (VIRTIO_BLK_T_IN, 0)), IOERR, "huge");
    assert_eq!(op(&with(0x4000, 512, 0), (VIRTIO_BLK_T_IN, 0)), IOERR, "not to be written to");
    assert_eq!(op(&with(0x4000, 512, WRITE), (VIRTIO_BLK_T_OUT, 0)), IOERR, "not to be read");
    assert_eq!(op(&with(0x4000, 511, WRITE), (VIRTIO_BLK_T_IN, 0)), IOERR, "no whole sector");
    assert_eq!(op(&with(0x4000, 512, WRITE), (VIRTIO_BLK_T_IN, u64::MAX)), IOERR, "no such sector");
    assert_eq!(op(&with(0x4000, 32, 0), (VIRTIO_BLK_T_DISCARD, 0)), IOERR, "two ranges");
    assert_eq!(op(&with(0x4000, 512, 0), (99, 0)), Op::Refuse(2), "unknown");
    assert_eq!(op(&[(0x1000, 15, NEXT, 1), (0x3000, 1, WRITE, 0)], (VIRTIO_BLK_T_IN, 0)), IOERR, "no header");
}

#[test]
fn a_range_has_its_flags() {
    let op = |kind, flags: u32| {
        let chain = [(0x1000, 16, NEXT, 1), (0x4000, 16, NEXT, 2), (0x3000, 1, WRITE, 0)];
        let memory = guest(0, &chain, (kind, 0));
        memory.write_obj(2_u64, GuestAddress(0x4000)).unwrap();
        memory.write_obj(4_u32, GuestAddress(0x4008)).unwrap();
        memory.write_obj(flags, GuestAddress(0x400c)).unwrap();
        parsed(&memory).unwrap().op
    };
    assert_eq!(op(VIRTIO_BLK_T_DISCARD, 0), Op::Discard { offset: 1024, len: 2048 });
    assert_eq!(op(VIRTIO_BLK_T_DISCARD, 1), Op::Refuse(2));
    let zeroes = |unmap| Op::WriteZeroes { offset: 1024, len: 2048, unmap };
    assert_eq!([0, 1].map(|flags| op(VIRTIO_BLK_T_WRITE_ZEROES, flags)), [zeroes(false), zeroes(true)]);
    assert_eq!(op(VIRTIO_BLK_T_WRITE_ZEROES, 2), Op::Refuse(2));
}

proptest! {
    /// Whatever is in the guest's memory: an answer, whose parts are in that memory, or a reason why not.
    #[test]
    fn fuzz_any_memory_is_a_request_or_malformed(
        descriptors in proptest::collection::vec(
            (
                prop_oneof![0..SIZE + 64, any::<u64>(), Just(0x1000), Just(0)],
                prop_oneof![0_u32..2048, any::<u32>(), Just(16), Just(1), Just(512)],
                0_u16..8,
                0_u16..20,
            ),
            1..24,
        ),
        kind in prop_oneof![0_u32..16, any::<u32>()],
        sector in prop_oneof![0_u64..100, any::<u64>()],
        head in 0_u16..20,
    ) {
        fuzzing::request(&descriptors, (kind, sector), head);
    }
}
