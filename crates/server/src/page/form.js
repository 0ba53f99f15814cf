// The form: its values, the model's defaults as placeholders, and the request made of both.

import { get } from './api.js';
import { $, clearError, debounce, el } from './dom.js';
import { load, save } from './storage.js';
import * as start from './start.js';

/** Settings with a field of their own in index.html. */
const OWN = {
  prompt: 'prompt',
  'negative-prompt': 'negative',
  width: 'width',
  height: 'height',
  steps: 'steps',
  'cfg-scale': 'cfg',
  seed: 'seed',
  'batch-count': 'batch',
  strength: 'strength',
};
/** Where the name alone misleads: `cfg-scale` is labelled "Guidance" too. */
const LABELS = { guidance: 'Distilled guidance', rng: 'Random number generator' };
const RANDOM = '-1';
const DEFAULT_STRENGTH = '0.75';

/** Setting name -> {input, kind}; filled from the table of the server. */
const fields = new Map();
const listeners = new Set();
let models = [];
let lastSeed = null;

export const onChange = (listener) => listeners.add(listener);

const remember = debounce(() => save('form', { model: $('model').value, values: values() }), 300);

function changed() {
  remember();
  drawSeed();
  drawCount();
  $('strength-value').textContent = Number($('strength').value).toFixed(2);
  for (const listener of listeners) listener();
}

function values() {
  return Object.fromEntries([...fields].map(([name, { input }]) => [name, input.value]));
}

function setValue(name, value) {
  const field = fields.get(name);
  if (!field) return;
  field.input.value = value ?? '';
  field.input.removeAttribute('aria-invalid');
}

// ---- fields made from the server's table

function control(setting, id) {
  const { kind, choices, range } = setting;
  if (kind === 'choice' || kind === 'flag') {
    const options = kind === 'flag' ? [['true', 'on'], ['false', 'off']] : (choices ?? []).map((choice) => [choice, choice]);
    return el('select', { id }, el('option', { value: '', text: 'default' }), ...options.map(([value, text]) => el('option', { value, text })));
  }
  const number = kind === 'integer' || kind === 'number';
  return el('input', {
    id,
    type: number ? 'number' : 'text',
    step: number ? (kind === 'integer' ? '1' : 'any') : null,
    inputmode: number ? (kind === 'integer' ? 'numeric' : 'decimal') : null,
    min: number ? range?.[0] : null,
    max: number ? range?.[1] : null,
    placeholder: 'default',
  });
}

export function label(name) {
  if (LABELS[name]) return LABELS[name];
  const words = name.replaceAll('-', ' ');
  return words[0].toUpperCase() + words.slice(1);
}

function made(setting) {
  const id = `setting-${setting.name}`;
  const input = control(setting, id);
  fields.set(setting.name, { input, kind: setting.kind });
  if (setting.help) input.setAttribute('aria-describedby', `${id}-help`);
  return el('div', { class: 'field' },
    el('label', { for: id, text: label(setting.name) }),
    input,
    setting.help ? el('p', { class: 'hint', id: `${id}-help`, text: setting.help }) : null);
}

function build(settings) {
  const headings = new Map();
  for (const setting of settings) {
    if (setting.name in OWN) {
      const input = $(OWN[setting.name]);
      fields.set(setting.name, { input, kind: setting.kind });
      if (input.type === 'number' && setting.range) {
        if (setting.range[0] !== null) input.min = setting.range[0];
        if (setting.range[1] !== null) input.max = setting.range[1];
      }
      continue;
    }
    const heading = setting.heading || 'Others';
    if (!headings.has(heading)) headings.set(heading, []);
    headings.get(heading).push(made(setting));
  }
  $('more-fields').replaceChildren(...[...headings].map(([heading, group]) =>
    el('fieldset', {}, el('legend', { text: heading }), ...group)));
  $('more').hidden = headings.size === 0;
}

function drawCount() {
  const set = [...fields].filter(([name, { input }]) => !(name in OWN) && input.value !== '').length;
  $('more-count').textContent = set ? `(${set} changed)` : '';
}

// ---- models

export const model = () => models.find((one) => one.name === $('model').value) ?? null;

function drawModel() {
  const chosen = model();
  const hint = $('model-hint');
  hint.classList.toggle('problem', Boolean(chosen?.error));
  hint.textContent = chosen?.error ?? chosen?.family ?? '';
  const defaults = { width: chosen?.width, height: chosen?.height, steps: chosen?.steps, 'cfg-scale': chosen?.cfg_scale, guidance: chosen?.guidance };
  for (const [name, value] of Object.entries(defaults)) {
    const field = fields.get(name);
    if (field) field.input.placeholder = value ?? 'default';
  }
}

