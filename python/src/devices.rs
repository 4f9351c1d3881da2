//! The devices, listed.

use crate::failure::Failure;
use crate::machine::Machine;
use bursar::device::{DeviceContext, DeviceFacts};
use bursar::ledger::{Ledger, LedgerError, Reading, Subject};
use bursar::{Bytes, DeviceId};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use std::ffi::CString;
use std::sync::Arc;

/// The fields of `bursar.Device`, by name.
#[derive(Debug, IntoPyObject)]
pub(crate) struct DeviceFields {
    index: u32,
    uuid: String,
    name: String,
    kind: &'static str,
    total: u64,
    free: u64,
    held: Option<u64>,
    set_aside: Option<u64>,
    unmanaged: Option<u64>,
    pci: Option<String>,
    numa_node: Option<u32>,
}

/// Lists the usable devices, and warns of each that is not.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Result<Vec<DeviceFields>, Failure> {
    let machine = Machine::get(py)?;
    let (mut usable, mut causes) = (Vec::new(), Vec::new());
    for (device, described) in
        py.detach(|| machine.devices().map(|device| (device, describe(&machine, device))).collect::<Vec<_>>())
    {
        match described {
            Ok(fields) => usable.push(fields),
            Err(cause) => causes.push((device, cause)),
        }
    }
    if usable.is_empty() {
        return Err(Failure::NoUsableDevice {
            causes: causes.into_iter().map(|(device, cause)| (device, cause.to_string())).collect(),
        });
    }
    for (device, cause) in causes {
        let message = CString::new(format!("{device} cannot be used: {cause}")).map_err(PyErr::from)?;
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 2)?;
    }
    Ok(usable)
}

fn describe(machine: &Machine, device: DeviceId) -> Result<DeviceFields, Failure> {
    let context = machine.observed(device)?;
    let memory = context.driver().memory(device)?;
    let DeviceFacts { name, uuid, pci, numa_node, .. } = context.facts();
    let accounts = accounts(&context).ok();
    Ok(DeviceFields {
        index: device.0,
        uuid: uuid.to_string(),
        name: name.clone(),
        kind: machine.kind(),
        total: memory.total.get(),
        free: memory.free.get(),
        held: accounts.map(|(held, _)| held.get()),
        set_aside: accounts.map(|(_, undrawn)| undrawn.get()),
        unmanaged: accounts.map(|(held, _)| memory.used().saturating_sub(held).get()),
        pci: pci.map(|address| address.to_string()),
        numa_node: numa_node.index(),
    })
}

/// Returns what is held of a device and what is set aside, by its ledger. Creates no file.
fn accounts(context: &Arc<DeviceContext>) -> Result<(Bytes, Bytes), LedgerError> {
    let reading = reading_of(context)?;
    Ok(reading.map_or((Bytes::ZERO, Bytes::ZERO), |reading| (reading.held, reading.undrawn)))
}

/// Reads the ledger of a device, if there is one: the one that all processes share, or this process's own. Creates no file.
pub(crate) fn reading_of(context: &Arc<DeviceContext>) -> Result<Option<Reading>, LedgerError> {
    if !context.facts().shared {
        return Ledger::for_device(context)?.reading().map(Some);
    }
    Ledger::inspect_in(&Ledger::folder()?, &Subject::device(context.facts()))
}
