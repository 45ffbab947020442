//! Makes an engine, and reads its policy.

use crate::capacity::QUELL_BATCH_SPACES;
use crate::machine::{Machine, Places, quell_hooks};
use crate::place::{
    Made, Place, engine, examine, quell_cpu, quell_engine, quell_ledger_entry, quell_slot, room,
};
use crate::status::{answer, quell_status};
use crate::text::{Line, of_c};
use crate::values::enum_quell_tagging;
use core::ffi::c_char;
use quell::{
    Engine, Features, Hardware, LedgerEntry, Mechanism, PerCpu, Policy, Slot, Tagging, Unsupported,
};

/// The version of this interface. quell_engine_new refuses a header whose version differs from the library's. The
/// number also differs if one of the two was built for more CPUs, or for batches of more spaces.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_INTERFACE: u32 = 0x804 - 0x100 * QUELL_BATCH_SPACES as u32;
/// The version of this interface, for 8192 CPUs.
#[cfg(feature = "cpus-8192")]
pub const QUELL_INTERFACE: u32 = 0x2000_0804 - 0x100 * QUELL_BATCH_SPACES as u32;

/// The most bytes that are read of a policy's text.
pub const QUELL_POLICY_LENGTH: usize = 255;

/// How the machine tags TLB entries with the address space that they belong to.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_tagging {
    /// No tags: a root switch drops every entry that is not global.
    None,
    /// Each CPU assigns its tags by itself (x86 PCIDs, per-hart RISC-V ASIDs): tags 1 to `tags` may be used.
    PerCpu,
    /// A tag means the same on every CPU (Arm ASIDs): tags of `tags` bits may be used, 8 or 16. Needs `broadcast`.
    Global,
}

/// What the machine can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_features {
    /// How TLB entries are tagged.
    pub tagging: enum_quell_tagging,
    /// The highest tag (per-CPU tags), or the bits of a tag (global ones).
    pub tags: u32,
    /// A request with more strides than this, over all of its ranges, flushes a whole tag; with 0 every flush does.
    /// Linux uses 33 on x86 and 512 on arm64.
    pub full_above: u64,
    /// Whether quell_hw_broadcast_start reaches all CPUs without an interrupt: 0 or 1.
    pub broadcast: u32,
}

/// The parts of an engine. Set the struct to zero first; each field says what zero means.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_setup {
    /// QUELL_INTERFACE.
    pub interface: u32,
    /// What the machine can do.
    pub features: quell_features,
    /// Which mechanisms are on, as text: "all", "baseline", "S0+S4", "all-S3,tags=64,cap=8M". NULL means "all", which a
    /// library that was built without a mechanism refuses. Read once, at most QUELL_POLICY_LENGTH bytes.
    pub policy: *const c_char,
    /// Memory for the CPUs 0 to `cpu_count` - 1, which the engine keeps. NULL if `cpu_places` is set.
    pub cpus: *mut quell_cpu,
    /// The memory of each CPU, if it is not one array but, for example, in the kernel's per-CPU areas. An array of
    /// `cpu_count` pointers, one for each CPU, which the engine keeps too. NULL if `cpus` is set.
    pub cpu_places: *const *mut quell_cpu,
    /// How many CPUs there are, online or not: 1 to QUELL_MAX_CPUS.
    pub cpu_count: usize,
    /// Memory for `cpu_count` times `slots_per_cpu` tags, which the engine keeps. Needed if each CPU is to keep more
    /// than eight spaces tagged. NULL if `slots_per_cpu` is 0.
    pub slots: *mut quell_slot,
    /// How many slots each CPU gets from `slots`. If 0, each CPU has eight built in.
    pub slots_per_cpu: usize,
    /// Memory for the ledger of the flush clock (S3), which the engine keeps. NULL if `ledger_entries` is 0.
    pub ledger: *mut quell_ledger_entry,
    /// How many ledger entries there are, which limits how many batches' flushes can be deferred at once. 64 is plenty;
    /// 0 switches S3 off.
    pub ledger_entries: usize,
    /// The optional functions, read once. NULL means none.
    pub hooks: *const quell_hooks,
    /// Where quell_engine_new writes the reason if it refuses: one line, cut off if it is too long, ended with a zero
    /// byte. NULL means that it writes none.
    pub message: *mut c_char,
    /// The size of `message` in bytes; 160 are enough.
    pub message_size: usize,
}

