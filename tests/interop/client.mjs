// Runs one scenario with the official client, and prints the result as JSON.
//
// node --input-type=module - SCENARIO URL < client.mjs

import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const [scenario, url] = process.argv.slice(2)

const create = (contentType) => DurableStream.create({ url, contentType })

// Append each message when the previous one was read, so that all but the first arrive live.
async function follow(handle, live, texts) {
  const [first, ...later] = texts
  await handle.append(JSON.stringify(first))
  const session = await handle.stream({ offset: "-1", live })
  const seen = []
  session.subscribeJson(async (batch) => {
    seen.push(...batch.items)
    if (batch.items.length === 0) return
    if (later.length > 0) await handle.append(JSON.stringify(later.shift()))
    else await handle.close()
  })
  await session.closed
  return { seen, closed: session.streamClosed, offset: session.offset }
}

// Run a producer until everything is flushed; return its state and the names of its errors.
async function produce(handle, id, options, values) {
  const errors = []
  const producer = new IdempotentProducer(handle, id, {
    ...options,
    onError: (error) => errors.push(error.name),
  })
  for (const value of values) producer.append(JSON.stringify(value))
  await producer.flush().catch((error) => errors.push(error.name))
  return { errors, epoch: producer.epoch, next: producer.nextSeq, pending: producer.pendingCount }
}

const scenarios = {
  async everyday() {
    const handle = await create("application/json")
    await handle.append(JSON.stringify({ id: 1 }), { seq: "a" })
    await Promise.all([2, 3, 4].map((id) => handle.append(JSON.stringify({ id }))))
    const head = await handle.head()
    const session = await handle.stream({ live: false })
    const items = await session.json()
    const rest = await (await handle.stream({ live: false, offset: session.offset })).json()
    return { items, rest, type: head.contentType, offset: head.offset, end: session.offset }
  },

  async bytes() {
    const handle = await create("application/octet-stream")
    await handle.append(new Uint8Array([0, 255]))
    await handle.append(new Uint8Array([10, 13]))
    const session = await handle.stream({ live: false })
    return [...(await session.body())]
  },

  async ends() {
    const handle = await create("text/plain")
    await handle.append("a")
    const { finalOffset } = await handle.close({ body: "b" })
    const late = await handle.append("c").catch((error) => error)
    await handle.delete()
    const { exists } = await DurableStream.head({ url })
    return { finalOffset, refused: late.status, closed: late.headers["stream-closed"], exists }
  },

  async "long-poll"() {
    return follow(await create("application/json"), "long-poll", [1, 2, 3])
  },

  async sse() {
    return follow(await create("application/json"), "sse", [1, 2, 3])
  },

  async producer() {
    const handle = await create("application/json")
    const values = Array.from({ length: 500 }, (_, n) => n)
    // Small batches, so that many are in flight.
    return produce(handle, "p", { maxBatchBytes: 64, lingerMs: 0 }, values)
  },

  async claim() {
    const handle = await create("application/json")
    const first = await produce(handle, "p", { epoch: 4 }, ["a"])
    const second = await produce(handle, "p", { autoClaim: true }, ["b", "c"])
    const zombie = await produce(handle, "p", { epoch: 4 }, ["x"])
    return { first, second, zombie }
  },
}

process.stdout.write(JSON.stringify(await scenarios[scenario]()))
process.exit(0)
