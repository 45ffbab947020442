//! The tables and texts of the report.
//!
//! Each cell carries its heading: if the window is too narrow for a table, rows become lists.

use maud::{Markup, html};
use quell::Mechanism;

use crate::guards;
use crate::jobs::Results;
use crate::numbers::digits;
use crate::reproduce::{Experiment, Row, single_policies};

fn percent(change: Option<f64>) -> String {
    change.map_or_else(|| "–".into(), |change| format!("{:+.1}", 100.0 * change))
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "–".into(), digits)
}

/// Builds a policy that may break after a comma or a plus sign.
fn policy(text: &str) -> Markup {
    html! {
        @for part in text.split_inclusive([',', '+']) { (part) wbr; }
    }
}

/// Builds a cell with its heading, which a narrow page shows beside it.
fn cell(heading: &str, class: &str, content: &Markup) -> Markup {
    html! {
        td class=[(!class.is_empty()).then_some(class)] data-label=(heading) {
            @if !content.0.is_empty() { div { (content) } }
        }
    }
}

/// Builds a cell that contains a number.
fn number(heading: &str, text: impl std::fmt::Display) -> Markup {
    cell(heading, "n", &html! { (text) })
}

/// Builds the table of experiments beside published figures.
pub fn figures(rows: &[Row]) -> Markup {
    html! {
        h2 { "Published and predicted" }
        p {
            "The table compares the change that the mechanism makes to the same kernel on the same machine. "
            "Misses come first, with their known reasons. "
            "\"Before off\" is the model's error for the kernel before the change."
        }
        table #figures {
            thead {
                tr {
                    th rowspan="2" { "" } th rowspan="2" { "experiment" } th rowspan="2" { "figure" }
                    th .g colspan="2" { "published" } th .g colspan="3" { "model" } th .g colspan="2" { "change, %" }
                    th .n rowspan="2" { "all on" } th rowspan="2" { "verdict" }
                }
                tr {
                    th .n { "before" } th .n { "after" } th .n { "before" } th .n { "after" } th .n { "before off, %" }
                    th .n { "published" } th .n { "predicted" }
                }
            }
            @for row in rows {
                tr {
                    (cell("", "", &html! { b { (row.mechanism) } }))
                    (cell("experiment", "", &html! {
                        (row.experiment) ", " (row.case) br;
                        span .soft { (row.machine) ": " (policy(&row.policy_before)) " → " (policy(&row.policy_after)) }
                        br; a .soft href=(row.source.url) { (row.source.title) }
                    }))
                    (cell("figure", "", &html! { (row.metric) }))
                    (number("published before", digits(row.published_before)))
                    (number("published after", digits(row.published_after)))
                    (number("model before", or_dash(row.model_before)))
                    (number("model after", or_dash(row.model_after)))
                    (number("model before off, %", percent(row.before_off)))
                    (number("change published, %", percent(Some(row.change_published))))
                    (number("change predicted, %", percent(row.change_predicted)))
                    (number("everything on", or_dash(row.all_on)))
                    (cell("verdict", "", &html! {
                        span class=(row.verdict.name()) { (row.verdict.name()) }
                        @if let Some(points) = row.difference_points { " " (format!("{points:+.1}")) " points" }
                        br; span .soft { (row.tolerance) }
                        @if let Some(reason) = &row.reason { br; (reason) }
                        @if row.violations > 0 { br; span .miss { (row.violations) " breaches" } }
                    }))
                }
            }
        }
    }
}

/// Builds the table of guards' costs.
pub fn what_guards_cost(rows: &[guards::Row]) -> Markup {
    html! {
        @if !rows.is_empty() {
            h2 { "Cost of the guards" }
            p {
                "A guard makes a mechanism safe, and costs time on a fast path. Each cost here is the difference between a run with "
                "the guard and the same run without it. Without the guard the contract may break. With 0 breaches, this workload "
                "does not show the mistake."
            }
            table #guards {
                thead { tr {
                    th { "" } th { "guard" } th { "risk without it" } th { "experiment" } th .n { "gain, %" } th .n { "cost, %" }
                    th { "explanation" } th .n { "breaches without it" }
                } }
                @for row in rows {
                    tr {
                        (cell("", "", &html! { b { (row.mechanism) } }))
                        (cell("guard", "", &html! { (row.guard) br; span .soft { (row.without.join(", ")) } }))
                        (cell("risk without it", "", &html! { (row.clause) ": " (row.hole) }))
                        (cell("experiment", "", &html! {
                            (row.experiment) ", " (row.case) br;
                            span .soft { (policy(&row.policy_before)) " → " (policy(&row.policy_after)) }
                        }))
                        (number("gain, %", row.gain_text()))
                        (cell("cost, %", "r", &html! { (row.cost_text()) }))
                        (cell("explanation", "", &html! {
                            @match &row.failed { Some(why) => (why), None => (row.explained()) }
                        }))
                        (cell("breaches without it", "r", &html! { (row.broken_text()) }))
                    }
                }
            }
        }
    }
}

