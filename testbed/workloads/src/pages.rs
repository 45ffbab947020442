//! Builds HTML reports: single files that can be mailed and opened years later.
//!
//! A page contains its style and scripts. It follows the reader's light or dark theme, fits a phone, and prints in
//! black on white. This module has the common part of all pages: the head, the colours, and the style of headings, text
//! and tables. Each page adds its own colours and style as a [`PageStyle`].
//!
//! # Not guaranteed
//!
//! A [`PageStyle`] and scripts aren't escaped, because both are part of the program. Put text from a file or a
//! recording into `maud`'s markup, which escapes it.

use alloc::format;
use alloc::string::String;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// A colour in both themes, which styles use as `var(--name)`.
#[derive(Clone, Copy, Debug)]
pub struct Colour {
    /// The colour's name, without the two hyphens.
    pub name: &'static str,
    /// The colour on light paper, as CSS writes it.
    pub light: &'static str,
    /// The colour on dark paper, as CSS writes it.
    pub dark: &'static str,
}

/// Creates a [`Colour`].
pub const fn colour(name: &'static str, light: &'static str, dark: &'static str) -> Colour {
    Colour { name, light, dark }
}

/// The colours and style that one page adds to the common ones.
#[derive(Clone, Copy, Debug)]
pub struct PageStyle {
    /// The page's own colours, in addition to [`COLOURS`].
    pub colours: &'static [Colour],
    /// CSS rules that follow the common ones.
    pub style: &'static str,
}

/// The colours of every page: background, text, secondary text, lines, cards.
pub const COLOURS: [Colour; 5] = [
    colour("paper", "#fbfaf7", "#16171a"),
    colour("ink", "#1c1c1a", "#e9e7e1"),
    colour("soft", "#6b6a64", "#9b9a94"),
    colour("line", "#dedbd2", "#33353b"),
    colour("card", "#ffffff", "#1e2024"),
];

/// Builds a page. `content` becomes the element `main`, and `scripts` follow it.
pub fn page(title: &str, look: &PageStyle, content: &Markup, scripts: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                (style(look))
            }
            body {
                main { (content) }
                (scripts)
            }
        }
    }
}

/// Returns a page's style as an element. A drawing in its own file can use it too.
pub fn style(look: &PageStyle) -> Markup {
    html! {
        style { (PreEscaped(theme(look.colours))) (PreEscaped(STYLE)) (PreEscaped(look.style)) }
    }
}

/// Returns the colours in both themes.
fn theme(own: &[Colour]) -> String {
    let values = |of: fn(&Colour) -> &'static str| {
        let each = COLOURS.iter().chain(own);
        let each = each.map(|colour| format!(" --{}: {};", colour.name, of(colour)));
        each.collect::<String>()
    };
    let (light, dark) = (values(|colour| colour.light), values(|colour| colour.dark));
    format!(
        ":root {{ color-scheme: light dark;{light} }}\n\
         @media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}\n"
    )
}

const STYLE: &str = include_str!("pages/style.css");

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: PageStyle = PageStyle {
        colours: &[colour("hot", "#a00000", "#ff9090")],
        style: "b { color: var(--hot); }",
    };

    #[test]
    fn every_colour_is_there_in_both_themes() {
        let theme = theme(LOOK.colours);
        let (light, dark) = theme.split_once("@media").unwrap();
        for known in COLOURS.iter().chain(LOOK.colours) {
            let said = |value: &str| format!("--{}: {value};", known.name);
            assert!(light.contains(&said(known.light)), "{known:?}");
            assert!(dark.contains(&said(known.dark)), "{known:?}");
        }
    }

    #[test]
    fn the_shared_style_names_no_colour_that_is_not_shared() {
        for named in STYLE.split("var(--").skip(1) {
            let named = named.split(')').next().unwrap();
            assert!(COLOURS.iter().any(|known| known.name == named), "--{named}");
        }
    }

    #[test]
    fn a_page_escapes_its_title_and_keeps_its_style() {
        let page = page("a < b", &LOOK, &html! { p { "text" } }, &html! {}).into_string();
        assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"), "{page}");
        assert!(page.contains("<title>a &lt; b</title>"), "{page}");
        assert!(page.contains(LOOK.style), "{page}");
        assert!(page.contains("<main><p>text</p></main></body>"), "{page}");
        for from_elsewhere in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(from_elsewhere), "{page}");
        }
    }
}
