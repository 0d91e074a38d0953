/** A notice of the browser when a deliberation ends while its tab is hidden. */

import { html, signal } from "./html.js";
import { Icon } from "./parts.js";
import { kept } from "./state.js";

/** "on" where the reader asked for notices. */
const wanted = kept("notices", "off");
const allowed = signal(globalThis.Notification?.permission === "granted");
const on = () => wanted.value === "on" && allowed.value;

/** Shows `words` about what `target` is the address of. */
export function notify(words, body, target) {
  if (!on() || !document.hidden) return;
  const notice = new Notification(words, { body, tag: target });
  notice.onclick = () => {
    focus();
    location.hash = target;
    notice.close();
  };
}

/** A switch for notices; nothing where the browser has none, as on plain http. */
export function NoticeSwitch() {
  if (globalThis.Notification === undefined || !isSecureContext) return null;
  const turn = async () => {
    if (on()) {
      wanted.value = "off";
      return;
    }
    allowed.value = (await Notification.requestPermission()) === "granted";
    wanted.value = allowed.value ? "on" : "off";
  };
  return html`<button class="btn" aria-pressed=${on()} title="A notice when it ends while another tab is in front" onClick=${turn}><${Icon} name="bell" />${on() ? "Will tell you" : "Tell me when done"}</button>`;
}
