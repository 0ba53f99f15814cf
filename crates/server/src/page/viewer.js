// One picture in full size: its settings, before and after, and what can be done with it.

import { get, getBlob, jobPath, remove, url } from './api.js';
import { $, el } from './dom.js';
import { label, seedOf, useSettings } from './form.js';
import * as gallery from './gallery.js';
import * as start from './start.js';

let shown = null;
/** The job behind the picture, or null while unknown or removed. */
let job = null;

const SHOWN_ELSEWHERE = new Set(['prompt', 'seed', 'width', 'height', 'batch-count']);

function rows(picture) {
  const { settings = {} } = picture;
  return [
    ['Model', picture.model],
    ['Size', `${picture.width} × ${picture.height}`],
    ['Seed', seedOf(picture)],
    ...Object.entries(settings).filter(([name]) => !SHOWN_ELSEWHERE.has(name)).map(([name, value]) => [label(name), value]),
    ['Made', new Date(picture.created * 1000).toLocaleString()],
  ].filter(([, value]) => value !== null && value !== undefined && value !== '');
}

function compare() {
  const percent = Number($('compare').value);
  $('viewer-before').style.clipPath = `inset(0 ${100 - percent}% 0 0)`;
  $('viewer-split').style.left = `${percent}%`;
  $('viewer-split').hidden = percent === 0 || percent === 100 || $('viewer-before').hidden;
}

function hideCompare() {
  job = null;
  $('compare').value = 0;
  $('viewer-compare').hidden = true;
  $('viewer-before').hidden = true;
  $('viewer-before').removeAttribute('src');
  compare();
}

async function readJob(picture) {
  const found = await get(jobPath(picture.job)).catch(() => null);
  if (shown !== picture || !found) return;
  job = found;
  if (!found.has_init) return;
  $('viewer-before').src = url.init(found.id);
  $('viewer-before').hidden = false;
  $('viewer-compare').hidden = false;
  compare();
}

function ask(open) {
  $('delete-ask').hidden = !open;
  $('delete-picture').setAttribute('aria-expanded', String(open));
}

/** The frame has the picture's shape, so the start picture lies on it exactly. */
function fit() {
  if (!shown) return;
  const space = $('viewer-frame').parentElement;
  const scale = Math.min(space.clientWidth / shown.width, space.clientHeight / shown.height, Math.max(1, 1024 / Math.max(shown.width, shown.height)));
  $('viewer-frame').style.width = `${Math.floor(shown.width * scale)}px`;
  $('viewer-frame').style.height = `${Math.floor(shown.height * scale)}px`;
}

function show(picture) {
  shown = picture;
  hideCompare();
  ask(false);
  $('viewer-error').textContent = '';
  $('viewer-picture').src = url.file(picture.id);
  $('viewer-picture').alt = picture.prompt || `Picture ${picture.id}`;
  $('viewer-prompt').textContent = picture.prompt || 'No prompt';
  $('download-picture').href = url.download(picture.id);
  $('viewer-parameters').textContent = picture.parameters ?? '';
  $('viewer-settings').replaceChildren(...rows(picture).map(([name, value]) =>
    el('tr', {}, el('th', { scope: 'row', text: name }), el('td', { text: String(value) }))));
  const place = gallery.list().findIndex((one) => one.id === picture.id);
  $('viewer-previous').disabled = place <= 0;
  $('viewer-next').disabled = place === gallery.list().length - 1 && !gallery.hasMore();
  fit();
  readJob(picture);
}

async function go(by) {
  const from = shown;
  const place = gallery.list().findIndex((one) => one.id === from.id) + by;
  if (place < 0) return;
  if (place >= gallery.list().length && gallery.hasMore()) await gallery.loadMore().catch(fail);
  const next = gallery.list()[place];
  if (next && shown === from) show(next);
}

function fail(error) {
  $('viewer-error').textContent = error.message;
}

async function deletePicture() {
  const gone = shown;
  const place = gallery.list().findIndex((one) => one.id === gone.id);
  try {
    await remove(`pictures/${gone.id}`);
  } catch (error) {
    // One that is gone already needs no deleting.
    if (error.status !== 404) return fail(error);
  }
  gallery.forget(gone.id);
  const next = gallery.list()[place] ?? gallery.list().at(-1);
  if (!next) return $('viewer').close();
  show(next);
  $('delete-picture').focus();
}

/** Loads the picture at `address` as the start picture; false with the reason shown when that fails. */
async function startFrom(address) {
  try {
    await start.set(await getBlob(address));
    return true;
  } catch (error) {
    fail(error);
    return false;
  }
}

function backToForm() {
  $('viewer').close();
  $('prompt').focus();
}

export function open(picture) {
  const viewer = $('viewer');
  if (!viewer.open) viewer.showModal();
  show(picture);
}

export function setUpViewer() {
  const viewer = $('viewer');
  viewer.addEventListener('keydown', (event) => {
    // Arrow keys belong to a slider while it has the focus.
    if (event.target.matches('input, pre') || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === 'ArrowLeft') go(-1);
    else if (event.key === 'ArrowRight') go(1);
    else return;
    event.preventDefault();
  });
  viewer.addEventListener('click', (event) => {
    if (event.target === viewer) viewer.close();
  });
  viewer.addEventListener('close', () => {
    const last = shown;
    shown = null;
    $('viewer-picture').removeAttribute('src');
    if (last && document.activeElement !== $('prompt')) gallery.focusOn(last.id);
  });
  $('viewer-close').addEventListener('click', () => viewer.close());
  $('viewer-previous').addEventListener('click', () => go(-1));
  $('viewer-next').addEventListener('click', () => go(1));
  $('compare').addEventListener('input', compare);
  $('use-settings').addEventListener('click', async () => {
    const picture = shown;
    // The same settings make the same picture only from the same start.
    if (job?.has_init) {
      if (!(await startFrom(url.init(job.id)))) return;
    } else {
      start.clear();
    }
    useSettings(picture);
    backToForm();
  });
  $('use-start').addEventListener('click', async () => {
    if (await startFrom(url.file(shown.id))) backToForm();
  });
  $('delete-picture').addEventListener('click', () => {
    ask($('delete-ask').hidden);
    if (!$('delete-ask').hidden) $('delete-keep').focus();
  });
  $('delete-keep').addEventListener('click', () => {
    ask(false);
    $('delete-picture').focus();
  });
  $('delete-confirm').addEventListener('click', deletePicture);
  new ResizeObserver(fit).observe($('viewer-frame').parentElement);
}
