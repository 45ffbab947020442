//! Parses text into a [`MachineFile`] or a list of mistakes with lines.

use super::machine::{KernelFile, MachineFile, PolicyFile, Value, bounds};
use super::parameter::{PARAMETERS, Parameter, Unit};
use super::{BUILT_IN, KERNELS, POLICIES};
use crate::Architecture;
use quell_workloads::files::{FileError, Item, MOST_MISTAKES, Reader, found, hint};
use toml::de::{DeTable, DeValue};

/// Reads one `{ value, unit, source, assumed }`, or reports a mistake.
fn value(
    reader: &mut Reader<'_>,
    parameter: Parameter,
    cycle: Option<f64>,
    at: &Item<'_>,
) -> Option<Value> {
    let name = parameter.name();
    let description = parameter.description();
    let here = at.span().start;
    let refuse = |reader: &mut Reader<'_>, at: usize, message: String| {
        reader.refuse(at, &name, message);
        None
    };
    let Some(table) = at.get_ref().as_table() else {
        let found = found(at.get_ref());
        let meaning = description.meaning.trim();
        let message = format!(
            "expected {{ value = …, unit = …, source = … }}, found {found}; this is: {meaning}"
        );
        return refuse(reader, here, message);
    };
    let known = ["value", "unit", "source", "assumed"];
    for (key, inner) in table {
        let word = key.get_ref().as_ref();
        if !known.contains(&word) {
            let near = hint(word, known);
            let message =
                format!("unknown key `{word}`{near}; expected value, unit, source and assumed");
            return refuse(reader, key.span().start.min(inner.span().start), message);
        }
    }
    let assumed = reader.truth(&format!("{name}.assumed"), table.get("assumed"));
    let source = match table.get("source") {
        Some(inner) => reader.text(&name, inner)?,
        None => String::new(),
    };
    if source.trim().is_empty() && !assumed {
        let message = "a value needs a `source`; a guess is marked `assumed = true`";
        return refuse(reader, here, message.into());
    }
    let Some(inner) = table.get("value") else {
        return refuse(reader, here, "`value` is missing".into());
    };
    let at = inner.span().start;
    let (low, high, in_unit) = (description.least, description.most, description.unit.of_ranges());
    if let Unit::Choice(words) = description.unit {
        let written = reader.text(&name, inner)?;
        let Some(index) = words.iter().position(|&known| known == written) else {
            let near = hint(&written, words.iter().copied());
            let message = format!("`{written}` is not one of {}{near}", words.join(", "));
            return refuse(reader, at, message);
        };
        let (amount, unit) = (index as f64, String::new());
        return Some(Value { amount, written, unit, source, assumed, from_part: false });
    }
    let Some(number) = number(inner.get_ref()) else {
        let found = found(inner.get_ref());
        let message = format!("expected a number from {low} to {high}{in_unit}, found {found}");
        return refuse(reader, at, message);
    };
    let spellings = description.unit.spellings();
    let units = spellings.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let Some(unit) = table.get("unit") else {
        return refuse(reader, at, format!("`unit` is missing: one of {units}"));
    };
    let unit = reader.text(&name, unit)?;
    let Some(&(_, factor)) = spellings.iter().find(|(name, _)| *name == unit) else {
        return refuse(reader, at, format!("unit `{unit}` is not one of {units}"));
    };
    // A wrong frequency is already reported; we still check the other values.
    let factor = if unit == "cycles" { cycle.unwrap_or(1000.0) } else { factor };
    let (amount, written) = (number * factor, number.to_string());
    let (least, most) = bounds(description);
    if !(least..=most).contains(&amount) {
        // We write all digits only if they are few.
        let written = if written.len() < 20 { written } else { found(inner.get_ref()) };
        let message = match unit.as_str() {
            "1" => format!("{written} is out of range: expected {low} to {high}"),
            unit => format!("{written} {unit} is out of range: expected {low} to {high}{in_unit}"),
        };
        return refuse(reader, at, message);
    }
    if description.unit == Unit::Count && amount.fract() != 0.0 {
        return refuse(reader, at, format!("expected a whole number, found {written}"));
    }
    Some(Value { amount, written, unit, source, assumed, from_part: false })
}

/// Returns the number of an integer or float, if it is one and finite.
fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = if let Some(integer) = value.as_integer() {
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64
    } else {
        value.as_float()?.as_str().parse().ok()?
    };
    f64::is_finite(number).then_some(number)
}

