//! Checks that recordings are read back as written, and never with a panic. A file that was cut is read up to that
//! point.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use quell_record::figures::Range;
use quell_record::perf::file::{Place, Recording, Writer};
use quell_record::perf::symbols::Symbols;
use quell_record::perf::{
    Change, Count, CpuTime, Host, Item, LossReason, LostEvents, Prices, Sample, Source,
    SourceError, Value, Window,
};

fn sample(number: u64) -> Sample {
    Sample {
        time_ns: 1_000 * number,
        cpu: (number % 3) as u32,
        pid: 17,
        tid: 18,
        comm: "worker".into(),
        event: "tlb:tlb_flush".into(),
        fields: vec![
            ("reason".into(), Value::Text("remote shootdown".into())),
            ("pages".into(), Value::Unsigned(number)),
            ("delta".into(), Value::Signed(-1)),
        ],
        stack: Arc::new([]),
    }
}

fn others() -> Vec<Item> {
    vec![
        Item::Host(Host { kernel: "6.1".to_owned(), cpus: 3, ..Host::default() }),
        Item::Lost(LostEvents { why: LossReason::Unexplained, time_ns: 5, cpu: 1, count: 7 }),
        Item::Change(Change::Mapped {
            time_ns: 0,
            pid: 17,
            start: 0x1000,
            bytes: 0x2000,
            offset: 0,
            module: "/nowhere/program".into(),
        }),
        Item::Change(Change::Named {
            time_ns: 0,
            pid: 17,
            tid: 18,
            comm: "worker".into(),
            exec: true,
        }),
        Item::Change(Change::Forked { time_ns: 1, pid: 19, tid: 19, parent: 17, parent_tid: 18 }),
        Item::Change(Change::exited(2, 19)),
        Item::Window(Window { start_ns: 1, end_ns: 9 }),
        Item::Count(Count { event: "tlb:tlb_flush".to_owned(), exact: 9, seen: 4, kept: 3 }),
        Item::Prices(Prices {
            fault_ns: Range { least: 500.0, most: 900.5 },
            zero_ns: Range { least: 80.0, most: 400.0 },
            event_ns: [300.0, 900.0, 1500.0],
        }),
        Item::CpuTime(CpuTime {
            comm: "program".to_owned(),
            user_ns: 10_000_000,
            kernel_ns: 20_000_000,
            forked_user_ns: 5_000_000,
            shrank_pages: 12,
            faults: 0,
            processes: 2,
            peak_pages: 1 << 40,
        }),
        Item::Note("2 % overhead".into()),
    ]
}

/// Returns a recording with this many samples. Their stacks are chosen in turn from `stacks` different ones.
fn written(samples: u64, stacks: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for item in others() {
        writer.item(&item).unwrap();
    }
    for number in 0..samples {
        // For a file without symbols, the reader returns the offset in the file, wherever that was mapped.
        let place = |offset, call| Place {
            address: (7 << 40) + offset,
            kernel: false,
            call,
            pid: 17,
            module: Some(("/nowhere/program".into(), offset)),
        };
        let stack = [place(0x1000 + number % stacks, false), place(0x1000, true)];
        writer.sample(&sample(number), &stack).unwrap();
    }
    writer.finish(&mut Symbols::default()).unwrap()
}

fn read(path: &Path) -> Result<Vec<Item>, SourceError> {
    let mut recording = Recording::open(path)?;
    let mut items = Vec::new();
    while let Some(item) = recording.next()? {
        items.push(item);
    }
    Ok(items)
}

fn in_file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn samples(items: &[Item]) -> Vec<&Sample> {
    let samples = items.iter().filter_map(|item| match item {
        Item::Sample(sample) => Some(sample),
        _ => None,
    });
    samples.collect()
}

#[test]
fn what_was_written_is_read() {
    let file = in_file(&written(1000, 10));
    let items = read(file.path()).unwrap();
    for item in others() {
        assert!(items.contains(&item), "{item:?}");
    }
    let samples = samples(&items);
    assert_eq!(samples.len(), 1000);
    for (number, read) in samples.iter().enumerate() {
        let number = number as u64;
        let without_stack = Sample { stack: Arc::new([]), ..(*read).clone() };
        assert_eq!(without_stack, sample(number));
        assert_eq!(read.stack.len(), 2);
        assert_eq!(read.stack[0].address, 0x1000 + number % 10);
        assert_eq!(read.stack[0].module.as_deref(), Some("/nowhere/program"));
        assert_eq!(read.stack[0].symbol, None);
    }
    let told = items
        .iter()
        .any(|item| matches!(item, Item::Note(note) if note.contains("/nowhere/program")));
    assert!(told, "a program that is not there is named");
}

#[test]
fn more_stacks_than_are_remembered_are_read() {
    let file = in_file(&written(150_000, 150_000));
    let items = read(file.path()).unwrap();
    let samples = samples(&items);
    assert_eq!(samples.len(), 150_000);
    assert_eq!(samples[149_999].stack[0].address, 0x1000 + 149_999);
}

#[test]
fn a_recording_whose_recorder_was_killed_is_read_up_to_there() {
    let whole = written(20_000, 5_000);
    // Without a third, or only parts of the end.
    for (cut, expected) in [(whole.len() / 3, 1_000..20_000)]
        .into_iter()
        .chain([1, 8, 16, 23, 24].map(|cut| (cut, 20_000..20_001)))
    {
        let file = in_file(&whole[..whole.len() - cut]);
        assert!(!Recording::open(file.path()).unwrap().closed());
        let items = read(file.path()).unwrap_or_else(|error| panic!("{cut}: {error}"));
        let samples = samples(&items);
        assert!(expected.contains(&samples.len()), "{cut}: {}", samples.len());
        assert_eq!(samples[999].time_ns, 999_000);
        assert!(matches!(&items[0], Item::Note(note) if note.contains("closed this file")));
    }
}

#[test]
fn other_files_are_refused_by_name() {
    for (bytes, what) in [
        (&b"PERFILE2........................"[..], "not a recording"),
        (b"quell recording 9\n", "version"),
        (b"", "not a recording"),
    ] {
        let file = in_file(bytes);
        let error = read(file.path()).unwrap_err();
        assert!(error.place.contains(file.path().to_str().unwrap()));
        assert!(error.what.contains(what), "{error}");
    }
}

proptest! {
    #[test]
    fn no_file_makes_the_reader_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cut_it: bool,
    ) {
        let mut bytes = written(50, 7);
        for (at, byte) in changes {
            // We don't change the first line, so that the code behind its check is reached.
            let at = 18 + at.index(bytes.len() - 18);
            bytes[at] = byte;
        }
        if cut_it {
            bytes.truncate(18 + cut.index(bytes.len() - 18));
        }
        let file = in_file(&bytes);
        let _ = read(file.path());
    }

    #[test]
    fn a_file_that_is_cut_off_is_no_error(cut in any::<prop::sample::Index>()) {
        let bytes = written(50, 7);
        let file = in_file(&bytes[..18 + cut.index(bytes.len() - 18)]);
        prop_assert!(read(file.path()).is_ok());
    }
}
