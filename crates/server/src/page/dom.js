// Elements and words: small functions that every other module uses.

export const $ = (id) => document.getElementById(id);

/** Makes an element. `on…` attributes are listeners, `data` its dataset, null and false are left out. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'data') Object.assign(element.dataset, value);
    else if (name === 'text') element.textContent = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function icon(name) {
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS(space, 'use');
  use.setAttribute('href', `#i-${name}`);
  svg.append(use);
  return svg;
}

export function fillNotes(list, texts) {
  list.replaceChildren(...texts.map((text) => el('li', { text })));
  list.hidden = texts.length === 0;
}

export function debounce(run, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), milliseconds);
  };
}

export function bytes(count) {
  if (count === null || count === undefined) return 'unknown';
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? '' : 's'}`;

/** 4 -> "a few seconds", 42 -> "about 40 seconds", 100 -> "about 2 minutes". */
export function inWords(seconds) {
  if (seconds < 5) return 'a few seconds';
  if (seconds < 20) return `about ${Math.round(seconds)} seconds`;
  if (seconds < 55) return `about ${Math.round(seconds / 10) * 10} seconds`;
  if (seconds < 3300) return `about ${plural(Math.max(1, Math.round(seconds / 60)), 'minute')}`;
  const halves = Math.round(seconds / 1800) / 2;
  return `about ${plural(halves, 'hour')}`;
}

/** Measured times of a plan: "0.4 s", "12 s", "3 min". */
export function brief(seconds) {
  if (seconds === null || seconds === undefined) return '';
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return `${Math.round(seconds / 60)} min`;
}

export function capital(text) {
  return text ? text[0].toUpperCase() + text.slice(1) : '';
}

export function showError(error) {
  const text = error?.message ?? String(error);
  $('error').textContent = text;
  $('error-box').hidden = false;
}

export function clearError() {
  $('error').textContent = '';
  $('error-box').hidden = true;
}
