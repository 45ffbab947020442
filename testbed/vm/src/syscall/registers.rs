//! Calls as register values: the number of the call and its operands.

use super::{Backing, Error, Protection};
use quell::PageSize;

/// A call as register values: its number and up to six operands.
pub type Words = [u64; 7];

/// The largest address word, which represents "anywhere".
const ANYWHERE: u64 = u64::MAX;

/// A type of operand, with its number of registers.
pub(super) trait Operand: Sized {
    /// The number of registers.
    const WORDS: usize = 1;
    /// Writes the registers.
    fn put(self, words: &mut [u64]);
    /// Reads the registers.
    ///
    /// # Errors
    /// [`Error::BadCall`] if they hold no such operand.
    fn take(words: &[u64]) -> Result<Self, Error>;
}

impl Operand for u64 {
    fn put(self, words: &mut [u64]) {
        words[0] = self;
    }
    fn take(words: &[u64]) -> Result<Self, Error> {
        Ok(words[0])
    }
}

impl Operand for u32 {
    fn put(self, words: &mut [u64]) {
        words[0] = self.into();
    }
    fn take(words: &[u64]) -> Result<Self, Error> {
        u32::try_from(words[0]).map_err(|_| Error::BadCall)
    }
}

/// An address, or anywhere.
impl Operand for Option<u64> {
    fn put(self, words: &mut [u64]) {
        words[0] = self.unwrap_or(ANYWHERE);
    }
    fn take(words: &[u64]) -> Result<Self, Error> {
        Ok(Some(words[0]).filter(|&word| word != ANYWHERE))
    }
}

impl Operand for Protection {
    fn put(self, words: &mut [u64]) {
        words[0] = self.to_word();
    }
    fn take(words: &[u64]) -> Result<Self, Error> {
        Ok(Protection::from_word(words[0]))
    }
}

impl Operand for Backing {
    const WORDS: usize = 3;
    fn put(self, words: &mut [u64]) {
        let fields = match self {
            Backing::Anonymous { page } => [0, page as u64, 0],
            Backing::Shared { file, offset } => [1, file.into(), offset],
            Backing::Private { file, offset } => [2, file.into(), offset],
        };
        words[..3].copy_from_slice(&fields);
    }
    fn take(words: &[u64]) -> Result<Self, Error> {
        let (file, offset) = (|| u32::take(&words[1..]), words[2]);
        Ok(match words[0] {
            0 => Backing::Anonymous {
                page: match words[1] {
                    0 => PageSize::Base,
                    1 => PageSize::Large,
                    2 => PageSize::Huge,
                    _ => return Err(Error::BadCall),
                },
            },
            1 => Backing::Shared { file: file()?, offset },
            2 => Backing::Private { file: file()?, offset },
            _ => return Err(Error::BadCall),
        })
    }
}

/// Declares the calls with their numbers, names and operands, and their conversion to and from registers.
macro_rules! calls {
    (
        $(#[$about:meta])*
        pub enum Call {
            $(
                $(#[$doc:meta])*
                $number:literal $name:literal => $variant:ident
                $({ $( $(#[$of:meta])* $operand:ident: $type:ty, )* })?,
            )*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Call {
            $( $(#[$doc])* $variant $({ $( $(#[$of])* $operand: $type, )* })?, )*
        }

        impl Call {
            /// Returns the call's name for people.
            pub const fn name(&self) -> &'static str {
                match self {
                    $( Call::$variant { .. } => $name, )*
                }
            }

            /// Returns the call as register values.
            pub fn to_words(self) -> Words {
                let mut words = [0; 7];
                let [number, operands @ ..] = &mut words;
                let mut _rest = &mut operands[..];
                match self {
                    $( Call::$variant { $( $( $operand, )* )? } => {
                        *number = $number;
                        $( $(
                            $operand.put(_rest);
                            _rest = &mut _rest[<$type as Operand>::WORDS..];
                        )* )?
                    } )*
                }
                words
            }

            /// Returns the call that register values encode.
            ///
            /// # Errors
            /// [`Error::BadCall`] if they encode none.
            pub fn from_words(words: Words) -> Result<Self, Error> {
                let mut _rest = &words[1..];
                Ok(match words[0] {
                    $( $number => {
                        $( $(
                            let $operand = <$type as Operand>::take(_rest)?;
                            _rest = &_rest[<$type as Operand>::WORDS..];
                        )* )?
                        Call::$variant { $( $( $operand, )* )? }
                    } )*
                    _ => return Err(Error::BadCall),
                })
            }
        }
    };
}

pub(super) use calls;

#[cfg(test)]
mod tests {
    use super::super::Call;
    use super::*;

    #[test]
    fn calls_survive_the_registers() {
        let calls = [
            Call::Nothing,
            Call::Map {
                address: None,
                bytes: 1,
                protection: Protection::READ_EXECUTE,
                backing: Backing::Anonymous { page: PageSize::Huge },
            },
            Call::Map {
                address: Some(4096),
                bytes: 9,
                protection: Protection::READ_WRITE,
                backing: Backing::Shared { file: 3, offset: 8192 },
            },
            Call::Map {
                address: Some(0),
                bytes: 9,
                protection: Protection::NONE,
                backing: Backing::Private { file: 3, offset: 8192 },
            },
            Call::Unmap { address: 1, bytes: 2 },
            Call::Protect { address: 1, bytes: 2, protection: Protection::READ },
            Call::Discard { address: 1, bytes: 2 },
            Call::PageOut { address: 1, bytes: 2 },
            Call::Remap { address: 1, bytes: 2, to: None },
            Call::Remap { address: 1, bytes: 2, to: Some(3) },
            Call::Collapse { address: 1 },
            Call::Spawn,
            Call::Fork,
            Call::Enter { process: 1 },
            Call::Exit { process: 1 },
            Call::Create { bytes: 1 },
            Call::Write { file: 1, offset: 2, value: 3 },
            Call::Read { file: 1, offset: 2 },
            Call::Truncate { file: 1, bytes: 2 },
            Call::Sync { file: 1 },
            Call::Migrate { address: 1, bytes: 2, node: 3 },
            Call::Demote { pages: 1 },
            Call::Reclaim { pages: 1 },
            Call::Idle { until: 1 },
        ];
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(Call::from_words(call.to_words()), Ok(call), "call {number}");
        }
        assert_eq!(Call::from_words([99, 0, 0, 0, 0, 0, 0]), Err(Error::BadCall));
        assert_eq!(Call::from_words([10, 1 << 40, 0, 0, 0, 0, 0]), Err(Error::BadCall));
    }

    #[test]
    fn errors_survive_the_registers() {
        for error in Error::ALL {
            assert_eq!(Error::from_word(error.to_word()), error);
        }
    }
}
