// Tables whose rows stay in place while their figures change, sorted by the column that was chosen.

class Table {
  /** Columns have a name, a text for people, and a value to sort by; `key` tells rows apart. */
  constructor(host, { caption, empty, columns, key, sort, descending }) {
    Object.assign(this, { columns, key, sort, descending: descending ?? false, rows: new Map(), nothing: empty });
    // Until something was received, nothing is known, which is not the same as nothing.
    this.empty = make("p", { class: "empty" }, "Nothing is known yet.");
    this.headings = columns.map((column) => {
      const heading = make("th", { scope: "col", class: classOf(column) });
      if (sort === undefined) {
        heading.append(column.name);
      } else {
        const button = make("button", { type: "button" }, column.name);
        button.addEventListener("click", () => this.sortBy(column.name));
        heading.append(button);
      }
      return heading;
    });
    this.body = make("tbody");
    this.table = make("table", {}, make("caption", { class: "visually-hidden" }, caption), make("thead", {}, make("tr", {}, ...this.headings)), this.body);
    host.append(this.empty, make("div", { class: "scroll" }, this.table));
    this.data = [];
    this.mark();
  }

  sortBy(name) {
    const column = this.columns.find((one) => one.name === name);
    this.descending = this.sort === name ? !this.descending : column.kind === "number" || column.kind === "share";
    this.sort = name;
    this.mark();
    if (this.unread !== undefined) this.show(this.data, this.unread);
  }

  mark() {
    this.columns.forEach((column, at) => {
      if (column.name === this.sort) this.headings[at].setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else this.headings[at].removeAttribute("aria-sort");
    });
  }

  sorted(data) {
    const column = this.columns.find((one) => one.name === this.sort);
    if (!column) return data;
    const value = column.value ?? column.text;
    const order = (one, other) => {
      const [a, b] = [value(one), value(other)];
      const by = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return (this.descending ? -by : by) || String(this.key(one)).localeCompare(String(this.key(other)));
    };
    return [...data].sort(order);
  }

  /** Shows rows; `unread` tells how many ledgers cannot be read, whose rows are unknown. */
  show(data, unread) {
    Object.assign(this, { data, unread });
    const unknown = unread === 1 ? "One ledger cannot be read: what it has is unknown." : `${count(unread)} ledgers cannot be read: what they have is unknown.`;
    say(this.empty, unread > 0 ? unknown : this.nothing);
    this.empty.hidden = data.length > 0 && unread === 0;
    this.table.hidden = data.length === 0;
    const gone = new Set(this.rows.keys());
    const ordered = this.sorted(data).map((item) => {
      // Two rows of one key stay two rows.
      let key = this.key(item);
      while (!gone.has(key) && this.rows.has(key)) key += "'";
      gone.delete(key);
      let row = this.rows.get(key);
      if (!row) {
        row = make("tr", { "data-key": key }, ...this.columns.map((column, at) => make(at === 0 ? "th" : "td", at === 0 ? { scope: "row" } : { class: classOf(column) })));
        this.rows.set(key, row);
      }
      this.columns.forEach((column, at) => fillCell(row.children[at], column, item));
      return row;
    });
    for (const key of gone) {
      this.rows.get(key).remove();
      this.rows.delete(key);
    }
    ordered.forEach((row, at) => {
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
    });
  }
}

const classOf = (column) => `${column.kind ?? "text"}${column.isWide ? " wide" : ""}`;

function fillCell(cell, column, item) {
  if (column.kind !== "share") return say(cell, column.text(item));
  const bar = cell.firstChild ?? cell.appendChild(make("i"));
  bar.style.width = `${100 * clamp(0, column.value(item), 1)}%`;
  bar.title = column.text(item);
}

/** The refusals of a device for all reasons together. */
const refusedIn = (counts) => Object.values(counts).reduce((sum, one) => sum + one, 0);

/** The ceiling of a tenant, if it is one: what the device does not have limits nobody. */
const ceilingOf = (item) => (item.ceiling < item.device.total ? item.ceiling : null);

