//! Makes an engine, and returns its policy.

use crate::capacity::QUELL_BATCH_SPACES;
use crate::machine::{Machine, Places, quell_hooks};
use crate::place::{
    EngineCell, Place, engine, examine, quell_cpu, quell_engine, quell_ledger_entry, quell_slot,
    room,
};
use crate::status::{answer, quell_status};
#[cfg(feature = "text")]
use crate::text::{Line, of_c};
use crate::values::enum_quell_tagging;
use core::ffi::{CStr, c_char};
use quell::{
    Engine, EngineError, Features, Hardware, LedgerEntry, Mechanism, PerCpuData, Policy, Slot,
    Tagging,
};
#[cfg(feature = "text")]
use quell_conformance::{PolicyText, parse_policy};

/// The version of this interface.
///
/// quell_engine_new refuses a header whose version differs from the library's. The number also depends on
/// QUELL_CPUS_8192 and QUELL_BATCH_SPACES, so a header and a library that disagree on these are refused too.
#[cfg(not(feature = "cpus-8192"))]
pub const QUELL_INTERFACE: u32 = 0x805 - 0x100 * QUELL_BATCH_SPACES as u32;
/// The version of this interface, for 8192 CPUs.
#[cfg(feature = "cpus-8192")]
pub const QUELL_INTERFACE: u32 = 0x2000_0805 - 0x100 * QUELL_BATCH_SPACES as u32;

/// The longest policy text in bytes.
pub const QUELL_POLICY_LENGTH: usize = 255;

/// A machine's way to tag TLB entries with the address space that they belong to.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum quell_tagging {
    /// The TLB has no tags: a root switch drops every entry that isn't global.
    None,
    /// Each CPU assigns its tags by itself (x86 PCIDs, per-hart RISC-V ASIDs). The engine may use tags 1 to `tags`.
    PerCpu,
    /// A tag means the same on every CPU (Arm ASIDs). Tags have `tags` bits, at most 16. Needs `broadcast`.
    Global,
}

/// The capabilities of the machine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_features {
    /// How TLB entries are tagged.
    pub tagging: enum_quell_tagging,
    /// The highest tag if CPUs assign tags by themselves, or the number of a tag's bits if tags are system-wide.
    pub tags: u32,
    /// The most strides that a request flushes one by one, over all of its ranges.
    ///
    /// A longer request flushes a whole tag; with 0 every request does. Linux uses 33 on x86 and 512 on arm64.
    pub full_above: u64,
    /// Whether quell_hw_broadcast_start reaches all CPUs without an interrupt: 0 or 1.
    pub broadcast: u32,
    /// The number of target CPUs from which a flush shares cache lines among targets.
    ///
    /// Such a flush writes and reads one line for every 32 targets, instead of one for each. That costs some time if
    /// there are few targets. 0 means never; 8 suits most machines. The small library ignores the field.
    ///
    /// If it isn't 0, batches of one space that finish at the same time make full flushes, provided that more than two
    /// CPUs have the space loaded. With 8, they share these flushes from 7 CPUs on.
    pub shares_lines_from: u32,
}

