//! The counts of the devices that pools of this process were used on, which outlive each pool.

use crate::pool_reserved::Reserved;
use bursar::Statistics;
use bursar::device::DeviceContext;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A device that pools of this process were used on, and its counts.
type Counted = (Weak<DeviceContext>, Statistics, Reserved);

/// The counts of all such devices.
static COUNTED: Mutex<Vec<Counted>> = Mutex::new(Vec::new());

fn find_in(counted: &[Counted], context: &Arc<DeviceContext>) -> Option<(Statistics, Reserved)> {
    let known = counted.iter().find(|(of, ..)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(context)));
    known.map(|(_, statistics, reserved)| (statistics.clone(), reserved.after()))
}

/// Returns the statistics of a device: those of the pool before, if there was one, because a device keeps its observers. So what is
/// counted of frames knows what that pool has held.
pub(crate) fn of(context: &Arc<DeviceContext>) -> (Statistics, Reserved) {
    let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    counted.retain(|(context, ..)| context.strong_count() > 0);
    find_in(&counted, context).unwrap_or_else(|| {
        let (statistics, reserved) = (Statistics::default(), Reserved::default());
        counted.push((Arc::downgrade(context), statistics.clone(), reserved.clone()));
        (statistics, reserved)
    })
}

/// Returns the statistics of a device, if pools were used on it.
pub(crate) fn find(context: &Arc<DeviceContext>) -> Option<(Statistics, Reserved)> {
    find_in(&COUNTED.lock().unwrap_or_else(PoisonError::into_inner), context)
}