/// Checks that the library was built with what the policy and the machine need.
///
/// # Errors
/// Names the part that is missing.
fn is_built_in(policy: &Policy, features: &Features) -> Result<(), Unsupported> {
    if let Some(mechanism) = Machine::MECHANISMS.lacks(policy) {
        return Err(Unsupported::LeftOut { mechanism });
    }
    if features.broadcast && !cfg!(feature = "broadcast") {
        return Err(Unsupported::NoBroadcasts);
    }
    Ok(())
}

/// # Errors
/// If a number has no name in the header. The reason goes to `why`.
fn features(given: &quell_features, why: &mut Line<'_>) -> Result<Features, quell_status> {
    let mut refuse = |what: core::fmt::Arguments<'_>| {
        why.set(what);
        quell_status::Unsupported
    };
    let tags = given.tags;
    let tagging = match given.tagging {
        0 => Tagging::None,
        1 => Tagging::PerCpu {
            count: tags.try_into().map_err(|_| {
                refuse(format_args!(
                    "quell_features.tags is {tags}: the highest tag is at most 65535"
                ))
            })?,
        },
        2 => Tagging::Global {
            bits: tags.try_into().map_err(|_| {
                refuse(format_args!(
                    "quell_features.tags is {tags}: global tags have at most 16 bits"
                ))
            })?,
        },
        other => {
            return Err(refuse(format_args!(
                "quell_features.tagging is {other}: it is an enum quell_tagging"
            )));
        }
    };
    let broadcast = match given.broadcast {
        0 => false,
        1 => true,
        other => {
            return Err(refuse(format_args!(
                "quell_features.broadcast is {other}: it is 0 or 1"
            )));
        }
    };
    Ok(Features {
        tagging,
        broadcast,
        full_above: given.full_above,
    })
}

/// Initialises an array in C's memory.
///
/// # Errors
/// If there are elements and no memory, or if it is not aligned.
///
/// # Safety
/// `first` is memory for `count` elements that is used for nothing else, for ever; or it is NULL, or `count` is 0.
unsafe fn array<P: Place>(
    first: *mut P,
    count: usize,
    make: impl Fn(usize) -> P::Content,
) -> Result<&'static [P::Content], quell_status> {
    if count == 0 {
        return Ok(&[]);
    }
    // Elements of C's array are `size_of::<P>()` apart, so their content must have that size.
    const { assert!(size_of::<P>() == size_of::<P::Content>()) };
    examine(first)?;
    let first = room(first)?;
    for index in 0..count {
        // SAFETY: within the array, as the caller promises.
        unsafe { first.add(index).write(make(index)) };
    }
    // SAFETY: initialised above; the memory is the array's for ever.
    Ok(unsafe { core::slice::from_raw_parts(first, count) })
}

/// Initialises the state of each CPU at its place.
///
/// # Errors
/// If a place is NULL or not aligned. The reason goes to `why`.
///
/// # Safety
/// `first` is an array of `count` pointers, each NULL or to memory that is used for nothing else. Both stay for ever.
unsafe fn places(
    first: *const *mut quell_cpu,
    count: usize,
    make: impl Fn(usize) -> <quell_cpu as Place>::Content,
    why: &mut Line<'_>,
) -> Result<Places, quell_status> {
    examine(first)?;
    // Before any memory is written.
    for cpu in 0..count {
        // SAFETY: within the array, as the caller promises.
        if let Err(status) = examine(unsafe { *first.add(cpu) }) {
            why.set(format_args!(
                "quell_setup.cpu_places[{cpu}] is NULL or not aligned"
            ));
            return Err(status);
        }
    }
    for cpu in 0..count {
        // SAFETY: as the caller promises.
        unsafe { room(*first.add(cpu))?.write(make(cpu)) };
    }
    // SAFETY: a pointer to initialised memory that stays for ever is a reference; no code writes the array any more.
    Ok(unsafe { core::slice::from_raw_parts(first.cast(), count) })
}

