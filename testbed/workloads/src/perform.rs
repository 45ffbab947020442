//! Performs the program of a workload file on one CPU.
//!
//! Each statement becomes one call of [`User`], in the order of the file, with nothing in between. So on a machine a
//! file costs as much as a Rust program with the same calls.

use crate::expression::{Expression, Name, Values};
use crate::script::{
    ARGUMENTS, BackingExpr, CallBuilder, LOCALS, Op, Order, Range, Script, Statement,
    StatementError, Target,
};
use crate::team::{Failure, StopReason, Team, word};
use core::cell::{Cell, RefCell};
use quell::PageSize;
use quell_vm::machine::USER_END;
use quell_vm::{Backing, Call, Error, User};
use rand::RngExt;
use rand_pcg::Pcg64;

/// The most statements in a row that take no time on a machine.
const IDLE_STATEMENTS: u32 = 10_000_000;
/// The longest time that a statement computes or sleeps: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Refuses a range that no program can have.
fn within(address: u64, bytes: u64) -> Result<(), StopReason> {
    let end = address.checked_add(bytes);
    if address.is_multiple_of(8) && end.is_some_and(|end| end <= USER_END.address()) {
        return Ok(());
    }
    Err(StatementError::Address(address).into())
}

/// The values that a statement passes to a system call, in the order of its keys.
pub(crate) struct Arguments<'a> {
    values: [Option<u64>; ARGUMENTS],
    /// We read it only for calls that need it, because reading the clock takes time.
    now: &'a dyn Fn() -> u64,
}

impl Arguments<'_> {
    /// Returns a number; 0 if the statement omits it.
    pub fn number(&self, index: usize) -> u64 {
        self.values[index].unwrap_or(0)
    }

    /// Returns the address of a word: the first argument.
    pub fn address(&self) -> Result<u64, StopReason> {
        within(self.number(0), 8)?;
        Ok(self.number(0))
    }

    /// Returns a range of memory: the first argument and the second.
    pub fn range(&self) -> Result<(u64, u64), StopReason> {
        within(self.number(0), self.number(1))?;
        Ok((self.number(0), self.number(1)))
    }

    /// Returns the address of `bytes` bytes, if the statement has one.
    pub fn address_if_given(&self, index: usize, bytes: u64) -> Result<Option<u64>, StopReason> {
        within(self.number(index), bytes)?;
        Ok(self.values[index])
    }

    /// Returns a process: the first argument.
    pub fn process(&self) -> Result<u32, StopReason> {
        u32::try_from(self.number(0)).map_err(|_| StopReason::Refused(Error::NoProcess))
    }

    /// Returns a file: the first argument.
    pub fn file(&self) -> Result<u32, StopReason> {
        u32::try_from(self.number(0)).map_err(|_| StopReason::Refused(Error::NoFile))
    }

    /// Returns a memory node.
    pub fn node(&self, index: usize) -> Result<u32, StopReason> {
        u32::try_from(self.number(index)).map_err(|_| StopReason::Refused(Error::NoNode))
    }

    /// Returns the time that is the first argument's nanoseconds from now.
    pub fn after(&self) -> Result<u64, StopReason> {
        match self.number(0) {
            time @ 0..=LONGEST => Ok((self.now)() + time),
            longer => Err(StatementError::Time(longer).into()),
        }
    }
}

/// A CPU that performs a program.
struct Performer<'p, 'u, U: User + ?Sized> {
    team: &'p Team<'u, U>,
    values: &'p [u64],
    locals: [Cell<u64>; LOCALS],
    offset: Cell<u64>,
    /// The value of the last `progress`.
    progress: Cell<Option<u64>>,
    random: RefCell<Pcg64>,
}

impl<U: User + ?Sized> Values for Performer<'_, '_, U> {
    #[inline]
    fn value(&self, name: Name) -> u64 {
        let user = self.team.user;
        match name {
            Name::Parameter(index) => self.values[usize::from(index)],
            Name::Local(index) => self.locals[usize::from(index)].get(),
            Name::Shared(index) => user.shared(index.into()),
            Name::Cpu => user.cpu() as u64,
            Name::Cpus => user.cpus() as u64,
            Name::Now => user.now(),
            Name::Stopped => self.team.stopped().into(),
            Name::Offset => self.offset.get(),
            Name::Nanoseconds => 0,
        }
    }

    fn random(&self, bound: u64) -> u64 {
        self.random.borrow_mut().random_range(0..bound)
    }
}

/// Performs a CPU's part of a script with these parameter values.
///
/// # Errors
/// The failure, and the line of its statement.
pub(crate) fn perform<U: User + ?Sized>(
    script: &Script,
    values: &[u64],
    team: &Team<'_, U>,
    seed: u64,
) -> Result<(), Failure> {
    let performer = Performer {
        team,
        values,
        locals: [const { Cell::new(0) }; LOCALS],
        offset: Cell::new(0),
        progress: Cell::new(None),
        random: RefCell::new(Pcg64::new(seed.into(), team.user.cpu() as u128)),
    };
    for thread in &script.threads {
        match thread.when.evaluate(&performer) {
            Ok(0) => {}
            Ok(_) => return performer.program(&thread.program),
            Err(why) => {
                return Err(Failure::Value {
                    line: thread.program.first().map_or(0, |first| first.line),
                    what: "when",
                    why: why.into(),
                });
            }
        }
    }
    Ok(())
}

