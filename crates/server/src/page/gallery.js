// The finished pictures, newest first, with search.

import { get, url } from './api.js';
import { $, debounce, el, showError } from './dom.js';
import { bus } from './jobs.js';

const PAGE = 60;
let pictures = [];
let more = false;
let search = '';
/** Answers to an older search are dropped. */
let reading = 0;
let openViewer = () => {};

export const list = () => pictures;
export const hasMore = () => more;
export const latest = () => (search ? null : pictures[0] ?? null);

const query = (before) => {
  const words = new URLSearchParams({ limit: PAGE });
  if (search) words.set('search', search);
  if (before !== undefined) words.set('before', before);
  return `pictures?${words}`;
};

function thumbnail(picture) {
  const name = picture.prompt?.trim() || `Picture ${picture.id}`;
  return el('button', { type: 'button', data: { picture: picture.id }, title: name, onclick: () => openViewer(picture) },
    el('img', { src: url.file(picture.id), alt: name, loading: 'lazy', decoding: 'async' }));
}

function drawState() {
  $('gallery-more').hidden = !more;
  const none = search ? `No picture matches “${search}”.` : 'No pictures yet. The ones you make are kept here.';
  $('gallery-empty').textContent = pictures.length ? '' : none;
}

export async function reload() {
  const turn = (reading += 1);
  const answer = await get(query());
  if (turn !== reading) return;
  pictures = answer.pictures;
  more = pictures.length === PAGE;
  $('gallery').replaceChildren(...pictures.map(thumbnail));
  drawState();
}

export async function loadMore() {
  const turn = reading;
  const answer = await get(query(pictures.at(-1)?.id));
  if (turn !== reading) return;
  const known = new Set(pictures.map((one) => one.id));
  const next = answer.pictures.filter((one) => !known.has(one.id));
  pictures.push(...next);
  more = answer.pictures.length === PAGE;
  $('gallery').append(...next.map(thumbnail));
  drawState();
}

/** Adds what appeared while the connection was lost, without folding up what was loaded. */
export async function catchUp() {
  const turn = reading;
  const answer = await get(query());
  if (turn !== reading) return;
  const known = new Set(pictures.map((one) => one.id));
  const fresh = answer.pictures.filter((one) => !known.has(one.id));
  if (fresh.length === PAGE) await reload();
  else for (const picture of fresh.reverse()) add(picture);
}

function add(picture) {
  if (pictures.some((one) => one.id === picture.id)) return;
  pictures.unshift(picture);
  $('gallery').prepend(thumbnail(picture));
  drawState();
}

export function forget(id) {
  pictures = pictures.filter((one) => one.id !== id);
  $('gallery').querySelector(`[data-picture="${id}"]`)?.remove();
  drawState();
}

export function focusOn(id) {
  ($('gallery').querySelector(`[data-picture="${id}"]`) ?? $('search')).focus();
}

export function setUpGallery(open) {
  openViewer = open;
  const find = debounce(() => {
    const words = $('search').value.trim();
    if (words === search) return;
    search = words;
    reload().catch(showError);
  }, 250);
  $('search').addEventListener('input', find);
  $('gallery-more').addEventListener('click', async () => {
    $('gallery-more').disabled = true;
    await loadMore().catch(showError);
    $('gallery-more').disabled = false;
  });
  bus.addEventListener('picture', ({ detail }) => {
    // Only the server knows whether a new picture matches the search.
    if (search) catchUp().catch(() => {});
    else add(detail);
  });
}