/// Makes an engine. `engine` is zeroed memory, or holds an engine whose CPUs are all offline. The engine keeps the
/// memory that `setup` names, but not `setup` itself, the policy's text or the message. No function destroys an engine:
/// once all of its CPUs are offline, its memory may be used for something else.
///
/// Refuses
/// * a NULL `engine` or `setup`, and memory that is not aligned,
/// * a wrong `interface`,
/// * both or none of `cpus` and `cpu_places`, or a NULL in the latter,
/// * a text that is no policy, or that needs a mechanism that the library was built without,
/// * features that contradict each other, and an unsupported number of CPUs,
/// * memory of an engine that has a CPU online,
/// * `start_secondary` in a library without the feature "secondary".
///
/// Context: once, before any CPU is online.
///
/// # Safety
/// As the header says: the memory is there, has the sizes it says, and is used for nothing else.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_engine_new(
    engine: *mut quell_engine,
    setup: *const quell_setup,
) -> quell_status {
    answer(|| {
        examine(engine)?;
        examine(setup)?;
        let place = room(engine)?;
        // The first field of every version of it.
        // SAFETY: C has initialised it.
        if unsafe { (*setup).interface } != QUELL_INTERFACE {
            return Err(quell_status::Interface);
        }
        // SAFETY: C has initialised it; every field is a number or a pointer.
        let setup = unsafe { &*setup };
        // SAFETY: C vouches for the message's memory.
        let mut why = unsafe { Line::new(setup.message, setup.message_size) };
        // SAFETY: the memory is zeroed, or holds an engine.
        if unsafe { Made::is_in_use(place) } {
            return Err(quell_status::Online);
        }
        let policy = if setup.policy.is_null() {
            Policy::ALL
        } else {
            // SAFETY: C vouches for the text.
            unsafe { policy(setup.policy, &mut why) }?
        };
        let features = features(&setup.features, &mut why)?;
        let hooks = if setup.hooks.is_null() {
            quell_hooks::default()
        } else {
            examine(setup.hooks)?;
            // SAFETY: C has initialised them; what is zero is no function.
            unsafe { *setup.hooks }
        };
        if hooks.start_secondary.is_some() && !Machine::HAS_SECONDARY {
            why.set(format_args!(
                "quell_hooks.start_secondary: the library was built without the feature \"secondary\""
            ));
            return Err(quell_status::Unsupported);
        }
        let unsupported = |why: &mut Line<'_>, error| {
            why.set(format_args!("{error}"));
            quell_status::Unsupported
        };
        // All that the engine may refuse, before any memory is written.
        features
            .check(setup.cpu_count)
            .and_then(|()| is_built_in(&policy, &features))
            .map_err(|error| unsupported(&mut why, error))?;
        let (cpus, each) = (setup.cpu_count, setup.slots_per_cpu);
        let slots = cpus.checked_mul(each).ok_or_else(|| {
            why.set(format_args!(
                "slots_per_cpu is {each}: no memory is so large"
            ));
            quell_status::Unsupported
        })?;
        if !setup.cpus.is_null() && !setup.cpu_places.is_null() {
            why.set(format_args!(
                "quell_setup has both cpus and cpu_places: the state of a CPU is in one place"
            ));
            return Err(quell_status::Unsupported);
        }
        for (is_missing, what) in [
            (setup.cpus.is_null() && setup.cpu_places.is_null(), "cpus"),
            (setup.slots.is_null() && slots != 0, "slots"),
            (
                setup.ledger.is_null() && setup.ledger_entries != 0,
                "ledger",
            ),
        ] {
            if is_missing {
                why.set(format_args!("quell_setup.{what} is NULL"));
                return Err(quell_status::Null);
            }
        }
        // SAFETY: C gives the arrays to the engine for ever.
        let slots = unsafe { array(setup.slots, slots, |_| Slot::new()) }?;
        let per_cpu = |cpu: usize| match each {
            0 => PerCpu::new(),
            _ => PerCpu::with_slots(&slots[cpu * each..][..each]),
        };
        let (per_cpu, places): (&[_], Places) = if setup.cpu_places.is_null() {
            // SAFETY: C gives the arrays to the engine for ever.
            (unsafe { array(setup.cpus, cpus, per_cpu) }?, &[])
        } else {
            // SAFETY: C gives the places, and the array that names them, to the engine for ever.
            let places = unsafe { places(setup.cpu_places, cpus, per_cpu, &mut why) }?;
            (&[], places)
        };
        // SAFETY: C gives the ledger to the engine for ever.
        let ledger = unsafe { array(setup.ledger, setup.ledger_entries, |_| LedgerEntry::new()) }?;
        // SAFETY: C gives this memory to the engine, and does not move it.
        unsafe {
            Made::make(
                place,
                cpus,
                Machine::new(features, hooks, places, cpus),
                |machine| {
                    match places {
                        [] => Engine::new(machine, per_cpu, ledger, policy),
                        _ => Engine::with_own_state(machine, cpus, ledger, policy),
                    }
                    .map_err(|error| unsupported(&mut why, error))
                },
            )
        }
    })
}

