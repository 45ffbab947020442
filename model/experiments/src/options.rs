//! Arguments that several subcommands share: a workload with its parameters, and a machine.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use quell::{Mechanism, Policy};
use quell_clock::{KernelFile, MachineFile};
use quell_workloads::Workload;
use quell_workloads::files::found;
use toml::de::DeTable;

use crate::policies::PolicyChoice;
use crate::usage::usage;
use crate::{kernels, machines, policies, workloads};

/// A parser that accepts any text. Completions suggest the names that the function returns.
#[derive(Clone)]
pub struct SuggestedNames(pub fn() -> Vec<&'static str>);

impl TypedValueParser for SuggestedNames {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

/// Suggests the built-in workloads.
pub const WORKLOADS: SuggestedNames = SuggestedNames(workloads::names);

/// Suggests the built-in machines.
pub const MACHINES: SuggestedNames = SuggestedNames(|| machines::names().collect());

/// Suggests the built-in kernels.
pub const KERNELS: SuggestedNames = SuggestedNames(|| kernels::names().collect());

/// The kernel whose path costs we use.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// Use the path costs of this kernel: a built-in one (`quell list kernels`) or the path of a kernel file [default:
    /// the machine's own, or a held-out table's]
    #[arg(long, value_name = "NAME|FILE", value_parser = KERNELS, hide_possible_values = true)]
    kernel: Option<String>,
}

impl KernelArgs {
    /// Returns the chosen kernel, or `None` if none was chosen.
    ///
    /// # Errors
    /// If no kernel has this name, or its file is wrong.
    pub fn resolve(&self) -> Result<Option<KernelFile>> {
        let kernel = self.kernel.as_deref().map(kernels::find);
        kernel.transpose().map_err(usage)
    }

    /// Returns this machine with the chosen kernel, if one was chosen.
    pub(crate) fn on(&self, machine: MachineFile) -> Result<MachineFile> {
        Ok(match self.resolve()? {
            Some(kernel) => machine.with_kernel(&kernel),
            None => machine,
        })
    }
}

/// Returns a parser for policies, which suggests the baseline, everything, and each mechanism alone.
pub fn policy() -> impl TypedValueParser<Value = Policy> {
    let names = || {
        let alone = Mechanism::ALL.map(|mechanism| mechanism.name());
        policies::WHOLE.into_iter().chain(alone).collect()
    };
    SuggestedNames(names).try_map(|text| policies::mechanisms(&text))
}

/// Returns a parser for policies that simulated machines may run: also policy files.
pub fn policy_or_file() -> impl TypedValueParser<Value = PolicyChoice> {
    let names = || policies::WHOLE.into_iter().chain(policies::names()).collect();
    SuggestedNames(names).try_map(|text| policies::find(&text))
}

/// A workload and its parameters.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// A built-in workload (`quell list workloads`) or the path of a workload file (docs/workloads.md)
    #[arg(value_parser = WORKLOADS, hide_possible_values = true)]
    workload: String,
    /// Set a parameter of the workload, for example `--param pages=512`; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    /// Read parameters from a TOML file of lines like `size = "64M"`; --param overrides it
    #[arg(long = "params", value_name = "FILE")]
    file: Option<PathBuf>,
}

/// A machine and the changes to it.
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Use a built-in machine (`quell list machines`) or the path of a machine file
    #[arg(long, default_value = "haswell-server", value_parser = MACHINES, hide_possible_values = true)]
    machine: String,
    #[command(flatten)]
    kernel: KernelArgs,
    /// Set a parameter of the machine (`quell list parameters`), for example `--set interrupt.send=900ns`; may be
    /// repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl MachineArgs {
    /// Returns the chosen machine.
    ///
    /// # Errors
    /// If no machine has this name, its file is wrong, or a value of `--set` doesn't fit.
    pub fn resolve(&self) -> Result<MachineFile> {
        let machine = self.kernel.on(machines::find(&self.machine).map_err(usage)?)?;
        machine.with_text("--set", &self.set).map_err(usage)
    }
}

