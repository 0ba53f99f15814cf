// The picture being made: preview, bar, words and the Stop button.

import { jobPath, post, url } from './api.js';
import { $, bytes, capital, fillNotes, inWords, showError } from './dom.js';
import { bus, running } from './jobs.js';

let shownJob = null;
let previews = 0;
let loadingPreview = false;
let nextPreview = null;

/** What a progress report says: words, the fraction done (null when unknown) and whether it is the sampling itself. */
function describe(progress) {
  if (!progress) return { text: 'Starting', fraction: null, phase: 'start', sampling: false };
  const { what, picture, pictures, done, of } = progress;
  const kind = progress.kind ?? /^(loading|compiling)\b/.exec(what ?? '')?.[1] ?? 'step';
  if (kind === 'loading' || kind === 'compiling') {
    const counts = kind === 'loading' ? `${bytes(done)} of ${bytes(of)}` : `${done} of ${of}`;
    return { text: of > 0 ? `${capital(what)}: ${counts}` : capital(what), fraction: of > 0 ? done / of : null, phase: what, sampling: false };
  }
  const batch = pictures > 1 ? `, picture ${picture + 1} of ${pictures}` : '';
  if (kind === 'working' || !(of > 0)) {
    return { text: `${capital(what || 'working')}${batch}`, fraction: pictures > 1 ? picture / pictures : null, phase: what, sampling: false };
  }
  // A list read in the middle of a run names what is being done; events of steps do not.
  const named = what && !/^(sampling|step|denoising)/.test(what) ? `${capital(what)}, step` : 'Step';
  const fraction = (picture + Math.min(1, done / of)) / Math.max(1, pictures);
  return { text: `${named} ${done} of ${of}${batch}`, fraction, phase: `picture ${picture}`, sampling: true };
}

let spokenPhase = '';
let spokenAt = 0;

/** Screen readers hear each new phase, and steps every 15 seconds at most. */
function speak(phase, text) {
  const now = performance.now();
  if (now - spokenAt < (phase === spokenPhase ? 15000 : 2000)) return;
  spokenPhase = phase;
  spokenAt = now;
  $('live').textContent = text;
}

function drawBar(job, state) {
  const bar = $('progress');
  const busy = job && state.fraction === null;
  const percent = job && !busy ? Math.round(state.fraction * 100) : 0;
  bar.classList.toggle('busy', Boolean(busy));
  bar.classList.toggle('preparing', Boolean(job) && !state.sampling);
  $('progress-fill').style.width = busy ? '' : `${percent}%`;
  // An unknown value is said by leaving it out.
  if (busy) bar.removeAttribute('aria-valuenow');
  else bar.setAttribute('aria-valuenow', percent);
  bar.setAttribute('aria-valuetext', job ? state.text : 'Nothing is being made');
  document.title = job ? `${busy ? capital(state.phase) || 'Working' : `${percent}%`} · Impasto` : 'Impasto';
}

function drawProgress() {
  const job = running();
  const state = job ? describe(job.progress) : null;
  $('stop').disabled = !job;
  $('progress-what').textContent = job ? state.text : 'Ready';
  const left = job?.progress?.seconds_left;
  const leftText = typeof left === 'number' ? `${capital(inWords(left))} left` : '';
  $('progress-left').textContent = leftText;
  drawBar(job, state);
  fillNotes($('notes'), (job?.notes ?? []).slice(-3));
  $('generate').textContent = job ? 'Add to queue' : 'Generate';
  if (!job) {
    shownJob = null;
    return;
  }
  speak(state.phase, leftText ? `${state.text}. ${leftText}` : state.text);
  if (job.id === shownJob) return;
  shownJob = job.id;
  if (job.has_preview) showPreview(job.id);
  else showNothing('The preview appears after the first steps.');
}

function showNothing(text) {
  $('stage-preview').hidden = true;
  $('stage-preview').removeAttribute('src');
  $('stage-empty').textContent = text;
  $('stage-empty').hidden = false;
}

function showImage(source, alt) {
  const image = $('stage-preview');
  image.src = source;
  image.alt = alt;
  image.hidden = false;
  $('stage-empty').hidden = true;
}

/** Loads a preview out of sight first, and drops those that come faster than they load. */
async function showPreview(job) {
  if (loadingPreview) {
    nextPreview = job;
    return;
  }
  loadingPreview = true;
  const image = new Image();
  image.src = url.preview(job, `${running()?.progress?.done ?? 0}.${Date.now() % 1e7}.${(previews += 1)}`);
  try {
    await image.decode();
    if (running()?.id === job) showImage(image.src, 'Preview of the picture being made');
  } catch {
    // A preview that is gone already is replaced by the next one.
  }
  loadingPreview = false;
  const next = nextPreview;
  nextPreview = null;
  if (next) showPreview(next);
}

export function showPicture(picture) {
  showImage(url.file(picture.id), picture.prompt || 'The last picture');
}

/** At the start of the page: the newest picture, unless one is being made. */
export function showLatest(picture) {
  if (picture && !running() && $('stage-preview').hidden) showPicture(picture);
}

export function setUpStage() {
  bus.addEventListener('progress', drawProgress);
  bus.addEventListener('preview', ({ detail }) => {
    if (running()?.id === detail) showPreview(detail);
  });
  bus.addEventListener('picture', ({ detail }) => {
    nextPreview = null;
    showPicture(detail);
  });
  bus.addEventListener('ended', ({ detail }) => {
    const words = { done: 'The picture is finished.', failed: `The job failed. ${detail.message ?? ''}`, cancelled: 'The job was stopped.' };
    spokenPhase = detail.state;
    $('live').textContent = words[detail.state];
    if (detail.state === 'failed' && detail.message) showError(detail.message);
    if (detail.state === 'done') return;
    if ($('stage-preview').hidden) $('stage-empty').textContent = words[detail.state];
  });
  $('stop').addEventListener('click', async () => {
    const job = running();
    if (!job) return;
    $('stop').disabled = true;
    $('progress-what').textContent = 'Stopping';
    await post(jobPath(job.id, 'cancel')).catch(showError);
  });
}
