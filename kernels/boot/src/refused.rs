//! Refuses, before the boot, options that the booted kernel would refuse.

use quell_workloads::Workload;
use quell_workloads::files::hint;

use crate::options::Options;

/// The values of `break=` for the kernel's machine, besides the mutants of engine and manager; the kernel's `mistakes`
/// implements each.
const MISTAKES_OF_THE_MACHINE: [&str; 6] =
    ["request", "here", "broadcast", "nmi", "SkipBarrier", "SkipInterrupt"];

/// Checks the options of a boot with `cpus` CPUs, which may run `workload`. `rules` has the names of the mutants of the
/// engine's and the manager's rules.
///
/// # Errors
/// The kernel's reason to refuse, in one line that names the option.
pub fn check(
    options: &Options<'_>,
    cpus: u16,
    workload: Option<Workload>,
    rules: &[&str],
) -> Result<(), String> {
    if let Some(name) = options.broken
        && !MISTAKES_OF_THE_MACHINE.contains(&name)
        && !rules.contains(&name)
    {
        return Err(format!(
            "option `break={name}`: unknown{}; use {}, or a mutant of the engine or the manager (`quell explore --list`)",
            hint(name, MISTAKES_OF_THE_MACHINE.iter().chain(rules).copied()),
            MISTAKES_OF_THE_MACHINE.join(", ")
        ));
    }
    let team = options.team.unwrap_or(usize::from(cpus));
    if team > usize::from(cpus) {
        return Err(format!(
            "option `team={team}`: the machine has only {cpus} CPUs; give it more with --cpus"
        ));
    }
    if let Some(bits) = options.tag_bits
        && (1 << bits) - 1 <= u32::from(cpus)
    {
        return Err(format!(
            "option `tag_bits={bits}`: {} tags are too few for {cpus} CPUs; use more bits or fewer CPUs",
            (1u32 << bits) - 1
        ));
    }
    let Some(mut workload) = workload else {
        return Ok(());
    };
    for pair in options.parameters.split(',').filter(|pair| !pair.is_empty()) {
        workload
            .set(&pair.replacen(':', "=", 1))
            .map_err(|wrong| format!("option `parameters={pair}`: {wrong}"))?;
    }
    workload.check(team).map_err(|why| format!("{}: {why}", workload.name()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_do_not_fit_the_machine_are_named() {
        let refused = |line: &str, cpus| {
            let options = Options::parse(line).expect(line);
            check(&options, cpus, None, &["SkipWait"]).err()
        };
        let culprit = |line: &str, cpus| refused(line, cpus).unwrap_or_default();
        assert_eq!(refused("break=SkipWait", 4), None);
        assert_eq!(refused("break=request team=4 tag_bits=3", 4), None);
        assert!(culprit("break=Unknown", 4).contains("`break=Unknown`"));
        assert!(culprit("break=SkipWat", 4).contains("did you mean `SkipWait`?"));
        assert!(culprit("team=5", 4).contains("`team=5`"));
        assert!(culprit("tag_bits=2", 4).contains("`tag_bits=2`"));
    }
}
