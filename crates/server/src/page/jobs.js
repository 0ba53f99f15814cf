// The jobs as the server last told them, kept current by its events.
//
// `bus` tells the rest of the page: "list" (the queue changed), "progress" (the running job got on),
// "preview", "picture", "ended", "connection".

import { get, url } from './api.js';

export const bus = new EventTarget();
const tell = (name, detail) => bus.dispatchEvent(new CustomEvent(name, { detail }));

const LISTED = 'queued,running,failed,cancelled';
const EVENTS = ['queued', 'loading', 'compiling', 'working', 'step', 'preview', 'note', 'picture', 'done', 'failed', 'cancelled', 'changed'];

let jobs = [];
let asking = null;
let askAgain = false;

export const all = () => jobs;
export const running = () => jobs.find((job) => job.state === 'running') ?? null;

/** Reads the list again; calls that come meanwhile share one further reading. */
export function refresh() {
  if (asking) {
    askAgain = true;
    return asking;
  }
  asking = (async () => {
    try {
      do {
        askAgain = false;
        jobs = (await get(`jobs?limit=50&state=${LISTED}`)).jobs;
      } while (askAgain);
      tell('list');
      tell('progress');
    } finally {
      asking = null;
    }
  })();
  return asking;
}

const refreshQuietly = () => refresh().catch(() => {});

function advance(job, name, data) {
  const last = job.progress ?? { what: '', picture: 0, pictures: 1, done: 0, of: 0, seconds_left: null };
  const seconds_left = name === 'step' ? data.seconds_left : null;
  if (name === 'step') job.progress = { ...data, what: '', kind: name };
  else if (name === 'working') job.progress = { ...last, what: data.what, kind: name, seconds_left };
  else job.progress = { ...last, what: `${name} ${data.module}`, done: data.done, of: data.of, kind: name, seconds_left };
  if (job.state !== 'running') {
    job.state = 'running';
    refreshQuietly();
  }
  tell('progress');
}

function receive(name, data) {
  const job = jobs.find((one) => one.id === data.job);
  switch (name) {
    case 'loading':
    case 'compiling':
    case 'working':
    case 'step':
      if (job) advance(job, name, data);
      else refreshQuietly();
      break;
    case 'preview':
      if (job) job.has_preview = true;
      tell('preview', data.job);
      break;
    case 'note':
      if (job) job.notes = [...(job.notes ?? []), data.text];
      tell('progress');
      break;
    case 'picture':
      tell('picture', data.picture);
      break;
    case 'done':
    case 'failed':
    case 'cancelled':
      if (job) job.state = name;
      tell('ended', { job, state: name, message: data.message });
      tell('progress');
      refreshQuietly();
      break;
    default:
      refreshQuietly();
  }
}

/** Listens to the server for as long as the page is open. Events missed while away are made good by reading the list. */
export function connect() {
  let wait = 1000;
  const open = () => {
    const source = new EventSource(url.events);
    source.addEventListener('open', () => {
      wait = 1000;
      tell('connection', true);
      refreshQuietly();
    });
    source.addEventListener('error', () => {
      tell('connection', false);
      // A browser tries again by itself after a lost connection, but gives up after an HTTP error.
      if (source.readyState !== EventSource.CLOSED) return;
      setTimeout(open, wait);
      wait = Math.min(wait * 2, 15000);
      refreshQuietly();
    });
    for (const name of EVENTS) source.addEventListener(name, (event) => receive(name, JSON.parse(event.data)));
  };
  open();
}
