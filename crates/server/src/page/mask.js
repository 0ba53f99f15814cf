// Painting a mask over the start picture.
//
// Strokes are kept as points in the picture's own pixels, so undo draws the others again
// and the finished mask is as sharp as the picture.

import { $ } from './dom.js';

let canvas;
let context;
let strokes = [];
let stroke = null;
let erasing = false;
let finish = null;
/** Brush centre in picture pixels, for the keyboard. */
let brush = { x: 0, y: 0 };

const diameter = () => Math.max(1, (Number($('mask-size').value) / 100) * Math.min(canvas.width, canvas.height));

function drawSegment({ erase, size }, from, to) {
  context.globalCompositeOperation = erase ? 'destination-out' : 'source-over';
  context.lineWidth = size;
  context.beginPath();
  // A line without length is not drawn: a dab is a disc.
  if (from === to) {
    context.arc(to.x, to.y, size / 2, 0, 2 * Math.PI);
    context.fill();
    return;
  }
  context.moveTo(from.x, from.y);
  context.lineTo(to.x, to.y);
  context.stroke();
}

function redraw() {
  context.clearRect(0, 0, canvas.width, canvas.height);
  const cleared = strokes.findLastIndex((one) => one.clear);
  for (const one of strokes.slice(cleared + 1)) {
    one.points.forEach((point, index) => drawSegment(one, one.points[Math.max(0, index - 1)], point));
  }
  drawTools();
}

function drawTools() {
  $('mask-undo').disabled = strokes.length === 0;
  $('mask-clear').disabled = strokes.length === 0 || Boolean(strokes.at(-1).clear);
  $('mask-erase').setAttribute('aria-pressed', String(erasing));
}

function drawRing() {
  const scale = canvas.clientWidth / canvas.width;
  const ring = $('mask-ring');
  const size = diameter() * scale;
  ring.hidden = false;
  ring.style.width = ring.style.height = `${size}px`;
  ring.style.transform = `translate(${brush.x * scale - size / 2}px, ${brush.y * scale - size / 2}px)`;
}

function inPicture(event) {
  const box = canvas.getBoundingClientRect();
  return { x: ((event.clientX - box.left) * canvas.width) / box.width, y: ((event.clientY - box.top) * canvas.height) / box.height };
}

function begin(point) {
  stroke = { erase: erasing, size: diameter(), points: [point] };
  strokes.push(stroke);
  drawSegment(stroke, point, point);
  drawTools();
}

function extend(point) {
  drawSegment(stroke, stroke.points.at(-1), point);
  stroke.points.push(point);
}

function onPointerDown(event) {
  if (event.button !== 0 || stroke) return;
  canvas.setPointerCapture(event.pointerId);
  canvas.focus({ preventScroll: true });
  brush = inPicture(event);
  begin(brush);
  stroke.pointer = event.pointerId;
  drawRing();
  event.preventDefault();
}

function onPointerMove(event) {
  if (stroke && stroke.pointer !== event.pointerId) return;
  brush = inPicture(event);
  drawRing();
  if (!stroke) return;
  const events = event.getCoalescedEvents?.() ?? [];
  for (const one of events.length ? events : [event]) extend(inPicture(one));
}

function onPointerEnd(event) {
  if (stroke?.pointer === event.pointerId) stroke = null;
}

function onKey(event) {
  const size = $('mask-size');
  const far = diameter() / 2;
  const moves = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] };
  if (event.key in moves) {
    const [x, y] = moves[event.key];
    brush = { x: Math.min(canvas.width, Math.max(0, brush.x + x)), y: Math.min(canvas.height, Math.max(0, brush.y + y)) };
  } else if (event.key === ' ') {
    begin(brush);
    stroke = null;
  } else if (event.key === '[' || event.key === ']') {
    size.value = Number(size.value) + (event.key === ']' ? 2 : -2);
  } else {
    return;
  }
  event.preventDefault();
  drawRing();
}

/** White where the mask is painted, black elsewhere; null for an empty mask. */
function exported() {
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  const { data } = pixels;
  let any = false;
  for (let at = 0; at < data.length; at += 4) {
    const white = data[at + 3] > 127;
    any ||= white;
    data[at] = data[at + 1] = data[at + 2] = white ? 255 : 0;
    data[at + 3] = 255;
  }
  if (!any) return null;
  const output = document.createElement('canvas');
  output.width = canvas.width;
  output.height = canvas.height;
  output.getContext('2d').putImageData(pixels, 0, 0);
  return output.toDataURL('image/png');
}

/** The largest size that shows the whole picture. */
function fit() {
  const area = $('mask-area');
  const scale = Math.min(area.clientWidth / canvas.width, area.clientHeight / canvas.height);
  $('mask-frame').style.width = `${Math.floor(canvas.width * scale)}px`;
  $('mask-frame').style.height = `${Math.floor(canvas.height * scale)}px`;
}

function close(result) {
  stroke = null;
  $('mask').close();
  finish?.(result);
  finish = null;
}

/** Opens the dialog; answers {mask, strokes}, or null when it was left without Done. */
export function paint(picture) {
  canvas.width = picture.width;
  canvas.height = picture.height;
  // Setting a canvas' size forgets its drawing state. The colour is for the eye only: the mask is its alpha.
  context.lineCap = context.lineJoin = 'round';
  context.strokeStyle = context.fillStyle = '#e0431b';
  strokes = [...picture.strokes];
  erasing = false;
  brush = { x: picture.width / 2, y: picture.height / 2 };
  $('mask-picture').src = picture.address;
  $('mask-ring').hidden = true;
  $('mask').showModal();
  fit();
  redraw();
  canvas.focus();
  return new Promise((resolve) => {
    finish = resolve;
  });
}

export function setUpMask() {
  canvas = $('mask-canvas');
  context = canvas.getContext('2d', { willReadFrequently: true });
  canvas.addEventListener('pointerdown', onPointerDown);
  canvas.addEventListener('pointermove', onPointerMove);
  canvas.addEventListener('pointerup', onPointerEnd);
  canvas.addEventListener('pointercancel', onPointerEnd);
  canvas.addEventListener('pointerleave', () => {
    if (!stroke) $('mask-ring').hidden = true;
  });
  canvas.addEventListener('keydown', onKey);
  $('mask-size').addEventListener('input', drawRing);
  $('mask-erase').addEventListener('click', () => {
    erasing = !erasing;
    drawTools();
  });
  $('mask-undo').addEventListener('click', () => {
    strokes.pop();
    redraw();
  });
  $('mask-clear').addEventListener('click', () => {
    strokes.push({ clear: true });
    redraw();
  });
  $('mask-done').addEventListener('click', () => close({ mask: exported(), strokes }));
  $('mask-cancel').addEventListener('click', () => close(null));
  $('mask').addEventListener('cancel', (event) => {
    event.preventDefault();
    close(null);
  });
  new ResizeObserver(() => {
    if ($('mask').open) fit();
  }).observe($('mask-area'));
}
