// Menus that a button opens: Escape, a click elsewhere or a choice closes them; arrows walk through them.

export function menu(button, list) {
  const items = () => [...list.querySelectorAll("button:not([hidden])")];

  function set(open) {
    list.hidden = !open;
    button.setAttribute("aria-expanded", open);
    if (open) items()[0]?.focus();
  }

  button.setAttribute("aria-haspopup", "true");
  button.setAttribute("aria-expanded", "false");
  button.onclick = () => set(list.hidden);
  list.addEventListener("click", (event) => event.target.closest("button") && set(false));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = items();
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!list.hidden && !list.contains(event.target) && !button.contains(event.target)) set(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || list.hidden) return;
    event.stopPropagation();
    set(false);
    button.focus();
  });
}
