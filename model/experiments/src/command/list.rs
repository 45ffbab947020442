//! `quell list`: prints workloads, machines, kernels, policies and the meaning of each parameter.

use anyhow::Result;
use clap::{Args, ValueEnum};
use quell_clock::file::{PARAMETERS, Parameter, Unit, built_in_kernel, built_in_policy};
use quell_clock::{KernelFile, MachineFile, PolicyFile, built_in};
use quell_conformance::policy_text::TERMS;
use quell_workloads::Workload;
use serde_json::{Map, Value, json};

use crate::command::reproduce::short;
use crate::output::{self, paragraph, say};
use crate::table::{Table, number, words};
use crate::usage::usage;
use crate::{kernels, machines, policies};

/// The arguments of `quell list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// List only these [default: everything except the values of machines]
    #[arg(value_enum, value_name = "TOPIC")]
    what: Option<ListTopic>,
    /// With `parameters`: show the values of this machine, with their sources
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Print one JSON object with a key for each list
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ListTopic {
    /// Workloads and their parameters
    Workloads,
    /// Built-in machines
    Machines,
    /// Built-in kernels: costs of their own code
    Kernels,
    /// The language of policies
    Policies,
    /// Parameters of machine files; with --machine also their values and sources
    Parameters,
}

impl ListTopic {
    /// Returns the key in JSON: the word for the command line.
    fn key(self) -> String {
        let word = self.to_possible_value();
        word.map_or_else(String::new, |word| word.get_name().to_owned())
    }

    /// Returns the list as JSON. Parameters have their values, too, if there is a machine.
    fn document(self, machine: Option<&MachineFile>) -> Value {
        match self {
            ListTopic::Workloads => Workload::all()
                .iter()
                .map(|workload| {
                    let parameters: Vec<Value> = workload
                        .parameters()
                        .iter()
                        .map(|parameter| {
                            let show = |value| parameter.unit.show(value);
                            json!({
                                "name": parameter.name, "meaning": parameter.meaning.trim(),
                                "default": show(parameter.default),
                                "least": show(parameter.least), "most": show(parameter.most),
                            })
                        })
                        .collect();
                    json!({
                        "name": workload.name(), "mechanism": workload.mechanism().name(),
                        "title": workload.title(), "parameters": parameters,
                    })
                })
                .collect(),
            ListTopic::Machines => machines::names()
                .filter_map(built_in)
                .map(|machine| {
                    json!({
                        "name": machine.name(), "title": machine.title(),
                        "cpus": machine.count(Parameter::Cpus),
                        "assumed": machine.assumed().count(),
                        "parameters": Parameter::ALL.len(),
                    })
                })
                .collect(),
            ListTopic::Kernels => kernels::names()
                .filter_map(built_in_kernel)
                .map(|kernel| {
                    json!({
                        "name": kernel.name(), "title": kernel.title(),
                        "assumed": guessed(&kernel),
                        "parameters": KernelFile::parameters().count(),
                    })
                })
                .collect(),
            ListTopic::Policies => {
                let terms =
                    TERMS.iter().map(|(term, meaning)| json!({ "term": term, "meaning": meaning }));
                let files = policies::names()
                    .filter_map(built_in_policy)
                    .map(|policy| json!({ "file": policy.name(), "meaning": policy.title(), "contract": exceptions(&policy) }));
                terms.chain(files).collect()
            }
            ListTopic::Parameters => Parameter::ALL
                .iter()
                .map(|&parameter| {
                    let description = parameter.description();
                    let mut entry = json!({
                        "name": parameter.name(), "meaning": description.meaning.trim(),
                    });
                    if let Some(machine) = machine {
                        let value = machine.value(parameter);
                        entry["value"] = json!(value.written);
                        entry["unit"] = json!(value.unit);
                        entry["assumed"] = json!(value.assumed);
                        entry["source"] = json!(value.source);
                    }
                    entry
                })
                .collect(),
        }
    }

    /// Prints the list. With a machine, prints the values of its parameters.
    fn print(self, machine: Option<&MachineFile>) {
        match (self, machine) {
            (ListTopic::Workloads, _) => {
                say!("WORKLOADS (quell run WORKLOAD --param name=value)\n");
                for workload in Workload::all() {
                    paragraph(format_args!(
                        "{} ({}): {}",
                        workload.name(),
                        short(workload.mechanism()),
                        workload.title()
                    ));
                    say!("{}\n", workload_table(&workload));
                }
            }
            (ListTopic::Machines, _) => {
                say!("MACHINES (--machine NAME, or --machine FILE for one of your own)\n");
                say!("{}\n", machine_table());
                paragraph(
                    "To base a file of your own on one of these, write based_on = \"NAME\" and only the values that differ.",
                );
                paragraph(
                    "quell list parameters --machine NAME shows every value with its source.\n",
                );
            }
            (ListTopic::Kernels, _) => {
                say!("KERNELS (--kernel NAME, or --kernel FILE for one of your own)\n");
                say!("{}\n", kernel_table());
                paragraph("quell measure paths writes the file of the kernel that runs here.\n");
            }
            (ListTopic::Policies, _) => {
                say!("POLICIES (--policy S0+S4, --policy all-S3,cap=8M)\n");
                say!("{}\n", policy_table());
                say!(
                    "PROTOCOLS OF OTHER SYSTEMS (--policy NAME, or --policy FILE.toml for one of your own)\n"
                );
                say!("{}\n", protocol_table());
                paragraph(
                    "lost: the policy gives this clause of the contract up, and the oracle only counts. needs: it keeps it if …\n",
                );
            }
            (ListTopic::Parameters, Some(machine)) => {
                say!("{} ({})\n", machine.title(), machine.name());
                say!("{}", value_table(machine));
            }
            (ListTopic::Parameters, None) => {
                paragraph(
                    "PARAMETERS OF MACHINE FILES ([section] key = { value, unit, source, assumed })\n",
                );
                say!("{}", parameter_table());
            }
        }
    }
}