impl MachineFile {
    /// Reads a machine file, which may be based on a built-in machine.
    ///
    /// Only messages use `path`.
    ///
    /// # Errors
    /// If the text isn't TOML, or a key is unknown, missing, of the wrong type or unit, or out of range. The error
    /// contains all mistakes, with lines.
    pub fn parse(path: &str, text: &str) -> Result<Self, FileError> {
        Self::parse_on(path, text, |wanted| {
            built_in(wanted).ok_or_else(|| not_built_in("built-in machine", wanted, BUILT_IN))
        })
    }

    /// Reads a machine file that may be based on any other file.
    ///
    /// It's like [`MachineFile::parse`], but calls `base` with the name of the file on which this one is based.
    ///
    /// # Errors
    /// As [`MachineFile::parse`].
    pub fn parse_on(
        path: &str,
        text: &str,
        base: impl FnOnce(&str) -> Result<Self, String>,
    ) -> Result<Self, FileError> {
        parse(path, text, base, Kind::Machine)
    }
}

impl KernelFile {
    /// Reads a kernel file, which may be based on a built-in one.
    ///
    /// # Errors
    /// As [`MachineFile::parse`].
    pub fn parse(path: &str, text: &str) -> Result<Self, FileError> {
        Self::parse_on(path, text, |wanted| {
            built_in_kernel(wanted).ok_or_else(|| not_built_in("kernel", wanted, KERNELS))
        })
    }

    /// Reads a kernel file, which may be based on the one that `base` returns.
    ///
    /// # Errors
    /// As [`MachineFile::parse`].
    pub fn parse_on(
        path: &str,
        text: &str,
        base: impl FnOnce(&str) -> Result<Self, String>,
    ) -> Result<Self, FileError> {
        let base = |wanted: &str| base(wanted).map(|kernel| kernel.costs);
        parse(path, text, base, Kind::Kernel).map(|costs| KernelFile { costs })
    }
}

impl PolicyFile {
    /// Reads a policy file, which may be based on a built-in one.
    ///
    /// # Errors
    /// As [`MachineFile::parse`].
    pub fn parse(path: &str, text: &str) -> Result<Self, FileError> {
        let base = |wanted: &str| {
            let found = built_in_policy(wanted).map(|policy| policy.costs);
            found.ok_or_else(|| not_built_in("policy file", wanted, POLICIES))
        };
        parse(path, text, base, Kind::Policy).map(|costs| PolicyFile { costs })
    }
}

fn parse(
    path: &str,
    text: &str,
    base: impl FnOnce(&str) -> Result<MachineFile, String>,
    kind: Kind,
) -> Result<MachineFile, FileError> {
    let mut reader = Reader::new(text);
    let file = read(&mut reader, base, kind);
    reader.finish(path, file)
}

/// The policy of a machine file: the engine's mechanisms.
pub const DEFAULT_POLICY: &str = "quell";

/// Returns the built-in policy with this name, if any.
pub fn built_in_policy(name: &str) -> Option<PolicyFile> {
    let (name, text) = POLICIES.iter().find(|(known, _)| *known == name)?;
    // A test reads every built-in file.
    PolicyFile::parse(&format!("{name}.toml"), text).ok()
}

/// Returns the message about a file that isn't built in. `kind` is the kind of file, and `files` are the built-in ones.
pub fn not_built_in(kind: &str, wanted: &str, files: &[(&str, &str)]) -> String {
    let names = || files.iter().map(|(name, _)| *name);
    let known: Vec<_> = names().collect();
    format!("no {kind} `{wanted}`{}; built in are {}", hint(wanted, names()), known.join(", "))
}

/// The kernel of a machine whose file names no kernel.
pub const DEFAULT_KERNEL: &str = "quell-vm";

/// Returns the built-in kernel with this name, if any.
pub fn built_in_kernel(name: &str) -> Option<KernelFile> {
    let (name, text) = KERNELS.iter().find(|(known, _)| *known == name)?;
    // A test reads every built-in file.
    KernelFile::parse(&format!("{name}.toml"), text).ok()
}

/// Returns the built-in machine with this name, if any.
pub fn built_in(name: &str) -> Option<MachineFile> {
    let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
    // A test reads every built-in file.
    MachineFile::parse(&format!("{name}.toml"), text).ok()
}

/// The object that a file describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Machine,
    Kernel,
    Policy,
}

impl Kind {
    /// Returns whether files of this kind may set the parameter.
    fn has(self, parameter: Parameter) -> bool {
        match self {
            Kind::Machine => true,
            Kind::Kernel => parameter.of_kernel(),
            Kind::Policy => parameter.of_policy(),
        }
    }
}

