//! The contents of the page, and its zoom and pan.

use crate::browser::Browser;
use crate::command::{json, small, spike};
use crate::common::Folder;
use bursar::Bytes;
use serde_json::Value;

type Run = fn(&Browser);

pub(crate) const TRIALS: &[(&str, Run)] = &[
    ("the_figures_are_those_of_the_json", the_figures_are_those_of_the_json),
    ("the_read_out_at_the_peak_is_the_peak", the_read_out_at_the_peak_is_the_peak),
    ("an_operation_among_many_is_not_lost", an_operation_among_many_is_not_lost),
    ("zooming_changes_what_is_shown", zooming_changes_what_is_shown),
    ("an_address_opens_a_page_where_it_was_left", an_address_opens_a_page_where_it_was_left),
    ("names_mean_nothing_but_themselves", names_mean_nothing_but_themselves),
    ("the_map_tells_of_every_block", the_map_tells_of_every_block),
    ("refusals_are_shown_where_they_happened", refusals_are_shown_where_they_happened),
    ("the_theme_can_be_chosen", the_theme_can_be_chosen),
    ("everything_has_a_name_for_those_who_do_not_see_it", everything_has_a_name_for_those_who_do_not_see_it),
];

const FIGURES: [&str; 8] = [
    "ns_per_op",
    "ns_per_hit",
    "peak_live_bytes",
    "peak_reserved_bytes",
    "ratio",
    "refused",
    "driver_calls",
    "frames_remapped",
];

fn the_figures_are_those_of_the_json(browser: &Browser) {
    let folder = Folder::new();
    let (small, long) = (folder.file("small.csv", small()), folder.file("long.csv", spike(1000)));
    let page = folder.path("page.html");
    let report = json(&["replay", &small, &long, "--stack", "async,direct", "--html", &page]);
    let script = r#"return [...document.querySelectorAll(".figures tbody tr")].map((row) => ({
        stack: row.querySelector("th").textContent,
        trace: row.closest("section").querySelector("h2").textContent,
        cells: Object.fromEntries([...row.querySelectorAll("td")].map((cell) =>
            [cell.dataset.figure, [JSON.parse(cell.dataset.value), cell.textContent]])),
    }));"#;
    let shown = browser.ask(&page, "", script);
    let rows = report["traces"].as_array().expect("a list");
    assert_eq!(shown.as_array().map(Vec::len), Some(4));
    for (row, shown) in rows.iter().zip(shown.as_array().expect("a list")) {
        assert_eq!(shown["stack"], row["stack"]);
        let trace = row["trace"].as_str().expect("a path");
        assert!(trace.ends_with(shown["trace"].as_str().expect("a name")), "{shown}");
        for figure in FIGURES {
            assert_eq!(shown["cells"][figure][0].as_f64(), row[figure].as_f64(), "{figure} of {shown}");
        }
        let peak = Bytes(row["peak_live_bytes"].as_u64().expect("a number"));
        assert_eq!(shown["cells"]["peak_live_bytes"][1], peak.to_string());
        assert_eq!(shown["cells"]["refused"][1], "0");
    }
}

fn the_read_out_at_the_peak_is_the_peak(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("small.csv", small()), folder.path("page.html"));
    let report = json(&["replay", &trace, "--stack", "async,direct", "--html", &page]);
    assert_eq!(report["traces"][0]["peak_live_bytes"], 3000);
    let script = r#"const canvas = document.querySelector(".timeline canvas");
        press(canvas, "P");
        return { tip: document.querySelector(".timeline .tip").textContent,
                 aloud: document.querySelector(".timeline [aria-live]").textContent,
                 lede: document.querySelector(".lede").textContent,
                 note: document.querySelector(".resolution").textContent };"#;
    let found = browser.ask(&page, "", script);
    let text = |name: &str| found[name].as_str().expect("text").to_owned();
    assert!(text("tip").starts_with("operation 1live2.93 KiB"), "{found}");
    assert!(
        text("aloud").contains("reserved by async 3 KiB") && text("aloud").contains("fragmentation 2.4 %"),
        "{found}"
    );
    assert!(text("lede").contains("At most 2.93 KiB was live, after operation 1."), "{found}");
    assert!(text("note").contains("Every operation"), "{found}");
}

fn an_operation_among_many_is_not_lost(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("long.csv", spike(200_000)), folder.path("page.html"));
    let report = json(&["replay", &trace, "--html", &page]);
    assert_eq!(report["traces"][0]["peak_live_bytes"], 1 << 30);
    let script = r#"press(document.querySelector(".timeline canvas"), "p");
        return [document.querySelector(".timeline .tip").textContent, document.querySelector(".resolution").textContent];"#;
    let found = browser.ask(&page, "", script);
    assert!(found[0].as_str().is_some_and(|tip| tip.contains("live0 B – 1 GiB")), "{found}");
    assert!(found[1].as_str().is_some_and(|note| note.contains("100,000 points of 2 operations each")), "{found}");
}

