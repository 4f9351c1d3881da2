//! A charge of an account, which ends when it is dropped.

use crate::HostError;
use bursar_core::{Account, Bytes};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Charge {
    account: Option<Arc<dyn Account>>,
    bytes: Bytes,
}

impl Charge {
    /// Charges all of `bytes`, or returns why nothing was charged. Without an account it always succeeds.
    pub(crate) fn take(account: Option<&Arc<dyn Account>>, bytes: Bytes) -> Result<Self, HostError> {
        if let Some(account) = account {
            account.charge(bytes).map_err(|why| HostError::Account { requested: bytes, why })?;
        }
        Ok(Self { account: account.cloned(), bytes })
    }

    pub(crate) const fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.release(self.bytes);
        }
    }
}