/// The arguments of quell_engine_new.
///
/// Set the struct to zero first; each field documents the meaning of zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct quell_setup {
    /// The header's version: QUELL_INTERFACE.
    pub interface: u32,
    /// The capabilities of the machine.
    pub features: quell_features,
    /// The mechanisms that are on, as text. For example: "all", "baseline", "S0+S4", "all-S3,tags=64,cap=8M".
    ///
    /// NULL means all mechanisms that the library was built with. quell reads the text once, at most
    /// QUELL_POLICY_LENGTH bytes. A library without the feature "text" refuses anything but NULL.
    pub policy: *const c_char,
    /// Memory for the CPUs 0 to `cpu_count` - 1, which the engine keeps. NULL if `cpu_places` is set.
    pub cpus: *mut quell_cpu,
    /// An array of `cpu_count` pointers, one to the memory of each CPU, which the engine keeps.
    ///
    /// Use it if the CPUs' memory isn't one array, but lies in the kernel's per-CPU areas, for example. NULL if `cpus`
    /// is set.
    pub cpu_places: *const *mut quell_cpu,
    /// The number of CPUs, online or not: 1 to QUELL_MAX_CPUS.
    pub cpu_count: usize,
    /// Memory for `cpu_count` times `slots_per_cpu` slots, which the engine keeps.
    ///
    /// A slot is a CPU's record of a space that has a tag there. Provide slots if each CPU is to keep more than eight
    /// spaces tagged. NULL if `slots_per_cpu` is 0.
    pub slots: *mut quell_slot,
    /// The number of slots that each CPU gets from `slots`. If 0, each CPU has eight built in.
    pub slots_per_cpu: usize,
    /// Memory for the ledger of deferred flushes, which the engine keeps. NULL if `ledger_entries` is 0.
    pub ledger: *mut quell_ledger_entry,
    /// The number of ledger entries. It limits the number of batches whose flushes are deferred at once.
    ///
    /// 64 are plenty; 0 switches lazy unmap off.
    pub ledger_entries: usize,
    /// The kernel's optional functions, which quell copies. NULL means none.
    pub hooks: *const quell_hooks,
    /// A buffer for the reason, if quell_engine_new refuses with another status than QUELL_STATUS_INTERFACE.
    ///
    /// quell writes one line that ends with a zero byte, and cuts it off if it's too long. It writes nothing if the
    /// field is NULL, or in a library without the feature "text".
    pub message: *mut c_char,
    /// The size of `message` in bytes; 160 are enough.
    pub message_size: usize,
}

/// A refusal: the status, and the mistake with its remedy.
struct Refusal(quell_status, Reason);

