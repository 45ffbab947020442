//! Performs accesses that may fault, and returns the reason.
//!
//! Loads and stores are two functions in assembly. If one faults, the signal handler makes it return the reason. A
//! fault anywhere else ends the process as usual.

use libc::{c_int, c_void};
use quell_vm::Fault;

core::arch::global_asm!(
    ".globl quell_probe_load, quell_probe_store, quell_probe_end, quell_probe_failed",
    "quell_probe_load:",
    "mov rax, [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    "quell_probe_store:",
    "mov [rdi], rsi",
    "xor eax, eax",
    "ret",
    "quell_probe_end:",
    // The handler resumes here, with the reason in the result register.
    "quell_probe_failed:",
    "ret",
);

unsafe extern "C" {
    /// Loads from an address into `into`. Returns 0, or the reason of the fault.
    fn quell_probe_load(address: u64, into: *mut u64) -> u64;
    /// Stores to an address. Returns 0, or the reason of the fault.
    fn quell_probe_store(address: u64, value: u64) -> u64;
    fn quell_probe_end();
    fn quell_probe_failed();
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// `SEGV_MAPERR`: nothing is mapped at the address.
    const NOT_MAPPED: c_int = 1;
    // SAFETY: the kernel passes both to a handler that was set with SA_SIGINFO, and restores the registers from them
    // when the handler returns.
    let (registers, code) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        (&mut context.uc_mcontext.gregs, (*info).si_code)
    };
    let at = registers[libc::REG_RIP as usize] as usize;
    let begin = quell_probe_load as *const () as usize;
    if !(begin..quell_probe_end as *const () as usize).contains(&at) {
        // SAFETY: the access happens again, and then ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    registers[libc::REG_RAX as usize] = match (signal, code) {
        (libc::SIGBUS, _) => 3,
        (_, NOT_MAPPED) => 1,
        _ => 2,
    };
    registers[libc::REG_RIP as usize] = quell_probe_failed as *const () as i64;
}

/// Makes [`load`] and [`store`] return faults, in this process and its children.
pub fn handle() -> anyhow::Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: zero is a valid value for this type, and the handler uses only its arguments.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    Ok(())
}

/// Translates the result of these functions.
fn verdict(code: u64) -> Result<(), Fault> {
    match code {
        0 => Ok(()),
        1 => Err(Fault::NotMapped),
        3 => Err(Fault::BeyondEnd),
        _ => Err(Fault::Forbidden),
    }
}

/// Loads a word of a workload's memory.
pub fn load(address: u64) -> Result<u64, Fault> {
    let mut value = 0;
    // SAFETY: the source is a workload's memory, or faults; the destination is this call's.
    verdict(unsafe { quell_probe_load(address, &raw mut value) })?;
    Ok(value)
}

/// Stores a word into a workload's memory.
pub fn store(address: u64, value: u64) -> Result<(), Fault> {
    // SAFETY: this program has no memory where workloads map theirs.
    verdict(unsafe { quell_probe_store(address, value) })
}
