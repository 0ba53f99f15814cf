// Starts the page: sets up each part, reads the server's state, listens for events.

import { post, setUpLogin } from './api.js';
import { $, clearError, showError } from './dom.js';
import { setUpDrawer } from './drawer.js';
import * as form from './form.js';
import * as gallery from './gallery.js';
import * as jobs from './jobs.js';
import { setUpMask } from './mask.js';
import { setUpQueue } from './queue.js';
import { setUpStage, showLatest } from './stage.js';
import { setUpStart } from './start.js';
import { open, setUpViewer } from './viewer.js';

let submitting = false;

async function submit(event) {
  event.preventDefault();
  if (submitting) return;
  submitting = true;
  $('generate').setAttribute('aria-busy', 'true');
  clearError();
  try {
    await post('jobs', form.body());
    await jobs.refresh();
    // In one column the stage lies below the form.
    if (matchMedia('(max-width: 859px)').matches) $('stage').scrollIntoView();
  } catch (error) {
    showError(error);
    form.pointAt(error);
  } finally {
    submitting = false;
    $('generate').removeAttribute('aria-busy');
  }
}

function followConnection() {
  let lost = false;
  jobs.bus.addEventListener('connection', ({ detail: connected }) => {
    $('connection').textContent = connected ? '' : 'Connection lost, trying again';
    if (connected && lost) {
      form.loadModels().catch(() => {});
      gallery.catchUp().catch(() => {});
    }
    lost = !connected;
  });
}

async function begin() {
  setUpLogin();
  setUpMask();
  setUpStart();
  setUpStage();
  setUpQueue();
  setUpViewer();
  setUpDrawer();
  gallery.setUpGallery(open);
  followConnection();
  $('form').addEventListener('submit', submit);
  $('error-close').addEventListener('click', () => {
    clearError();
    $('generate').focus();
  });
  jobs.bus.addEventListener('picture', ({ detail }) => form.setLastSeed(detail));

  await form.setUpForm();
  await Promise.all([form.loadModels(), jobs.refresh(), gallery.reload()]);
  const newest = gallery.latest();
  if (newest) form.setLastSeed(newest);
  showLatest(newest);
}

begin().catch(showError).finally(jobs.connect);