impl<U: User + ?Sized> Performer<'_, '_, U> {
    fn program(&self, program: &[Statement]) -> Result<(), Failure> {
        let mut at = 0;
        let mut idle = 0;
        while let Some(statement) = program.get(at) {
            at += 1;
            if !self.team.user.at(statement.line) {
                return Err(Failure::Elsewhere);
            }
            let before = idle;
            let next = self.statement(&statement.does, &mut idle).and_then(|next| {
                // Anything that takes time restarts the count.
                if idle == before {
                    idle = 0;
                } else if idle > IDLE_STATEMENTS {
                    return Err(StatementError::Endless.into());
                }
                Ok(next)
            });
            match next {
                Ok(None) => {}
                Ok(Some(next)) => at = next as usize,
                Err(stop) => {
                    let (line, what) = (statement.line, statement.verb);
                    return Err(match stop {
                        StopReason::Invalid(why) => Failure::Value { line, what, why },
                        StopReason::Refused(error) => Failure::Call { line, what, error },
                        StopReason::Faulted(address, fault) => {
                            Failure::Access { line, what, address, fault }
                        }
                        StopReason::Elsewhere => Failure::Elsewhere,
                    });
                }
            }
        }
        Ok(())
    }

    fn of(&self, expression: &Expression) -> Result<u64, StopReason> {
        Ok(expression.evaluate(self)?)
    }

    fn set(&self, target: &Target, value: u64) -> Result<(), StopReason> {
        match target {
            Target::Local(index) => self.locals[usize::from(*index)].set(value),
            Target::Shared(index) => self.team.user.set_shared((*index).into(), value),
            Target::Element { base, count, index } => {
                let index = self.of(index)?;
                if index >= u64::from(*count) {
                    return Err(crate::expression::EvalError::Index.into());
                }
                self.team.user.set_shared(usize::from(*base) + index as usize, value);
            }
        }
        Ok(())
    }

    /// Performs a statement. Returns the next one, if it isn't the following one. Raises `idle` if no time passed.
    fn statement(&self, does: &Op, idle: &mut u32) -> Result<Option<u32>, StopReason> {
        let team = self.team;
        match does {
            Op::Let { to, value } => {
                *idle += u32::from(matches!(to, Target::Local(_)));
                self.set(to, self.of(value)?)?;
            }
            Op::Add { word, by, into } => {
                let before = team.user.add_shared((*word).into(), self.of(by)?);
                if let Some(into) = into {
                    self.set(into, before)?;
                }
            }
            Op::Access { address, range: None, value } => {
                let address = self.of(address)?;
                self.access(address, value.as_ref())?;
            }
            Op::Access { address, range: Some(range), value } => {
                let accesses = self.range(self.of(address)?, range, value.as_ref())?;
                *idle += u32::from(accesses == 0);
            }
            Op::Stream { address, bytes, value } => {
                let (address, bytes) = (self.of(address)?, self.of(bytes)?);
                within(address, bytes)?;
                let span = match value {
                    None => team.user.try_read_span(address, bytes),
                    Some(value) => team.user.try_write_span(address, bytes, self.of(value)?),
                };
                span.map_err(|fault| StopReason::Faulted(address, fault))?;
                *idle += u32::from(bytes == 0);
            }
            Op::Map { to, bytes, at, protection, behind } => {
                let call = Call::Map {
                    address: at.as_ref().map(|at| self.of(at)).transpose()?,
                    bytes: self.of(bytes)?,
                    protection: *protection,
                    backing: self.backing(behind)?,
                };
                // Nothing is mapped above this, so nothing overflows.
                if let Call::Map { address: Some(address), bytes, .. } = call {
                    within(address, bytes)?;
                }
                self.set(to, self.call(call)?)?;
            }
            Op::Protect { address, bytes, protection } => {
                let (address, bytes) = (self.of(address)?, self.of(bytes)?);
                within(address, bytes)?;
                self.call(Call::Protect { address, bytes, protection: *protection })?;
            }
            Op::Call { make, arguments, into } => {
                let result = self.call(self.made(*make, arguments)?)?;
                if let Some(into) = into {
                    self.set(into, result)?;
                }
            }
            Op::Compute(time) => {
                let time = self.time(time, 0)?;
                team.user.compute(time);
                *idle += u32::from(time == 0);
            }
            Op::Barrier => team.barrier()?,
            Op::Begin => {
                self.once(false)?;
                team.begin()?;
            }
            Op::End => {
                self.once(true)?;
                team.end()?;
            }
            Op::Open | Op::Close if !team.leads() => return Err(StatementError::NotFirst.into()),
            Op::Open => {
                self.once(false)?;
                team.open();
            }
            Op::Close => {
                self.once(true)?;
                team.close();
            }
            Op::GiveUp => return Err(StopReason::Elsewhere),
            Op::Done(amount) => _ = team.user.add_shared(word::DONE, self.of(amount)?),
            Op::Bystand { every, asleep } => {
                let every = self.time(every, 100)?;
                team.bystand(every, self.of(asleep)? != 0)?;
            }
            Op::Without(others) => {
                if !team.without(self.of(others)?) {
                    return Err(StatementError::Members.into());
                }
                *idle += 1;
            }
            Op::Progress { done, all } => {
                let (done, all) = (self.of(done)?, self.of(all)?);
                // The watcher gives up a program without progress, so reporting the same value again must not count.
                let further = self.progress.get().is_none_or(|before| done > before);
                if team.leads() && further && done <= all {
                    self.progress.set(Some(done));
                    team.user.step(done, all);
                }
                *idle += 1;
            }
            Op::Jump(to) => {
                *idle += 1;
                return Ok(Some(*to));
            }
            Op::Unless { condition, to } => {
                *idle += 1;
                if self.of(condition)? == 0 {
                    return Ok(Some(*to));
                }
            }
            Op::Below { variable, limit, to } => {
                *idle += 1;
                let [now, end] =
                    [variable, limit].map(|index| self.locals[usize::from(*index)].get());
                if now >= end {
                    return Ok(Some(*to));
                }
            }
            Op::Next { variable, by, to } => {
                *idle += 1;
                let variable = &self.locals[usize::from(*variable)];
                match self.of(by)? {
                    0 => return Err(crate::expression::EvalError::Zero.into()),
                    by => variable.set(variable.get().saturating_add(by)),
                }
                return Ok(Some(*to));
            }
        }
        Ok(None)
    }