const number = (name, value, text = (item) => count(value(item)), more = {}) => ({ name, kind: "number", value, text, ...more });
const sized = (name, value, more = {}) => number(name, (item) => value(item) ?? -1, (item) => bytes(value(item)), more);
const named = (name, text, more = {}) => ({ name, text: (item) => printable(text(item)), ...more });

function makeTables() {
  const now = () => Date.now();
  return {
    processes: new Table(byId("processes"), {
      caption: "Processes that have a ledger open",
      empty: "No process has a ledger open.",
      key: (item) => `${item.device.uuid} ${item.pid} ${item.name} ${item.since_ms}`,
      sort: "Held",
      descending: true,
      columns: [
        named("Process", (item) => item.name),
        number("Pid", (item) => item.pid, (item) => String(item.pid)),
        named("Device", (item) => labelOf(item.device), { kind: "short" }),
        named("For", (item) => item.labels.join(", "), { isWide: true }),
        sized("Held", (item) => item.held),
        { name: "Of the limit", kind: "share", isWide: true, value: (item) => (item.held + item.undrawn) / Math.max(item.device.limit, 1), text: (item) => `${bytes(item.held + item.undrawn)} held or set aside` },
        sized("Set aside", (item) => item.undrawn),
        sized("Live", (item) => item.usage?.live, { isWide: true }),
        sized("Cached", (item) => item.usage?.cached, { isWide: true }),
        sized("Peak", (item) => item.usage?.peak, { isWide: true }),
        named("Largest holder", (item) => (item.usage?.holders.length ? `${item.usage.holders[0].tag} ${bytes(item.usage.holders[0].live)}` : "–"), { isWide: true }),
        number("Refused", (item) => item.refused),
        number("Since", (item) => item.since_ms, (item) => age(now() - item.since_ms)),
      ],
    }),
    tenants: new Table(byId("tenants"), {
      caption: "Tenants",
      empty: "No tenant has anything.",
      key: (item) => `${item.device.uuid} ${item.name}`,
      sort: "Has",
      descending: true,
      columns: [
        named("Tenant", (item) => item.name || "(none named)"),
        named("Device", (item) => labelOf(item.device), { kind: "short" }),
        sized("Has", (item) => item.charged),
        { name: "Of its ceiling", kind: "share", isWide: true, value: (item) => item.charged / Math.max(ceilingOf(item) ?? item.device.limit, 1), text: (item) => bytes(item.charged) },
        sized("Guarantee", (item) => item.guarantee),
        sized("Ceiling", ceilingOf),
        number("Refused", (item) => item.refused),
        number("Waited", (item) => item.waited_ms, (item) => age(item.waited_ms), { isWide: true }),
      ],
    }),
    queue: new Table(byId("queue"), {
      caption: "Requests that wait, in the order of service",
      empty: "Nobody waits.",
      key: (item) => `${item.device.uuid} ${item.pid} ${item.since_ms} ${item.bytes}`,
      columns: [
        named("Process", (item) => item.name),
        number("Pid", (item) => item.pid, (item) => String(item.pid)),
        named("Device", (item) => labelOf(item.device), { kind: "short" }),
        named("Tenant", (item) => item.tenant, { isWide: true }),
        sized("Waits for", (item) => item.bytes),
        number("Since", (item) => item.since_ms, (item) => age(now() - item.since_ms)),
      ],
    }),
    refusals: new Table(byId("refusals"), {
      caption: "The last refusals, the latest first",
      empty: "Nothing was refused.",
      key: (item) => `${item.device.uuid} ${item.at_ms} ${item.pid} ${item.requested}`,
      columns: [
        named("Process", (item) => item.name),
        number("Pid", (item) => item.pid, (item) => String(item.pid)),
        named("Device", (item) => labelOf(item.device), { kind: "short" }),
        named("Why", (item) => `${item.reason}: ${item.explanation}`),
        number("Ago", (item) => -item.at_ms, (item) => age(now() - item.at_ms)),
      ],
    }),
  };
}
