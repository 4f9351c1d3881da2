//! The looks of a frame: with colours or without, in Unicode or in ASCII.

use ratatui::style::{Color, Modifier, Style};

/// The looks of a frame. Nothing is told by colour alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Theme {
    pub(super) colours: bool,
    pub(super) unicode: bool,
}

/// The levels of a sparkline, from just above nothing to all.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['_', ',', '-', '~', '=', '+', '*', '#'];

impl Theme {
    /// Returns the looks that the environment asks for.
    pub(super) fn from_environment() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_ascii_lowercase();
        let unicode = locale.contains("utf-8") || locale.contains("utf8");
        Self { colours: set("NO_COLOR").is_none(), unicode }
    }

    pub(super) const fn levels(self) -> [char; 8] {
        if self.unicode { BLOCKS } else { ASCII }
    }

    /// Returns the style of something in a colour, where there are colours.
    pub(super) fn coloured(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// Returns the style of a filled part of a bar.
    pub(super) fn filled(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(Color::Black).bg(colour) } else { Style::new() }
    }

    pub(super) fn heading(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn warning(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn faint(self) -> Style {
        if self.colours { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
