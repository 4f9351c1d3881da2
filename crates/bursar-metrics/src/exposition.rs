//! The formats that scrapers read: Prometheus' text format 0.0.4 and OpenMetrics 1.0.
//!
//! [`Exposition`] writes families of metrics in either; [`expose`](crate::State::expose) of a state writes those of a machine.
//! A family has every label set once: samples that name the same one are added up, since a scraper refuses duplicates.

mod accept;
mod machine;

use std::borrow::Cow;
use std::fmt::{self, Write};

/// A format that scrapers read.
///
/// ```
/// use bursar::metrics::ExpositionFormat;
///
/// assert_eq!(ExpositionFormat::accepted("application/openmetrics-text;version=1.0.0,*/*;q=0.1"), ExpositionFormat::OpenMetrics);
/// assert_eq!(ExpositionFormat::accepted("*/*"), ExpositionFormat::Text);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// Prometheus' text format, version 0.0.4.
    #[default]
    Text,
    /// OpenMetrics, version 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// Returns the content type of an answer in this format.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the format that a scraper asks for by its `Accept` header: OpenMetrics where it prefers that to plain text.
    pub fn accepted(accept: &str) -> Self {
        accept::preferred(accept)
    }
}

/// The type of a family of metrics.
///
/// ```
/// assert_ne!(bursar::metrics::MetricKind::Gauge, bursar::metrics::MetricKind::Counter);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A value that goes up and down.
    Gauge,
    /// A count that only goes up; its name ends in `_total`.
    Counter,
    /// A histogram.
    Histogram,
    /// Facts as labels, with the value 1; its name ends in `_info`.
    Info,
}

impl MetricKind {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// A text in one of the formats, written family by family.
///
/// ```
/// use bursar::metrics::{Exposition, ExpositionFormat, MetricKind};
///
/// let mut text = Exposition::new(ExpositionFormat::Text);
/// let mut family = text.family("app_jobs_total", MetricKind::Counter, "The jobs that were done.");
/// family.sample(&[("queue", "night \"shift\"")], 3_u64);
/// drop(family);
/// assert_eq!(
///     text.finish(),
///     "# HELP app_jobs_total The jobs that were done.\n# TYPE app_jobs_total counter\n\
///      app_jobs_total{queue=\"night \\\"shift\\\"\"} 3\n"
/// );
/// ```
#[derive(Clone, Debug)]
pub struct Exposition {
    format: ExpositionFormat,
    out: String,
}

impl Exposition {
    /// Returns an empty text.
    pub fn new(format: ExpositionFormat) -> Self {
        Self { format, out: String::with_capacity(4096) }
    }

    /// Begins a family; it is written when it is dropped, and not at all without samples. Names end in their unit, if it is
    /// bytes or seconds, followed by the suffix of their kind.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: MetricKind, help: &'a str) -> Family<'a> {
        Family { exposition: self, name, kind, help, samples: Vec::new() }
    }

    /// Returns the whole text.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn head(&mut self, name: &str, kind: MetricKind, help: &str) {
        let kind_name = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Histogram => "histogram",
            MetricKind::Info if self.format == ExpositionFormat::OpenMetrics => "info",
            MetricKind::Gauge | MetricKind::Info => "gauge",
        };
        match self.format {
            ExpositionFormat::Text => {
                let help = help.replace('\\', "\\\\").replace('\n', "\\n");
                self.push(format_args!("# HELP {name} {help}\n# TYPE {name} {kind_name}\n"));
            }
            ExpositionFormat::OpenMetrics => {
                let name = name.strip_suffix(kind.suffix()).unwrap_or(name);
                self.push(format_args!("# TYPE {name} {kind_name}\n"));
                if let Some(unit) = ["bytes", "seconds"].iter().find(|unit| name.ends_with(**unit)) {
                    self.push(format_args!("# UNIT {name} {unit}\n"));
                }
                let help = Escaped(help);
                self.push(format_args!("# HELP {name} {help}\n"));
            }
        }
    }

    fn push(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.out.write_fmt(text);
    }
}

/// A family of metrics that is being written.
///
/// ```
/// use bursar::metrics::{Exposition, ExpositionFormat, MetricKind};
///
/// let mut text = Exposition::new(ExpositionFormat::OpenMetrics);
/// let mut waits = text.family("app_wait_seconds", MetricKind::Histogram, "Waiting.");
/// waits.histogram(&[], &[(0.5, 2), (1.0, 3)], 4, 7.5);
/// drop(waits);
/// assert!(text.finish().contains("app_wait_seconds_bucket{le=\"1.0\"} 3\n"));
/// ```
#[derive(Debug)]
pub struct Family<'a> {
    exposition: &'a mut Exposition,
    name: &'a str,
    kind: MetricKind,
    help: &'a str,
    samples: Vec<Sample<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Sample<'a> {
    suffix: &'static str,
    labels: Vec<(&'a str, Cow<'a, str>)>,
    value: MetricValue,
}

