//! Physical memory, reserved addresses, and mapping the one into the other.

use super::active_call::ActiveCall;
use crate::machine::{Mapping, addresses};
use crate::operation::CallResult;
use crate::{Executor, Operation};
use bursar_core::{DevicePtr, RawPages, Status};

impl ActiveCall<'_> {
    fn op(&self) -> Operation {
        self.call.operation(Executor::Host)
    }

    /// Reserves addresses. Those released before are reused first.
    pub(crate) fn address_reserve(&mut self, bytes: u64, align: u64, granularity: u64) -> CallResult<DevicePtr> {
        let is_sound = bytes > 0 && bytes.is_multiple_of(granularity) && align.is_multiple_of(granularity);
        if !is_sound || !(align == 0 || align.is_power_of_two()) {
            return Err(Status::InvalidValue);
        }
        let index = self.device();
        let align = align.max(granularity);
        let device = &mut self.devices[index];
        let again = |&(at, len): &(u64, u64)| len == bytes && at.is_multiple_of(align);
        let at = match device.spare_reservations.iter().position(again) {
            Some(found) => device.spare_reservations.swap_remove(found).0,
            None => {
                let at = device.next_reservation.next_multiple_of(align);
                let end = at.checked_add(bytes).filter(|end| *end <= addresses(index).1.end);
                device.next_reservation = end.ok_or(Status::OutOfMemory)?;
                at
            }
        };
        device.reservations.insert(at, bytes);
        if let Some(oracle) = &mut self.oracle {
            oracle.record_reservation(index, at..at + bytes);
        }
        Ok(DevicePtr(at))
    }

    pub(crate) fn address_release(&mut self, ptr: DevicePtr, bytes: u64) -> CallResult<()> {
        let (index, at) = (self.device(), ptr.0);
        let device = &mut self.devices[index];
        let is_empty = device.mappings.range(at..at.saturating_add(bytes)).next().is_none();
        if device.reservations.get(&at) != Some(&bytes) || !is_empty {
            return Err(Status::InvalidValue);
        }
        device.reservations.remove(&at);
        device.spare_reservations.push((at, bytes));
        if let Some(oracle) = &mut self.oracle {
            oracle.remove_reservation(index, at..at + bytes);
        }
        Ok(())
    }

    /// Creates physical memory, after letting pending frees run where that would make it fit.
    pub(crate) fn pages_create(&mut self, bytes: u64, granularity: u64) -> CallResult<RawPages> {
        if bytes == 0 || !bytes.is_multiple_of(granularity) {
            return Err(Status::InvalidValue);
        }
        let device = self.device();
        loop {
            if self.charge(device, bytes)? {
                return Ok(self.create_pages(device, bytes));
            }
            let later = self.devices[device].space.pending();
            if bytes > self.memory_info(device)?.free.get().saturating_add(later) || !self.step() {
                return Err(Status::OutOfMemory);
            }
        }
    }

    pub(crate) fn pages_release(&mut self, raw: RawPages) -> CallResult<()> {
        let device = self.device();
        let pages = self.pages.get_mut(&raw.0).filter(|pages| pages.device == device && !pages.is_released);
        pages.ok_or(Status::InvalidValue)?.is_released = true;
        self.drop_pages_if_unused(raw.0);
        Ok(())
    }

    pub(crate) fn pages_map(&mut self, ptr: DevicePtr, bytes: u64, raw: RawPages, granularity: u64) -> CallResult<()> {
        let (index, at) = (self.device(), ptr.0);
        let end = at.checked_add(bytes).ok_or(Status::InvalidValue)?;
        let pages = self.pages.get(&raw.0);
        let pages = pages.filter(|pages| pages.device == index && !pages.is_released && pages.bytes == bytes);
        let device = &self.devices[index];
        let reservation = device.reservations.range(..=at).next_back();
        let is_reserved = reservation.is_some_and(|(start, len)| end <= start + len);
        let is_taken = device.mapping_at(at).is_some() || device.mappings.range(at..end).next().is_some();
        if pages.is_none() || !is_reserved || is_taken || !at.is_multiple_of(granularity) {
            return Err(Status::InvalidValue);
        }
        let mapping = Mapping { bytes, pages: raw.0, is_allowed: false };
        self.devices[index].mappings.insert(at, mapping);
        if let Some(pages) = self.pages.get_mut(&raw.0) {
            pages.mappings += 1;
        }
        Ok(())
    }

    /// Returns the mappings that cover exactly `at .. at + bytes`.
    fn mappings_in(&self, at: u64, bytes: u64) -> CallResult<Vec<(u64, u64)>> {
        let end = at.checked_add(bytes).ok_or(Status::InvalidValue)?;
        let inside = self.devices[self.device()].mappings.range(at..end);
        let found: Vec<(u64, u64)> = inside.map(|(start, mapping)| (*start, mapping.bytes)).collect();
        let mut next = at;
        for (start, len) in &found {
            if *start != next {
                return Err(Status::InvalidValue);
            }
            next = start + len;
        }
        match bytes > 0 && next == end {
            true => Ok(found),
            false => Err(Status::InvalidValue),
        }
    }

    /// Returns where else the pages that are mapped at an address can be used.
    fn other_mappings(&self, start: u64) -> Vec<u64> {
        let device = &self.devices[self.device()];
        let Some(mapping) = device.mappings.get(&start) else { return Vec::new() };
        if self.pages.get(&mapping.pages).is_none_or(|pages| pages.mappings < 2) {
            return Vec::new();
        }
        let same = |(at, other): &(&u64, &Mapping)| **at != start && other.pages == mapping.pages && other.is_allowed;
        device.mappings.iter().filter(same).map(|(at, _)| *at).collect()
    }

    pub(crate) fn pages_allow(&mut self, ptr: DevicePtr, bytes: u64) -> CallResult<()> {
        let (index, op) = (self.device(), self.op());
        for (start, len) in self.mappings_in(ptr.0, bytes)? {
            let others = self.other_mappings(start);
            let mapping = self.devices[index].mappings.get_mut(&start);
            let was_allowed = mapping.is_none_or(|mapping| std::mem::replace(&mut mapping.is_allowed, true));
            if let Some(oracle) = self.oracle.as_mut().filter(|_| !was_allowed) {
                oracle.record_mapping(index, start..start + len, &others, op);
            }
        }
        Ok(())
    }

    pub(crate) fn pages_unmap(&mut self, ptr: DevicePtr, bytes: u64) -> CallResult<()> {
        let (index, op) = (self.device(), self.op());
        for (start, len) in self.mappings_in(ptr.0, bytes)? {
            if let Some(oracle) = &mut self.oracle {
                oracle.record_unmapping(index, start..start + len, op);
            }
            if let Some(mapping) = self.devices[index].mappings.remove(&start) {
                if let Some(pages) = self.pages.get_mut(&mapping.pages) {
                    pages.mappings -= 1;
                }
                self.drop_pages_if_unused(mapping.pages);
            }
        }
        Ok(())
    }
}
