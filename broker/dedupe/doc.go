// Package dedupe recognises events that were published before, so that an event which is sent again
// after a missing answer is stored only once.
//
// # Design
//
// An event is known by its stream, source and id. Before a gateway stores an event, it asks whether
// the event is known: Seen, or Ask for many at once. After all in-sync replicas have the event, it
// marks it (Mark). Every gateway keeps the marks of a stream in memory, its own and those of the
// other gateways, and so answers from memory. A gateway writes its marks to a Redis stream; one
// entry holds the marks of some milliseconds. The other gateways read the marks from Redis, and so
// does a gateway that starts. A gateway that starts while Redis knows nothing of a stream has read
// the log instead (Recall). If that gateway is killed before Redis has all of its marks, the next
// one reads the log again: BeginRecall leaves a note in Redis, and EndRecall drops it.
//
// Deduplication loses no event. A mark is made only for an event that is on the log, so an event
// that is reported as seen is on the log. A process that creates a stream makes all gateways forget
// the earlier marks of its name (Forget). A marked event can be missing only if other tools delete
// and create a topic again.
//
// A repeated event may be stored twice. This happens in four cases: two requests with one event ask
// before either has marked the event; a gateway has not yet read a mark that another made some
// milliseconds ago; a gateway dies before it has written a mark; or Redis is away, was flushed, or
// dropped the oldest marks to stay within the limit. Consumers are idempotent by source and id, so
// a repeat costs only space. In every doubt the event counts as not seen.
//
// Callers and runTrips share the memory of each stream under one lock, which is held for some
// hundred nanoseconds. The goroutine runTrips owns the connection. A trip is one exchange with
// Redis. The trip writes the waiting marks and reads those of other gateways, for all streams with
// a question or mark since the last trip.
//
// A gateway's knowledge of other gateways' marks may be older than Options.Stale only if no caller
// has asked for longer than that. Then the next caller waits for a trip, and later callers wait for
// the same trip. While callers keep asking, runTrips makes a trip after each half of that time, and
// no caller waits. So a single call sees all earlier marks, a trip under load carries hundreds of
// marks, and an idle gateway sends Redis nothing.
//
// No caller waits longer than Options.Patience for Redis. A trip that fails opens the circuit. From
// then on the gateway uses only its own knowledge. Only runTrips tries Redis again, with longer and
// longer pauses, and with the marks made meanwhile. For a stream 65,536 such marks are kept; older
// marks are dropped and counted. Mark never waits.
//
// A gateway forgets in generations (marksKnown). It makes Redis drop marks that are older than the
// gateway's oldest mark, so that Redis holds no more than the gateway. The time is stored with each
// digest, so the caller chooses the exact window. A window that changes in the config, or that
// differs between gateways for a while, needs no special care. Times come from the gateways'
// clocks: a clock that is wrong by a second makes windows wrong by a second. Keys expire by
// themselves. Each key has the stream's name in braces, so that a Redis Cluster keeps a stream's
// keys together.
//
// A gateway could ask Redis about every event instead, and would then know marks of the last
// milliseconds too. Each event would then take 1.5 times the CPU and wait for two more processes.
//
// Redis must support PING, EXISTS, SET, XADD, XREAD, PEXPIRE and UNLINK, the last within MULTI and EXEC.
package dedupe
