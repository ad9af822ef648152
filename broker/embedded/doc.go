// Package embedded runs the laptop's servers in this process on loopback: one server speaks Kafka's
// protocol, and the other speaks Redis's.
//
// The Kafka server is kfake with a data folder. kfake calls itself a broker for testing and has no
// tagged release; we pin its version and run the same suite against kfake and against Apache Kafka.
// Acknowledged data, committed offsets, topics and their settings survive kill -9, and a power cut
// too with Options.Sync.
//
// Two things are not safe. Compaction can lose keys if the process is killed, so topics with
// compaction are refused. After kill -9, only a part of a transaction over many partitions may be
// stored. Its outputs may be stored without its offsets, but not the other way round. Other losses
// after a kill are repaired before clients are served: producers' sequences, the aborts of open
// transactions, and the last line of the index.
//
// The Redis server is miniredis. After a clean stop the next start of the same build has its keys again.
// After a kill it is empty, because everything in Redis can be refilled from Kafka.
//
// With Options.Passwords both servers ask for passwords, which are files of the data folder.
//
// This package runs retention itself, because kfake's own timer starts only when a topic is created
// or altered, and not after a restart. Retention removes whole segments; the active segment is
// removed only after all of it has expired. Expired records are hidden from readers at once.
package embedded