/// Returns the visible part of a timeline, as `[from, to]`.
fn range(found: &Value) -> [f64; 2] {
    [0, 1].map(|end| found[end].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{found}")))
}

fn zooming_changes_what_is_shown(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("long.csv", spike(10_000)), folder.path("page.html"));
    json(&["replay", &trace, "--html", &page]);
    let script = r#"const host = document.querySelector(".timeline");
        const canvas = host.querySelector("canvas");
        canvas.setPointerCapture = () => {};
        const box = canvas.getBoundingClientRect();
        const [left, right] = [box.left + 66, box.right - 14];
        const at = (share) => ({ clientX: left + share * (right - left), clientY: box.top + 60, bubbles: true, cancelable: true });
        const seen = [];
        const see = () => seen.push([host.dataset.from, host.dataset.to, host.querySelector(".range").textContent]);
        const wheel = (deltaY, share) => canvas.dispatchEvent(new WheelEvent("wheel", { deltaY, ...at(share) }));
        const pointer = (kind, share) => canvas.dispatchEvent(new PointerEvent(kind, { button: 0, pointerId: 1, ...at(share) }));
        see();
        seen.push(wheel(100, 0.5)); see();
        seen.push(wheel(-150, 0.25)); see();
        press(canvas, "+"); see();
        press(canvas, "PageDown"); see();
        canvas.dispatchEvent(new MouseEvent("dblclick", at(0.5))); see();
        pointer("pointerdown", 0.8); pointer("pointermove", 0.6); pointer("pointerup", 0.6); see();
        press(canvas, "Escape"); see();
        return seen;"#;
    let found = browser.ask(&page, "", script);
    let all = [0.0, 10_000.0];
    assert_eq!(range(&found[0]), all);
    assert_eq!(found[0][2], "operations 0 – 9,999 of 10,000");
    assert_eq!(
        (&found[1], range(&found[2])),
        (&Value::Bool(true), all),
        "with nothing to zoom out of, the page scrolls"
    );
    assert_eq!(found[3], Value::Bool(false), "a wheel that zooms does not scroll");
    let [from, to] = range(&found[4]);
    assert!((from - 1250.0).abs() < 20.0 && (to - 6250.0).abs() < 20.0, "halved around a quarter: {from} {to}");
    let [closer_from, closer_to] = range(&found[5]);
    assert!(closer_from > from && closer_to < to && ((closer_to - closer_from) / (to - from) - 0.5).abs() < 0.01);
    let [later_from, later_to] = range(&found[6]);
    assert!(later_from > closer_from && (later_to - later_from - (closer_to - closer_from)).abs() < 3.0);
    assert_eq!(range(&found[7]), all, "a double click shows all");
    let [from, to] = range(&found[8]);
    assert!((from - 6000.0).abs() < 30.0 && (to - 8000.0).abs() < 30.0, "what was dragged over: {from} {to}");
    assert_eq!(range(&found[9]), all);
}

fn an_address_opens_a_page_where_it_was_left(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("long.csv", spike(10_000)), folder.path("page.html"));
    json(&["replay", &trace, "--html", &page]);
    let script = r#"const { from, to } = document.querySelector(".timeline").dataset;
        press(document.querySelector(".timeline canvas"), "PageDown");
        await new Promise((go) => setTimeout(go, 400));
        return [from, to, location.hash];"#;
    let found = browser.ask(&page, "#trace-0:2000-4000", script);
    assert_eq!((range(&found), &found[2]), ([2000.0, 4000.0], &"#trace-0:3000-5000".into()));
}

fn names_mean_nothing_but_themselves(browser: &Browser) {
    let folder = Folder::new();
    let (name, tag) =
        ("<script>owned=1<!--&amp;\"'.jsonl", "</script><script>owned=2</script><img src=x onerror=owned=3>");
    let line = |action: &str, pointer: u64| serde_json::json!({ "thread": 1, "action": action, "pointer": pointer, "bytes": 4096, "stream": 0, "tag": tag });
    let lines: String =
        [("allocate", 4096), ("allocate", 8192), ("free", 4096)].map(|(a, p)| format!("{}\n", line(a, p))).concat();
    let (trace, page) = (folder.file(name, lines), folder.path("page.html"));
    json(&["replay", &trace, "--html", &page]);
    let script = r#"press(document.querySelector(".maps canvas"), "Home");
        return { heading: document.querySelector("h2").textContent, title: document.title, owned: typeof owned,
                 group: document.querySelector(".groups tbody th").textContent,
                 tip: document.querySelector(".maps .tip b").textContent,
                 legend: document.querySelector(".maps .legend").textContent,
                 images: document.images.length };"#;
    let found = browser.ask(&page, "", script);
    assert_eq!((&found["heading"], &found["title"]), (&name.into(), &format!("Memory of {name}").into()));
    assert_eq!((&found["owned"], &found["images"]), (&"undefined".into(), &0.into()), "{found}");
    assert_eq!((&found["group"], &found["legend"]), (&tag.into(), &tag.into()));
    assert_eq!(found["tip"], format!("4 KiB {tag}"));
}

