// Package broker publishes, consumes and transacts CloudEvents over Kafka without losing or
// doubling any of them. [Broker] is the one concrete type to start from. Read DESIGN.md first.
package broker
