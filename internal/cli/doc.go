// Package cli is the commands of the tidemill binary. A command is a struct whose fields are its
// flags. It talks to a gateway or directly to Kafka. The package may import all others; only
// cmd/tidemill imports it.
package cli
