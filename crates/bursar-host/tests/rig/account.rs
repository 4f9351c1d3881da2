//! An account with a limit and a hook.

use bursar_core::{Account, Bytes, Error, Result};
use std::fmt;
use std::sync::{Arc, Mutex};

type Hook = Box<dyn Fn() + Send + Sync>;

pub(crate) struct TestAccount {
    limit: u64,
    charged: Mutex<u64>,
    pub(crate) hook: Mutex<Option<Hook>>,
}

impl TestAccount {
    pub(crate) fn of(limit: Bytes) -> Arc<Self> {
        Arc::new(Self { limit: limit.get(), charged: Mutex::new(0), hook: Mutex::new(None) })
    }

    pub(crate) fn charged(&self) -> u64 {
        *self.charged.lock().unwrap()
    }

    fn interrupt(&self) {
        let hook = self.hook.lock().unwrap();
        if let Some(hook) = &*hook {
            hook();
        }
    }
}

impl Account for TestAccount {
    fn charge(&self, bytes: Bytes) -> Result<()> {
        let refused = {
            let mut charged = self.charged.lock().unwrap();
            let remaining = self.limit - *charged;
            if bytes.get() <= remaining {
                *charged += bytes.get();
                None
            } else {
                let (remaining, limit) = (Bytes(remaining), Bytes(self.limit));
                Some(Error::out_of_budget(bytes, remaining, limit))
            }
        };
        self.interrupt();
        refused.map_or(Ok(()), Err)
    }

    fn release(&self, bytes: Bytes) {
        let mut charged = self.charged.lock().unwrap();
        *charged = charged.checked_sub(bytes.get()).expect("no more is released than was charged");
    }
}

impl fmt::Debug for TestAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestAccount({} of {})", self.charged(), self.limit)
    }
}