/// The mistake that quell_engine_new refuses. A library without the feature "text" can't describe it.
enum Reason {
    /// A complete sentence.
    #[cfg(feature = "text")]
    Fixed(&'static CStr),
    /// The error in a policy's text.
    #[cfg(feature = "text")]
    Policy(quell_conformance::PolicyError),
    /// There is no text, only the status.
    #[cfg(not(feature = "text"))]
    Unspoken,
}

const fn refusal(status: quell_status, text: &'static CStr) -> Refusal {
    #[cfg(feature = "text")]
    return Refusal(status, Reason::Fixed(text));
    #[cfg(not(feature = "text"))]
    {
        let _ = text;
        Refusal(status, Reason::Unspoken)
    }
}

const fn unsupported(text: &'static CStr) -> Refusal {
    refusal(quell_status::Unsupported, text)
}

impl From<quell_status> for Refusal {
    fn from(status: quell_status) -> Self {
        #[cfg(feature = "text")]
        return refusal(status, status.text());
        #[cfg(not(feature = "text"))]
        Refusal(status, Reason::Unspoken)
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        let text = match error {
            EngineError::Cpus { .. } => {
                c"quell_setup.cpu_count is 0 or above QUELL_MAX_CPUS: for up to 8192 CPUs build with the feature \"cpus-8192\""
            }
            EngineError::NoBroadcasts => {
                c"quell_features.broadcast is 1: build the library with the feature \"broadcast\""
            }
            EngineError::NoTags => {
                c"quell_features.tags is 0, so there is no tag: set tagging to QUELL_TAGGING_NONE"
            }
            EngineError::BroadcastOfPerCpuTags => {
                c"quell_features.broadcast is 1 with QUELL_TAGGING_PER_CPU: broadcasts need QUELL_TAGGING_GLOBAL or _NONE"
            }
            EngineError::GlobalTagsWithoutBroadcast => {
                c"quell_features.broadcast is 0 with QUELL_TAGGING_GLOBAL: set it to 1, or use QUELL_TAGGING_PER_CPU"
            }
            EngineError::TagBits { .. } => {
                c"quell_features.tags is above 16 with QUELL_TAGGING_GLOBAL: it is the number of bits"
            }
            EngineError::FewTags { .. } => {
                c"quell_features.tags gives fewer global tags than there are CPUs and one to spare: use QUELL_TAGGING_NONE"
            }
            EngineError::NoState { .. } => {
                c"quell_setup.cpu_places has no place for one of the CPUs"
            }
            EngineError::LeftOut { mechanism } => match mechanism {
                Mechanism::Batch => c"quell_setup.policy has S0: build with the feature \"batch\"",
                Mechanism::Extents => c"quell_setup.policy has S1: build with the feature \"extents\"",
                Mechanism::Tags => c"quell_setup.policy has S2: build with the feature \"tags\"",
                Mechanism::LazyUnmap => c"quell_setup.policy has S3: build with the feature \"lazy\"",
                Mechanism::RemoteFlush => c"quell_setup.policy has S4: build with the feature \"remote\"",
            },
            // The engine can't return the other reasons here: every CPU has slots, the ledger is new, and a library without
            // the feature "text" has only one policy. A later version of the engine may refuse more.
            _ => c"quell_setup describes a machine on which the engine does not run",
        };
        unsupported(text)
    }
}

/// Checks that the library was built with the mechanisms of the policy and with the machine's broadcasts.
///
/// # Errors
/// Returns the missing part.
fn is_built_in(policy: &Policy, features: &Features) -> Result<(), EngineError> {
    // Without the feature "text" there's only one policy.
    if cfg!(feature = "text")
        && let Some(mechanism) = Machine::MECHANISMS.lacks(policy)
    {
        return Err(EngineError::LeftOut { mechanism });
    }
    if features.broadcast && !cfg!(feature = "broadcast") {
        return Err(EngineError::NoBroadcasts);
    }
    Ok(())
}

/// # Errors
/// If a number has no name in the header.
fn features(given: &quell_features) -> Result<Features, Refusal> {
    let tags = given.tags;
    let tagging = match given.tagging {
        0 => Tagging::None,
        1 => Tagging::PerCpu {
            count: tags.try_into().map_err(|_| {
                unsupported(c"quell_features.tags is above 65535: it is the highest tag")
            })?,
        },
        2 => Tagging::Global { bits: tags.try_into().unwrap_or(u8::MAX) },
        _ => {
            return Err(unsupported(c"quell_features.tagging is no enum quell_tagging"));
        }
    };
    if given.broadcast > 1 {
        return Err(unsupported(c"quell_features.broadcast is neither 0 nor 1"));
    }
    Ok(Features { tagging, broadcast: given.broadcast == 1, full_above: given.full_above })
}

/// Examines the memory of an array.
///
/// # Errors
/// `why`, if there are elements and no memory, or if it isn't aligned.
fn is_array<P: Place>(first: *mut P, count: usize, why: &'static CStr) -> Result<(), Refusal> {
    match count {
        0 => Ok(()),
        _ => examine(first).map_err(|status| refusal(status, why)),
    }
}

/// Initialises an array in C's memory.
///
/// # Safety
/// `first` is memory for `count` elements that is used for nothing else, for ever, and was examined; or `count` is 0.
unsafe fn array<P: Place>(
    first: *mut P,
    count: usize,
    make: impl Fn(usize) -> P::Content,
) -> &'static [P::Content] {
    if count == 0 {
        return &[];
    }
    // C places the elements of its array `size_of::<P>()` apart, so we check that their content has that size.
    const { assert!(size_of::<P>() == size_of::<P::Content>()) };
    let first: *mut P::Content = first.cast();
    for index in 0..count {
        // SAFETY: within the array, as the caller promises.
        unsafe { first.add(index).write(make(index)) };
    }
    // SAFETY: initialised above; the memory is the array's for ever.
    unsafe { core::slice::from_raw_parts(first, count) }
}

