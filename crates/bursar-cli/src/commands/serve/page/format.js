// Formats numbers and moments, and makes elements. Text is never taken for markup.

const UNITS = [["PiB", 2 ** 50], ["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** Formats a size. */
function bytes(number) {
  if (number === null || number === undefined) return "–";
  const found = UNITS.find(([, unit]) => number >= unit);
  if (!found) return `${number} B`;
  const [name, unit] = found;
  return `${number % unit === 0 ? number / unit : (number / unit).toFixed(2)} ${name}`;
}

/** A size beside an axis. */
function tick(number) {
  const found = UNITS.find(([, unit]) => number >= unit);
  return found ? `${Number((number / found[1]).toFixed(2))} ${found[0]}` : `${number} B`;
}

const count = (number) => Math.round(number).toLocaleString("en");
const clamp = (low, value, high) => Math.max(low, Math.min(value, high));

/** A stretch of time in its largest unit. */
function age(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

const two = (number) => String(number).padStart(2, "0");

/** The time of day, with seconds unless that is too fine. */
function clock(milliseconds, withSeconds = true) {
  const at = new Date(milliseconds);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}

/** The day and the time of day. */
function moment(milliseconds) {
  const at = new Date(milliseconds);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(milliseconds)}`;
}

/** A name as people see it: control characters and those that change the direction of text are shown, not obeyed. */
function printable(name) {
  return String(name).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** An element with attributes and children. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Sets the text of an element, if it has changed. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const byId = (id) => document.getElementById(id);

/** A colour of the style sheet. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Makes one choice out of several buttons, moved by arrow keys as radio buttons are. */
function choose(host, options, chosen, change) {
  const buttons = options.map(([value, label]) => {
    const button = make("button", { type: "button", role: "radio", "data-value": value }, label);
    button.addEventListener("click", () => pick(value, true));
    return button;
  });
  host.append(...buttons);
  function pick(value, tell) {
    for (const button of buttons) {
      const isIt = button.dataset.value === value;
      button.setAttribute("aria-checked", isIt);
      button.tabIndex = isIt ? 0 : -1;
    }
    if (tell) change(value);
  }
  steerRadios(host, () => buttons);
  pick(chosen, false);
  return pick;
}

/** Moves the choice of a radio group by arrow keys. */
function steerRadios(host, members) {
  host.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = members();
    const at = all.indexOf(document.activeElement);
    if (!by || at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = all[(at + by + all.length) % all.length];
    next.click();
    next.focus();
  });
}
