//! `quell list`: prints workloads, machines, kernels, policies and the meaning of each parameter.

use crate::{kernels, machines, policies};
use anyhow::Result;
use clap::{Args, ValueEnum};
use quell_clock::file::{Parameter, Unit, built_in_kernel, built_in_policy};
use quell_clock::{KernelFile, MachineFile, PolicyFile, built_in};
use quell_conformance::policy_text::TERMS;
use quell_workloads::Workload;
use serde_json::{Map, Value, json};

use crate::command::reproduce::short;
use crate::output::{self, paragraph, say};
use crate::table::{Table, number, words};
use crate::usage::usage;

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
}

fn find(machine: &str) -> Result<MachineFile> {
    machines::find(machine).map_err(usage)
}

/// Prints the lists.
///
/// # Errors
/// If the chosen machine doesn't exist.
pub fn run(args: ListArgs) -> Result<()> {
    let wants = |topic| args.what.is_none_or(|wanted| wanted == topic);
    if let (Some(machine), false) = (&args.machine, wants(ListTopic::Parameters)) {
        return Err(usage(format_args!(
            "--machine {machine}: only `quell list parameters` shows values of a machine"
        )));
    }
    // A machine has values for parameters alone.
    let wants = |topic| wants(topic) && (args.machine.is_none() || topic == ListTopic::Parameters);
    if args.json {
        let machine = args.machine.as_deref().map(find).transpose()?;
        let wanted = ListTopic::value_variants().iter().filter(|topic| wants(**topic));
        let document: Map<String, Value> =
            wanted.map(|topic| (topic.key(), topic.document(machine.as_ref()))).collect();
        output::document(&document)?;
        return Ok(());
    }
    if wants(ListTopic::Workloads) {
        workloads();
    }
    if wants(ListTopic::Machines) {
        known_machines();
    }
    if wants(ListTopic::Kernels) {
        say!("KERNELS (--kernel NAME, or --kernel FILE for one of your own)\n");
        say!("{}\n", kernel_table());
        paragraph("quell measure paths writes the file of the kernel that runs here.\n");
    }
    if wants(ListTopic::Policies) {
        list_policies();
    }
    if wants(ListTopic::Parameters) {
        match &args.machine {
            Some(name) => values(&find(name)?),
            None => parameters(),
        }
    }
    Ok(())
}

fn workloads() {
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

/// Returns a table of a workload's parameters.
pub fn workload_table(workload: &Workload) -> Table {
    let mut rows =
        Table::new([words("parameter"), number("default"), words("range"), words("meaning")]);
    for parameter in workload.parameters() {
        let show = |value| parameter.unit.show(value);
        rows.row([
            parameter.name.to_owned(),
            show(parameter.default),
            format!("{} to {}", show(parameter.least), show(parameter.most)),
            parameter.meaning.trim().to_owned(),
        ]);
    }
    rows
}

fn known_machines() {
    say!("MACHINES (--machine NAME, or --machine FILE for one of your own)\n");
    say!("{}\n", machine_table());
    paragraph(
        "To base a file of your own on one of these, write based_on = \"NAME\" and only the values that differ.",
    );
    paragraph("quell list parameters --machine NAME shows every value with its source.\n");
}

/// Returns a table of the built-in machines.
pub fn machine_table() -> Table {
    let mut rows =
        Table::new([words("name"), words("machine"), number("CPUs"), number("guessed values")]);
    for machine in machines::names().filter_map(built_in) {
        rows.row([
            machine.name().to_owned(),
            machine.title().to_owned(),
            machine.count(Parameter::Cpus).to_string(),
            format!("{} of {}", machine.assumed().count(), Parameter::ALL.len()),
        ]);
    }
    rows
}

/// Counts the guessed values of a kernel.
fn guessed(kernel: &KernelFile) -> usize {
    let assumed = |parameter: &Parameter| kernel.value(*parameter).assumed;
    KernelFile::parameters().filter(assumed).count()
}

/// Returns a table of the built-in kernels.
pub fn kernel_table() -> Table {
    let mut rows = Table::new([words("name"), words("kernel"), number("guessed values")]);
    for kernel in kernels::names().filter_map(built_in_kernel) {
        rows.row([
            kernel.name().to_owned(),
            kernel.title().to_owned(),
            format!("{} of {}", guessed(&kernel), KernelFile::parameters().count()),
        ]);
    }
    rows
}

fn list_policies() {
    say!("POLICIES (--policy S0+S4, --policy all-S3,cap=8M)\n");
    say!("{}\n", policy_table());
    say!("PROTOCOLS OF OTHER SYSTEMS (--policy NAME, or --policy FILE.toml for one of your own)\n");
    say!("{}\n", protocol_table());
    paragraph(
        "lost: the policy gives this clause of the contract up, and the oracle only counts. needs: it keeps it if …\n",
    );
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
    let mut rows = Table::new([words("term"), words("meaning")]);
    for (term, meaning) in TERMS {
        rows.row([*term, *meaning]);
    }
    rows
}

fn parameters() {
    paragraph("PARAMETERS OF MACHINE FILES ([section] key = { value, unit, source, assumed })\n");
    say!("{}", parameter_table());
}

/// Returns a table of the parameters of machine files.
pub fn parameter_table() -> Table {
    let mut rows =
        Table::new([words("section.key"), words("units"), words("range"), words("meaning")]);
    for &parameter in Parameter::ALL {
        let description = parameter.description();
        let (units, range) = match description.unit {
            Unit::Choice(words) => (String::new(), words.join(" | ")),
            unit @ (Unit::Time
            | Unit::Frequency
            | Unit::Bytes
            | Unit::Rate
            | Unit::Count
            | Unit::Factor) => {
                let units: Vec<_> = unit.spellings().iter().map(|(name, _)| *name).collect();
                let range =
                    format!("{} to {}{}", description.least, description.most, unit.of_ranges());
                (units.join(", "), range)
            }
        };
        rows.row([parameter.name(), units, range, description.meaning.trim().to_owned()]);
    }
    rows
}

fn values(machine: &MachineFile) {
    say!("{} ({})\n", machine.title(), machine.name());
    say!("{}", value_table(machine));
}

/// Returns a table of a machine's values.
pub fn value_table(machine: &MachineFile) -> Table {
    let mut rows =
        Table::new([words("section.key"), number("value"), words("status"), words("source")]);
    for &parameter in Parameter::ALL {
        let value = machine.value(parameter);
        rows.row([
            parameter.name(),
            format!("{} {}", value.written, value.unit).trim().to_owned(),
            if value.assumed { "assumed" } else { "" }.to_owned(),
            value.source.clone(),
        ]);
    }
    rows
}
