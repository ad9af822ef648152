// Package dedupe knows which events were published before, so that a
// publisher who sends again what it had no answer for does not store it twice.
//
// # Design
//
// An event is known by its stream, source and id. Whoever wants to store one
// asks first (Seen, or Ask for many at once) and, once all in-sync replicas
// have it, marks it (Mark). Every gateway keeps the marks of a stream in its own
// memory, its own and those of others, and so answers without asking anyone.
// What it marks it writes to a Redis stream, some milliseconds of marks an
// entry; from there the others read it, and so does a gateway that starts. One
// that starts where Redis knows nothing has read the log instead (Recall).
//
// Nothing is lost by it. A mark is made only for an event that is on the log,
// so whoever is told "seen" has his event there: whoever makes a stream has all
// earlier marks of its name forgotten (Forget), and only a topic that is deleted
// and made anew with other tools takes events away that are still marked. The
// other way round a repeat may slip through, and is stored twice: two requests
// with one event ask before either has marked; a gateway has yet to read what
// another marked some milliseconds ago; a gateway dies before it has written a
// mark; Redis is away, was flushed, or forgot the oldest to stay within the
// limit. Consumers are idempotent by source and id, so that costs room and no
// more. The same reasoning decides every doubt here: not sure is not seen.
//
// Who owns what: callers and run share the shelves under the one lock, for some
// hundred nanoseconds. One goroutine, run, owns the connection. A trip writes
// the marks that wait and reads what others wrote, of all streams that
// somebody asked about or marked since.
//
// Who waits for whom: what a gateway knows of others may be older than
// Options.Stale only where nobody has asked for longer than that. The first who
// does waits for a trip, and the others with him; while they keep asking, run
// makes a trip each half of that time and nobody waits. So a lone call sees
// all that was marked before it, under load a trip carries hundreds of marks,
// and an idle gateway asks Redis nothing. Nobody waits longer than
// Options.Patience for a Redis that does not answer: a trip that fails opens
// the circuit, and from then on a gateway goes by what it knows itself. run
// alone tries again, less and less often, with the marks that were made
// meanwhile; the shelf of a stream holds 65,536 of them, and beyond that the
// oldest are dropped, and counted. Mark never waits.
//
// A gateway forgets in generations (known), and has Redis forget what is older
// than its own oldest mark, so that there lies no more than in its memory. Since
// the time stands beside each digest, the window is exact and is the asker's
// own: one that changes in the config, or differs among gateways for a while,
// needs nothing. Times are the gateways' clocks; one that is wrong by a second
// makes windows wrong by a second. Keys expire by themselves, and have the
// stream in braces, so that a Redis Cluster keeps a stream's keys together.
//
// A gateway could ask Redis about every event instead, and be sure of what
// others marked a moment ago. It would cost half as much CPU again for every
// event, and every event would wait for two more processes.
//
// Redis is asked for PING, EXISTS, XADD, XREAD, PEXPIRE and UNLINK, the latter within
// MULTI and EXEC.
package dedupe
