//! What recordings of this version have, those of earlier releases and the page that specifies them.

use super::{bytes_of, read};
use crate::frame::{Decoder, Frame, MAJOR, MINOR, header};
use crate::{Ending, Record};
use cbor4ii::core::Value;
use cbor4ii::core::dec::{Decode, Read as _};
use cbor4ii::core::utils::SliceReader;
use frontdesk_engine::{Event, EventKind, Time, VmId};
use std::collections::BTreeSet;

/// The recordings of every version that is read.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus")).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let recordings = paths.filter(|path| path.extension().is_some_and(|extension| extension == "fdsk"));
    recordings.map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect()
}

/// All blocks of a recording.
fn blocks(recording: &[u8]) -> Vec<u8> {
    let (mut source, mut decoder) = (&recording[header().len()..], Decoder::new().unwrap());
    let (mut block, mut all) = (Vec::new(), Vec::new());
    while let Frame::Block(_) = decoder.next(&mut source, &mut block).unwrap() {
        all.extend_from_slice(&block);
    }
    all
}

/// The records of a block as any reader of CBOR has them.
fn items(block: &[u8]) -> Vec<Value> {
    let (mut reader, mut items) = (SliceReader::new(block), Vec::new());
    while !reader.fill(1).unwrap().as_ref().is_empty() {
        items.push(Value::decode(&mut reader).unwrap());
    }
    items
}

/// Whether a later minor version may write the one for the other: with more fields, if at all.
fn within(before: &Value, now: &Value) -> bool {
    let kept = |(key, value): &(Value, Value), now: &[(Value, Value)]| {
        now.iter().any(|(other, now)| other == key && within(value, now))
    };
    match (before, now) {
        (Value::Map(before), Value::Map(now)) => before.iter().all(|entry| kept(entry, now)),
        (Value::Array(before), Value::Array(now)) => {
            before.len() == now.len() && before.iter().zip(now).all(|(before, now)| within(before, now))
        }
        _ => before == now,
    }
}

#[test]
fn what_is_written_has_all_that_every_recording_of_this_version_has() {
    let corpus = corpus();
    assert!(corpus.len() >= 4);
    for (name, bytes) in corpus {
        let (mut records, ending) = read(&bytes);
        assert_eq!(ending.unwrap(), Some(Ending::Complete), "{name}");
        records.push(Record::End);
        let (before, now) = (items(&blocks(&bytes)), items(&bytes_of(&records)));
        assert_eq!(before.len(), now.len(), "{name}");
        for (before, now) in before.iter().zip(&now) {
            assert!(within(before, now), "{name}: {before:?} has become {now:?}");
        }
    }
}

fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Map(entries) => {
            for (key, value) in entries {
                found.extend(if let Value::Text(name) = key { Some(name.clone()) } else { None });
                names(key, found);
                names(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

const SPECIFICATION: &str = include_str!("../../../../docs/recording.md");

#[test]
fn the_page_tells_the_version() {
    for told in [format!("| 2 | major version: {MAJOR} |"), format!("| 2 | minor version: {MINOR} |")] {
        assert!(SPECIFICATION.contains(&told), "docs/recording.md does not say {told}");
    }
}

#[test]
fn the_specification_has_every_name() {
    let mut found = BTreeSet::new();
    for (_, bytes) in corpus() {
        items(&blocks(&bytes)).iter().for_each(|item| names(item, &mut found));
    }
    // Each kind of record and event, and the insides of states.
    assert!(found.len() > 250, "{}", found.len());
    let missing: Vec<&String> =
        found.iter().filter(|name| !SPECIFICATION.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_example_of_the_specification_is_a_recording() {
    let example = SPECIFICATION.split("### An example").nth(1).unwrap();
    let lines = example.split("```").nth(1).unwrap().lines().skip(1);
    let hex = lines.flat_map(|line| line.split('#').next().unwrap().split_whitespace());
    let bytes: Vec<u8> = hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let (records, ending) = read(&bytes);
    assert_eq!(ending.unwrap(), Some(Ending::Complete));
    let vm = Record::Vm { vm: VmId(1), name: "alice".to_owned() };
    let kind = EventKind::Halt { vm: VmId(1), vcpu: 0 };
    let event = Record::Event(Event { at: Time(1_000_000_000), kind });
    assert_eq!(bytes_of(&records), bytes_of(&[vm, event]));
}