export async function loadModels() {
  const answer = await get('models');
  models = answer.models;
  const before = $('model').value || load('form')?.model;
  $('model').replaceChildren(...models.map(({ name, error }) => el('option', { value: name, text: error ? `${name} (cannot be opened)` : name })));
  const known = (name) => models.some((one) => one.name === name);
  $('model').value = known(before) ? before : known(answer.default) ? answer.default : models[0]?.name ?? '';
  if (models.length === 0) $('model-hint').textContent = 'The server has no model.';
  else drawModel();
}

// ---- seed

/** JSON numbers above 2^53 are rounded; the parameters text still has all digits. */
export function seedOf(picture) {
  if (Number.isSafeInteger(picture.seed)) return String(picture.seed);
  return [...(picture.parameters ?? '').matchAll(/\bSeed: (\d+)/g)].at(-1)?.[1] ?? String(picture.seed);
}

export function setLastSeed(picture) {
  lastSeed = seedOf(picture);
  drawSeed();
}

function drawSeed() {
  const value = $('seed').value.trim();
  $('seed-random').setAttribute('aria-pressed', String(value === RANDOM));
  $('seed-lock').setAttribute('aria-pressed', String(value !== '' && value !== RANDOM));
  $('seed-lock').disabled = lastSeed === null;
}

// ---- the request

class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function typed(name, kind, input) {
  // A number field with other text in it has an empty value: without this check it would be left out silently.
  if (input.validity.badInput) throw new FieldError(name, `${label(name)} is not a number. Correct it or empty the field.`);
  const text = kind === 'text' ? input.value : input.value.trim();
  if (text === '') return undefined;
  if (kind === 'flag') return text === 'true';
  if (kind !== 'integer' && kind !== 'number') return text;
  const number = Number(text);
  if (!Number.isFinite(number)) throw new FieldError(name, `${label(name)} is not a number. Correct it or empty the field.`);
  return kind === 'integer' && !Number.isSafeInteger(number) ? text : number;
}

/** The body for /jobs and /plan. Empty fields are left to the server. */
export function body() {
  const settings = {};
  const picture = start.current();
  for (const [name, { input, kind }] of fields) {
    if (name === 'strength' && !picture) continue;
    const value = typed(name, kind, input);
    if (value !== undefined) settings[name] = value;
  }
  const request = { settings };
  if ($('model').value) request.model = $('model').value;
  if (picture) request.init_image = picture.data;
  if (picture?.mask) request.mask = picture.mask;
  return request;
}

/** Marks the field that an error names and takes the keyboard there. */
export function pointAt(error) {
  const field = fields.get(error.field);
  if (!field) return;
  field.input.closest('details')?.setAttribute('open', '');
  field.input.setAttribute('aria-invalid', 'true');
  field.input.focus();
}

/** Takes over a picture's settings; fields it does not name become empty. */
export function useSettings(picture) {
  for (const name of fields.keys()) setValue(name, picture.settings?.[name]);
  setValue('prompt', picture.settings?.prompt ?? picture.prompt);
  setValue('strength', picture.settings?.strength ?? DEFAULT_STRENGTH);
  setValue('seed', seedOf(picture));
  // The seed is this picture's own, so a batch would begin at it.
  setValue('batch-count', '');
  if (models.some((one) => one.name === picture.model)) $('model').value = picture.model;
  drawModel();
  changed();
}

function reset() {
  for (const name of fields.keys()) setValue(name, { seed: RANDOM, strength: DEFAULT_STRENGTH }[name]);
  start.clear();
  clearError();
  changed();
}

/** Gives width and height the start picture's shape at the pixel count they have now. */
function matchShape() {
  const picture = start.current();
  if (!picture) return;
  const side = (name) => Number($(name).value || $(name).placeholder) || 512;
  const pixels = side('width') * side('height');
  const ratio = picture.width / picture.height;
  const round = (length) => String(Math.max(64, Math.round(length / 64) * 64));
  setValue('width', round(Math.sqrt(pixels * ratio)));
  setValue('height', round(Math.sqrt(pixels / ratio)));
  changed();
}

function swap() {
  const [width, height] = ['width', 'height'].map((id) => $(id).value || $(id).placeholder);
  setValue('width', Number(height) ? height : '');
  setValue('height', Number(width) ? width : '');
  changed();
}

export async function setUpForm() {
  const { settings } = await get('settings');
  build(settings);
  const before = load('form')?.values ?? {};
  for (const name of fields.keys()) {
    if (typeof before[name] === 'string') setValue(name, before[name]);
  }
  const form = $('form');
  form.addEventListener('input', (event) => {
    event.target.removeAttribute('aria-invalid');
    if (event.target === $('model')) drawModel();
    if (event.target !== $('init-file')) changed();
  });
  form.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  $('seed-random').addEventListener('click', () => {
    setValue('seed', RANDOM);
    changed();
  });
  $('seed-lock').addEventListener('click', () => {
    setValue('seed', lastSeed ?? RANDOM);
    changed();
  });
  $('swap').addEventListener('click', swap);
  $('start-shape').addEventListener('click', matchShape);
  $('reset').addEventListener('click', reset);
  start.onChange(changed);
  changed();
}
