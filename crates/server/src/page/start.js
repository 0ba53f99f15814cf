// The start picture: chosen, dropped, pasted or taken from the gallery, with its mask.

import { $, showError } from './dom.js';
import { paint } from './mask.js';

const SENT_AS_IS = ['image/png', 'image/jpeg', 'image/webp'];
const LONGEST_SIDE = 4096;

/** {data, width, height, address, mask, strokes} or null. */
let picture = null;
const listeners = new Set();

export const onChange = (listener) => listeners.add(listener);
export const current = () => picture;

const dataUrl = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

/** The EXIF orientation of a JPEG, 1 (upright) when it has none. */
function orientation(view) {
  if (view.byteLength < 4 || view.getUint16(0) !== 0xffd8) return 1;
  for (let at = 2; at + 10 < view.byteLength;) {
    const marker = view.getUint16(at);
    if ((marker & 0xff00) !== 0xff00 || marker === 0xffda) return 1;
    if (marker === 0xffe1 && view.getUint32(at + 4) === 0x45786966) return tiffOrientation(view, at + 10);
    at += 2 + view.getUint16(at + 2);
  }
  return 1;
}

function tiffOrientation(view, tiff) {
  if (tiff + 8 > view.byteLength) return 1;
  const little = view.getUint16(tiff) === 0x4949;
  const directory = tiff + view.getUint32(tiff + 4, little);
  if (directory + 2 > view.byteLength) return 1;
  const entries = view.getUint16(directory, little);
  for (let entry = directory + 2; entry < directory + 2 + entries * 12 && entry + 12 <= view.byteLength; entry += 12) {
    if (view.getUint16(entry, little) === 0x0112) return view.getUint16(entry + 8, little);
  }
  return 1;
}

async function decode(blob) {
  const address = URL.createObjectURL(blob);
  const image = new Image();
  image.src = address;
  try {
    await image.decode();
  } catch {
    URL.revokeObjectURL(address);
    throw new Error('This file is not a picture that the browser can open. PNG, JPEG and WebP work.');
  }
  return { image, address };
}

/** Draws the picture anew where the server could not take the file as the browser shows it. */
async function redraw(blob, image) {
  const scale = Math.min(1, LONGEST_SIDE / Math.max(image.naturalWidth, image.naturalHeight));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(image.naturalWidth * scale));
  canvas.height = Math.max(1, Math.round(image.naturalHeight * scale));
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  const type = blob.type === 'image/jpeg' ? blob.type : 'image/png';
  return new Promise((resolve) => canvas.toBlob(resolve, type, 0.95));
}

async function read(blob) {
  let { image, address } = await decode(blob);
  const turned = blob.type === 'image/jpeg' && orientation(new DataView(await blob.slice(0, 256 * 1024).arrayBuffer())) !== 1;
  const large = Math.max(image.naturalWidth, image.naturalHeight) > LONGEST_SIDE;
  if (!SENT_AS_IS.includes(blob.type) || turned || large) {
    const upright = await redraw(blob, image);
    URL.revokeObjectURL(address);
    ({ image, address } = await decode(upright));
    blob = upright;
  }
  return { data: await dataUrl(blob), width: image.naturalWidth, height: image.naturalHeight, address, mask: null, strokes: [] };
}

function draw() {
  $('drop').hidden = Boolean(picture);
  $('start-set').hidden = !picture;
  $('start-mask').hidden = !picture?.mask;
  if (picture) {
    $('start-picture').src = picture.address;
    $('start-about').textContent = `${picture.width} × ${picture.height}${picture.mask ? ', with a mask' : ''}`;
    $('paint-mask').textContent = picture.mask ? 'Change mask' : 'Paint mask';
    if (picture.mask) $('start-mask').src = picture.mask;
  } else {
    $('start-picture').removeAttribute('src');
    $('start-mask').removeAttribute('src');
    $('init-file').value = '';
  }
  for (const listener of listeners) listener();
}

export async function set(blob) {
  try {
    const next = await read(blob);
    if (picture) URL.revokeObjectURL(picture.address);
    picture = next;
    draw();
  } catch (error) {
    showError(error);
  }
}

export function clear() {
  if (!picture) return;
  URL.revokeObjectURL(picture.address);
  picture = null;
  draw();
}

const imageIn = (transfer) => [...(transfer?.files ?? [])].find((file) => file.type.startsWith('image/'));

export function setUpStart() {
  $('init-file').addEventListener('change', (event) => {
    const [file] = event.target.files;
    if (file) set(file);
  });
  $('start-remove').addEventListener('click', () => {
    clear();
    $('init-file').focus();
  });
  $('paint-mask').addEventListener('click', async () => {
    const painted = await paint(picture);
    if (!painted || !picture) return;
    Object.assign(picture, painted);
    draw();
  });
  document.addEventListener('paste', (event) => {
    const file = imageIn(event.clipboardData);
    if (!file || document.querySelector('dialog[open]')) return;
    event.preventDefault();
    set(file);
  });
  // The whole page takes a drop: a browser opens a file that misses the field.
  document.addEventListener('dragover', (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    $('start').classList.add('over');
  });
  document.addEventListener('dragleave', (event) => {
    if (!event.relatedTarget) $('start').classList.remove('over');
  });
  document.addEventListener('drop', (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    $('start').classList.remove('over');
    const file = imageIn(event.dataTransfer);
    if (file) set(file);
    else showError('This file is not a picture.');
  });
}
