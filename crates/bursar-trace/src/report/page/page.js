// Puts the page together once its data is unpacked.

const THEMES = ["system", "light", "dark"];

function steerTheme(redraw) {
  const button = document.getElementById("theme");
  const apply = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    redraw();
  };
  let theme = "system";
  try {
    theme = THEMES.find((one) => one === localStorage.getItem("bursar-theme")) ?? theme;
  } catch { /* A page opened from a file may have no storage. */ }
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem("bursar-theme", theme);
    } catch { /* As above. */ }
    apply(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  apply(theme);
}

async function start() {
  const traces = JSON.parse(document.getElementById("data").textContent);
  await Promise.all(traces.flatMap((trace) => trace.runs.map(decodeRun)));
  const hosts = (kind) => [...document.querySelectorAll(`.${kind}`)].map((host) => [host, traces[Number(host.dataset.trace)]]);
  const timelines = hosts("timeline").map(([host, trace], number) => new Timeline(host, trace, number));
  const maps = hosts("maps").map(([host, trace]) => new Maps(host, trace));
  steerTheme(() => {
    timelines.forEach((timeline) => timeline.draw());
    maps.forEach((map) => map.show());
  });
  addEventListener("hashchange", () => follow(timelines));
  follow(timelines);
  document.documentElement.dataset.state = "ready";
}

start().catch((error) => {
  const said = `The drawings could not be made (${error.message}); the tables are complete. A browser of 2023 or later can.`;
  document.querySelector("main").prepend(make("p", { class: "note", role: "alert" }, said));
  document.documentElement.dataset.state = "failed";
  throw error;
});