/// The most missing parameters to list one by one. A file that lacks more is no complete machine.
const MISSING_NAMED: usize = 5;

fn read(
    reader: &mut Reader<'_>,
    find_base: impl FnOnce(&str) -> Result<MachineFile, String>,
    kind: Kind,
) -> Option<MachineFile> {
    let document = reader.document()?;
    let table = document.get_ref();
    let (mut name, mut title, mut based_on, mut kernel) = (None, None, None, None);
    let has = |section: &str| {
        let mut parameters = Parameter::ALL.iter().filter(|known| kind.has(**known));
        parameters.any(|known| known.description().section == section)
    };
    let mut base_assumed = false;
    for (key, value) in table {
        // Looking for the nearest name takes long, and the reader drops further mistakes.
        if reader.mistakes() == MOST_MISTAKES {
            return None;
        }
        let word = key.get_ref().as_ref();
        match word {
            "name" => name = reader.text(word, value),
            "title" => title = reader.text(word, value),
            "base_assumed" => base_assumed = reader.truth(word, Some(value)),
            "based_on" => based_on = Some((reader.text(word, value)?, value.span().start)),
            "runs" if kind == Kind::Machine => {
                let wanted = reader.text(word, value)?;
                kernel = built_in_kernel(&wanted);
                if kernel.is_none() {
                    let message = not_built_in("kernel", &wanted, KERNELS);
                    reader.refuse(value.span().start, word, message);
                }
            }
            _ if has(word) => {}
            _ => {
                let sections = PARAMETERS.iter().map(|known| known.section);
                let names = sections.filter(|section| has(section)).chain([
                    "name",
                    "title",
                    "based_on",
                    "base_assumed",
                    "runs",
                ]);
                let hint = hint(word, names);
                reader.refuse(key.span().start, word, format!("unknown key or section{hint}"));
            }
        }
    }
    // Without its base a file lacks nearly everything. If we reported that too, it would hide the cause.
    let base = match based_on.map(|(wanted, at)| (find_base(&wanted), at)) {
        None => None,
        Some((Ok(base), _)) => Some(base),
        Some((Err(message), at)) => {
            reader.refuse(at, "based_on", message);
            return None;
        }
    };
    let based = base.is_some();
    // The kernel and the policy of a machine without a base are the default ones.
    let rest = match (base, kind) {
        (Some(base), _) => base,
        (None, Kind::Machine) => MachineFile::unset()
            .with_kernel(&built_in_kernel(DEFAULT_KERNEL)?)
            .with_policy(&built_in_policy(DEFAULT_POLICY)?),
        (None, Kind::Kernel | Kind::Policy) => MachineFile::unset(),
    };
    let may_lack = |parameter: Parameter| {
        let own = match kind {
            Kind::Machine => !parameter.of_kernel() && !parameter.of_policy(),
            Kind::Kernel | Kind::Policy => kind.has(parameter),
        };
        based || !own
    };
    // We read the clock first, because other values are multiples of its period.
    let find = |parameter: Parameter| {
        let description = parameter.description();
        table
            .get(description.section)
            .and_then(|section| section.get_ref().as_table())
            .and_then(|section| section.get(description.key))
    };
    let before = reader.mistakes();
    let clock = match find(Parameter::Frequency).filter(|_| kind == Kind::Machine) {
        Some(at) => value(reader, Parameter::Frequency, None, at),
        None => may_lack(Parameter::Frequency).then(|| rest.value(Parameter::Frequency).clone()),
    };
    let cycle = clock.map(|clock| 1000.0 / clock.amount);
    if cycle.is_none() && find(Parameter::Frequency).is_some() {
        // The loop below reports it again.
        reader.forget_after(before);
    }
    check_keys(reader, table);
    let mut values = Vec::with_capacity(PARAMETERS.len());
    let mut missing = Vec::new();
    for &parameter in Parameter::ALL {
        match find(parameter) {
            Some(at) => values.extend(value(reader, parameter, cycle, at)),
            None if may_lack(parameter) => {
                values.push(inherited(&rest, parameter, cycle, based && base_assumed));
            }
            None => missing.push(parameter),
        }
    }
    refuse_missing(reader, &missing);
    if name.is_none() {
        reader.missing("name", "the machine's short name");
    }
    let complete = values.len() == PARAMETERS.len();
    let file = MachineFile {
        title: title.or_else(|| name.clone()).unwrap_or_default(),
        name: name?,
        policy: rest.policy,
        kernel: rest.kernel,
        values,
    };
    if !complete {
        return None;
    }
    if kind == Kind::Machine {
        check_together(reader, &file);
    }
    Some(match kernel {
        Some(kernel) => file.with_kernel(&kernel),
        None => file,
    })
}

