// When what a page shows was last asked for: by itself, as time goes on, or because the reader
// wants it. Nothing is asked while the page is hidden or paused.
import { html, useState, useEffect } from "../vendor/preact.mjs";
import { ago } from "./fmt.js";
import { Icon } from "./icon.js";

let turn = 0, stopped = false, answers = { ranged: 0, other: 0 };
const listeners = new Set();
const tell = () => { for (const f of listeners) f(); };

// isPaused reports whether the page asks for nothing by itself.
export const isPaused = () => stopped;
export function pause(yes) {
  if (stopped === yes) return;
  stopped = yes;
  if (yes) tell(); else refresh();
}

// refresh asks for everything on the page again, also for what is kept.
export function refresh() {
  turn++;
  tell();
}

// turns is how often everything was asked for again.
export const turns = () => turn;

// useTurn returns a number that changes with each refresh.
export function useTurn() {
  const [at, set] = useState(turn);
  useEffect(() => {
    const changed = () => set(turn);
    changed();
    listeners.add(changed);
    return () => listeners.delete(changed);
  }, []);
  return at;
}

// answered notes an answer of the server: of the range, or one that is asked for every so many ms.
export function answered(every) { answers[every ? "other" : "ranged"] = Date.now(); }

// began forgets the answers of the page before.
export function began() {
  answers = { ranged: 0, other: 0 };
  pause(false);
}

// Refresh says how old the figures of the range are, asks for them again, and pauses.
export function Refresh({ path, moves }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const draw = () => { if (!document.hidden) tick((n) => n + 1); };
    const timer = setInterval(draw, 1000);
    listeners.add(draw);
    document.addEventListener("visibilitychange", draw);
    return () => { clearInterval(timer); listeners.delete(draw); document.removeEventListener("visibilitychange", draw); };
  }, []);
  useEffect(() => { began(); }, [path]);
  const at = answers.ranged || answers.other, old = at ? ago(at) : "…", what = stopped ? "paused" : moves ? "it moves with time" : "the range is fixed";
  return html`<div class="fresh"><button type="button" class="tool" id="refresh" onClick=${refresh} aria-label=${"refresh, updated " + old} title=${"refresh (r): updated " + old + ", " + what}><${Icon} name="refresh" /><span class="num">${old}</span></button>
    <button type="button" class="tool" id="auto" onClick=${() => pause(!stopped)} aria-pressed=${stopped ? "true" : "false"} aria-label="pause" title=${stopped ? "go on: refresh by itself" : "pause automatic refresh"}><${Icon} name=${stopped ? "play" : "pause"} /></button></div>`;
}