/// # Errors
/// In a debug library, if the memory of these CPUs is that of a CPU that is online.
fn are_offline(first: *const quell_cpu, count: usize) -> Result<(), Refusal> {
    if crate::online::any_in(first, count) {
        return Err(refusal(
            quell_status::Online,
            c"quell_setup.cpus or cpu_places is the memory of a CPU that is online: call quell_cpu_offline on it first",
        ));
    }
    Ok(())
}

/// Examines the places of the CPUs.
///
/// # Errors
/// If a place is NULL or not aligned.
///
/// # Safety
/// `first` is NULL or an array of `count` pointers.
unsafe fn are_places(first: *const *mut quell_cpu, count: usize) -> Result<(), Refusal> {
    let why =
        c"quell_setup.cpu_places, or a pointer in it, is NULL or not aligned to QUELL_LINE_ALIGN";
    let refused = |status| refusal(status, why);
    examine(first).map_err(refused)?;
    for cpu in 0..count {
        // SAFETY: within the array, as the caller promises.
        let place = unsafe { *first.add(cpu) };
        examine(place).map_err(refused)?;
        are_offline(place, 1)?;
    }
    Ok(())
}

/// Initialises the state of each CPU at its place.
///
/// # Safety
/// `first` is an array of `count` pointers to memory that is used for nothing else. Both were examined, and stay for
/// ever.
unsafe fn places(
    first: *const *mut quell_cpu,
    count: usize,
    make: impl Fn(usize) -> <quell_cpu as Place>::Content,
) -> Places {
    for cpu in 0..count {
        // SAFETY: as the caller promises.
        unsafe { (*first.add(cpu)).cast::<<quell_cpu as Place>::Content>().write(make(cpu)) };
    }
    // SAFETY: a pointer to initialised memory that stays for ever is a reference; no code writes the array any more.
    unsafe { core::slice::from_raw_parts(first.cast(), count) }
}

/// Makes an engine.
///
/// `engine` is zeroed memory, or holds an engine whose CPUs are all offline. The engine keeps the memory that `setup`
/// points to. It doesn't keep `setup` itself, the policy's text or the message. No function destroys an engine: once
/// all of its CPUs are offline, its memory may be used for something else.
///
/// Refuses
/// * a NULL `engine` or `setup`, and memory that isn't aligned,
/// * a header of another version (`interface`),
/// * both or none of `cpus` and `cpu_places`, or a NULL in the latter,
/// * a text that isn't a policy, or that needs a mechanism that the library was built without,
/// * features that contradict each other, and an unsupported number of CPUs,
/// * memory of an engine that has a CPU online, and in a debug library also the memory of such a CPU. It overwrites
///   another engine's `slots` and `ledger` unnoticed,
/// * `start_secondary` in a library without the feature "secondary".
///
/// Context: once, before any CPU is online.
///
/// # Safety
/// As the header documents: the memory exists, has the documented sizes, and is used for nothing else.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn quell_engine_new(
    engine: *mut quell_engine,
    setup: *const quell_setup,
) -> quell_status {
    // SAFETY: C vouches for its memory.
    let made = unsafe { make(engine, setup) };
    let Err(Refusal(status, reason)) = made else {
        return quell_status::Ok;
    };
    // We know the position of the field `message` only if the header's version is the library's.
    #[cfg(feature = "text")]
    if status != quell_status::Interface && examine(setup).is_ok() {
        // SAFETY: C has initialised the setup, and vouches for the message's memory.
        let line = unsafe { Line::new((*setup).message, (*setup).message_size) };
        match reason {
            Reason::Fixed(text) => line.set(text),
            Reason::Policy(error) => {
                line.set_formatted(format_args!("quell_setup.policy: {error}"));
            }
        }
    }
    #[cfg(not(feature = "text"))]
    let Reason::Unspoken = reason;
    status
}