fn the_map_tells_of_every_block(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("small.csv", small()), folder.path("page.html"));
    json(&["replay", &trace, "--stack", "async,direct", "--html", &page]);
    let script = r#"return [...document.querySelectorAll(".maps canvas")].map((canvas) => {
        const tip = canvas.parentElement.querySelector(".tip");
        const told = [];
        for (const key of ["Home", "ArrowRight", "ArrowRight"]) { press(canvas, key); told.push(tip.textContent); }
        canvas.dispatchEvent(new FocusEvent("blur"));
        return { told, isGone: tip.hidden, heading: canvas.closest(".plot").parentElement.querySelector("h4").textContent };
    });"#;
    let found = browser.ask(&page, "", script);
    assert_eq!(found.as_array().map(Vec::len), Some(2), "a map a stack");
    for (map, stack) in found.as_array().expect("a list").iter().zip(["async", "direct"]) {
        let told = |at: usize| map["told"][at].as_str().expect("text").to_owned();
        assert!(
            map["heading"].as_str().is_some_and(|text| text.starts_with(stack) && text.contains("2 blocks")),
            "{map}"
        );
        let blocks = [told(0), told(1)];
        for (bytes, stream, age) in [("1000 B", "stream0", "1 operation"), ("1.95 KiB", "stream7", "0 operations")] {
            let is_told = |text: &&String| text.starts_with(bytes) && text.contains(stream) && text.ends_with(age);
            assert_eq!(blocks.iter().filter(is_told).count(), 1, "{map}");
        }
        assert_eq!((told(2), &map["isGone"]), (told(1), &Value::Bool(true)), "there is no third");
    }
}

fn refusals_are_shown_where_they_happened(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("small.csv", small()), folder.path("page.html"));
    let report = json(&["replay", &trace, "--stack", "async", "--limit", "2KiB", "--html", &page]);
    assert_eq!(report["traces"][0]["refused"], 1);
    let script = r##"const canvas = document.querySelector(".timeline canvas");
        const mark = [...canvas.getContext("2d").getImageData(0, 4, canvas.width, 1).data];
        const red = getComputedStyle(document.documentElement).getPropertyValue("--warn").match(/[0-9a-f]{2}/gi).map((two) => parseInt(two, 16));
        const at = mark.findIndex((_, place) => place % 4 === 0 && red.every((value, part) => mark[place + part] === value)) / 4;
        press(canvas, "ArrowRight"); press(canvas, "ArrowLeft", { shiftKey: true });
        return { share: (at - 66) / (canvas.clientWidth - 80), lede: document.querySelector(".lede").textContent };"##;
    let found = browser.ask(&page, "", script);
    let share = found["share"].as_f64().expect("a number");
    assert!((1.0 / 6.0 - 0.01..=2.0 / 6.0).contains(&share), "operation 1 of 6 is marked: {found}");
    assert!(
        found["lede"]
            .as_str()
            .is_some_and(|lede| lede.contains("on 2 streams") && lede.contains("refused 1 allocation.")),
        "{found}"
    );
}

fn the_theme_can_be_chosen(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("small.csv", small()), folder.path("page.html"));
    json(&["replay", &trace, "--html", &page]);
    let script = r#"const button = document.getElementById("theme");
        const look = () => [button.textContent, getComputedStyle(document.body).backgroundColor];
        const seen = [look()];
        for (let times = 0; times < 3; times += 1) { button.click(); seen.push(look()); }
        return seen;"#;
    let found = browser.ask(&page, "", script);
    let names: Vec<_> = (0..4).map(|at| found[at][0].as_str().expect("text").to_owned()).collect();
    assert_eq!(names, ["Theme: system", "Theme: light", "Theme: dark", "Theme: system"]);
    assert_ne!(found[1][1], found[2][1], "light and dark differ");
    assert_eq!(found[0][1], found[3][1]);
}

fn everything_has_a_name_for_those_who_do_not_see_it(browser: &Browser) {
    let folder = Folder::new();
    let (trace, page) = (folder.file("small.csv", small()), folder.path("page.html"));
    json(&["replay", &trace, "--stack", "async,direct", "--html", &page]);
    let script = r#"const all = (what) => [...document.querySelectorAll(what)];
        return { canvases: all("canvas").length,
                 unnamed: all("canvas").filter((one) => !one.getAttribute("aria-label") || one.tabIndex !== 0).length,
                 tables: all("table").length, captions: all("table > caption").length,
                 headings: all("h1, h2, h3, h4").map((one) => one.tagName).join(" "),
                 buttons: all("button").filter((one) => !(one.getAttribute("aria-label") ?? one.textContent).trim()).length,
                 wide: document.documentElement.scrollWidth - document.documentElement.clientWidth };"#;
    let found = browser.ask(&page, "", script);
    assert_eq!((&found["canvases"], &found["unnamed"]), (&3.into(), &0.into()), "{found}");
    assert_eq!((&found["tables"], &found["buttons"]), (&found["captions"], &0.into()), "{found}");
    assert_eq!(found["headings"], "H1 H2 H3 H3 H4 H4 H3 H3 H3");
    assert_eq!(found["wide"], 0, "nothing is wider than the window");
}
