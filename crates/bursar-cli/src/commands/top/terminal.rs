//! The terminal: taken whole while frames are drawn, and given back as it was however that ends.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::{Position, Rect};
use std::io::{self, Stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The terminal while it is ours.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
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
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| give_back())?;
        Ok(Self { terminal })
    }

    /// Takes the terminal once more, after somebody else had it.
    pub(super) fn retake(&mut self) -> io::Result<()> {
        give_back();
        take()?;
        // `Terminal::clear` would ask for the place of the cursor, and the thread of the keys would get the answer.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
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
