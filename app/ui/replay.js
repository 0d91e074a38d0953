/** Replay: the council as its recorded facts tell it up to a moment. */

import { Council } from "./council.js";
import { html, useEffect, useMemo, useState } from "./html.js";
import { Lanes, Rail } from "./lanes.js";
import { Icon } from "./parts.js";
import { callsInWords, whySlow } from "./sentences.js";
import { Waterfall } from "./waterfall.js";
import { at, duration, family, sentence } from "./words.js";

const SPEEDS = [1, 4, 16];
const FRAME_MS = 100;

export function Replay({ resource, council, read }) {
  const from = council.startedAt;
  const end = council.endedAt ?? at(council.events.at(-1).ts);
  const whole = Math.max(1, end - from);
  const [moment, setMoment] = useState(whole);
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(whole > 60_000 ? 16 : whole > 20_000 ? 4 : 1);
  useEffect(() => {
    if (!playing) return () => {};
    const timer = setInterval(() => setMoment((before) => {
      const next = before + FRAME_MS * speed;
      if (next < whole) return next;
      setPlaying(false);
      return whole;
    }), FRAME_MS);
    return () => clearInterval(timer);
  }, [playing, speed, whole]);
  const seen = council.events.findLastIndex((event) => at(event.ts) <= from + moment) + 1;
  const past = useMemo(() => new Council(council.events.slice(0, seen)), [council, seen]);
  const share = (ts) => `${((100 * (ts - from)) / whole).toFixed(2)}%`;
  const play = () => {
    if (moment >= whole) setMoment(0);
    setPlaying(!playing);
  };
  return html`<section class="block" id="replay" aria-labelledby="ph"><header><h2 id="ph">Replay</h2><p>Every recorded fact, at its own time. Drag to see the council as it was at that moment.</p></header>
    <div class="time"><h3>Where the time went</h3><ul class="said">${whySlow(council, read.name).map((words) => html`<li key=${words}>${words}</li>`)}</ul></div>
    <div class="replay"><button class="btn sq primary" aria-label=${playing ? "Pause" : "Play"} onClick=${play}><${Icon} name=${playing ? "pause" : "play"} large /></button>
      <div class="grow"><div class="track">${council.stages.map(({ stage, purpose, openedAt, closedAt }) => html`<span key=${stage} class=${`seg-b ${family(purpose)}`} style=${{ "--x": share(openedAt), "--w": `${((100 * ((closedAt ?? end) - openedAt)) / whole).toFixed(2)}%` }}><span>${purpose}</span></span>`)}
        <span class="whole"></span><span class="past" style=${{ "--x": share(from + moment) }}></span>
        <input type="range" min="0" max=${whole} step="any" value=${moment} aria-label="Moment" aria-valuetext=${duration(moment)} onInput=${(event) => { setPlaying(false); setMoment(Number(event.target.value)); }} /><span class="head-k" style=${{ "--x": share(from + moment) }}></span></div></div>
      <div class="row"><span class="body nowrap"><b>${duration(moment)}</b> <span class="muted">of ${duration(whole)}</span></span><div class="seg" role="group" aria-label="Speed">${SPEEDS.map((each) => html`<button key=${each} aria-pressed=${each === speed} onClick=${() => setSpeed(each)}>${each}×</button>`)}</div></div></div>
    <${Rail} council=${past} until=${from + moment} /><${Lanes} resource=${resource} council=${past} live=${false} names=${(id) => (read.shown ? id : sentence(read.name(id)))} />
    <details class="calls"><summary>${callsInWords(past)}</summary><${Waterfall} council=${past} until=${from + moment} live=${false} named=${read.shown} names=${(id) => sentence(read.name(id))} /></details></section>`;
}
