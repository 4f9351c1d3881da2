//! Telling accounts which requests failed.
//!
//! A budget tries its account several times for one request, a pool asks several times for frames, and much that was refused
//! at first is granted in the end. So an account is not told by the budget, but by the top of the stack, which records a
//! request that failed once: one observer for all budgets of the process hears of it.

use bursar_core::{Account, Action, Actions, DeviceId, Error, EventSink, Holding, LimitName, Observer, Record};
use std::cell::Cell;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// The account of a budget, which is told of requests that fail, for as long as the budget has this.
#[derive(Debug)]
pub(super) struct ToldAccount {
    account: Arc<dyn Account>,
    /// The name of the budget.
    name: LimitName,
}

/// The accounts of all budgets, and the observer that tells them.
#[derive(Debug, Default)]
struct AccountRefusals {
    accounts: Mutex<Vec<Weak<ToldAccount>>>,
}

static REFUSALS: LazyLock<Arc<AccountRefusals>> = LazyLock::new(Arc::default);

thread_local! {
    /// The address of the account whose charge this thread took back last, because there was no memory below.
    static TAKEN_BACK: Cell<usize> = const { Cell::new(0) };
}

impl ToldAccount {
    /// Has an account told of the requests that fail because of the budget of that name, or because there is no memory
    /// below it.
    pub(super) fn new(account: &Arc<dyn Account>, name: &LimitName, sink: &EventSink) -> Arc<Self> {
        let told = Arc::new(Self { account: Arc::clone(account), name: name.clone() });
        let mut accounts = REFUSALS.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|account| account.strong_count() > 0);
        accounts.push(Arc::downgrade(&told));
        drop(accounts);
        // A device whose sink is full goes without: nothing but the count of refusals is missing.
        let _ = sink.subscribe(&(Arc::clone(&REFUSALS) as Arc<dyn Observer>));
        told
    }

    /// Remembers that the memory below had none for what was charged.
    #[cold]
    pub(super) fn charge_taken_back(&self) {
        TAKEN_BACK.set(std::ptr::from_ref(self).addr());
    }
}

impl AccountRefusals {
    /// Returns the account that a request failed at, if it is one of these.
    fn account_of(&self, error: &Error) -> Option<Arc<ToldAccount>> {
        let taken_back = TAKEN_BACK.take();
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alive = accounts.iter().filter_map(Weak::upgrade);
        match error {
            Error::OutOfBudget { by: Some(by), .. } => alive.find(|told| told.name == *by),
            Error::OutOfMemory { .. } => alive.find(|told| Arc::as_ptr(told).addr() == taken_back),
            _ => None,
        }
    }
}

impl Observer for AccountRefusals {
    fn interest(&self) -> Actions {
        Actions::of(&[Action::Fail])
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn record(&self, record: &Record<'_>) {
        if let Some(error) = record.error
            && let Some(told) = self.account_of(error)
        {
            told.account.note_refusal(error);
        }
    }

    fn holders(&self, _: DeviceId) -> Option<Vec<Holding>> {
        None
    }
}
