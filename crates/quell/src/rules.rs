//! What must never be forgotten, one rule each.
//!
//! A protocol is held together by small decisions: wait here, look again there, leave nobody out. Those that no type
//! and no compiler keeps stand in this file, and nowhere else, each as one line with the clause of the
//! contract that it keeps and the reason; the modules of the protocol call them by name.
//!
//! # Why they are gathered
//!
//! A test that passes with a rule taken out has not tested it. So each rule says, too, what somebody who forgets it
//! would do instead: its *mutant*. An engine asks its [`Rules`] which of the two it does.
//! [`AllRules`], the default, is a constant "keep" and compiled away; a machine under test brings
//! [`Rules`] that leave one out, and a search must then find an interleaving that breaks the contract.
//!
//! Two other kinds of mistakes need no rule: those at the border to the machine (an interrupt that is not sent, a
//! barrier left out) are made by a decorator of [`Hardware`](crate::Hardware), and orderings that are too weak by
//! the machine's words. `docs/mutants.md` lists all three.

/// A rule, and what is done by somebody who forgets it.
#[derive(Debug)]
pub struct Rule {
    /// The name of its mutant, for people and replay codes: it never changes.
    pub name: &'static str,
    /// The clause of the contract that breaks first without it.
    pub clause: &'static str,
    /// What must be done, and why.
    pub reason: &'static str,
    /// What the mutant does instead.
    pub mistake: &'static str,
}

impl PartialEq for Rule {
    /// A rule is declared once: it is the same if it is at the same place.
    #[inline]
    fn eq(&self, other: &Rule) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Rule {}

/// Which rules are kept.
pub trait Rules: Send + Sync {
    /// Whether `rule` is kept.
    fn keeps(&self, rule: &'static Rule) -> bool;
}

/// All rules are kept: what every real machine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllRules;

impl Rules for AllRules {
    #[inline(always)]
    fn keeps(&self, _rule: &'static Rule) -> bool {
        true
    }
}

impl<R: Rules + ?Sized> Rules for &R {
    #[inline(always)]
    fn keeps(&self, rule: &'static Rule) -> bool {
        (**self).keeps(rule)
    }
}

/// Declares rules. For each: its reason, its clause, the decision that keeps it, and for each mutant a name, what
/// it decides instead, and its account.
///
/// ```text
/// quell::rules! {
///     /// The rules of a kettle.
///     pub trait KettleRules, mod kettle;
///
///     /// A dry kettle melts.
///     "C1" fn may_heat(full: bool) -> bool { full }
///         or HeatsDry { true } "The kettle is heated whether it is full or not.";
/// }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! rules {
    (
        $(#[$about:meta])*
        $vis:vis trait $trait:ident, mod $module:ident;
        $(
            $(#[doc = $reason:literal])+
            $clause:literal fn $method:ident $(<$($generic:ident),+>)?
                ($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? $right:block
            $(or $name:ident $wrong:block $mistake:literal)+;
        )+
    ) => {
        $(#[$about])*
        $vis trait $trait: $crate::rules::Rules {
            $(
                $(#[doc = $reason])+
                #[doc = ""]
                #[doc = concat!("Keeps ", $clause, ".")]
                #[inline]
                #[allow(unused_variables)]
                fn $method $(<$($generic),+>)? (&self, $($arg: $type),*) $(-> $out)? {
                    $(
                        if !self.keeps(&$module::$name) {
                            return $wrong;
                        }
                    )+
                    $right
                }
            )+
        }

        impl<Kept: $crate::rules::Rules + ?Sized> $trait for Kept {}

        /// What each rule is, by the names of its mutants.
        #[allow(non_upper_case_globals)]
        $vis mod $module {
            /// Why each is kept.
            mod reasons {
                $(pub(super) const $method: &str = concat!($($reason,)+);)+
            }

            $($(
                #[doc = $mistake]
                pub static $name: $crate::rules::Rule = $crate::rules::Rule {
                    name: stringify!($name),
                    clause: $clause,
                    reason: reasons::$method,
                    mistake: $mistake,
                };
            )+)+

            /// All of them.
            pub static ALL: &[&$crate::rules::Rule] = &[$($(&$name,)+)+];
        }
    };
}

#[cfg(test)]
mod tests {
    use super::{AllRules, Rule, Rules};

    crate::rules! {
        /// The rules of a kettle.
        trait KettleRules, mod kettle;

        /// A dry kettle melts.
        "C1" fn may_heat(full: bool) -> bool { full }
            or HeatsDry { true } "The kettle is heated whether it is full or not.";

        /// Water boils before tea is made of it.
        "C2" fn boil_then_pour<T>(boil: impl FnOnce(), pour: impl FnOnce() -> T) -> T { boil(); pour() }
            or PoursCold { let tea = pour(); boil(); tea } "The tea is made of cold water.";
    }

    struct But(&'static Rule);

    impl Rules for But {
        fn keeps(&self, rule: &'static Rule) -> bool {
            self.0 != rule
        }
    }

    #[test]
    fn a_rule_that_is_not_kept_decides_otherwise() {
        assert!(!AllRules.may_heat(false));
        assert!(But(&kettle::HeatsDry).may_heat(false));
        assert!(!But(&kettle::PoursCold).may_heat(false));
        let boiled = core::cell::Cell::new(false);
        let hot = |rules: &dyn Rules| {
            boiled.set(false);
            rules.boil_then_pour(|| boiled.set(true), || boiled.get())
        };
        assert!(hot(&AllRules));
        assert!(!hot(&But(&kettle::PoursCold)));
    }

    #[test]
    fn rules_are_listed_with_their_accounts() {
        let names: Vec<_> = kettle::ALL.iter().map(|rule| rule.name).collect();
        assert_eq!(names, ["HeatsDry", "PoursCold"]);
        assert_eq!(kettle::HeatsDry.clause, "C1");
        assert_eq!(kettle::HeatsDry.reason.trim(), "A dry kettle melts.");
    }
}
