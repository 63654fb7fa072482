// Making elements. Text goes in as text nodes and nowhere as markup.

export const $ = (id) => document.getElementById(id);

// Make an element: `el("button.primary", {type: "button"}, "Send")`. `on…` properties are listeners; true sets a bare
// attribute, and null, undefined or false leave one out.
export function el(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...kept(children));
  return element;
}

const kept = (children) => children.flat().filter((child) => child !== null && child !== undefined);

// Put these children into an element instead of those it has; null and undefined are left out.
export const fill = (element, ...children) => element.replaceChildren(...kept(children));

const SVG = "http://www.w3.org/2000/svg";

// A small chart of what came in and went out, two bars for each minute of the last hour.
export function sparkline(points, words) {
  const [width, height] = [120, 28];
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", words);
  const most = Math.max(1, ...points.flat());
  const step = width / 60;
  const bar = (kind, x, y, wide, high) => {
    const rect = document.createElementNS(SVG, "rect");
    for (const [name, value] of Object.entries({ class: kind, x, y, width: wide, height: high })) rect.setAttribute(name, value);
    svg.append(rect);
  };
  bar("ground", 0, height - 1, width, 1);
  points.slice(-60).forEach((point, at, shown) => {
    const x = (60 - shown.length + at) * step;
    point.forEach((number, which) => {
      const high = number ? Math.max(1.5, (number / most) * (height - 3)) : 0;
      if (high) bar(which ? "out" : "in", x + (which * step) / 2, height - 1 - high, step / 2, high);
    });
  });
  return svg;
}

let asked = null;

// Ask in the page's dialog; resolves with the pressed button's value, or "" if it was closed.
export function dialog(title, content, buttons) {
  const box = $("dialog");
  asked?.("");
  return new Promise((resolve) => {
    const done = (value) => {
      asked = null;
      box.close();
      resolve(value);
    };
    asked = done;
    const form = el("form", {
      method: "dialog",
      onsubmit: (event) => {
        event.preventDefault();
        done(event.submitter?.value ?? buttons.at(-1).value);
      },
    });
    const row = buttons.map(({ label, value, kind = "" }) =>
      el(`button${kind ? `.${kind}` : ""}`, { type: value ? "submit" : "button", value, ...(value ? {} : { onclick: () => done("") }) }, label),
    );
    form.append(el("h2", { id: "dialog-title" }, title), ...content, el("div.row.end", {}, row));
    box.replaceChildren(form);
    box.oncancel = () => done(""); // by Escape; the event `close` comes late, when the next dialog may be open
    box.showModal();
  });
}

export function toast(text, kind = "good") {
  const note = el(`p.toast.${kind}`, {}, text);
  $("toasts").append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 9000 : 4500);
}
