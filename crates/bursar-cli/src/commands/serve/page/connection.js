// Asks the server again and again, with the token if it wants one, and says when it cannot be reached.

const POLL_MS = 500;
const PATIENCE_MS = 4000;

class Connection {
  constructor(heard) {
    this.heard = heard;
    this.lostSince = null;
    this.last = null;
    const asked = /^#token=(.+)$/.exec(location.hash);
    if (asked) {
      sessionStorage.setItem("bursar-token", decodeURIComponent(asked[1]));
      history.replaceState(null, "", location.pathname);
    }
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem("bursar-token", byId("token").value.trim());
      this.isAsked = true;
      this.poll();
    });
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
    setInterval(() => this.showStatus(), 500);
  }

  /** Gets JSON; throws what went wrong. */
  async get(path) {
    const token = sessionStorage.getItem("bursar-token");
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (answer.status === 401) throw new Unauthorised();
    if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
    return answer.json();
  }

  /** Gets the state, shows it, and comes back. */
  async poll() {
    clearTimeout(this.timer);
    if (this.isPolling) return;
    this.isPolling = true;
    try {
      const state = await this.get("api/state");
      const wasLost = this.lostSince !== null || this.last === null;
      [this.lostSince, this.trouble, this.last, this.heardAt] = [null, null, state.at_ms, Date.now()];
      byId("token-form").hidden = true;
      this.heard(state, wasLost);
    } catch (error) {
      if (error instanceof Unauthorised) {
        byId("token-wrong").hidden = !this.isAsked;
        if (byId("token-form").hidden) {
          byId("token-form").hidden = false;
          byId("token").focus();
        }
        this.isAsked = false;
        this.trouble = "a token is needed";
      } else {
        this.lostSince ??= Date.now();
        this.trouble = error instanceof TypeError || error.name === "TimeoutError" ? null : error.message;
      }
    } finally {
      this.isPolling = false;
      this.showStatus();
      this.timer = setTimeout(() => this.poll(), POLL_MS);
    }
  }

  showStatus() {
    const isLost = this.lostSince !== null;
    byId("status").className = `status ${isLost || this.trouble ? "lost" : this.last === null ? "" : "live"}`;
    document.documentElement.classList.toggle("stale", isLost);
    const text = isLost
      ? `not reachable since ${clock(this.lostSince)}${this.trouble ? `: ${this.trouble}` : ""}`
      : this.trouble ?? (this.last === null ? "connecting" : "live");
    say(byId("status-text"), text);
  }
}

class Unauthorised extends Error {}