impl WorkloadArgs {
    /// Returns the chosen workload.
    ///
    /// # Errors
    /// If no workload has this name, or a parameter is wrong.
    pub fn resolve(&self) -> Result<Workload> {
        let mut workload = workloads::find(&self.workload).map_err(usage)?;
        if let Some(path) = &self.file {
            read(&mut workload, path)?;
        }
        for pair in &self.parameters {
            workload.set(pair).map_err(|wrong| usage(format_args!("--param {pair}: {wrong}")))?;
        }
        Ok(workload)
    }
}

/// Sets the parameters that a file contains.
fn read(workload: &mut Workload, path: &Path) -> Result<()> {
    let shown = path.display();
    let text = machines::read(path).map_err(|error| usage(format_args!("{shown}: {error}")))?;
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let table = DeTable::parse(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        usage(format_args!("{shown}:{}: not TOML: {}", line(at), error.message()))
    })?;
    for (key, value) in table.get_ref() {
        let at = line(key.span().start);
        let content = value.get_ref();
        let written = if let Some(integer) = content.as_integer() {
            integer.as_str().to_owned()
        } else if let Some(text) = content.as_str() {
            text.to_owned()
        } else if let Some(switch) = content.as_bool() {
            if switch { "yes" } else { "no" }.to_owned()
        } else {
            return Err(usage(format_args!(
                "{shown}:{at}: {}: expected a whole number, a text like \"64M\", true or false; found {}",
                key.get_ref(),
                found(content)
            )));
        };
        workload
            .set(&format!("{}={written}", key.get_ref()))
            .map_err(|wrong| usage(format_args!("{shown}:{at}: {wrong}")))?;
    }
    Ok(())
}

/// Numbers of CPUs in ascending order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuNumbers(pub Vec<usize>);

/// Reads numbers of CPUs of which a single one, such as `24`, means the powers of two up to it. `1,2,24` means exactly
/// these.
///
/// # Errors
/// A message with the expected form or range.
pub fn cpus_up_to(text: &str) -> Result<CpuNumbers, String> {
    Ok(match &listed_cpus(text)?.0[..] {
        &[most] => CpuNumbers((0..=10).map(|power| 1 << power).filter(|&n| n <= most).collect()),
        listed => CpuNumbers(listed.to_vec()),
    })
}

/// Reads a list of numbers of CPUs. For example, `4..64` is 4 and each doubling of it up to 64.
///
/// # Errors
/// A message with the expected form or range.
pub fn listed_cpus(text: &str) -> Result<CpuNumbers, String> {
    let number = |text: &str| {
        let number: usize =
            text.trim().parse().map_err(|_| "expected numbers like 1,2,24 or 1..64")?;
        match number {
            1..=1024 => Ok(number),
            _ => Err(format!("{number} is not from 1 to 1024")),
        }
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once("..") {
            None => (number(part)?, number(part)?),
            Some((first, last)) => (number(first)?, number(last)?),
        };
        if first > last {
            return Err(format!("the first number of {part} is above the last"));
        }
        let doubled = std::iter::successors(Some(first), |cpus| Some(2 * cpus));
        cpus.extend(doubled.take_while(|&cpus| cpus <= last));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(CpuNumbers(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_a_limit_and_several_are_themselves() {
        let cpus = |text: &str| cpus_up_to(text).map(|CpuNumbers(cpus)| cpus);
        assert_eq!(cpus("24"), Ok(vec![1, 2, 4, 8, 16]));
        assert_eq!(cpus("24,1,24"), Ok(vec![1, 24]));
        assert_eq!(cpus("4..20,1"), Ok(vec![1, 4, 8, 16]));
        assert!(cpus("8..4").unwrap_err().contains("above the last"));
        assert!(cpus("1..").unwrap_err().contains("1..64"));
        assert!(cpus("0,1").unwrap_err().contains("1 to 1024"));
        assert!(cpus("5000").unwrap_err().contains("1024"));
        assert!(cpus("a").is_err() && cpus("1,,2").is_err() && cpus("").is_err());
    }
}
