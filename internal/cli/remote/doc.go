// Package remote has the commands about the nouns of an install: streams, triggers, data, runs, models and scorers.
// They call a gateway, and some of them Kafka.
package remote
