// Fetches the same data again and again, with one request at a time. Pure but for the clock and its timers.

const REFRESH_MS = 2_000; // between two requests for data that changes all the time
const RETRY_MS = 5_000; // after an error

export class Loader {
  #timer = 0;
  #dueMs = Infinity;
  #loading = false;
  #next = Infinity; // how long after the request in progress another one is needed
  #loadedMs = -Infinity;
  #stopped = false;

  /** `load`: an async function; `publish`: gets {data} or {error}; `pauseMs`: how long data stays fresh. */
  constructor(load, publish, pauseMs) {
    this.load = load;
    this.publish = publish;
    this.pauseMs = pauseMs;
    this.#run();
  }

  /** Something has changed: fetch again soon. */
  refresh() {
    this.#plan(Math.max(0, this.#loadedMs + REFRESH_MS - Date.now()), REFRESH_MS);
  }

  /** Something has been changed here: fetch again now. */
  reload() {
    this.#plan(0, 0);
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  #plan(waitMs, afterMs) {
    if (this.#stopped) return;
    if (this.#loading) {
      this.#next = Math.min(this.#next, afterMs);
    } else if (Date.now() + waitMs < this.#dueMs) {
      clearTimeout(this.#timer);
      this.#dueMs = Date.now() + waitMs;
      this.#timer = setTimeout(() => this.#run(), waitMs);
    }
  }

  async #run() {
    this.#loading = true;
    this.#dueMs = this.#next = Infinity;
    let pauseMs = RETRY_MS;
    let result;
    try {
      result = { data: await this.load() };
      pauseMs = this.pauseMs();
    } catch (error) {
      result = { error };
    }
    this.#loading = false;
    this.#loadedMs = Date.now();
    if (this.#stopped) return;
    this.publish(result);
    this.#plan(Math.min(pauseMs, this.#next), 0);
  }
}
