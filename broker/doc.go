// Package broker publishes, consumes and transacts CloudEvents over Kafka. It neither loses nor
// doubles an event. Start from the type [Broker], and read DESIGN.md first.
package broker
