// Formats numbers, and makes the small parts of drawings.

const UNITS = [["PiB", 2 ** 50], ["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** Formats a size, with as many digits as distinguish it from one that is `step` larger. */
function bytes(number, step = Infinity) {
  const found = UNITS.find(([, unit]) => number >= unit);
  if (!found) return `${number} B`;
  const [name, unit] = found;
  const digits = Math.max(2, Math.ceil(-Math.log10(step / unit)));
  return `${number % unit === 0 ? number / unit : (number / unit).toFixed(digits)} ${name}`;
}

/** A size beside an axis, in a unit that suits the distance to the next. */
function tick(number, step) {
  const found = UNITS.find(([, unit]) => number >= unit && step >= unit / 8);
  return found ? `${(number / found[1]).toLocaleString("en")} ${found[0]}` : bytes(number);
}

const count = (number) => Math.round(number).toLocaleString("en");
const counted = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const percent = (tenThousandths) => `${(tenThousandths / 100).toFixed(1)} %`;

/** One value, or a range where the two differ as they are shown. */
function span(low, high, shown) {
  const [from, to] = [shown(low, high - low || Infinity), shown(high, high - low || Infinity)];
  return from === to ? from : `${from} – ${to}`;
}

/** Steps between round numbers: powers of two for bytes, 1, 2 and 5 otherwise. */
const binaryStep = (most, steps) => 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(most, 1) / steps)));
function decimalStep(most, steps) {
  const rough = Math.max(most / steps, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

/** An element with attributes and children; text is never taken for markup. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Sizes a canvas for the resolution of the screen, and returns its context, in CSS pixels. */
function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return context;
}

/** A colour of the style sheet. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Fills a tooltip with a title and pairs of names and values, and shows it. */
function fillTip(tip, title, pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) list.append(make("dt", {}, name), make("dd", {}, value));
  tip.replaceChildren(make("b", {}, title), list);
  tip.hidden = false;
}

/** Places a tooltip beside a point of the plot, on the side that has room. */
function placeTip(tip, x, y, width, height) {
  const [own, tall] = [tip.offsetWidth, tip.offsetHeight];
  const left = x + 14 + own < width ? x + 14 : x - 14 - own;
  tip.style.left = `${Math.max(2, Math.min(left, width - own - 2))}px`;
  tip.style.top = `${Math.max(2, Math.min(y + 10, height - tall - 2))}px`;
}

const clamp = (low, value, high) => Math.max(low, Math.min(value, high));

/** Returns the scale of an area whose top is a little above the highest value. */
const makeScale = (area, least, most) => ({
  least,
  most,
  y: (value) => area.top + area.height * (1 - (value - least) / (Math.max(most - least, 1) * 1.04)),
});

/** A short piece of a line, for the legend. */
function sample(line) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, line.isArea ? "rect" : "line");
  const attributes = line.isArea
    ? { x: 1, y: 2, width: 22, height: 8, fill: `var(--${line.colour})`, "fill-opacity": 0.4, stroke: `var(--${line.colour})` }
    : { x1: 0, y1: 6, x2: 24, y2: 6, stroke: `var(--${line.colour})`, "stroke-width": 2, "stroke-dasharray": line.dash.join(" ") };
  for (const [key, value] of Object.entries({ width: 24, height: 12, "aria-hidden": "true" })) svg.setAttribute(key, value);
  for (const [key, value] of Object.entries(attributes)) path.setAttribute(key, value);
  svg.append(path);
  return svg;
}
