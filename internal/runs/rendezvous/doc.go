// Package rendezvous brings the workers and parameter servers of an attempt together: each reports
// that it is ready, and the answer says whether all are ready. The state is in Redis, so every
// gateway can take the reports. If Redis loses the state, each worker reports again with its next
// heartbeat.
package rendezvous
