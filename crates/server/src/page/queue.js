// The list of jobs: the running one, those that wait, those that failed or were stopped.

import { jobPath, post, remove } from './api.js';
import { $, el, icon, showError } from './dom.js';
import { all, bus, refresh } from './jobs.js';

const SHOWN_ENDED = 4;
let showAll = false;
/** Job id -> {looks, row}: a row is made anew only when its job changed, so a click never hits a replaced button. */
let rows = new Map();

function title(job) {
  return job.settings?.prompt?.trim() || 'No prompt';
}

function summary(job) {
  const { width, height, steps, 'batch-count': count } = job.settings ?? {};
  return [
    job.model,
    width && height && `${width} × ${height}`,
    steps && `${steps} steps`,
    Number(count) > 1 && `${count} pictures`,
    job.has_init && 'from a start picture',
  ].filter(Boolean).join(' · ');
}

// Not `disabled`, which would take the keyboard focus away.
const acting = (work) => async ({ currentTarget: pressed }) => {
  if (pressed.getAttribute('aria-busy')) return;
  pressed.setAttribute('aria-busy', 'true');
  await work().catch(showError);
  await refresh().catch(() => {});
  pressed.removeAttribute('aria-busy');
};

function button(job, action, label, work, { symbol = null, disabled = false } = {}) {
  return el('button', {
    type: 'button',
    data: { action },
    class: symbol ? 'square' : null,
    'aria-label': symbol ? `${label}: ${title(job)}` : null,
    title: symbol ? label : null,
    disabled,
    onclick: acting(work),
  }, symbol ? icon(symbol) : label);
}

function buttons(job, waiting) {
  const act = (action, body) => () => post(jobPath(job.id, action), body);
  const drop = () => remove(jobPath(job.id));
  switch (job.state) {
    case 'running':
      return [button(job, 'cancel', 'Stop', act('cancel'))];
    case 'queued': {
      const place = waiting.indexOf(job);
      return [
        button(job, 'up', 'Move up', act('move', { to: place - 1 }), { symbol: 'up', disabled: place === 0 }),
        button(job, 'down', 'Move down', act('move', { to: place + 1 }), { symbol: 'down', disabled: place === waiting.length - 1 }),
        button(job, 'cancel', 'Cancel', act('cancel'), { symbol: 'close' }),
      ];
    }
    default:
      return [
        button(job, 'retry', job.resumable ? 'Go on' : 'Try again', act('retry')),
        button(job, 'remove', 'Remove', drop),
      ];
  }
}

function stateText(job, waiting) {
  if (job.state === 'running') return 'Running';
  if (job.state === 'queued') return waiting.indexOf(job) === 0 ? 'Next' : `Place ${waiting.indexOf(job) + 1}`;
  return job.state === 'failed' ? 'Failed' : 'Stopped';
}

function reason(job) {
  if (job.state === 'failed') return job.error || 'The server gave no reason.';
  if (job.state !== 'cancelled') return null;
  if (job.error) return job.error;
  return job.resumable ? 'It can go on from its last step.' : null;
}

function item(job, waiting) {
  const why = reason(job);
  return el('li', { data: { job: job.id, state: job.state } },
    el('span', { class: 'badge', text: stateText(job, waiting) }),
    el('div', { class: 'queue-text' },
      el('p', { class: 'queue-title', text: title(job), title: title(job) }),
      el('p', { class: 'muted', text: summary(job) }),
      why ? el('p', { class: job.state === 'failed' ? 'problem' : 'muted', text: why }) : null),
    el('div', { class: 'actions' }, ...buttons(job, waiting)));
}

/** Where the keyboard was, so that a redraw does not throw it to the top of the page. */
function focusPlace(list) {
  const focused = document.activeElement;
  if (!list.contains(focused)) return null;
  const row = focused.closest('li');
  return { job: row.dataset.job, action: focused.dataset.action, index: [...list.children].indexOf(row) };
}

function restoreFocus(list, place) {
  const items = [...list.children];
  const row = items.find((one) => one.dataset.job === place.job) ?? items[Math.min(place.index, items.length - 1)];
  const usable = row && [...row.querySelectorAll('button:not(:disabled)')];
  const target = usable?.find((one) => one.dataset.action === place.action) ?? usable?.[0] ?? $('queue-title');
  target.focus();
}

function draw() {
  const jobs = all();
  const of = (...states) => jobs.filter((job) => states.includes(job.state));
  const waiting = of('queued').sort((a, b) => (a.position ?? 0) - (b.position ?? 0));
  const ended = of('failed', 'cancelled');
  const listed = [...of('running'), ...waiting, ...(showAll ? ended : ended.slice(0, SHOWN_ENDED))];

  const list = $('queue');
  const place = focusPlace(list);
  const focused = document.activeElement;
  const next = new Map(listed.map((job) => {
    const { progress, notes, has_preview, ...rest } = job;
    const looks = JSON.stringify([rest, waiting.indexOf(job), waiting.length]);
    const last = rows.get(job.id);
    return [job.id, last?.looks === looks ? last : { looks, row: item(job, waiting) }];
  }));
  rows = next;
  const wanted = [...next.values()].map(({ row }) => row);
  for (const row of [...list.children]) if (!wanted.includes(row)) row.remove();
  wanted.forEach((row, index) => {
    if (list.children[index] !== row) list.insertBefore(row, list.children[index] ?? null);
  });
  $('queue-panel').hidden = listed.length === 0;
  $('queue-title').textContent = waiting.length ? `Queue, ${waiting.length} waiting` : 'Queue';
  const more = ended.length - SHOWN_ENDED;
  $('queue-more').hidden = more <= 0;
  $('queue-more').textContent = showAll ? 'Show fewer' : `Show ${more} more that did not finish`;
  if (place && document.activeElement !== focused) restoreFocus(list, place);
}

export function setUpQueue() {
  bus.addEventListener('list', draw);
  bus.addEventListener('ended', draw);
  $('queue-more').addEventListener('click', () => {
    showAll = !showAll;
    draw();
  });
}
