// The search runs in a worker. A page that is opened from a folder (file://) may not start one, so
// there the worker's script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const later = (call) => setTimeout(call, 0);
      inside.postMessage = (data) => later(() => this.onmessage?.({ data }));
      const loaded = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = url;
        inside.document.body.append(script);
      });
      loaded.catch((error) => this.onerror?.(error));
      this.postMessage = (data) => loaded.then(() => inside.onmessage?.({ data }));
      this.terminate = () => frame.remove();
    }
  };
}
