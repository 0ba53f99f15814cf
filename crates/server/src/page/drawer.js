// The drawer "Machine": devices, where the current settings would compute, and jobs that failed.

import { get, post } from './api.js';
import { $, brief, bytes, debounce, el, fillNotes } from './dom.js';
import { body, onChange } from './form.js';
import { all, bus } from './jobs.js';

let timer = 0;
/** Answers to an older form are dropped. */
let asked = 0;

const isOpen = () => !$('machine').hidden;

/** A bar of `used` against `limit` with both in words above it. */
function memoryBar(name, used, limit, words) {
  const over = limit !== null && used > limit;
  const fill = el('div', { class: 'fill' });
  fill.style.width = `${limit ? Math.min(100, (used / limit) * 100) : 0}%`;
  return el('div', { class: over ? 'memory over' : 'memory' },
    el('p', { class: 'memory-text' }, el('span', { text: name }), el('span', { class: over ? 'problem' : 'muted', text: words })),
    el('div', { class: 'bar', 'aria-hidden': 'true' }, fill));
}

function device({ name, about, memory, free, usable }) {
  const known = typeof memory === 'number' && typeof free === 'number';
  return el('li', {},
    el('p', {}, el('strong', { text: name }), usable ? null : ' (not usable)'),
    el('p', { class: 'muted', text: about }),
    known ? memoryBar('Memory', memory - free, memory, `${bytes(free)} of ${bytes(memory)} free`)
      : typeof memory === 'number' ? el('p', { class: 'muted', text: `${bytes(memory)} memory` }) : null);
}

async function readDevices() {
  clearTimeout(timer);
  try {
    const { ready, devices, notes } = await get('devices');
    $('devices').replaceChildren(...devices.map(device));
    if (!ready) $('devices').append(el('li', { class: 'muted', text: 'Asking the drivers for devices' }));
    fillNotes($('device-notes'), notes ?? []);
    if (!ready && isOpen()) timer = setTimeout(readDevices, 1500);
  } catch (error) {
    fillNotes($('device-notes'), [error.message]);
  }
}

function verdict(text, state) {
  $('plan-verdict').textContent = text;
  $('plan-verdict').className = `verdict ${state}`;
}

function peak({ device: name, bytes: used, limit }) {
  const words = typeof limit !== 'number' ? bytes(used)
    : used > limit ? `${bytes(used)}, ${bytes(used - limit)} above the limit of ${bytes(limit)}`
      : `${bytes(used)} of ${bytes(limit)}`;
  return memoryBar(`Peak on ${name}`, used, typeof limit === 'number' ? limit : null, words);
}

function moduleRow({ module, device: place, params, weights, arena, split, seconds }) {
  const home = params && params !== place ? `weights in ${params}` : null;
  const detail = [split && split !== 'whole' ? split : null, home].filter(Boolean).join(', ');
  return el('tr', {},
    el('th', { scope: 'row', text: module }),
    el('td', {}, place, detail ? el('span', { class: 'detail', text: detail }) : null),
    el('td', { text: bytes(weights) }),
    el('td', { text: bytes(arena) }),
    el('td', { text: brief(seconds) }));
}

function drawPlan(plan) {
  if (plan.fits) verdict('It fits.', 'good');
  else verdict('It does not fit in memory. A smaller picture or a smaller model needs less.', 'bad');
  $('plan-peaks').replaceChildren(...(plan.peaks ?? []).map(peak));
  const table = $('plan-modules');
  table.querySelector('tbody').replaceChildren(...(plan.modules ?? []).map(moduleRow));
  table.hidden = !plan.modules?.length;
  fillNotes($('plan-notes'), [...(plan.reasons ?? []), ...(plan.notes ?? [])]);
}

async function readPlan() {
  if (!isOpen()) return;
  const turn = (asked += 1);
  try {
    const plan = await post('plan', body());
    if (turn === asked) drawPlan(plan);
  } catch (error) {
    if (turn !== asked) return;
    verdict(error.message, 'bad');
    $('plan-peaks').replaceChildren();
    $('plan-modules').hidden = true;
    fillNotes($('plan-notes'), []);
  }
}

/** Jobs that failed, newest first: what they were to show, and why they do not. */
function drawProblems() {
  if (!isOpen()) return;
  const failed = all().filter((job) => job.state === 'failed');
  $('problems').replaceChildren(...failed.map((job) => el('li', {},
    el('p', { text: job.settings?.prompt?.trim() || 'No prompt' }),
    el('p', { class: 'problem', text: job.error || 'The server gave no reason.' }))));
  $('problems-none').hidden = failed.length > 0;
}

function toggle(open) {
  $('machine').hidden = !open;
  $('machine-toggle').setAttribute('aria-expanded', String(open));
  clearTimeout(timer);
  if (!open) {
    $('machine-toggle').focus();
    return;
  }
  $('machine-title').focus();
  verdict('Planning', '');
  readDevices();
  readPlan();
  drawProblems();
}

export function setUpDrawer() {
  $('machine-toggle').addEventListener('click', () => toggle(!isOpen()));
  $('machine-close').addEventListener('click', () => toggle(false));
  $('machine').addEventListener('keydown', (event) => {
    if (event.key === 'Escape') toggle(false);
  });
  onChange(debounce(readPlan, 500));
  bus.addEventListener('list', drawProblems);
}
