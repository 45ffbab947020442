//! The form of a rule.
//!
//! [`rules!`](crate::rules!) turns a list of rules into a trait whose methods make the decisions, and a module with one
//! [`Rule`] for each mutant. Every crate that has rules has such a list.

/// A rule, and what an engine that forgets it does.
#[derive(Debug)]
pub struct Rule {
    /// The name of its mutant, for people and replay codes: it never changes.
    pub name: &'static str,
    /// The clause of the contract that breaks first without it.
    pub clause: &'static str,
    /// The duty, and why it is one.
    pub reason: &'static str,
    /// The mistake that the mutant makes instead.
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
/// it decides instead, and its account. `also` is what a mutant of another rule decides here.
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
            $(also $also:ident $also_wrong:block)*
            $(or $name:ident $wrong:block $mistake:literal)*;
        )+
    ) => {
        $(#[$about])*
        $vis trait $trait: $crate::rules::Rules {
            $(
                $(#[doc = $reason])+
                #[doc = ""]
                #[doc = concat!("Keeps ", $clause, ".")]
                #[inline(always)]
                #[allow(unused_variables)]
                fn $method $(<$($generic),+>)? (&self, $($arg: $type),*) $(-> $out)? {
                    $(
                        if !self.keeps(&$module::$also) {
                            return $also_wrong;
                        }
                    )*
                    $(
                        if !self.keeps(&$module::$name) {
                            return $wrong;
                        }
                    )*
                    $right
                }
            )+
        }

        impl<Kept: $crate::rules::Rules + ?Sized> $trait for Kept {}

        /// The rules, by the names of their mutants.
        #[allow(non_upper_case_globals)]
        $vis mod $module {
            /// Why each is kept.
            #[allow(dead_code)]
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
            )*)+

            /// All of them.
            pub static ALL: &[&$crate::rules::Rule] = &[$($(&$name,)*)+];
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
