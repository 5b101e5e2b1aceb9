// What the server tells: the seconds that it still has, then one more every second. Reconnects for ever.

const SILENCE_MS = 6000; // a second is told of every second, so this long a silence is a lost connection
const GRACE_MS = 1500; // what came in while this page was busy is taken in first
const RETRY_MS = [500, 1000, 2000, 4000];
const KEPT = 1200;

export class Feed extends EventTarget {
  state = "connecting";
  about = null;
  notice = null;
  buckets = [];
  heard = null; // when anything was received last
  #source = null;
  #instance = null;
  #tries = 0;
  #timer = null;

  async connect() {
    clearTimeout(this.#timer);
    this.#source?.close();
    try {
      const answer = await fetch("history", { cache: "no-store" });
      if (!answer.ok) throw new Error(`history: ${answer.status}`);
      const { buckets, ...head } = await answer.json();
      this.buckets = buckets;
      this.#take(head);
    } catch {
      this.#lose();
      return;
    }
    this.#listen();
  }

  #listen() {
    const after = this.buckets.at(-1)?.t;
    const source = new EventSource(after === undefined ? "events" : `events?after=${after}`);
    this.#source = source;
    source.addEventListener("hello", (event) => {
      const head = JSON.parse(event.data);
      if (head.instance !== this.#instance) this.connect(); // another server: what it has is another story
      else this.#take(head);
    });
    source.addEventListener("bucket", (event) => {
      const bucket = JSON.parse(event.data);
      if (this.buckets.length && bucket.t <= this.buckets.at(-1).t) return;
      this.buckets.push(bucket);
      if (this.buckets.length > KEPT) this.buckets.splice(0, this.buckets.length - KEPT);
      this.#hear();
    });
    source.addEventListener("error", () => this.#lose());
  }

  #take({ instance, about, notice }) {
    this.#instance = instance;
    this.about = about;
    this.notice = notice;
    this.#hear();
  }

  #hear() {
    this.state = "live";
    this.heard = new Date();
    this.#tries = 0;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#timer = setTimeout(() => this.#lose(), GRACE_MS);
    }, SILENCE_MS);
    this.dispatchEvent(new Event("change"));
  }

  #lose() {
    this.#source?.close();
    clearTimeout(this.#timer);
    this.state = "lost";
    this.#timer = setTimeout(() => this.connect(), RETRY_MS[Math.min(this.#tries++, RETRY_MS.length - 1)]);
    this.dispatchEvent(new Event("change"));
  }
}
