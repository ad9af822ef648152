// Package agent is our small process around the user's command inside an
// attempt: it fetches inputs, runs the command, streams logs and metrics, saves
// checkpoints, uploads what was made, and reports. It speaks only HTTP to the
// gateway, with the token of its attempt.
package agent
