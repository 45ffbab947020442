//! Built-in machine files are complete; wrong files are refused with line and key.

use proptest::prelude::*;
use quell_clock::file::{BUILT_IN, KERNELS, PARAMETERS, Unit, built_in_kernel};
use quell_clock::{KernelFile, MachineFile, Parameter, built_in};

fn haswell() -> &'static str {
    BUILT_IN[0].1
}

/// Returns the messages of a refused file.
fn refusal(text: &str) -> String {
    MachineFile::parse("mine.toml", text).expect_err("must be refused").to_string()
}

/// Returns the Haswell file with one line replaced.
fn with_line(starts: &str, line: &str) -> String {
    let mut found = 0;
    let lines: Vec<_> = haswell()
        .lines()
        .map(|old| {
            if old.starts_with(starts) {
                found += 1;
                line
            } else {
                old
            }
        })
        .collect();
    assert!(found > 0, "{starts}");
    lines.join("\n")
}

fn line_of(text: &str, starts: &str) -> usize {
    1 + text.lines().position(|line| line.starts_with(starts)).expect("there")
}

#[test]
fn built_in_files_are_whole_and_name_their_sources() {
    for (name, text) in BUILT_IN {
        let file = MachineFile::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(file.name(), *name);
        for &parameter in Parameter::ALL {
            let value = file.value(parameter);
            assert!(!value.source.trim().is_empty(), "{name}: {}", parameter.name());
        }
        assert!(built_in(name).is_some());
    }
    assert!(built_in("pdp-11").is_none());
}

#[test]
fn every_file_of_the_folder_is_built_in() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/machines");
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("a file").path();
        let name = path.file_stem().and_then(|stem| stem.to_str());
        assert!(
            BUILT_IN.iter().any(|(known, _)| Some(*known) == name),
            "{} needs a line in src/file.rs",
            path.display()
        );
    }
}

#[test]
fn parameters_are_described_once() {
    for (index, &parameter) in Parameter::ALL.iter().enumerate() {
        let description = parameter.description();
        assert!(std::ptr::eq(description, &PARAMETERS[index]));
        assert_eq!(Parameter::from_name(&parameter.name()), Some(parameter));
        assert!(description.meaning.trim().ends_with('.'), "{}", parameter.name());
        if !matches!(description.unit, Unit::Choice(_)) {
            assert!(description.least < description.most, "{}", parameter.name());
        }
    }
    assert_eq!(Parameter::from_name("cpu"), None);
}