/// Refuses a file that lacks parameters.
fn refuse_missing(reader: &mut Reader<'_>, missing: &[Parameter]) {
    if missing.len() > MISSING_NAMED {
        let message = format!(
            "{} of {} parameters are missing, {} first: write `based_on = \"{}\"`, or another name, above \
             the first section to take them from there",
            missing.len(),
            PARAMETERS.len(),
            missing[0].name(),
            if missing.iter().all(|parameter| parameter.of_kernel()) {
                DEFAULT_KERNEL
            } else {
                BUILT_IN[0].0
            },
        );
        return reader.refuse_line(0, "", message);
    }
    for parameter in missing {
        reader.missing(&parameter.name(), parameter.description().meaning.trim());
    }
}

/// Returns a value of the machine on which a file is based; cycles follow the file's own clock.
fn inherited(base: &MachineFile, parameter: Parameter, cycle: Option<f64>, assumed: bool) -> Value {
    let mut value = base.value(parameter).clone();
    if assumed && !value.assumed {
        value.assumed = true;
        value.source = format!("as on {}: {}", base.name(), value.source);
    }
    match cycle {
        Some(cycle) => value.on_clock(cycle),
        None => value,
    }
}

/// Refuses sections that aren't tables, and unknown keys.
fn check_keys(reader: &mut Reader<'_>, table: &DeTable<'_>) {
    for (section, content) in table {
        let section = section.get_ref().as_ref();
        let known = || PARAMETERS.iter().filter(|known| known.section == section);
        if known().next().is_none() {
            continue;
        }
        let Some(keys) = content.get_ref().as_table() else {
            reader.refuse(content.span().start, section, "expected a section");
            continue;
        };
        for (key, _) in keys {
            if reader.mistakes() == MOST_MISTAKES {
                return;
            }
            let word = key.get_ref().as_ref();
            if Parameter::find(section, word).is_none() {
                let hint = hint(word, known().map(|known| known.key));
                let name = format!("{section}.{word}");
                reader.refuse(key.span().start, &name, format!("unknown parameter{hint}"));
            }
        }
    }
}

/// Checks values together: geometries that don't divide, tags of the wrong architecture, loops of instructions that the
/// processor lacks.
fn check_together(reader: &mut Reader<'_>, file: &MachineFile) {
    use Parameter as P;
    let mut wrong = |parameter: P, message: String| {
        reader.refuse_line(0, &parameter.name(), message);
    };
    for (entries, ways) in [
        (P::L1Base, P::L1BaseWays),
        (P::L1Large, P::L1LargeWays),
        (P::L1Huge, P::L1HugeWays),
        (P::L2, P::L2Ways),
        (P::L2Huge, P::L2HugeWays),
    ] {
        let (count, way) = (file.count(entries), file.count(ways));
        if count > 0 && (way == 0 || count % way != 0) {
            wrong(ways, format!("{count} entries do not divide into {way} ways"));
        }
    }
    let tags = file.choice(P::Tags);
    if !file.architecture().has_tags(tags) {
        wrong(P::Tags, format!("`{tags}` does not exist on {}", file.choice(P::Architecture)));
    }
    let x86 = file.architecture() == Architecture::X86_64;
    if file.choice(P::ZeroLoop) == "clzero" && (!x86 || file.amount(P::ClzeroRate) == 0.0) {
        let why = match x86 {
            true => "this processor does not have `clzero`: zero.clzero_rate is 0".into(),
            false => format!("`clzero` does not exist on {}", file.choice(P::Architecture)),
        };
        wrong(P::ZeroLoop, why);
    }
    if file.amount(P::InterruptDelivery) < 1.0 {
        wrong(P::InterruptDelivery, "must not be zero".into());
    }
    if !file.count(P::CpusPerSocket).is_multiple_of(file.count(P::CpusPerCore)) {
        wrong(P::CpusPerSocket, "is not a multiple of cpu.cpus_per_core".into());
    }
    if file.count(P::Nodes) + file.count(P::SlowNodes) > 8 {
        wrong(P::SlowNodes, "more than 8 memory nodes in all".into());
    }
}
