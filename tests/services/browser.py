"""Debian's Chromium for the tests of pages, and what makes a page readable."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
expect.set_options(timeout=20_000)  # a busy machine is no fault of the page

# The smallest ratio of the luminances of a text and what lies behind it, over all texts that are shown.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const worst = [99, ""];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.checkVisibility({visibilityProperty: true})) continue;
    if (element.closest(".hidden, noscript, .toast, :disabled")) continue;
    const pair = [light(rgba(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < worst[0]) worst.splice(0, 2, ratio, `${element.className} ${walk.currentNode.data.trim()}`);
  }
  return worst;
}"""

# Whatever can be pressed or typed into and has no name that a screen reader could say.
NAMELESS = """() => [...document.querySelectorAll("button, input, textarea, a, dialog, nav, aside, [role=region]")]
  .filter((element) => element.type !== "file" && !element.innerText?.trim() && !element.ariaLabel
    && !element.labels?.length && !element.getAttribute("aria-labelledby"))
  .map((element) => element.outerHTML)"""


@contextmanager
def running() -> Iterator[Browser]:
    """Run a browser, or skip the test; with CI=true it must be there."""
    if not os.path.exists(CHROMIUM):
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have Chromium: run scripts/system-packages")
        pytest.skip("needs Chromium: run scripts/system-packages")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


def shoot(page: Page, name: str, place: Path) -> None:
    """Take a picture; with PABAL_PICTURES=1 that of the documentation."""
    folder = PICTURES if os.environ.get("PABAL_PICTURES") == "1" else place
    page.mouse.move(0, 0)
    taken = page.screenshot(animations="disabled")
    Image.open(BytesIO(taken)).quantize(256, dither=Image.Dither.NONE).save(folder / f"{name}.png", optimize=True)
    assert (folder / f"{name}.png").stat().st_size < 100_000
