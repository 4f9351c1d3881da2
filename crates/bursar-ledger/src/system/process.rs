//! The descriptors of a process, and their end in a forked child.
//!
//! Others know that a process is alive by its locks on bytes of files, and such a lock lives as long as any descriptor
//! of its open file description. So a descriptor that a forked child kept would keep its dead parent's charge, and a
//! descriptor number that is closed twice may belong to another file the second time. Therefore every descriptor is in
//! one table from the call that opens it to the call that closes it, under a number that is never used again, and the
//! table is locked across both calls and across every fork (`pthread_atfork`). The child closes what it finds there
//! before it runs anything else. The table is short and locked for moments only.

use super::linux::{self, Linux};
use super::{Kernel, Mapping, OpenMode};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// A row of the table.
#[derive(Debug)]
struct TableEntry {
    /// A number that no other row ever has.
    number: u64,
    file: RawFd,
    /// A mapping whose first word a forked child sets to zero.
    flag: Option<Arc<Mapping>>,
}

/// The state of a process that must be consistent when it forks.
#[derive(Debug, Default)]
struct Table {
    descriptors: Vec<TableEntry>,
    next: u64,
    /// The value of [`Process::local`]. Another thread may be changing it while this one forks, so the child starts anew.
    local: Option<Arc<dyn Any + Send + Sync>>,
}

/// A process with its descriptors. Tests have several.
#[derive(Debug)]
pub(crate) struct Process {
    kernel: Box<dyn Kernel>,
    table: Mutex<Table>,
}

thread_local! {
    /// The locked table of this process, from just before a fork until just after it.
    static FORKING: RefCell<Option<MutexGuard<'static, Table>>> = const { RefCell::new(None) };
}

impl Process {
    /// Returns the process this code runs in.
    pub(crate) fn this() -> &'static Arc<Self> {
        static THIS: LazyLock<Arc<Process>> = LazyLock::new(|| {
            linux::install_fork_handlers();
            Arc::new(Process::new(Box::new(Linux)))
        });
        &THIS
    }

    pub(crate) fn new(kernel: Box<dyn Kernel>) -> Self {
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
    pub(crate) fn open(self: &Arc<Self>, path: &Path, mode: OpenMode) -> io::Result<Descriptor> {
        self.open_with(|kernel| kernel.open(path, mode))
    }

    /// Opens a name in a folder.
    pub(crate) fn open_in(
        self: &Arc<Self>,
        folder: &Descriptor,
        name: &OsStr,
        mode: OpenMode,
    ) -> io::Result<Descriptor> {
        self.open_with(|kernel| kernel.open_in(folder.file, name, mode))
    }

    fn open_with(self: &Arc<Self>, open: impl FnOnce(&dyn Kernel) -> io::Result<RawFd>) -> io::Result<Descriptor> {
        let mut table = self.table();
        let file = open(self.kernel())?;
        let number = table.next;
        table.next += 1;
        table.descriptors.push(TableEntry { number, file, flag: None });
        Ok(Descriptor { process: Arc::clone(self), number, file, kept_open: AtomicBool::new(false) })
    }

    /// Locks the table for the time of a fork.
    pub(crate) fn before_fork(&'static self) {
        // A thread that is ending has no thread-local values any more; its fork does without the lock.
        let _ = FORKING.try_with(|forking| *forking.borrow_mut() = Some(self.table()));
    }

    pub(crate) fn after_fork(&self) {
        let _ = FORKING.try_with(|forking| drop(forking.borrow_mut().take()));
    }

    /// Closes every descriptor of the parent, in a forked child.
    pub(crate) fn in_forked_child(&self) {
        let _ = FORKING.try_with(|forking| {
            if let Some(mut table) = forking.borrow_mut().take() {
                table.close_all(self.kernel());
            }
        });
    }

    /// Returns a child that was just forked, over its own kernel of a simulated system, or `None` while a real fork
    /// would wait for the table.
    #[cfg(test)]
    pub(crate) fn forked(&self, kernel: impl FnOnce() -> Box<dyn Kernel>) -> Option<Self> {
        let table = self.table.try_lock().ok()?;
        let copy = |descriptor: &TableEntry| TableEntry { flag: None, ..*descriptor };
        let descriptors = table.descriptors.iter().map(copy).collect();
        let mut child = Table { descriptors, next: table.next, local: None };
        let kernel = kernel();
        drop(table);
        child.close_all(&*kernel);
        Some(Self { kernel, table: Mutex::new(child) })
    }

    /// Returns whether another thread of this process is just opening or closing something.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        self.table.try_lock().is_err()
    }
}

impl Table {
    fn close_all(&mut self, kernel: &dyn Kernel) {
        for descriptor in self.descriptors.drain(..) {
            kernel.close(descriptor.file);
            if let Some(flag) = descriptor.flag {
                flag.word(0).store(0, Ordering::SeqCst);
                // Between fork and exec nothing may be freed.
                std::mem::forget(flag);
            }
        }
        std::mem::forget(self.local.take());
    }
}

/// A file descriptor that is closed once, at the latest with its process, and is not inherited by forked children.
#[derive(Debug)]
pub(crate) struct Descriptor {
    process: Arc<Process>,
    number: u64,
    file: RawFd,
    kept_open: AtomicBool,
}

impl Descriptor {
    /// Returns the number of the descriptor. In a forked child, and after [`Self::close`], it may be that of another
    /// file.
    pub(crate) const fn file(&self) -> RawFd {
        self.file
    }

    pub(crate) const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        self.process.kernel()
    }

    /// Sets the first word of `flag` to zero in a forked child.
    pub(crate) fn clear_on_fork(&self, flag: &Arc<Mapping>) {
        let mut table = self.process.table();
        if let Some(descriptor) = table.descriptors.iter_mut().find(|descriptor| descriptor.number == self.number) {
            descriptor.flag = Some(Arc::clone(flag));
        }
    }

    /// Keeps the descriptor open until the process ends, even after this is dropped.
    pub(crate) fn keep_open(&self) {
        self.kept_open.store(true, Ordering::SeqCst);
    }

    /// Closes the descriptor, unless it is closed already or [kept open](Self::keep_open). In a forked child it is
    /// closed already.
    pub(crate) fn close(&self) {
        if self.kept_open.load(Ordering::SeqCst) {
            return;
        }
        let mut table = self.process.table();
        if let Some(at) = table.descriptors.iter().position(|descriptor| descriptor.number == self.number) {
            let descriptor = table.descriptors.swap_remove(at);
            self.process.kernel().close(descriptor.file);
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}