/// Prints the lists.
///
/// # Errors
/// If the chosen machine doesn't exist.
pub fn run(args: &ListArgs) -> Result<()> {
    let asked = args.what.unwrap_or(ListTopic::Parameters) == ListTopic::Parameters;
    if let (Some(machine), false) = (&args.machine, asked) {
        return Err(usage(format_args!(
            "--machine {machine}: only `quell list parameters` shows values of a machine"
        )));
    }
    let machine = args.machine.as_deref().map(machines::find).transpose().map_err(usage)?;
    // A machine has values for parameters alone.
    let wanted = ListTopic::value_variants().iter().copied().filter(|&topic| match machine {
        Some(_) => topic == ListTopic::Parameters,
        None => args.what.is_none_or(|what| what == topic),
    });
    if args.json {
        let document: Map<String, Value> =
            wanted.map(|topic| (topic.key(), topic.document(machine.as_ref()))).collect();
        return output::document(&document);
    }
    wanted.for_each(|topic| topic.print(machine.as_ref()));
    Ok(())
}

/// Returns a table of a workload's parameters.
pub fn workload_table(workload: &Workload) -> Table {
    Table::of(workload.parameters())
        .column(words("parameter"), |known| known.name)
        .column(number("default"), |known| known.unit.show(known.default))
        .column(words("range"), |known| {
            format!("{} to {}", known.unit.show(known.least), known.unit.show(known.most))
        })
        .column(words("meaning"), |known| known.meaning.trim())
        .done()
}

/// Returns a table of the built-in machines.
pub fn machine_table() -> Table {
    Table::of(&machines::names().filter_map(built_in).collect::<Vec<_>>())
        .column(words("name"), MachineFile::name)
        .column(words("machine"), MachineFile::title)
        .column(number("CPUs"), |machine| machine.count(Parameter::Cpus).to_string())
        .column(number("guessed values"), |machine| {
            format!("{} of {}", machine.assumed().count(), Parameter::ALL.len())
        })
        .done()
}

/// Counts the guessed values of a kernel.
fn guessed(kernel: &KernelFile) -> usize {
    let assumed = |parameter: &Parameter| kernel.value(*parameter).assumed;
    KernelFile::parameters().filter(assumed).count()
}

/// Returns a table of the built-in kernels.
pub fn kernel_table() -> Table {
    Table::of(&kernels::names().filter_map(built_in_kernel).collect::<Vec<_>>())
        .column(words("name"), KernelFile::name)
        .column(words("kernel"), KernelFile::title)
        .column(number("guessed values"), |kernel| {
            format!("{} of {}", guessed(kernel), KernelFile::parameters().count())
        })
        .done()
}

/// Returns the clauses that a policy gives up or needs something for.
fn exceptions(policy: &PolicyFile) -> Vec<String> {
    let text = |(clause, state, why)| format!("{clause} {state}: {why}");
    policy.exceptions().map(text).collect()
}

/// Returns a table of the built-in policy files, with the clauses that aren't simply kept.
pub fn protocol_table() -> Table {
    let mut rows = Table::new([words("name"), words("protocol"), words("contract")]);
    for policy in policies::names().filter_map(built_in_policy) {
        let mut exceptions = exceptions(&policy).into_iter();
        let first = exceptions.next().unwrap_or_else(|| "kept".into());
        rows.row([policy.name().to_owned(), policy.title().to_owned(), first]);
        for exception in exceptions {
            rows.row([String::new(), String::new(), exception]);
        }
    }
    rows
}

/// Returns a table of the words that a policy can contain.
pub fn policy_table() -> Table {
    Table::of(TERMS)
        .column(words("term"), |(term, _)| *term)
        .column(words("meaning"), |(_, meaning)| *meaning)
        .done()
}

/// Returns a table of the parameters of machine files.
pub fn parameter_table() -> Table {
    Table::of(PARAMETERS)
        .column(words("section.key"), |known| format!("{}.{}", known.section, known.key))
        .column(words("units"), |known| {
            known.unit.spellings().iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        })
        .column(words("range"), |known| match known.unit {
            Unit::Choice(words) => words.join(" | "),
            unit @ (Unit::Time
            | Unit::Frequency
            | Unit::Bytes
            | Unit::Rate
            | Unit::Count
            | Unit::Factor) => {
                format!("{} to {}{}", known.least, known.most, unit.of_ranges())
            }
        })
        .column(words("meaning"), |known| known.meaning.trim())
        .done()
}

/// Returns a table of a machine's values.
pub fn value_table(machine: &MachineFile) -> Table {
    let value = |parameter: &Parameter| machine.value(*parameter);
    Table::of(Parameter::ALL)
        .column(words("section.key"), |parameter| parameter.name())
        .column(number("value"), |parameter| {
            format!("{} {}", value(parameter).written, value(parameter).unit).trim().to_owned()
        })
        .column(words("status"), |parameter| if value(parameter).assumed { "assumed" } else { "" })
        .column(words("source"), |parameter| value(parameter).source.as_str())
        .done()
}
