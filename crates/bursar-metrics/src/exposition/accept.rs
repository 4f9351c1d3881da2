//! The `Accept` header of a scraper.

use super::ExpositionFormat;

/// Returns OpenMetrics where it is preferred to plain text, and plain text in every other case, malformed ones included.
pub(super) fn preferred(accept: &str) -> ExpositionFormat {
    let (mut open_metrics, mut text) = (0, 0);
    for range in accept.split(',').take(32) {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut weight, mut is_known) = (1000, true);
        for parameter in parts {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => weight = thousandths(value),
                "version" if media_type.ends_with("openmetrics-text") => is_known = matches!(value, "1.0.0" | "0.0.1"),
                _ => {}
            }
        }
        match media_type.as_str() {
            "application/openmetrics-text" if is_known => open_metrics = weight.max(open_metrics),
            "text/plain" => text = weight.max(text),
            _ => {}
        }
    }
    if open_metrics > 0 && open_metrics >= text { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Text }
}

/// Returns a weight in thousandths; one that is no number counts as none.
fn thousandths(weight: &str) -> u32 {
    match weight.parse::<f64>() {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
        Ok(weight) if (0.0..=1.0).contains(&weight) => (weight * 1000.0) as u32,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_format_is_chosen() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
            text/plain;version=0.0.4;q=0.2,/;q=0.1";
        for (accept, expected) in [
            (prometheus, ExpositionFormat::OpenMetrics),
            (
                "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ExpositionFormat::OpenMetrics,
            ),
            ("APPLICATION/OpenMetrics-Text", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text;q=0", ExpositionFormat::Text),
            ("application/openmetrics-text;version=9.0.0", ExpositionFormat::Text),
            ("application/openmetrics-text;q=0.3,text/plain;q=0.9", ExpositionFormat::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", ExpositionFormat::Text),
            ("application/openmetrics-text;q=lots", ExpositionFormat::Text),
            ("", ExpositionFormat::Text),
            (",;=,;;q==", ExpositionFormat::Text),
        ] {
            assert_eq!(preferred(accept), expected, "{accept}");
        }
    }
}
