// Requests to /api/v1 and the key dialog that a 401 opens.

import { $ } from './dom.js';
import { load, save } from './storage.js';

const BASE = 'api/v1';

export class ApiError extends Error {
  constructor(status, code, message, field) {
    super(message);
    this.status = status;
    this.code = code;
    this.field = field;
  }
}

function clientId() {
  let id = load('client');
  if (typeof id !== 'string') {
    // crypto.randomUUID is missing on plain http pages other than localhost.
    id = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
    save('client', id);
  }
  return id;
}
const client = clientId();

export const url = {
  events: `${BASE}/events`,
  file: (picture) => `${BASE}/pictures/${picture}/file`,
  download: (picture) => `${BASE}/pictures/${picture}/file?download=1`,
  preview: (job, step) => `${BASE}/jobs/${encodeURIComponent(job)}/preview?n=${step}`,
  init: (job) => `${BASE}/jobs/${encodeURIComponent(job)}/init`,
};

async function send(method, path, body) {
  const headers = { 'x-impasto-client': client };
  if (body !== undefined) headers['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, 'unreachable', 'The server does not answer. Is `impasto serve` still running?', null);
  }
  if (response.ok) return response;
  throw await refusal(response);
}

async function refusal(response) {
  const answer = await response.json().catch(() => null);
  const { code = 'unknown', message, field = null } = answer?.error ?? {};
  let text = message ?? `The server answered ${response.status} ${response.statusText}.`;
  const wait = Number(response.headers.get('retry-after'));
  if (response.status === 429 && wait > 0) text += ` Try again in ${wait} second${wait === 1 ? '' : 's'}.`;
  return new ApiError(response.status, code, text, field);
}

async function request(method, path, body) {
  try {
    const response = await send(method, `${BASE}/${path}`, body);
    return response.status === 204 ? null : await response.json();
  } catch (error) {
    if (error.status === 401) askForKey();
    throw error;
  }
}

export const get = (path) => request('GET', path);
export const post = (path, body = {}) => request('POST', path, body);
export const remove = (path) => request('DELETE', path);
export const jobPath = (id, action = '') => `jobs/${encodeURIComponent(id)}${action && `/${action}`}`;

/** The bytes behind one of `url`'s addresses. */
export async function getBlob(address) {
  return (await send('GET', address)).blob();
}

function askForKey() {
  const dialog = $('login');
  if (dialog.open) return;
  for (const other of document.querySelectorAll('dialog[open]')) other.close();
  dialog.showModal();
}

export function setUpLogin() {
  const dialog = $('login');
  // Nothing behind the dialog works without the key.
  dialog.addEventListener('cancel', (event) => event.preventDefault());
  $('login-form').addEventListener('submit', async (event) => {
    event.preventDefault();
    $('login-error').textContent = '';
    try {
      await send('POST', `${BASE}/login`, { key: $('login-key').value });
      location.reload();
    } catch (error) {
      $('login-error').textContent = error.message;
      $('login-key').select();
    }
  });
}