/// # Errors
/// If the text is no policy. The reason goes to `why`.
///
/// # Safety
/// `text` ends with a zero byte or has QUELL_POLICY_LENGTH bytes.
unsafe fn policy(text: *const c_char, why: &mut Line<'_>) -> Result<Policy, quell_status> {
    // SAFETY: as the caller promises.
    let text = unsafe { of_c(text, QUELL_POLICY_LENGTH) };
    let Some(text) = text else {
        why.set(format_args!(
            "quell_setup.policy is longer than {QUELL_POLICY_LENGTH} bytes or is not UTF-8"
        ));
        return Err(quell_status::Policy);
    };
    text.parse().map_err(|error| {
        why.set(format_args!("quell_setup.policy: {error}"));
        quell_status::Policy
    })
}

/// Writes the policy of an engine to `text`, in the form that quell_setup takes. It is ended with a zero byte, and cut
/// off if it doesn't fit in `size` bytes; 64 are enough.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_policy_text(
    engine: *const quell_engine,
    text: *mut c_char,
    size: usize,
) -> quell_status {
    answer(|| {
        // SAFETY: C vouches for its memory.
        let policy = unsafe { self::engine(engine) }?.policy();
        if text.is_null() {
            return Err(quell_status::Null);
        }
        // SAFETY: C vouches for `size` bytes behind `text`, which is not null.
        unsafe { Line::new(text, size) }.set(format_args!("{policy}"));
        Ok(())
    })
}

/// Returns whether an engine's policy has a mechanism on; `mechanism` is 0 to 4 for S0 to S4. False for any other
/// number, and for memory without an engine.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_policy_has(engine: *const quell_engine, mechanism: u32) -> bool {
    // SAFETY: C vouches for its memory.
    let (Ok(engine), Some(mechanism)) = (
        unsafe { self::engine(engine) },
        Mechanism::ALL.get(mechanism as usize),
    ) else {
        return false;
    };
    engine.policy().has(*mechanism)
}

/// Returns the most bytes that the policy allows to be zeroed without a preemption point. UINT64_MAX means no limit. 0
/// for memory without an engine.
///
/// Context: any.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_policy_cap(engine: *const quell_engine) -> u64 {
    // SAFETY: C vouches for its memory.
    unsafe { self::engine(engine) }
        .map_or(0, |engine| engine.policy().cap_bytes.unwrap_or(u64::MAX))
}
