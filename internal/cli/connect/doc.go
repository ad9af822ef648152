// Package connect has the flags that many commands share, and what they open: a gateway or Kafka that
// the command talks to, the config, and the HTTP server of a process.
package connect
