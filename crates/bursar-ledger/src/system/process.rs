//! A process's end of the system: the descriptors that tie it to its ledgers, and what a fork does to them.
//!
//! A process is known to others by locks on bytes of files, and such a lock lives as long as any descriptor of its open
//! file description. So a descriptor that a forked child kept would keep its dead parent's charge, and one that is closed
//! twice could be somebody else's by then. Every descriptor is therefore in one table from the call that opens it to the
//! call that closes it; each has a number that is never used again; and the table is locked across both calls and across
//! every fork. The child closes what it finds there before it runs anything else.

use super::linux::{self, Linux};
use super::{Kernel, Mapping, Opening};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// One descriptor of this process.
#[derive(Debug)]
struct Descriptor {
    /// Never used again.
    number: u64,
    file: RawFd,
    /// A word that a forked child sets to zero.
    mark: Option<Arc<Mapping>>,
}

/// What a fork must find whole.
#[derive(Debug, Default)]
struct Table {
    descriptors: Vec<Descriptor>,
    next: u64,
    /// The value of [`Process::local`]. Another thread may be changing it while this one forks, so the child starts anew.
    local: Option<Arc<dyn Any + Send + Sync>>,
}

/// A process, as the system and its ledgers know it.
#[derive(Debug)]
pub(crate) struct Process {
    kernel: Box<dyn Kernel>,
    table: Mutex<Table>,
}

thread_local! {
    /// The table of the one process, from just before a fork until just after it.
    static FORKING: RefCell<Option<MutexGuard<'static, Table>>> = const { RefCell::new(None) };
}

impl Process {
    /// Returns the process this code runs in.
    pub(crate) fn this() -> &'static Arc<Self> {
        static THIS: LazyLock<Arc<Process>> = LazyLock::new(|| {
            linux::have_forks_told();
            Arc::new(Process::over(Box::new(Linux)))
        });
        &THIS
    }

    pub(crate) fn over(kernel: Box<dyn Kernel>) -> Self {
        Self { kernel, table: Mutex::default() }
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        &*self.kernel
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the one value of type `T` that belongs to this process, made when it is first asked for. A forked child
    /// has another. All callers ask for the same type.
    pub(crate) fn local<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut table = self.table();
        let local = Arc::clone(table.local.get_or_insert_with(|| Arc::<T>::default()));
        local.downcast().expect("a process has a local value of one type")
    }

    /// Opens what a path leads to.
    pub(crate) fn open(self: &Arc<Self>, path: &Path, how: Opening) -> io::Result<Tether> {
        self.tethered(|kernel| kernel.open(path, how))
    }

    /// Opens a name in a folder.
    pub(crate) fn open_in(self: &Arc<Self>, folder: &Tether, name: &OsStr, how: Opening) -> io::Result<Tether> {
        self.tethered(|kernel| kernel.open_in(folder.file, name, how))
    }

    fn tethered(self: &Arc<Self>, open: impl FnOnce(&dyn Kernel) -> io::Result<RawFd>) -> io::Result<Tether> {
        let mut table = self.table();
        let file = open(self.kernel())?;
        let number = table.next;
        table.next += 1;
        table.descriptors.push(Descriptor { number, file, mark: None });
        Ok(Tether { process: Arc::clone(self), number, file, kept: AtomicBool::new(false) })
    }

    /// Has the table wait for a fork.
    pub(crate) fn before_fork(&'static self) {
        // A thread that is ending has no such place any more; its fork does without.
        let _ = FORKING.try_with(|forking| *forking.borrow_mut() = Some(self.table()));
    }

    pub(crate) fn after_fork(&self) {
        let _ = FORKING.try_with(|forking| drop(forking.borrow_mut().take()));
    }

    /// Lets go, in a forked child, of everything that is its parent's.
    pub(crate) fn in_forked_child(&self) {
        let _ = FORKING.try_with(|forking| {
            if let Some(mut table) = forking.borrow_mut().take() {
                table.let_go(self.kernel());
            }
        });
    }

    /// A child that was just forked, over its own end of a simulated system. Returns nothing while a real fork would wait.
    #[cfg(test)]
    pub(crate) fn forked(&self, kernel: impl FnOnce() -> Box<dyn Kernel>) -> Option<Self> {
        let table = self.table.try_lock().ok()?;
        let copy = |descriptor: &Descriptor| Descriptor { mark: None, ..*descriptor };
        let descriptors = table.descriptors.iter().map(copy).collect();
        let mut child = Table { descriptors, next: table.next, local: None };
        let kernel = kernel();
        drop(table);
        child.let_go(&*kernel);
        Some(Self { kernel, table: Mutex::new(child) })
    }

    /// Whether another thread of this process is just opening or closing something.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        self.table.try_lock().is_err()
    }
}

impl Table {
    fn let_go(&mut self, kernel: &dyn Kernel) {
        for descriptor in self.descriptors.drain(..) {
            kernel.close(descriptor.file);
            if let Some(mark) = descriptor.mark {
                mark.word(0).store(0, Ordering::SeqCst);
                // Freeing memory is nothing for a moment like this.
                std::mem::forget(mark);
            }
        }
        std::mem::forget(self.local.take());
    }
}

/// A descriptor that ends with this process, is closed once, and does not follow it into a forked child.
#[derive(Debug)]
pub(crate) struct Tether {
    process: Arc<Process>,
    number: u64,
    file: RawFd,
    kept: AtomicBool,
}

impl Tether {
    /// The descriptor. In a forked child, and once this is cut, it is closed and may be another file's.
    pub(crate) const fn file(&self) -> RawFd {
        self.file
    }

    pub(crate) const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        self.process.kernel()
    }

    /// Has a forked child find a zero at the first word of `mark`.
    pub(crate) fn mark(&self, mark: &Arc<Mapping>) {
        let mut table = self.process.table();
        if let Some(descriptor) = table.descriptors.iter_mut().find(|descriptor| descriptor.number == self.number) {
            descriptor.mark = Some(Arc::clone(mark));
        }
    }

    /// Keeps the descriptor open until the process ends, whatever becomes of this.
    pub(crate) fn keep_for_good(&self) {
        self.kept.store(true, Ordering::SeqCst);
    }

    /// Closes the descriptor, once, unless it is kept for good; in a forked child it is closed already.
    pub(crate) fn cut(&self) {
        if self.kept.load(Ordering::SeqCst) {
            return;
        }
        let mut table = self.process.table();
        if let Some(at) = table.descriptors.iter().position(|descriptor| descriptor.number == self.number) {
            let descriptor = table.descriptors.swap_remove(at);
            self.process.kernel().close(descriptor.file);
        }
    }
}

impl Drop for Tether {
    fn drop(&mut self) {
        self.cut();
    }
}
