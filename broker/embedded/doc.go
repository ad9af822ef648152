// Package embedded is the laptop's servers: one that speaks Kafka's protocol
// and one that speaks Redis's, in this process, on loopback.
//
// The Kafka server is kfake with its data folder. It calls itself a broker for
// testing and has no tagged release; we pin it and run the same suite against
// it and against Apache Kafka. What it keeps: data it has acknowledged,
// committed offsets, topics and their settings survive kill -9, and a power
// cut too with Options.Sync. What it does not: its compaction loses keys when
// killed, so no topic here may ask for it, and a transaction over many
// partitions can be torn by kill -9 (outputs ahead of offsets, never behind).
// What else it loses when killed is mended before it serves anyone: producers'
// sequences, the aborts of open transactions, the index's last line.
//
// The Redis server is miniredis. It persists nothing, and need not: whatever
// we keep in Redis is refilled from Kafka.
//
// Retention is ours to run: kfake's own clock for it starts only when a topic
// is made or altered, so not after a restart. It removes whole segments, and
// the one being written only once all of it has expired; what has expired is
// out of readers' reach at once.
package embedded
