//! The terminal: taken whole while frames are drawn, and given back as it was however that ends.

use super::view;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Stdout};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The terminal while it is ours.
#[derive(Debug)]
pub(super) struct Screen {
    /// Never dropped: its destructor writes to standard error where the cursor cannot be shown, and panics where that is gone
    /// as well. `give_back` shows the cursor.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    /// The part of the terminal that is drawn.
    area: Rect,
}

/// True while the terminal is ours.
static TAKEN: AtomicBool = AtomicBool::new(false);

impl Screen {
    /// Takes the terminal. A panic, on any thread, gives it back before it is reported.
    pub(super) fn take() -> io::Result<Self> {
        static HOOKED: Once = Once::new();
        HOOKED.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                report(panic);
            }));
        });
        take().inspect_err(|_| give_back())?;
        Self::new().inspect_err(|_| give_back())
    }

    fn new() -> io::Result<Self> {
        let area = area()?;
        let options = TerminalOptions { viewport: Viewport::Fixed(area) };
        let terminal = Terminal::with_options(CrosstermBackend::new(io::stdout()), options)?;
        Ok(Self { terminal: ManuallyDrop::new(terminal), area })
    }

    /// Draws a frame, as large as the terminal is now.
    pub(super) fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let area = area()?;
        if area != self.area {
            self.resize(area)?;
        }
        self.terminal.draw(frame).map(drop)
    }

    /// Takes the terminal once more, after somebody else had it.
    pub(super) fn retake(&mut self) -> io::Result<()> {
        give_back();
        take()?;
        // `Terminal::clear` would ask for the place of the cursor, and the thread of the keys would get the answer.
        self.resize(area()?)
    }

    fn resize(&mut self, area: Rect) -> io::Result<()> {
        self.area = area;
        self.terminal.resize(area)
    }

    /// Gives the terminal back and stops this process, until it is continued.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP)?;
        self.retake()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Returns the part of the terminal that is drawn.
fn area() -> io::Result<Rect> {
    let (columns, rows) = ratatui::crossterm::terminal::size()?;
    Ok(view::bounded(columns, rows))
}

/// Returns whether the terminal was closed at its other end.
pub(super) fn is_gone() -> bool {
    let out = io::stdout();
    let mut watched = [PollFd::new(&out, PollFlags::empty())];
    let told = poll(&mut watched, Some(&Timespec::default())).is_ok();
    told && watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn take() -> io::Result<()> {
    TAKEN.store(true, SeqCst);
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)
}

/// Gives the terminal back, once. Errors are those of a terminal that is gone.
fn give_back() {
    if TAKEN.swap(false, SeqCst) {
        let _gone = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _gone = disable_raw_mode();
    }
}