#[test]
fn units_are_converted() {
    let text = with_line("exit =", r#"exit = { value = 2.5, unit = "us", source = "x" }"#);
    let file = MachineFile::parse("mine.toml", &text).expect("right");
    assert_eq!(file.time(Parameter::InterruptExit), 2_500_000);
    // 298 cycles of 2.5 GHz.
    assert_eq!(file.time(Parameter::InterruptSend), 119_200);
    assert_eq!(file.count(Parameter::L1Size), 32 << 10);
    assert_eq!(file.choice(Parameter::Architecture), "x86-64");
}

#[test]
fn a_file_may_name_only_what_differs() {
    let text = "name = \"mine\"\nbased_on = \"haswell-server\"\n\
                [cpu]\nfrequency = { value = 5, unit = \"GHz\", source = \"x\" }\n";
    let file = MachineFile::parse("mine.toml", text).expect("right");
    let base = built_in("haswell-server").expect("built in");
    assert_eq!(file.name(), "mine");
    // Cycles follow the clock, nanoseconds don't.
    assert_eq!(file.time(Parameter::InterruptSend), 59_600);
    assert_eq!(file.time(Parameter::LlcHit), base.time(Parameter::LlcHit));
    assert!(refusal("name = \"mine\"\nbased_on = \"pdp-11\"\n").contains("haswell-server"));
    // A guest isn't bare metal, whatever its base is.
    let unlike = text.replacen("\n[", "\nbase_assumed = true\n[", 1);
    let unlike = MachineFile::parse("mine.toml", &unlike).unwrap();
    let taken = unlike.value(Parameter::GuestDelivery);
    assert_eq!(taken.source, "as on haswell-server: bare metal");
    assert!(
        taken.assumed
            && unlike.assumed().count() > built_in("haswell-server").unwrap().assumed().count()
    );
}

#[test]
fn mistakes_are_named_with_line_and_key() {
    let cases = [
        ("sent = { value = 1, unit = \"ns\", source = \"x\" }", "did you mean `send`?"),
        ("send = 5", "expected { value"),
        ("send = { value = 1, source = \"x\" }", "`unit` is missing"),
        ("send = { value = 1, unit = \"KB\", source = \"x\" }", "cycles, ns, us"),
        ("send = { unit = \"ns\", source = \"x\" }", "`value` is missing"),
        ("send = { value = \"a\", unit = \"ns\", source = \"x\" }", "expected a number"),
        ("send = { value = 0, unit = \"ns\", source = \"x\" }", "out of range"),
        ("send = { value = nan, unit = \"ns\", source = \"x\" }", "expected a number"),
        ("send = { value = 1, unit = \"ns\" }", "needs a `source`"),
        ("send = { value = 1, unit = \"ns\", assumed = 1, source = \"x\" }", "true or false"),
        ("send = { value = 1, unit = \"ns\", sauce = \"x\" }", "unknown key `sauce`"),
        ("cluster = { value = 1.5, unit = \"CPUs\", source = \"x\" }", "whole number"),
        ("tags = { value = \"pcids\", source = \"x\" }", "none, pcid, asid8, asid16"),
        ("[interrupts]", "did you mean `interrupt`?"),
    ];
    for (line, expected) in cases {
        let starts = match line.split_whitespace().next().expect("a word") {
            "sent" => "send =",
            "[interrupts]" => "[interrupt]",
            key => &format!("{key} ="),
        };
        let text = with_line(starts, line);
        let key = line.split_whitespace().next().expect("a word");
        let place = format!("mine.toml:{}: ", line_of(&text, key));
        let message = refusal(&text);
        let told = message.lines().any(|told| told.starts_with(&place) && told.contains(expected));
        assert!(told, "{line}\nexpected {place}… {expected}, got:\n{message}");
    }
}

#[test]
fn several_mistakes_are_told_at_once_and_nothing_is_told_twice() {
    let text =
        with_line("frequency =", "frequency = { value = 2.5, unit = \"Hz\", source = \"x\" }");
    let text = text.replace("[zero]", "[zero]\nstar = 1");
    let message = refusal(&text);
    assert_eq!(message.lines().count(), 2, "{message}");
    assert!(message.contains("cpu.frequency") && message.contains("zero.star"));
    let missing = with_line("send =", "");
    let message = refusal(&missing);
    assert!(message.contains("interrupt.send: missing"), "{message}");
}

#[test]
fn what_is_not_toml_is_refused_where_it_breaks() {
    assert!(refusal("name = \"a\"\n[cpu\n").starts_with("mine.toml:2: not TOML"));
}

#[test]
fn amounts_can_be_moved_within_their_range() {
    let file = built_in("haswell-server").expect("built in");
    let half = file.scaled(Parameter::InterruptSend, 0.5);
    assert_eq!(half.time(Parameter::InterruptSend), file.time(Parameter::InterruptSend) / 2);
    assert_eq!(file.scaled(Parameter::Tags, 0.5), file, "choices stay");
    assert!(file.with(Parameter::Cpus, 4096.0).is_err());
    assert_eq!(file.with(Parameter::Cpus, 8.0).expect("in range").count(Parameter::Cpus), 8);
    assert!(file.assumed().count() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = MachineFile::parse("any", &text);
    }

    #[test]
    fn no_change_of_a_right_file_makes_the_parser_panic(
        at in 0..haswell().len(),
        cut in 0..40usize,
        insert in "[-a-z0-9.=\"{}\\[\\],\n #_e]{0,12}",
    ) {
        let bytes = haswell().as_bytes();
        let end = (at + cut).min(bytes.len());
        let mut changed = bytes[..at].to_vec();
        changed.extend_from_slice(insert.as_bytes());
        changed.extend_from_slice(&bytes[end..]);
        let text = String::from_utf8_lossy(&changed);
        if let Err(error) = MachineFile::parse("any", &text) {
            prop_assert!(!error.mistakes.is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn a_file_that_lacks_nearly_everything_is_told_what_to_begin_with() {
    let message =
        refusal("name = \"mine\"\n[cpu]\ncpus = { value = 4, unit = \"CPUs\", source = \"x\" }\n");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("based_on = \"haswell-server\""), "{message}");
    let message = refusal("name = \"mine\"\nbased_on = \"hasswell\"\n");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(
        message.starts_with("mine.toml:2: based_on: no built-in machine `hasswell`"),
        "{message}"
    );
}

#[test]
fn parameters_are_set_as_text() {
    let machine = built_in("haswell-server").expect("a machine");
    let set = |texts: &[&str]| machine.with_text("--set", texts).map_err(|e| e.to_string());
    let changed = set(&[
        "interrupt.send=1us",
        "cpu.cpus = 72",
        "tlb.l2=1000",
        "tlb.l2_ways=10 ways",
        "tlb.tags=none",
        "interrupt.send=900ns",
    ])
    .expect("values that fit");
    assert_eq!(changed.time(Parameter::InterruptSend), 900_000);
    assert_eq!(changed.count(Parameter::Cpus), 72);
    assert_eq!(changed.choice(Parameter::Tags), "none");
    assert_eq!(changed.name(), machine.name());
    assert_eq!(changed.time(Parameter::InterruptExit), machine.time(Parameter::InterruptExit));
    let eight = set(&["memory.nodes=8"]).expect("as many as there may be in all");
    assert_eq!(eight.count(Parameter::Nodes), 8);
    // A faster clock shortens times given in cycles.
    let faster = set(&["cpu.frequency=5GHz"]).expect("a frequency");
    assert!(faster.time(Parameter::Pause) < machine.time(Parameter::Pause));
    for (text, expected) in [
        ("interrupt.send", "expected SECTION.KEY=VALUE"),
        ("send=4ns", "no parameter `send`"),
        ("interrupt.sent=4ns", "did you mean `interrupt.send`?"),
        ("interrupt.send=900", "the unit is missing: one of cycles, ns, us"),
        ("interrupt.send=ns", "expected a number and its unit"),
        ("interrupt.send=4 hours", "unit `hours` is not one of"),
        ("interrupt.send=4\"ns", "expected SECTION.KEY=VALUE"),
        ("interrupt.send=9e99ns", "out of range"),
        ("interrupt.send=-4ns", "out of range"),
        ("memory.nodes=9", "memory.nodes: 9 is out of range: expected 1 to 8"),
        ("cpu.cpus=1.5", "expected a whole number"),
        ("tlb.tags=many", "`many` is not one of"),
        ("tlb.tags=asid16", "does not exist on x86-64"),
        ("zero.loop=clzero", "this processor does not have"),
        ("tlb.l2_ways=7", "do not divide"),
    ] {
        let message = set(&[text]).expect_err(text);
        assert!(message.starts_with("--set: "), "{message}");
        assert!(message.contains(expected), "{text}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let arm = built_in("kunpeng-920").expect("built in");
    let texts = ["zero.clzero_rate=30GB/s", "zero.loop=clzero"];
    let message = arm.with_text("--set", &texts).expect_err("refused").to_string();
    assert!(message.contains("`clzero` does not exist on aarch64"), "{message}");
}

/// Checks that a machine written to a file needs no other file, whatever its base is.
#[test]
fn a_machine_that_is_written_is_read_as_the_same() {
    let mine = "name = \"mine\"\ntitle = \"\"\"a \"quoted\" \u{ad}\nline\"\"\"\nbased_on = \"milan\"\n\
                [cpu]\nfrequency = { value = 3.3, unit = \"GHz\", source = \"'mine'\" }\n\
                [interrupt]\nsend = { value = 0.7, unit = \"us\", assumed = true }";
    let mine = MachineFile::parse("mine.toml", mine).unwrap();
    let set = ["cpu.frequency=2.9GHz", "interrupt.exit=37ns", "tlb.replacement=lru"];
    let moved = mine.with(Parameter::InterruptEntry, 123_456.0).unwrap();
    let mut machines: Vec<_> = BUILT_IN.iter().map(|(name, _)| built_in(name).unwrap()).collect();
    machines.extend([mine.with_text("set", &set).unwrap(), mine]);
    for machine in machines {
        let text = machine.to_toml();
        assert_eq!(MachineFile::parse("w.toml", &text), Ok(machine), "{text}");
    }
    // Amounts set by number are written in a file's unit.
    let text = moved.to_toml();
    assert!(text.contains("entry = { value = 123.456, unit = \"ns\""), "{text}");
    let read = MachineFile::parse("w.toml", &text).unwrap();
    assert_eq!(read.time(Parameter::InterruptEntry), 123_456);
}

fn kernel(text: &str) -> Result<KernelFile, String> {
    KernelFile::parse("mine.toml", text).map_err(|error| error.to_string())
}

#[test]
fn every_built_in_kernel_can_be_read_and_names_its_sources() {
    for (name, _) in KERNELS {
        let kernel = built_in_kernel(name).unwrap_or_else(|| panic!("{name} is wrong"));
        assert_eq!(kernel.name(), *name);
        for parameter in KernelFile::parameters() {
            assert!(!kernel.value(parameter).source.is_empty(), "{name}: {}", parameter.name());
        }
    }
}

#[test]
fn a_kernel_replaces_what_no_machine_file_sets() {
    let mine = "name = \"mine\"\nbased_on = \"quell-vm\"\n[kernel]\n\
                unmap = { value = 500, unit = \"cycles\", source = \"x\" }\n\
                device_read = { value = 7, unit = \"us\", source = \"x\" }\n";
    let mine = kernel(mine).unwrap();
    let machine = "name = \"m\"\nbased_on = \"haswell-server\"\n\
                   [cpu]\nfrequency = { value = 2, unit = \"GHz\", source = \"x\" }\n\
                   [kernel]\ndevice_read = { value = 0, unit = \"ns\", source = \"x\" }\n";
    let machine = MachineFile::parse("m.toml", machine).unwrap();
    assert_eq!(machine.kernel(), "linux-5.1");
    let machine = machine.with_kernel(&mine);
    assert_eq!(machine.kernel(), "mine");
    assert_eq!(machine.time(Parameter::UnmapCall), 250_000, "500 cycles of 2 GHz");
    assert_eq!(machine.time(Parameter::DeviceRead), 0, "the machine's own");
    assert_eq!(
        machine.time(Parameter::SystemCall),
        60_000,
        "of quell-vm, not of the kernel before"
    );
}

#[test]
fn a_mistake_in_a_kernel_file_is_named_with_its_line() {
    for (text, expected) in [
        ("name = \"k\"\n[kernel]\n", "based_on = \"quell-vm\""),
        (
            "name = \"k\"\nbased_on = \"linux-6.81\"\n",
            "mine.toml:2: based_on: no kernel `linux-6.81`; did you mean",
        ),
        (
            "name = \"k\"\nbased_on = \"quell-vm\"\n[tlb]\nl2 = 3\n",
            "mine.toml:3: tlb: unknown key or section",
        ),
        (
            "name = \"k\"\nbased_on = \"quell-vm\"\n[kernel]\nunmop = { value = 1, unit = \"ns\", source = \"x\" }\n",
            "mine.toml:4: kernel.unmop: unknown parameter; did you mean",
        ),
        (
            "name = \"k\"\nbased_on = \"quell-vm\"\n[lock]\nlists_hold = { value = -1, unit = \"ns\", source = \"x\" }\n",
            "mine.toml:4: lock.lists_hold: -1 ns is out of range",
        ),
        (
            "name = \"k\"\nbased_on = \"quell-vm\"\n[kernel]\nzap = { value = 1, unit = \"ns\" }\n",
            "mine.toml:4: kernel.zap: a value needs a `source`",
        ),
    ] {
        let message = kernel(text).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
    let machine = MachineFile::parse("m.toml", "name = \"m\"\nruns = \"windows\"\n").unwrap_err();
    assert!(machine.to_string().contains("m.toml:2: runs: no kernel `windows`"), "{machine}");
}
