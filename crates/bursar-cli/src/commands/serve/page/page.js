// Puts the parts together: the state fills cards and tables, and history the chart.

const SPANS = [["300000", "5 min"], ["3600000", "1 h"], ["86400000", "24 h"], ["604800000", "7 days"]];
const REFRESH_MS = 60000;

let state = null;
let selected = null;
let series = null;
let by = "process";
let asked = 0;
let refreshedAt = 0;

const chart = new Chart(() => {
  byId("live").hidden = chart.window === null;
  showRange();
  load();
});
const cards = new Cards(byId("cards"), (uuid) => {
  selected = uuid;
  series = null;
  chart.setSeries(null, by);
  show();
  load();
});
const tables = makeTables();
const connection = new Connection((fresh, wasLost) => {
  const isNew = state?.at_ms !== fresh.at_ms;
  state = fresh;
  chart.now = fresh.at_ms;
  if (isNew) append(fresh);
  show();
  if (wasLost || Date.now() - refreshedAt > REFRESH_MS) load();
  document.documentElement.dataset.state = "ready";
});

/** Gets the history of the stretch that is shown; of several answers the last that was asked for counts. */
async function load() {
  if (!selected) return;
  const [from, to] = chart.range();
  const question = (asked += 1);
  refreshedAt = Date.now();
  const parameters = new URLSearchParams({ uuid: selected, by, points: 1000, since_ms: Math.max(0, Math.floor(from - (to - from) / 50)) });
  if (chart.window) parameters.set("until_ms", Math.ceil(to));
  try {
    const answer = await connection.get(`api/history?${parameters}`);
    if (question !== asked) return;
    series = answer.devices[0] ?? null;
    chart.setSeries(series, by);
    showRange();
  } catch {
    // The state is asked for all the time, and says when the server cannot be reached.
    refreshedAt = 0;
  }
}

/** Adds a new state to the history that is there, so that the chart moves without asking for all of it again. */
function append(fresh) {
  const device = fresh.devices.find((one) => one.uuid === selected);
  if (!series || !device || chart.window || fresh.at_ms <= (series.at_ms.at(-1) ?? 0)) return;
  const known = series.at_ms.length;
  const isReadable = device.status === "readable";
  series.at_ms.push(fresh.at_ms);
  for (const figure of ["total", "limit", "held", "undrawn", "cached", "unmanaged"]) series[figure].push(isReadable ? device[figure] : null);
  series.waiting.push(isReadable ? device.waiting.length : null);
  series.refused.push(isReadable ? refusedIn(device.refused) : null);
  const parties = !isReadable ? [] : by === "process"
    ? device.processes.map((process) => ({ name: process.name, pid: process.pid, bytes: process.held }))
    : device.tenants.map((tenant) => ({ name: tenant.name, pid: null, bytes: tenant.charged }));
  for (const party of series.parties) party.bytes.push(isReadable ? 0 : null);
  for (const party of parties.filter((one) => one.bytes > 0)) {
    let old = series.parties.find((one) => one.name === party.name && one.pid === party.pid);
    if (!old && series.parties.length < 16) {
      old = { name: party.name, pid: party.pid, bytes: [...series.held.slice(0, known).map((held) => (held === null ? null : 0)), 0] };
      series.parties.push(old);
    }
    if (old) old.bytes[known] += party.bytes;
  }
  const oldest = chart.range()[0] - 5000;
  while (series.at_ms.length > 2 && series.at_ms[1] < oldest) {
    for (const column of [series.at_ms, ...["total", "limit", "held", "undrawn", "cached", "unmanaged", "waiting", "refused"].map((one) => series[one])]) column.shift();
    for (const party of series.parties) party.bytes.shift();
  }
  chart.setSeries(series, by);
}

function show() {
  const { devices } = state;
  if (!devices.some((device) => device.uuid === selected)) {
    const first = devices.find((device) => device.status === "readable") ?? devices[0];
    selected = first?.uuid ?? null;
    series = null;
    load();
  }
  cards.show(devices, selected);
  byId("over-time").hidden = devices.length === 0;
  byId("no-devices").hidden = devices.length > 0;
  say(byId("no-devices"), `No ledger, and no device that processes share. ${state.no_gpu ? printable(state.no_gpu) : ""}`);
  say(byId("about"), `${printable(state.driver ?? "no GPU is asked")}${state.simulated ? ", simulated" : ""} · ledgers in ${printable(state.folder)}`);
  const leftOut = state.left_out > 0 ? `${state.left_out} more devices or ledgers are left out.` : "";
  byId("folder-error").hidden = state.folder_error === null && leftOut === "";
  say(byId("folder-error"), printable(state.folder_error ?? leftOut));
  const readable = devices.filter((device) => device.status === "readable");
  const all = (list) => readable.flatMap((device) => device[list].map((item) => ({ ...item, device })));
  const wanted = byId("filter").value.trim().toLowerCase();
  const isWanted = (item) => [item.name, String(item.pid), labelOf(item.device), item.device.uuid, ...item.labels].some((text) => text.toLowerCase().includes(wanted));
  const unread = devices.length - readable.length + (state.folder_error === null ? 0 : 1);
  tables.processes.show(all("processes").filter(isWanted), unread);
  tables.tenants.show(all("tenants"), unread);
  tables.queue.show(all("waiting"), unread);
  tables.refusals.show(all("refusals").sort((one, other) => other.at_ms - one.at_ms).slice(0, 20), unread);
  const selectedDevice = devices.find((device) => device.uuid === selected);
  say(byId("chart-heading"), selectedDevice ? `${labelOf(selectedDevice)} over time` : "Memory over time");
  const taken = readable.reduce((sum, device) => sum + device.held, 0);
  document.title = `${bytes(taken)} held – Bursar`;
  chart.draw();
}

function showRange() {
  const [from, to] = chart.range();
  say(byId("range"), chart.window ? `${moment(from)} – ${clock(to)}` : "");
}

choose(byId("by"), [["process", "by process"], ["tenant", "by tenant"]], by, (value) => {
  by = value;
  chart.hidden.clear();
  load();
});
choose(byId("span"), SPANS, SPANS[0][0], (value) => {
  chart.spanMs = Number(value);
  chart.look(null);
});
byId("live").addEventListener("click", () => chart.look(null));
byId("filter").addEventListener("input", () => state && show());

const THEMES = ["system", "light", "dark"];
function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say(byId("theme"), `Theme: ${theme}`);
  chart.draw();
}
let theme = "system";
try {
  theme = THEMES.find((one) => one === localStorage.getItem("bursar-theme")) ?? theme;
} catch {
  // Storage may be forbidden: the theme is then the system's every time.
}
setTheme(theme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  setTheme(theme);
  try {
    localStorage.setItem("bursar-theme", theme);
  } catch {
    // As above.
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.draw());
connection.poll();