/// Makes an engine, like [`quell_engine_new`].
///
/// # Errors
/// If [`quell_engine_new`] refuses.
///
/// # Safety
/// As [`quell_engine_new`].
unsafe fn make(engine: *mut quell_engine, setup: *const quell_setup) -> Result<(), Refusal> {
    examine(setup)?;
    // We may read `interface` first: it's the first field in every version of the header.
    // SAFETY: C has initialised it.
    if unsafe { (*setup).interface } != QUELL_INTERFACE {
        return Err(quell_status::Interface.into());
    }
    // SAFETY: C has initialised it; every field is a number or a pointer.
    let setup = unsafe { &*setup };
    examine(engine).map_err(|status| {
        refusal(
            status,
            c"quell_engine_new was given memory that is NULL or not aligned to QUELL_LINE_ALIGN",
        )
    })?;
    let place = room(engine)?;
    // SAFETY: the memory is zeroed, or holds an engine.
    if unsafe { EngineCell::is_in_use(place) } {
        return Err(refusal(
            quell_status::Online,
            c"an engine with a CPU online is in this memory: call quell_cpu_offline on each CPU first",
        ));
    }
    // SAFETY: C vouches for the text.
    let policy = unsafe { policy(setup.policy) }?;
    let features = features(&setup.features)?;
    let shares_lines_from = setup.features.shares_lines_from;
    let hooks = if setup.hooks.is_null() {
        quell_hooks::default()
    } else {
        examine(setup.hooks)
            .map_err(|status| refusal(status, c"quell_setup.hooks is not aligned"))?;
        // SAFETY: C has initialised them; a zero means that there's no function.
        unsafe { *setup.hooks }
    };
    if hooks.start_secondary.is_some() && !Machine::HAS_SECONDARY {
        return Err(unsupported(
            c"quell_hooks.start_secondary is set: build the library with the feature \"secondary\"",
        ));
    }
    // We check every reason to refuse before we write to any memory.
    features.check(setup.cpu_count).and_then(|()| is_built_in(&policy, &features))?;
    let (cpus, each) = (setup.cpu_count, setup.slots_per_cpu);
    let Some(slots) = cpus.checked_mul(each) else {
        return Err(unsupported(
            c"quell_setup.slots_per_cpu is too large: no memory has room for so many",
        ));
    };
    if !setup.cpus.is_null() && !setup.cpu_places.is_null() {
        return Err(unsupported(c"quell_setup has both cpus and cpu_places: set one of them"));
    }
    if setup.cpus.is_null() && setup.cpu_places.is_null() {
        return Err(refusal(
            quell_status::Null,
            c"quell_setup.cpus is NULL, and so is cpu_places: set one of them",
        ));
    }
    if setup.slots.is_null() && slots != 0 {
        return Err(refusal(
            quell_status::Null,
            c"quell_setup.slots is NULL: set it, or slots_per_cpu to 0",
        ));
    }
    if setup.ledger.is_null() && setup.ledger_entries != 0 {
        return Err(refusal(
            quell_status::Null,
            c"quell_setup.ledger is NULL: set it, or ledger_entries to 0",
        ));
    }
    let why = c"quell_setup.ledger is not aligned to QUELL_LINE_ALIGN";
    is_array(setup.ledger, setup.ledger_entries, why)?;
    if setup.cpu_places.is_null() {
        let why = c"quell_setup.cpus is not aligned to QUELL_LINE_ALIGN";
        is_array(setup.cpus, cpus, why)?;
        are_offline(setup.cpus, cpus)?;
    } else {
        // SAFETY: C vouches for the array.
        unsafe { are_places(setup.cpu_places, cpus) }?;
    }
    let why = c"quell_setup.slots is not aligned to QUELL_LINE_ALIGN";
    is_array(setup.slots, slots, why)?;
    // SAFETY: C gives the arrays to the engine for ever; each was examined.
    let slots = unsafe { array(setup.slots, slots, |_| Slot::new()) };
    let per_cpu = |cpu: usize| match each {
        0 => PerCpuData::new(),
        _ => PerCpuData::with_slots(&slots[cpu * each..][..each]),
    };
    let (per_cpu, places): (&[_], Places) = if setup.cpu_places.is_null() {
        // SAFETY: as above.
        (unsafe { array(setup.cpus, cpus, per_cpu) }, &[])
    } else {
        // SAFETY: C gives the places, and the array that names them, to the engine for ever.
        (&[], unsafe { places(setup.cpu_places, cpus, per_cpu) })
    };
    // SAFETY: as above.
    let ledger = unsafe { array(setup.ledger, setup.ledger_entries, |_| LedgerEntry::new()) };
    // SAFETY: C gives this memory to the engine, and doesn't move it.
    unsafe {
        EngineCell::make(
            place,
            cpus,
            Machine::new(features, shares_lines_from, hooks, places, cpus),
            |machine| {
                Ok(match places {
                    [] => Engine::new(machine, per_cpu, ledger, policy)?,
                    _ => Engine::with_own_state(machine, cpus, ledger, policy)?,
                })
            },
        )
    }
}

