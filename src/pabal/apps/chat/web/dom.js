// Making elements. Text goes in as text nodes and nowhere as markup.

const HUES = [25, 55, 90, 130, 160, 190, 220, 250, 280, 310, 340, 5]; // of marks, told apart at a glance

const slotOf = (id) => [...id].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 997, 7) % HUES.length;

const apart = (one, other) => Math.min(Math.abs(one - other), 360 - Math.abs(one - other));

// Give each room a colour far from those of the others: the oldest first, so that a new room changes no other.
export function distinctHues(rooms) {
  const hues = new Map();
  let taken = [];
  for (const { id } of [...rooms].sort((one, other) => (one.createdAt < other.createdAt ? -1 : 1))) {
    const distance = (hue) => Math.min(360, ...taken.map((other) => apart(hue, other)));
    const from = slotOf(id);
    const order = [...HUES.slice(from), ...HUES.slice(0, from)];
    const hue = order.reduce((best, other) => (distance(other) > distance(best) ? other : best));
    hues.set(id, hue);
    taken = taken.length + 1 < HUES.length ? [...taken, hue] : [];
  }
  return hues;
}

export const $ = (id) => document.getElementById(id);

// Make an element: `el("button.primary", {type: "button"}, "Send")`. `on…` properties are listeners, `data` fills the
// dataset; true sets a bare attribute, and null, undefined or false leave one out.
export function el(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

// A round mark with the first letter of a name, in a colour that belongs to the id.
export function mark(kind, id, name, online = null, hue = HUES[slotOf(id)]) {
  const element = el(`span.mark.${kind}`, { "aria-hidden": "true" }, [...name.trim()][0]?.toUpperCase() ?? "?");
  element.style.setProperty("--hue", hue);
  if (online !== null) element.dataset.online = online;
  return element;
}

// Bring the children of a parent into this order, touching only what is out of place.
export function arrange(parent, wanted) {
  let at = parent.firstChild;
  for (const node of wanted) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// Return a function that runs `work` once, soon, however often it is called before that.
export function soon(work) {
  let waiting = false;
  const run = () => {
    waiting = false;
    work();
  };
  return () => {
    if (waiting) return;
    waiting = true;
    if (document.hidden) setTimeout(run, 100);
    else requestAnimationFrame(run);
  };
}
