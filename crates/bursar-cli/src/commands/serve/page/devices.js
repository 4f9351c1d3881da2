// A card for each device: how its memory is divided, or why it cannot be read.

const PARTS = [
  ["held", "held"],
  ["cached", "cached"],
  ["undrawn", "set aside"],
  ["unmanaged", "unmanaged"],
  ["free", "free"],
];

/** The short name of a device. */
const labelOf = (device) => (device.ordinal !== null ? `gpu${device.ordinal}` : device.uuid === "HOST" ? "host" : "unknown");

/** The bytes of a readable device by part; what is cached is a part of what is held. */
function partsOf(device) {
  const cached = Math.min(device.cached ?? 0, device.held);
  return { ...device, held: device.held - cached, cached };
}

class Cards {
  constructor(host, chosen) {
    this.host = host;
    this.cards = new Map();
    this.chosen = chosen;
    steerRadios(host, () => [...this.cards.values()].map((card) => card.element));
  }

  show(devices, selected) {
    for (const [uuid, card] of this.cards) {
      if (!devices.some((device) => device.uuid === uuid)) {
        card.element.remove();
        this.cards.delete(uuid);
      }
    }
    for (const device of devices) {
      let card = this.cards.get(device.uuid);
      if (!card || card.status !== device.status) {
        const fresh = device.status === "readable" ? readableCard() : unreadableCard();
        fresh.status = device.status;
        fresh.element.addEventListener("click", () => this.chosen(device.uuid));
        fresh.element.addEventListener("keydown", (event) => {
          if (event.key === " " || event.key === "Enter") {
            event.preventDefault();
            this.chosen(device.uuid);
          }
        });
        card ? card.element.replaceWith(fresh.element) : this.host.append(fresh.element);
        this.cards.set(device.uuid, (card = fresh));
      }
      card.fill(device);
      const isIt = device.uuid === selected;
      card.element.setAttribute("aria-checked", isIt);
      card.element.tabIndex = isIt ? 0 : -1;
      card.element.dataset.uuid = device.uuid;
    }
  }
}

function heading(card) {
  const [name, model, share, uuid] = ["name", "model", "share", "uuid"].map((kind) => make("span", { class: kind }));
  card.append(make("div", { class: "top" }, name, model, share), uuid);
  return { name, model, share, uuid };
}

function readableCard() {
  const element = make("div", { class: "card", role: "radio" });
  const { name, model, share, uuid } = heading(element);
  const map = make("div", { class: "map", "aria-hidden": "true" });
  const [segments, values, items] = [{}, {}, {}];
  const list = make("ul", { class: "figures" });
  for (const [part, label] of PARTS) {
    if (part !== "free") map.append((segments[part] = make("i", { class: part })));
    values[part] = make("b");
    list.append((items[part] = make("li", { "data-part": part }, make("span", { class: `swatch ${part}`, "aria-hidden": "true" }), `${label} `, values[part])));
  }
  const mark = make("i", { class: "mark" });
  map.append(mark);
  element.append(map, list);
  const fill = (device) => {
    const parts = partsOf(device);
    say(name, labelOf(device));
    say(model, printable(device.name));
    say(uuid, device.uuid);
    const percent = device.limit > 0 ? Math.round((100 * device.held) / device.limit) : 0;
    share.replaceChildren(bytes(device.held), make("small", {}, ` of ${bytes(device.limit)}`));
    element.setAttribute("aria-label", `${labelOf(device)}: ${percent} % of the limit is held`);
    const whole = Math.max(device.total, device.held + device.undrawn + device.unmanaged, 1);
    for (const [part] of PARTS) {
      if (segments[part]) segments[part].style.width = `${(100 * parts[part]) / whole}%`;
      say(values[part], bytes(parts[part]));
    }
    items.cached.hidden = device.cached === null;
    mark.hidden = device.limit >= device.total;
    mark.style.left = `${(100 * device.limit) / whole}%`;
    mark.title = `limit ${bytes(device.limit)}`;
  };
  return { element, fill };
}

function unreadableCard() {
  const element = make("div", { class: "card unreadable", role: "radio" });
  const { name, model, share, uuid } = heading(element);
  const why = make("p", { class: "why" });
  element.append(why);
  const fill = (device) => {
    say(name, labelOf(device));
    say(model, printable(device.name ?? ""));
    say(share, "unreadable");
    say(uuid, printable(device.uuid));
    say(why, printable(device.error));
    element.setAttribute("aria-label", `${labelOf(device)}: its ledger cannot be read`);
  };
  return { element, fill };
}
