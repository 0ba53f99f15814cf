// Looks at everything that is shown: each control has a name, and text has a contrast of 4.5:1 (3:1 where it is large) to what lies behind it.
// A dialog that is open hides the rest from keyboard and screen reader, so only it is looked at then.
const root = document.querySelector('dialog[open]') ?? document.body;
const problems = [];
const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const said = (element) => `${element.tagName.toLowerCase()}#${element.id} "${element.textContent.trim().slice(0, 30)}"`;

const textOf = (ids) => (ids ?? '').split(' ').map((id) => document.getElementById(id)?.textContent ?? '').join(' ');
const nameOf = (element) => [
  element.getAttribute('aria-label'),
  textOf(element.getAttribute('aria-labelledby')),
  ...[...(element.labels ?? [])].map((label) => label.textContent),
  ...(element.matches('button, a, summary') ? [element.textContent, ...[...element.querySelectorAll('img')].map((image) => image.alt)] : []),
].filter(Boolean).join(' ').trim();

let controls = 0;
for (const element of root.querySelectorAll('button, a[href], input, select, textarea, summary, canvas[tabindex], [role=progressbar], dialog')) {
  if (!shown(element)) continue;
  controls += 1;
  if (!nameOf(element)) problems.push(`${said(element)} has no name`);
}
for (const image of root.querySelectorAll('img')) {
  if (shown(image) && image.getAttribute('alt') === null) problems.push(`${said(image)} has no alt`);
}
const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
for (const id of new Set(ids.filter((id, index) => ids.indexOf(id) !== index))) problems.push(`#${id} is there twice`);

const channels = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
const luminance = ([r, g, b]) => {
  const linear = [r, g, b].map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const over = ([r, g, b, a = 1], under) => [r, g, b].map((value, index) => value * a + under[index] * (1 - a));

/** The colour behind an element's text. */
function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const color = channels(getComputedStyle(at).backgroundColor);
    layers.push(color);
    if ((color[3] ?? 1) === 1) break;
  }
  return layers.reverse().reduce((under, color) => over(color, under), [255, 255, 255]);
}

let texts = 0;
const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
const elements = new Set([...root.querySelectorAll('input:not([type=range]):not([type=file]), select, textarea')]);
while (walker.nextNode()) {
  if (walker.currentNode.textContent.trim()) elements.add(walker.currentNode.parentElement);
}
for (const element of elements) {
  // What is disabled is not for reading; what is hidden from the eye is for screen readers.
  if (!shown(element) || element.closest(':disabled, .visually-hidden, option, script, style, noscript')) continue;
  const style = getComputedStyle(element);
  const under = behind(element);
  const colors = [style.color];
  if (element.matches('input, textarea') && !element.value && element.placeholder) colors.push(getComputedStyle(element, '::placeholder').color);
  const size = parseFloat(style.fontSize);
  const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
  for (const color of colors) {
    const [light, dark] = [luminance(over(channels(color), under)), luminance(under)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    texts += 1;
    if (contrast < needed) problems.push(`${said(element)} has a contrast of ${contrast.toFixed(2)}`);
  }
}
return { problems, controls, texts };
