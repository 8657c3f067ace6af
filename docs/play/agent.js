// Agents that `rollmill export` wrote as ONNX files, run in the page by onnxruntime-web.

const RUNTIME = new URL("onnxruntime-web/", import.meta.url);

/** An agent; it acts deterministically. */
export class Agent {
  #runtime;
  #session;
  #last = Promise.resolve(); // A session runs one observation at a time.

  constructor(runtime, session) {
    this.#runtime = runtime;
    this.#session = session;
  }

  /**
   * Load an agent.
   *
   * @param {URL} file The ONNX file.
   * @throws {Error} The runtime or the file cannot be loaded; the message is for the visitor.
   */
  static async load(file) {
    let runtime;
    try {
      runtime = await import(new URL("ort.wasm.bundle.min.mjs", RUNTIME).href);
    } catch {
      throw new Error("This site was built without onnxruntime-web. Install npm, then run “make docs” again.");
    }
    runtime.env.wasm.wasmPaths = { wasm: new URL("ort-wasm-simd-threaded.wasm", RUNTIME).href };
    runtime.env.wasm.numThreads = 1; // Threads need headers that a plain web server does not send.
    const response = await fetch(file);
    if (!response.ok) throw new Error(`The agent could not be loaded (${response.status} ${response.statusText}).`);
    const options = { executionProviders: ["wasm"] };
    const session = await runtime.InferenceSession.create(await response.arrayBuffer(), options);
    return new Agent(runtime, session);
  }

  /**
   * Act on one observation.
   *
   * @param {Object<string, {dtype: string, shape: number[], data: TypedArray}>} arrays The inputs by name, without the
   *     batch axis; a bool is a byte.
   * @returns {Promise<{action: number, value: number}>} The best choice, and the value that the critic expects.
   */
  act(arrays) {
    const acted = this.#last.then(() => this.#run(arrays));
    this.#last = acted.catch(() => {});
    return acted;
  }

  async #run(arrays) {
    const inputs = {};
    for (const [name, { dtype, shape, data }] of Object.entries(arrays)) {
      inputs[name] = new this.#runtime.Tensor(dtype, data, [1, ...shape]);
    }
    const { action, value } = await this.#session.run(inputs);
    return { action: Number(action.data[0]), value: value.data[0] };
  }
}