/// Explains the page's words to a reader new to them.
pub fn legend() -> Markup {
    html! {
        h2 { "How to read this" }
        dl {
            @for mechanism in Mechanism::ALL {
                dt { (mechanism.name()) } dd { (mechanism.title()) "." }
            }
            dt { "published" } dd { "Measurements of the change's authors, on the kernel before and after it." }
            dt { "model" } dd { "The same two kernels on the machine in software. Its costs come only from figures before the change, so the change is a prediction." }
            dt { "all on" } dd { "The same run with all five mechanisms." }
            dt { "hit, miss" } dd { "Whether the predicted change is within the tolerance of the published one, and has the same sign." }
            dt { "S0+S2 → S0+S2+S3" } dd { "The mechanisms that are on before and after the change; " code { "quell list policies" } " explains the other words." }
            dt { "guard" } dd { "A check, wait, fence or flush that makes a mechanism safe." }
            dt { "contract, breach" } dd { "Eight rules, C1 to C8, such as: no CPU reads or writes a page through a translation after the page has a new owner. Every access is checked. A breach is an access that broke a rule." }
        }
    }
}

/// Builds the table of each mechanism alone, and of all together.
pub fn mechanisms(plans: &[Experiment], rows: &[Row], results: &Results) -> Markup {
    let shown = |change: Option<f64>| change.map_or_else(|| "–".into(), |c| format!("{c:+.1}"));
    let predicted = |plan: &Experiment| {
        let headline = plan.headline;
        let same = |row: &&Row| {
            let names = (row.experiment, row.case, row.metric);
            names == (headline.experiment, headline.case, headline.metric)
        };
        rows.iter().find(same)?.change_predicted
    };
    let worse: Vec<String> = plans
        .iter()
        .filter_map(|plan| {
            let loss = plan.worse_with_all(results)?;
            let headline = plan.headline;
            Some(format!("{}, {} ({loss:.1} %)", headline.experiment, headline.case))
        })
        .collect();
    html! {
        h2 { "Gain of each mechanism" }
        p {
            "Each mechanism alone, and all together, compared with all off, in percent of the figure. Bold: the mechanism of the experiment. "
            "The published kernels had some mechanisms before the change. If the prediction above differs from the bold one, "
            "the last column names the compared policy. Readers run on fewer CPUs here than above, and on so little memory that a "
            "TLB holds most of it. So their dTLB misses rise with lazy unmap here: its few flushes drop whole tags, and those of "
            "the baseline mostly single pages."
        }
        table #mechanisms {
            thead { tr { th { "experiment" } th { "figure" }
                @for (_, name) in single_policies() { th .n { (name) ", %" } } th .n { "all, %" } th .n { "predicted above, %" } } }
            @for plan in plans {
                @let baseline = plan.compared("baseline");
                @let change = |policy| plan.change(results, &baseline, &plan.compared(policy));
                tr {
                    (cell("experiment", "", &html! { (plan.headline.experiment) ", " (plan.headline.case) }))
                    (cell("figure", "", &html! {
                        (plan.headline.metric)
                        @if plan.headline.more_is_better() { span .soft { " (more is better)" } }
                    }))
                    @for (mechanism, policy) in single_policies() {
                        @let text = shown(change(policy));
                        @let own = mechanism == plan.headline.mechanism;
                        (cell(policy, "n", &html! { @if own { b { (text) } } @else { (text) } }))
                    }
                    (number("all", shown(change("all"))))
                    (cell("predicted above", "n", &html! {
                        (percent(predicted(plan)))
                        @if plan.headline.before != "baseline" { br; span .soft { "against " (policy(plan.headline.before)) } }
                    }))
                }
            }
        }
        p {
            @if worse.is_empty() { "No figure is more than 1 % worse with everything on than with everything off." }
            @else { "More than 1 % worse with everything on than with everything off: " (worse.join("; ")) "." }
        }
    }
}