/// Reads a policy. NULL means everything that the library was built with.
///
/// # Errors
/// If the text isn't a policy.
///
/// # Safety
/// `text` is NULL, ends with a zero byte, or has QUELL_POLICY_LENGTH bytes.
unsafe fn policy(text: *const c_char) -> Result<Policy, Refusal> {
    if text.is_null() {
        return Ok(Machine::MECHANISMS);
    }
    #[cfg(not(feature = "text"))]
    return Err(refusal(
        quell_status::Policy,
        c"quell_setup.policy is set: build the library with the feature \"text\", or pass NULL for all that is built in",
    ));
    #[cfg(feature = "text")]
    {
        // SAFETY: as the caller promises.
        let text = unsafe { of_c(text, QUELL_POLICY_LENGTH) };
        let Some(text) = text else {
            return Err(refusal(
                quell_status::Policy,
                c"quell_setup.policy is longer than 255 bytes or is not UTF-8",
            ));
        };
        parse_policy(text).map_err(|error| Refusal(quell_status::Policy, Reason::Policy(error)))
    }
}

/// Writes an engine's policy to `text`, in the form that quell_setup takes.
///
/// The text ends with a zero byte, and is cut off if it doesn't fit in `size` bytes; 64 are enough.
///
/// Refuses in a library without the feature "text".
///
/// Context: any.
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
        #[cfg(feature = "text")]
        {
            // SAFETY: C vouches for `size` bytes behind `text`, which isn't null.
            unsafe { Line::new(text, size) }.set_formatted(format_args!("{}", PolicyText(*policy)));
            Ok(())
        }
        #[cfg(not(feature = "text"))]
        {
            let _ = (policy, size);
            Err(quell_status::Unsupported)
        }
    })
}

/// Returns whether an engine's policy has a mechanism on.
///
/// `mechanism` is 0 to 4 for S0 to S4. Returns false for any other number, and for memory without an engine.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_policy_has(engine: *const quell_engine, mechanism: u32) -> bool {
    // SAFETY: C vouches for its memory.
    let (Ok(engine), Some(mechanism)) =
        (unsafe { self::engine(engine) }, Mechanism::ALL.get(mechanism as usize))
    else {
        return false;
    };
    engine.policy().has(*mechanism)
}

/// Returns the most bytes that the policy allows to be zeroed without a preemption point.
///
/// UINT64_MAX means no limit. Returns 0 for memory without an engine.
///
/// Context: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quell_policy_cap(engine: *const quell_engine) -> u64 {
    // SAFETY: C vouches for its memory.
    unsafe { self::engine(engine) }
        .map_or(0, |engine| engine.policy().cap_bytes.unwrap_or(u64::MAX))
}
