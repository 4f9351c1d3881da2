//! A part of a history as columns, for charts.

use super::{DeviceHistory, DeviceSample, Figures, History, PARTIES_MAX, Party, PartyKind};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// The most points of all devices in a view.
const POINTS_IN_ALL: usize = 8000;

/// A question to a [`History`].
///
/// ```
/// use bursar::metrics::{History, HistoryQuery};
///
/// let query = HistoryQuery { points: 100, ..HistoryQuery::default() };
/// assert!(History::default().view(&query).devices.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The UUID of the device; none for every one.
    pub uuid: Option<String>,
    /// The first moment, in milliseconds since 1970.
    pub since_ms: u64,
    /// The last moment, in milliseconds since 1970.
    pub until_ms: u64,
    /// The most points of a device, from 1 to 2,000; of all devices together there are 8,000 at most.
    pub points: usize,
    /// The parties that memory is shown by.
    pub by: PartyKind,
}

impl HistoryQuery {
    /// The most points of a device.
    pub const POINTS_MAX: usize = 2000;
}

impl Default for HistoryQuery {
    fn default() -> Self {
        Self { uuid: None, since_ms: 0, until_ms: u64::MAX, points: 600, by: PartyKind::Process }
    }
}

/// A part of a history as columns: the n-th element of every list of a device is of the n-th moment, and null where the device
/// could not be read.
///
/// ```
/// use bursar::metrics::{DeviceState, History, HistoryQuery, LedgerState, ProcessState, State};
///
/// let processes = vec![ProcessState { pid: 7, name: "train".into(), held: 5, ..ProcessState::default() }];
/// let device = LedgerState { uuid: "GPU-1".into(), held: 5, processes, ..LedgerState::default() };
/// let mut state = State::default();
/// state.devices.push(DeviceState::Readable(device));
/// let mut history = History::default();
/// history.record(&state);
///
/// let view = history.view(&HistoryQuery::default());
/// assert_eq!((&view.devices[0].held[..], &view.devices[0].parties[0].bytes[..]), (&[Some(5)][..], &[Some(5)][..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HistoryView {
    /// The parties that memory is shown by.
    pub by: PartyKind,
    /// The devices.
    pub devices: Vec<DeviceView>,
}

/// The columns of one device in a [`HistoryView`].
///
/// ```
/// let columns = bursar::metrics::DeviceView::default();
/// assert_eq!(columns.at_ms.len(), columns.held.len());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeviceView {
    /// The UUID of the device, or `HOST`.
    pub uuid: String,
    /// The short name of the device: `gpu0`, `host` or `unknown`.
    pub device: String,
    /// The name of the device.
    pub name: String,
    /// The moments, in milliseconds since 1970.
    pub at_ms: Vec<u64>,
    /// All memory of the device.
    pub total: Vec<Option<u64>>,
    /// The limit of what all may hold together.
    pub limit: Vec<Option<u64>>,
    /// The bytes that were held.
    pub held: Vec<Option<u64>>,
    /// The bytes that were set aside and not held.
    pub undrawn: Vec<Option<u64>>,
    /// Of what was held, the bytes that pools cached, where processes published that.
    pub cached: Vec<Option<u64>>,
    /// The bytes used outside the ledger.
    pub unmanaged: Vec<Option<u64>>,
    /// The number of requests that waited.
    pub waiting: Vec<Option<u64>>,
    /// The number of refusals since the ledger was made.
    pub refused: Vec<Option<u64>>,
    /// The parties that had most, the largest first; the rest is the difference.
    pub parties: Vec<PartyView>,
}

/// The column of one party in a [`DeviceView`].
///
/// ```
/// assert_eq!(bursar::metrics::PartyView::default().pid, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartyView {
    /// Its name.
    pub name: String,
    /// The id of a process in its own namespace.
    pub pid: Option<u32>,
    /// The bytes that a process held, or that a tenant had.
    pub bytes: Vec<Option<u64>>,
}