/// The value of a sample.
///
/// ```
/// use bursar::metrics::MetricValue;
///
/// assert_eq!(MetricValue::from(3_u64), MetricValue::Whole(3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
}

impl From<u64> for MetricValue {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl MetricValue {
    #[allow(clippy::cast_precision_loss, reason = "scrapers read numbers as floats")]
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => Self::Whole(one.saturating_add(other)),
            (Self::Whole(one), Self::Real(other)) | (Self::Real(other), Self::Whole(one)) => {
                Self::Real(one as f64 + other)
            }
            (Self::Real(one), Self::Real(other)) => Self::Real(one + other),
        }
    }
}

impl fmt::Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => write!(f, "{value}"),
            Self::Real(value) if value.is_nan() => f.write_str("NaN"),
            Self::Real(value) if value.is_infinite() => f.write_str(if *value > 0.0 { "+Inf" } else { "-Inf" }),
            Self::Real(value) => write!(f, "{value}"),
        }
    }
}

impl<'a> Family<'a> {
    /// Adds a sample. Control characters in the values of labels but line breaks are replaced by U+FFFD, since people read the text
    /// on terminals. A label set that is there already has the value added to it.
    pub fn sample(&mut self, labels: &[(&'a str, &'a str)], value: impl Into<MetricValue>) {
        self.add("", labels.iter().map(|&(name, value)| (name, printable(value))).collect(), value.into());
    }

    /// Adds a histogram from its buckets, each a bound and the number at or below it, the number of all, and their sum.
    pub fn histogram(&mut self, labels: &[(&'a str, &'a str)], buckets: &[(f64, u64)], count: u64, sum: f64) {
        let own = || labels.iter().map(|&(name, value)| (name, printable(value)));
        for &(bound, number) in buckets {
            let bound = match self.exposition.format {
                ExpositionFormat::Text => format!("{bound}"),
                ExpositionFormat::OpenMetrics => format!("{bound:?}"),
            };
            self.add("_bucket", own().chain([("le", bound.into())]).collect(), number.into());
        }
        self.add("_bucket", own().chain([("le", "+Inf".into())]).collect(), count.into());
        self.add("_sum", own().collect(), sum.into());
        self.add("_count", own().collect(), count.into());
    }

    fn add(&mut self, suffix: &'static str, labels: Vec<(&'a str, Cow<'a, str>)>, value: MetricValue) {
        self.samples.push(Sample { suffix, labels, value });
    }

    /// Adds up samples of the same name and labels, at the place of the first.
    fn merge(&mut self) {
        let mut places = std::collections::HashMap::with_capacity(self.samples.len());
        let mut merged: Vec<Sample<'a>> = Vec::with_capacity(self.samples.len());
        for sample in self.samples.drain(..) {
            match places.entry((sample.suffix, sample.labels.clone())) {
                std::collections::hash_map::Entry::Occupied(place) => {
                    let first: &mut Sample<'a> = &mut merged[*place.get()];
                    first.value = first.value.and(sample.value);
                }
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(merged.len());
                    merged.push(sample);
                }
            }
        }
        self.samples = merged;
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        if self.samples.is_empty() {
            return;
        }
        self.merge();
        self.exposition.head(self.name, self.kind, self.help);
        for Sample { suffix, labels, value } in &self.samples {
            self.exposition.push(format_args!("{}{suffix}", self.name));
            for (at, (name, value)) in labels.iter().enumerate() {
                let opening = if at == 0 { '{' } else { ',' };
                self.exposition.push(format_args!("{opening}{name}=\"{}\"", Escaped(value)));
            }
            self.exposition.push(format_args!("{} {value}\n", if labels.is_empty() { "" } else { "}" }));
        }
    }
}

/// Returns a label value that writes no colours and moves no cursor where somebody reads the text on a terminal.
fn printable(value: &str) -> Cow<'_, str> {
    let is_control = |c: char| c != '\n' && c.is_control();
    if value.contains(is_control) { Cow::Owned(value.replace(is_control, "\u{fffd}")) } else { Cow::Borrowed(value) }
}

/// A label value, escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}