    /// Refuses a second beginning, and an end before the beginning.
    fn once(&self, ends: bool) -> Result<(), StopReason> {
        if self.team.turn(ends) {
            return Ok(());
        }
        Err(StatementError::Window.into())
    }

    fn time(&self, time: &Expression, least: u64) -> Result<u64, StopReason> {
        let time = self.of(time)?;
        if (least..=LONGEST).contains(&time) {
            return Ok(time);
        }
        Err(StatementError::Time(time).into())
    }

    #[inline]
    fn access(&self, address: u64, value: Option<&Expression>) -> Result<(), StopReason> {
        within(address, 8)?;
        let user = self.team.user;
        let result = match value {
            None => user.try_read(address).map(|_| ()),
            Some(value) => user.try_write(address, self.of(value)?),
        };
        result.map_err(|fault| StopReason::Faulted(address, fault))
    }

    /// Accesses the words of a range. Returns their number.
    fn range(
        &self,
        address: u64,
        range: &Range,
        value: Option<&Expression>,
    ) -> Result<u64, StopReason> {
        let bytes = self.of(&range.bytes)?;
        let stride = self.of(&range.stride)?;
        if stride == 0 {
            return Err(crate::expression::EvalError::Zero.into());
        }
        within(address, bytes)?;
        let count = bytes.div_ceil(stride);
        let at = |index: u64| {
            self.offset.set(index * stride);
            self.access(address + index * stride, value)
        };
        match range.order {
            Order::Ascending => (0..count).try_for_each(at)?,
            Order::Descending => (0..count).rev().try_for_each(at)?,
            Order::Random => {
                let times = self.of(&range.count)?;
                if times > 0 && count == 0 {
                    return Err(crate::expression::EvalError::Zero.into());
                }
                (0..times).try_for_each(|_| at(self.random(count)))?;
                return Ok(times);
            }
        }
        Ok(count)
    }

    fn backing(&self, behind: &BackingExpr) -> Result<Backing, StopReason> {
        let file = |file: &Expression| {
            u32::try_from(self.of(file)?).map_err(|_| StopReason::Refused(Error::NoFile))
        };
        Ok(match behind {
            BackingExpr::Anonymous { page } => Backing::Anonymous {
                page: match self.of(page)? {
                    0x1000 => PageSize::Base,
                    0x20_0000 => PageSize::Large,
                    0x4000_0000 => PageSize::Huge,
                    other => return Err(StatementError::Page(other).into()),
                },
            },
            BackingExpr::Shared { file: id, offset } => {
                Backing::Shared { file: file(id)?, offset: self.of(offset)? }
            }
            BackingExpr::Private { file: id, offset } => {
                Backing::Private { file: file(id)?, offset: self.of(offset)? }
            }
        })
    }

    fn made(
        &self,
        make: CallBuilder,
        given: &[Option<Expression>; ARGUMENTS],
    ) -> Result<Call, StopReason> {
        let mut values = [None; ARGUMENTS];
        for (value, argument) in values.iter_mut().zip(given) {
            *value = argument.as_ref().map(|argument| self.of(argument)).transpose()?;
        }
        let now = &|| self.team.user.now();
        make(&Arguments { values, now })
    }

    fn call(&self, call: Call) -> Result<u64, StopReason> {
        self.team.user.call(call).map_err(StopReason::Refused)
    }
}
