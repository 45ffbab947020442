//! Calls as register values: the number of the call and its operands.

use super::{Backing, Call, Error, Protection};
use quell::PageSize;

/// One register format for all calls: the number of the call and up to six operands.
pub type Words = [u64; 7];

/// The largest address word, standing for "anywhere".
const ANYWHERE: u64 = u64::MAX;

impl Call {
    /// The call as register values.
    pub fn to_words(self) -> Words {
        let size = |page: PageSize| page as u64;
        match self {
            Call::Nothing => [0, 0, 0, 0, 0, 0, 0],
            Call::Map {
                address,
                bytes,
                protection,
                backing,
            } => {
                let (kind, file, offset) = match backing {
                    Backing::Anonymous { page } => (0, size(page), 0),
                    Backing::Shared { file, offset } => (1, file as u64, offset),
                    Backing::Private { file, offset } => (2, file as u64, offset),
                };
                let address = address.unwrap_or(ANYWHERE);
                [1, address, bytes, protection.to_word(), kind, file, offset]
            }
            Call::Unmap { address, bytes } => [2, address, bytes, 0, 0, 0, 0],
            Call::Protect {
                address,
                bytes,
                protection,
            } => [3, address, bytes, protection.to_word(), 0, 0, 0],
            Call::Discard { address, bytes } => [4, address, bytes, 0, 0, 0, 0],
            Call::PageOut { address, bytes } => [5, address, bytes, 0, 0, 0, 0],
            Call::Remap { address, bytes, to } => {
                [6, address, bytes, to.unwrap_or(ANYWHERE), 0, 0, 0]
            }
            Call::Collapse { address } => [7, address, 0, 0, 0, 0, 0],
            Call::Spawn => [8, 0, 0, 0, 0, 0, 0],
            Call::Fork => [9, 0, 0, 0, 0, 0, 0],
            Call::Enter { process } => [10, process as u64, 0, 0, 0, 0, 0],
            Call::Exit { process } => [11, process as u64, 0, 0, 0, 0, 0],
            Call::Create { bytes } => [12, bytes, 0, 0, 0, 0, 0],
            Call::Write {
                file,
                offset,
                value,
            } => [13, file as u64, offset, value, 0, 0, 0],
            Call::Read { file, offset } => [14, file as u64, offset, 0, 0, 0, 0],
            Call::Truncate { file, bytes } => [15, file as u64, bytes, 0, 0, 0, 0],
            Call::Sync { file } => [16, file as u64, 0, 0, 0, 0, 0],
            Call::Migrate {
                address,
                bytes,
                node,
            } => [17, address, bytes, node as u64, 0, 0, 0],
            Call::Demote { pages } => [18, pages, 0, 0, 0, 0, 0],
            Call::Reclaim { pages } => [19, pages, 0, 0, 0, 0, 0],
            Call::Idle { until } => [20, until, 0, 0, 0, 0, 0],
        }
    }

    /// The call of register values.
    ///
    /// # Errors
    /// [`Error::BadCall`] if they encode none.
    pub fn from_words(words: Words) -> Result<Self, Error> {
        let [number, a, b, c, d, e, f] = words;
        let id = |word: u64| u32::try_from(word).map_err(|_| Error::BadCall);
        let place = |word: u64| (word != ANYWHERE).then_some(word);
        Ok(match number {
            0 => Call::Nothing,
            1 => Call::Map {
                address: place(a),
                bytes: b,
                protection: Protection::from_word(c),
                backing: match d {
                    0 => Backing::Anonymous {
                        page: match e {
                            0 => PageSize::Base,
                            1 => PageSize::Large,
                            2 => PageSize::Huge,
                            _ => return Err(Error::BadCall),
                        },
                    },
                    1 => Backing::Shared {
                        file: id(e)?,
                        offset: f,
                    },
                    2 => Backing::Private {
                        file: id(e)?,
                        offset: f,
                    },
                    _ => return Err(Error::BadCall),
                },
            },
            2 => Call::Unmap {
                address: a,
                bytes: b,
            },
            3 => Call::Protect {
                address: a,
                bytes: b,
                protection: Protection::from_word(c),
            },
            4 => Call::Discard {
                address: a,
                bytes: b,
            },
            5 => Call::PageOut {
                address: a,
                bytes: b,
            },
            6 => Call::Remap {
                address: a,
                bytes: b,
                to: place(c),
            },
            7 => Call::Collapse { address: a },
            8 => Call::Spawn,
            9 => Call::Fork,
            10 => Call::Enter { process: id(a)? },
            11 => Call::Exit { process: id(a)? },
            12 => Call::Create { bytes: a },
            13 => Call::Write {
                file: id(a)?,
                offset: b,
                value: c,
            },
            14 => Call::Read {
                file: id(a)?,
                offset: b,
            },
            15 => Call::Truncate {
                file: id(a)?,
                bytes: b,
            },
            16 => Call::Sync { file: id(a)? },
            17 => Call::Migrate {
                address: a,
                bytes: b,
                node: id(c)?,
            },
            18 => Call::Demote { pages: a },
            19 => Call::Reclaim { pages: a },
            20 => Call::Idle { until: a },
            _ => return Err(Error::BadCall),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_the_registers() {
        let calls = [
            Call::Nothing,
            Call::Map {
                address: None,
                bytes: 1,
                protection: Protection::READ_EXECUTE,
                backing: Backing::Anonymous {
                    page: PageSize::Huge,
                },
            },
            Call::Map {
                address: Some(4096),
                bytes: 9,
                protection: Protection::READ_WRITE,
                backing: Backing::Shared {
                    file: 3,
                    offset: 8192,
                },
            },
            Call::Map {
                address: Some(0),
                bytes: 9,
                protection: Protection::NONE,
                backing: Backing::Private {
                    file: 3,
                    offset: 8192,
                },
            },
            Call::Unmap {
                address: 1,
                bytes: 2,
            },
            Call::Protect {
                address: 1,
                bytes: 2,
                protection: Protection::READ,
            },
            Call::Discard {
                address: 1,
                bytes: 2,
            },
            Call::PageOut {
                address: 1,
                bytes: 2,
            },
            Call::Remap {
                address: 1,
                bytes: 2,
                to: None,
            },
            Call::Remap {
                address: 1,
                bytes: 2,
                to: Some(3),
            },
            Call::Collapse { address: 1 },
            Call::Spawn,
            Call::Fork,
            Call::Enter { process: 1 },
            Call::Exit { process: 1 },
            Call::Create { bytes: 1 },
            Call::Write {
                file: 1,
                offset: 2,
                value: 3,
            },
            Call::Read { file: 1, offset: 2 },
            Call::Truncate { file: 1, bytes: 2 },
            Call::Sync { file: 1 },
            Call::Migrate {
                address: 1,
                bytes: 2,
                node: 3,
            },
            Call::Demote { pages: 1 },
            Call::Reclaim { pages: 1 },
            Call::Idle { until: 1 },
        ];
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(Call::from_words(call.to_words()), Ok(call), "call {number}");
        }
        assert_eq!(
            Call::from_words([99, 0, 0, 0, 0, 0, 0]),
            Err(Error::BadCall)
        );
        assert_eq!(
            Call::from_words([10, 1 << 40, 0, 0, 0, 0, 0]),
            Err(Error::BadCall)
        );
    }

    #[test]
    fn errors_survive_the_registers() {
        for error in Error::ALL {
            assert_eq!(Error::from_word(error.to_word()), error);
        }
    }
}
