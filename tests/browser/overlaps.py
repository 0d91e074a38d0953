"""Texts of a page that stand under others, and how much wider than the window it is."""

from playwright.async_api import Page

# A text's boxes are cut by every box that clips it. Layers over the page are compared within themselves.
_OVERLAPS = """() => {
  const LAYERS = ".top, .nav, .jumpbar, .drawer, .rowact, .now, dialog, .jumplive, .menu > div";
  const LEAST = 3;
  const hidden = (element) => getComputedStyle(element).clipPath !== "none";
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.data.trim() === "" || node.parentElement.closest("option, select, script")) continue;
    if (!node.parentElement.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const clips = [];
    let seen = true;
    for (let parent = node.parentElement; parent && seen; parent = parent.parentElement) {
      if (hidden(parent)) seen = false;
      const style = getComputedStyle(parent);
      if (style.overflowX !== "visible" || style.overflowY !== "visible") clips.push(parent.getBoundingClientRect());
    }
    if (!seen) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()].map((box) => clips.reduce((cut, clip) => ({
      left: Math.max(cut.left, clip.left), right: Math.min(cut.right, clip.right),
      top: Math.max(cut.top, clip.top), bottom: Math.min(cut.bottom, clip.bottom),
    }), box)).filter((box) => box.right - box.left > LEAST && box.bottom - box.top > LEAST);
    texts.push({ words: node.data.trim().slice(0, 40), layer: node.parentElement.closest(LAYERS), boxes });
  }
  const pairs = [];
  const flat = texts.flatMap(({ boxes, ...text }, index) => boxes.map((box) => ({ ...text, index, box })));
  flat.sort((one, other) => one.box.top - other.box.top);
  flat.forEach((one, place) => {
    for (let next = place + 1; next < flat.length && flat[next].box.top < one.box.bottom - LEAST; next += 1) {
      const other = flat[next];
      const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const apart = other.index === one.index || other.layer !== one.layer;
      if (!apart && across > LEAST) pairs.push(`${one.words} / ${other.words}`);
    }
  });
  return [...new Set(pairs)];
}"""
_WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def faults_of_layout(page: Page) -> list[str]:
    """Pairs of texts that overlap by more than three pixels both ways, and a page that scrolls sideways."""
    wider: int = await page.evaluate(_WIDER)
    overlaps: list[str] = await page.evaluate(_OVERLAPS)
    return [*overlaps, *([f"{wider} px wider than the window"] if wider > 0 else [])]