impl History {
    /// Returns a part of the history as columns. Where there are more samples than points, the fullest of each stretch of time
    /// is there, whole.
    #[must_use]
    pub fn view(&self, query: &HistoryQuery) -> HistoryView {
        let is_asked = |device: &&DeviceHistory| query.uuid.as_deref().is_none_or(|uuid| uuid == device.uuid());
        let devices: Vec<&DeviceHistory> = self.devices().iter().filter(is_asked).collect();
        let points = query.points.clamp(1, HistoryQuery::POINTS_MAX).min(POINTS_IN_ALL / devices.len().max(1));
        let columns = |device: &&DeviceHistory| DeviceView::new(device, &chosen(device, query, points), query.by);
        HistoryView { by: query.by, devices: devices.iter().map(columns).collect() }
    }
}

/// Returns the samples of a stretch of time, at most so many.
fn chosen<'a>(device: &'a DeviceHistory, query: &HistoryQuery, points: usize) -> Vec<&'a DeviceSample> {
    let is_within = |sample: &&DeviceSample| (query.since_ms..=query.until_ms).contains(&sample.at_ms);
    let all: Vec<&DeviceSample> = device.samples().filter(is_within).collect();
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return all };
    if all.len() <= points {
        return all;
    }
    let width = (last.at_ms - first.at_ms) / points as u64 + 1;
    let stretches = all.chunk_by(|one, other| one.at_ms / width == other.at_ms / width);
    let fullest = |stretch: &[&'a DeviceSample]| {
        stretch.iter().copied().reduce(|fullest, sample| if sample.is_fuller_than(fullest) { sample } else { fullest })
    };
    let mut chosen: Vec<&DeviceSample> = stretches.filter_map(fullest).collect();
    // Stretches begin at multiples of their width, so that a point stays when time goes on; one more may begin before.
    if chosen.len() > points {
        chosen.remove(0);
    }
    chosen
}

impl DeviceView {
    fn new(device: &DeviceHistory, samples: &[&DeviceSample], by: PartyKind) -> Self {
        let column = |figure: fn(&Figures) -> Option<u64>| -> Vec<Option<u64>> {
            samples.iter().map(|sample| sample.figures.as_ref().and_then(figure)).collect()
        };
        Self {
            uuid: device.uuid().to_owned(),
            device: device.label().to_owned(),
            name: device.name().to_owned(),
            at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
            total: column(|figures| Some(figures.total)),
            limit: column(|figures| Some(figures.limit)),
            held: column(|figures| Some(figures.held)),
            undrawn: column(|figures| Some(figures.undrawn)),
            cached: column(|figures| figures.cached),
            unmanaged: column(|figures| Some(figures.unmanaged)),
            waiting: column(|figures| Some(figures.waiting.into())),
            refused: column(|figures| Some(figures.refused)),
            parties: parties(samples, by),
        }
    }
}

/// Returns the columns of the parties that had most over all samples.
fn parties(samples: &[&DeviceSample], by: PartyKind) -> Vec<PartyView> {
    let shares = |sample: &DeviceSample| match by {
        PartyKind::Process => sample.processes.clone(),
        PartyKind::Tenant => sample.tenants.clone(),
    };
    let nothing: Vec<Option<u64>> = samples.iter().map(|sample| sample.figures.map(|_| 0)).collect();
    let mut columns: HashMap<Arc<Party>, (u128, Vec<Option<u64>>)> = HashMap::new();
    for (at, sample) in samples.iter().enumerate() {
        for share in shares(sample) {
            let (sum, bytes) = columns.entry(share.party).or_insert_with(|| (0, nothing.clone()));
            *sum += u128::from(share.bytes);
            // Two processes of one number and name, in namespaces of their own, are one party.
            bytes[at] = Some(bytes[at].unwrap_or(0).saturating_add(share.bytes));
        }
    }
    let mut columns: Vec<_> = columns.into_iter().collect();
    columns.sort_by(|(one, (more, _)), (other, (less, _))| {
        less.cmp(more).then_with(|| (&one.name, one.pid).cmp(&(&other.name, other.pid)))
    });
    columns.truncate(PARTIES_MAX);
    let view = |(party, (_, bytes)): (Arc<Party>, (u128, Vec<Option<u64>>))| PartyView {
        name: party.name.clone(),
        pid: (party.kind == PartyKind::Process).then_some(party.pid),
        bytes,
    };
    columns.into_iter().map(view).collect()
}
