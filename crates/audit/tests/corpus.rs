//! The fuzzers' seed corpus as ordinary tests: every byte changed, every
//! length, and a few hundred random damages. An error or other numbers, never a
//! panic. (Memory is watched by the fuzzers themselves, which have a limit.)
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../fuzz/entry.rs"]
mod entry;

use std::fs;
use std::path::PathBuf;

use afterimage_nn::Stream;

#[test]
fn no_damage_to_a_file_makes_a_reader_panic() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let folder = tempfile::tempdir().unwrap();
    let mut targets = 0;
    for target in fs::read_dir(corpus).unwrap() {
        let target = target.unwrap();
        let name = target.file_name().into_string().unwrap();
        let seed = fs::read(target.path().join("seed")).unwrap();
        let feed = |bytes: &[u8]| entry::feed(&name, bytes, folder.path());
        assert_eq!(feed(&seed), Ok(()), "the seed of {name} is valid");
        let mut stream = Stream::new(1, &name, 0);
        // Small files byte by byte, larger ones in a thousand places.
        let every = seed.len().div_ceil(1000).max(1);
        for place in (0..seed.len()).step_by(every) {
            let _ = feed(&seed[..place]);
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = seed.clone();
                changed[place] ^= flip;
                let _ = feed(&changed);
            }
        }
        // Several damages at once: bytes replaced, pieces cut out and repeated.
        for _ in 0..500 {
            let mut changed = seed.clone();
            for _ in 0..=stream.below(4) {
                let (a, b) = (stream.below(changed.len().max(1)), stream.below(changed.len().max(1)));
                let (low, high) = (a.min(b), a.max(b));
                match stream.below(3) {
                    0 if !changed.is_empty() => changed[a] = stream.bits() as u8,
                    1 => drop(changed.drain(low..high)),
                    _ => {
                        let piece = changed[low..high].to_vec();
                        changed.splice(low..low, piece);
                    }
                }
            }
            let _ = feed(&changed);
        }
        targets += 1;
    }
    assert_eq!(targets, 11);
}
