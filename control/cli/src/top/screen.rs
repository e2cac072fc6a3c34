//! The screen of `top`: draws the figures on the terminal, and reads keys.
//!
//! It selects one of the services, whose backends `Enter` shows. `NO_COLOR` (no-color.org) switches colors off; the
//! selected row is then the only highlighted one.

use std::io::{self, Write};
use std::time::Instant;

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, queue};

use super::super::output::Style;
use super::figures::{Figures, Line, LineKind, Sort, lines};

/// What the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort(Sort),
    /// Show the backends of the selected service.
    Open,
    /// Show all services again.
    Back,
    /// Draw the same figures again.
    Redraw,
}

const KEYS: &str = "keys: ? help, q quit";

const HELP: [&str; 7] = [
    "up, down    select a Service",
    "Enter       show its backends",
    "Esc         show all Services again, or quit",
    "p, b, n     sort by packets, bytes or new connections per second",
    "?           show or hide this help",
    "q, Ctrl-C   quit",
    "",
];

/// The terminal while figures are drawn on it. Dropping this restores its state.
pub(super) struct Screen {
    /// The position of the selected service.
    selected: usize,
    /// The number of services that were drawn last.
    services: usize,
    shows_help: bool,
    has_colors: bool,
}

impl Screen {
    pub(super) fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let screen = Self { selected: 0, services: 0, shows_help: false, has_colors };
        queue!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        io::stdout().flush()?;
        Ok(screen)
    }

    /// The position of the selected service in the figures that were drawn last.
    pub(super) fn selected(&self) -> usize {
        self.selected
    }

    pub(super) fn draw(&mut self, figures: &Figures, style: Style) -> io::Result<()> {
        self.services = figures.services.len();
        self.selected = self.selected.min(self.services.saturating_sub(1));
        let (columns, rows) = terminal::size()?;
        let out = &mut io::stdout();
        queue!(out, cursor::MoveTo(0, 0))?;
        let plain = |text: &str| Line { text: text.to_owned(), kind: LineKind::Plain };
        let rows = usize::from(rows.max(1));
        let mut shown: Vec<Line> = if self.shows_help { HELP.map(plain).into() } else { Vec::new() };
        shown.extend(lines(figures, style));
        // Lines above the selected one leave the screen if it would be below its end.
        let selected = shown.iter().position(|line| line.kind == LineKind::Service(self.selected));
        shown.drain(..selected.map_or(0, |at| (at + 2).saturating_sub(rows)));
        shown.insert(0, plain(KEYS));
        for (n, line) in shown.iter().take(rows).enumerate() {
            if n > 0 {
                queue!(out, Print("\r\n"))?;
            }
            let text: String = line.text.chars().take(usize::from(columns)).collect();
            self.highlight(out, line.kind)?;
            queue!(out, Print(text), SetAttribute(Attribute::Reset), ResetColor)?;
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }

    fn highlight(&self, out: &mut impl Write, kind: LineKind) -> io::Result<()> {
        match kind {
            LineKind::Service(at) if at == self.selected => queue!(out, SetAttribute(Attribute::Reverse)),
            LineKind::Header if self.has_colors => queue!(out, SetAttribute(Attribute::Bold)),
            LineKind::Warning if self.has_colors => queue!(out, SetForegroundColor(Color::Red)),
            LineKind::Header | LineKind::Warning | LineKind::Service(_) | LineKind::Plain => Ok(()),
        }
    }

    /// Waits for a key until the given time. Selects services and shows the help by itself.
    pub(super) fn key_until(&mut self, until: Instant) -> io::Result<Option<Key>> {
        loop {
            if !event::poll(until.saturating_duration_since(Instant::now()))? {
                return Ok(None);
            }
            let key = match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => key,
                Event::Resize(..) => return Ok(Some(Key::Redraw)),
                _ => continue,
            };
            return Ok(Some(match key.code {
                KeyCode::Char('q') => Key::Quit,
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
                KeyCode::Char('p') => Key::Sort(Sort::Packets),
                KeyCode::Char('b') => Key::Sort(Sort::Bytes),
                KeyCode::Char('n') => Key::Sort(Sort::Connections),
                KeyCode::Enter | KeyCode::Right => Key::Open,
                KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => Key::Back,
                KeyCode::Down | KeyCode::Char('j') => {
                    self.selected = (self.selected + 1).min(self.services.saturating_sub(1));
                    Key::Redraw
                }
                KeyCode::Up | KeyCode::Char('k') => {
                    self.selected = self.selected.saturating_sub(1);
                    Key::Redraw
                }
                KeyCode::Char('?' | 'h') => {
                    self.shows_help = !self.shows_help;
                    Key::Redraw
                }
                _ => continue,
            }));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing else can be done if the terminal is gone.
        let _ = queue!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = io::stdout().flush();
        let _ = terminal::disable_raw_mode();
    }
}
